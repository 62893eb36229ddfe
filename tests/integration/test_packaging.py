"""The wheel as a user gets it: its contents, and `pgrag` from an environment that has nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import psycopg
import pytest

from pgrag import __version__
from tests.support.limits import PROGRAM_SECONDS

ROOT = Path(__file__).resolve().parents[2]
DIST_INFO = f"pgrag_graph-{__version__}.dist-info"


def run(command: list[str], *, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the user's environment, less what would lead it back to this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PGRAG_", "PYTHON", "VIRTUAL_"))}
    return subprocess.run(
        command,
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    result = run(command, cwd=out)
    assert result.returncode == 0, result.stdout + result.stderr
    [built] = out.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_with_both_sql_trees_and_nothing_beside_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"pgrag", DIST_INFO}
    assert {"pgrag/_alembic/env.py", "pgrag/py.typed", "pgrag/__main__.py", "pgrag/cli/app.py"} <= set(names)
    shipped = {name.removeprefix("pgrag/_sql/") for name in names if name.startswith("pgrag/_sql/")}
    assert {path.name for path in (ROOT / "sql").glob("*.sql")} == {name for name in shipped if name.endswith(".sql")}
    versions = {name.rsplit("/", 1)[1] for name in names if name.startswith("pgrag/_alembic/versions/")}
    assert {path.name for path in (ROOT / "alembic/versions").glob("*.py")} <= versions
    assert not [name for name in names if name.endswith(".pyc")]


def test_the_metadata_names_the_distribution_the_command_and_the_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"{DIST_INFO}/METADATA").decode()
        entry_points = archive.read(f"{DIST_INFO}/entry_points.txt").decode()
        assert b"MIT License" in archive.read(f"{DIST_INFO}/licenses/LICENSE")
    assert "\nName: pgrag-graph\n" in metadata
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nProvides-Extra: local\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert entry_points.split() == ["[console_scripts]", "pgrag", "=", "pgrag.cli:main"]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `pgrag` command in a new environment, installed with its real dependencies as README.md says (about 40 s)."""
    home = tmp_path_factory.mktemp("clean")
    venv = home / "venv"
    assert run([sys.executable, "-m", "venv", str(venv)], cwd=home).returncode == 0
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    young = ["--no-deps", "--require-hashes", "--requirement", str(ROOT / "requirements/young.txt")]
    for words in (young, ["--constraint", str(ROOT / "constraints.txt"), f"{wheel}[local]"]):
        result = run([*pip, *words], cwd=home)
        assert result.returncode == 0, result.stderr
    return venv / "bin/pgrag"


@pytest.mark.slow
def test_the_installed_command_prints_its_version(installed: Path, tmp_path: Path) -> None:
    result = run([str(installed), "--version"], cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"pgrag {__version__}\n", "")


@pytest.mark.slow
def test_the_installed_command_creates_a_workspace(installed: Path, tmp_path: Path, empty_dsn: str) -> None:
    """Nothing of this checkout is within reach: migrations and SQL code come out of the wheel."""
    first, second = (run([str(installed), "--json", "init"], cwd=tmp_path, PGRAG_DSN=empty_dsn) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert json.loads(first.stdout) == {"workspace": "default", "schema": "pgrag", "created": True}
    assert json.loads(second.stdout) == {"workspace": "default", "schema": "pgrag", "created": False}
    with psycopg.connect(empty_dsn) as connection:
        [(model, dimension)] = connection.execute("select embedding_model, dimension from pgrag.meta").fetchall()
        functions = connection.execute("select count(*) from pg_proc where pronamespace = 'pgrag'::regnamespace")
        [(found,)] = functions.fetchall()
    assert (model, dimension) == ("multilingual-e5-small", 384)
    assert found > 0, "the code tree is in the database"
    check = run([str(installed), "db", "check"], cwd=tmp_path, PGRAG_DSN=empty_dsn)
    assert check.returncode == 0, check.stdout + check.stderr
