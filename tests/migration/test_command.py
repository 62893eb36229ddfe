"""`alembic` run by hand in the project's directory."""

from __future__ import annotations

import os
import subprocess
import sys

from pgrag.database.migrate import check, initialise
from tests.migration.support import PROJECT, Identity, Release, age_code, fingerprint, head, one, run, settings_for


def alembic(dsn: str, *arguments: str, release: Release | None = None) -> subprocess.CompletedProcess[str]:
    env = {**(release.env() if release else os.environ), "PGRAG_DSN": dsn}
    env.pop("PGRAG_WORKSPACE", None)
    return subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        capture_output=True,
        text=True,
        cwd=release.directory if release else PROJECT,
        env=env,
    )


def test_upgrades_one_workspace_and_its_code(made: str, release: Release) -> None:
    initialise(settings_for(made, "acme"), Identity(dimension=7))
    default = fingerprint(made)
    release.add_revision(
        "from alembic import context\n"
        "    d = context.config.attributes['dimension']\n"
        "    op.execute(f'create table added as select {d} as dimension')"
    )
    release.write("sql/99_more.sql", "create view more as select dimension from added;")
    result = alembic(made, "-x", "workspace=acme", "upgrade", "head", release=release)
    assert result.returncode == 0, result.stderr
    assert one(made, "select dimension from pgrag_acme.more") == 7
    assert run(made, "select version_num from pgrag_acme.alembic_version") == [("next",)]
    assert fingerprint(made) == default


def test_rebuilds_code_even_without_a_new_revision(made: str) -> None:
    age_code(made)
    assert alembic(made, "upgrade", "head").returncode == 0
    assert check(settings_for(made)) == []


def test_refuses_a_downgrade_and_changes_nothing(made: str) -> None:
    before = fingerprint(made)
    result = alembic(made, "downgrade", "base")
    assert result.returncode != 0
    assert "pgrag does not downgrade data: restore a backup" in result.stderr + result.stdout
    assert "Traceback" not in result.stderr
    assert fingerprint(made) == before


def test_refuses_to_write_a_script(made: str) -> None:
    result = alembic(made, "upgrade", "head", "--sql")
    assert result.returncode != 0
    assert "--sql is refused" in result.stderr + result.stdout


def test_says_what_is_missing(empty_dsn: str) -> None:
    result = alembic(empty_dsn, "-x", "workspace=acme", "upgrade", "head")
    assert result.returncode != 0
    assert "there is no workspace acme (schema pgrag_acme)" in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


def test_refuses_a_wrong_workspace_name(empty_dsn: str) -> None:
    result = alembic(empty_dsn, "-x", "workspace=a;b", "current")
    assert result.returncode != 0
    assert "setting workspace given as workspace: String should match pattern" in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


def test_current_and_check_read_only(made: str) -> None:
    run(made, "create table public.of_another_program (x int)")
    before = fingerprint(made)
    result = alembic(made, "current")
    assert result.stdout.strip() == f"{head()} (head)", result.stderr
    result = alembic(made, "check")
    assert result.returncode == 0, result.stderr + result.stdout
    assert fingerprint(made) == before
    run(made, "alter table pgrag.entity add column extra text")
    result = alembic(made, "check")
    assert result.returncode != 0
    assert "remove_column" in result.stderr + result.stdout
