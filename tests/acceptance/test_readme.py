"""What README and the examples show is run as it stands there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgrag.config import load_settings
from tests.support.limits import PROGRAM_SECONDS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def statements(text: str) -> Iterator[str]:
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    yield from (part.strip() for part in plain.split(";") if part.strip())


def run(argv: list[str], dsn: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PGRAG_DSN": dsn, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        argv, env=environ, cwd=directory, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False
    )


@pytest.mark.models
def test_the_commands_work_as_shown(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "old.md").write_text("# Checkout\n\nThe Falcon team owns Checkout.\n")
    (tmp_path / "docs" / "new.md").write_text("# Falcon\n\nAda Quill leads the Falcon team.\n")
    commands = [line[2:].split(" #")[0] for block in blocks("console") for line in block.splitlines()]
    (tmp_path / "questions.jsonl").write_text(blocks("json")[0], "utf-8")
    paid = ("LLM", "--dry-run", "--make-questions", "--judge")
    shown = [shlex.split(c) for c in commands if c.startswith("pgrag ") and not any(word in c for word in paid)]
    assert {"ingest", "query", "status", "documents", "delete", "eval"} <= {argv[1] for argv in shown}
    for argv in shown:
        yes = ["--yes"] if argv[1] == "delete" else []
        result = run([sys.executable, "-m", *argv, *yes], dsn, tmp_path)
        assert result.returncode == 0, (argv, result.stderr)
        assert "Traceback" not in result.stderr
        assert "warning" not in result.stdout
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [outcome["ranks"][0] for outcome in report["outcomes"]] == [1, 1, 1, 1]
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.models
@pytest.mark.slow
def test_the_examples_are_evaluated_as_shown(dsn: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    [shown] = blocks("console", (ROOT / "examples" / "README.md").read_text("utf-8"))
    for line in shown.splitlines():
        result = run([sys.executable, "-m", *shlex.split(line[2:])], dsn, tmp_path / "examples")
        assert (result.returncode, "Traceback" in result.stderr) == (0, False), result.stderr
    said = result.stdout[result.stdout.index("best by recall@5") :].splitlines()
    kinds = ["single fact", "aggregation", "multi hop", "thematic", "all questions"]
    assert [line.strip().split(":")[0] for line in said[1:6]] == kinds
    assert "warning" not in result.stdout, "every document that gold names is there"
    assert (tmp_path / "examples" / "report.html").is_file()


@pytest.mark.models
def test_the_python_and_sql_work_as_shown(dsn: str, tmp_path: Path) -> None:
    [program] = [block for block in blocks("python") if "ingest_texts" in block]
    result = run([sys.executable, "-c", program], dsn, tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Ada Quill leads the Falcon team. [" in result.stdout
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements("\n".join(blocks("sql"))):
            cursor = connection.execute(statement.replace("pgrag.", "pgrag_readme.").encode())
            assert cursor.fetchall(), statement


@pytest.mark.models
def test_the_synchronous_program_works_as_shown(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "teams.md").write_text("# Falcon\n\nAda Quill leads the Falcon team, which owns Ledgerline.\n")
    [program] = [block for block in blocks("python") if "pgrag.sync" in block]
    result = run([sys.executable, "-c", program], dsn, tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Ada Quill leads the Falcon team, which owns Ledgerline. [1]" in result.stdout


def test_a_large_load_works_as_shown(dsn: str, tmp_path: Path) -> None:
    assert run([sys.executable, "-m", "pgrag", "init"], dsn, tmp_path).returncode == 0
    [shown] = blocks("psql")
    plain = "\n".join(line for line in shown.splitlines() if not line.startswith("--"))
    vector_indexes = "select indexdef from pg_indexes where schemaname = 'pgrag' and indexdef like '%% USING hnsw %%'"
    left = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        before = sorted(connection.execute(vector_indexes).fetchall())
        for statement, end in re.findall(r"(.+?)\s*(;|\\gexec)", plain, re.DOTALL):
            made = connection.execute(statement.encode())
            for (made_statement,) in made.fetchall() if end != ";" else ():
                connection.execute(made_statement)
            left.append(len(connection.execute(vector_indexes).fetchall()))
        assert sorted(connection.execute(vector_indexes).fetchall()) == before
    assert (len(before), min(left)) == (4, 0)
    checked = run([sys.executable, "-m", "pgrag", "db", "check"], dsn, tmp_path)
    assert checked.returncode == 0, checked.stderr


def test_the_settings_file_is_one(tmp_path: Path) -> None:
    (shown,) = blocks("toml")
    other = "\n".join(line[2:] for line in shown.splitlines() if line.startswith("# "))
    for text in (shown, other):
        (tmp_path / "pgrag.toml").write_text(text, "utf-8")
        assert load_settings(environ={}, file=tmp_path / "pgrag.toml").llm_api_base


def test_the_analyst_queries_run(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = [
            connection.execute(s.encode()).fetchall() for s in statements((ROOT / "examples/analyst.sql").read_text())
        ]
    assert len(found) == 8
