"""The commands on a real database, with the keyless models."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import psycopg
import pytest

from pgrag.types import DeleteReport, DocumentInfo, IngestReport, QueryResult, Reference, RefreshReport, Stats
from tests.cli.command import COMMAND, assert_error, environment, pgrag, pgrag_json
from tests.support.limits import PROGRAM_SECONDS

ENGLISH = """# Harbour lights

The lighthouse of Varnholm is kept by Ingrid Solberg. Ingrid Solberg reports to the Coastal Agency in Bergen.

# Repairs

In March the Coastal Agency replaced the lamp of Varnholm after the storm Agathe.
"""
CHINESE = "王小明在上海的东方研究所工作。东方研究所由李华于一九九八年创立。"


def names(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "docs"
    path.mkdir()
    (path / "varnholm.md").write_text(ENGLISH, "utf-8")
    (path / "institute.txt").write_text(CHINESE, "utf-8")
    return path


# ---------------------------------------------------------------- a workspace


def test_init_says_what_it_did_and_may_be_run_again(empty_dsn: str) -> None:
    first, second = pgrag("init", dsn=empty_dsn), pgrag("init", dsn=empty_dsn)
    assert (first.returncode, first.stdout) == (
        0,
        "created workspace default (schema pgrag); next: pgrag ingest PATH\n",
    )
    assert (second.returncode, second.stdout) == (
        0,
        "workspace default (schema pgrag) is there already; nothing changed\n",
    )
    assert pgrag_json("init", "-w", "acme", dsn=empty_dsn) == {
        "workspace": "acme",
        "schema": "pgrag_acme",
        "created": True,
    }


@pytest.mark.parametrize("command", ["query why?", "status", "delete --yes note:1"])
def test_a_workspace_that_is_not_there_is_an_error_with_advice(empty_dsn: str, command: str) -> None:
    assert_error(pgrag(*command.split(), dsn=empty_dsn), 3, "pgrag init")
    with psycopg.connect(empty_dsn) as connection:
        [(schemas,)] = connection.execute("select count(*) from pg_namespace where nspname like 'pgrag%'").fetchall()
    assert schemas == 0, "asking creates nothing"


def test_db_commands(dsn: str) -> None:
    assert pgrag("db", "check", dsn=dsn).stdout == "workspace default is as this release wants it\n"
    assert pgrag_json("db", "check", dsn=dsn) == {"workspace": "default", "problems": []}
    current = pgrag_json("db", "current", dsn=dsn)
    assert set(current) == {"workspace", "revision"}
    assert pgrag("db", "current", dsn=dsn).stdout == current["revision"] + "\n"
    assert pgrag("db", "upgrade", dsn=dsn).stdout == "default: nothing to upgrade\n"
    assert pgrag_json("db", "upgrade", "--all", dsn=dsn) == {"workspaces": {"default": {"done": []}}}


OTHER_RELEASE = """
create or replace function pgrag.code_digest() returns text language sql immutable parallel safe
as 'select repeat(''0'', 64)'
"""


def test_db_check_and_upgrade_notice_and_mend_the_code_of_another_release(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(OTHER_RELEASE)
    broken = pgrag("db", "check", dsn=dsn)
    assert broken.returncode == 3
    assert "pgrag db upgrade" in broken.stdout
    assert len(pgrag_json("db", "upgrade", dsn=dsn)["workspaces"]["default"]["done"]) > 0
    assert pgrag("db", "check", dsn=dsn).returncode == 0


def test_db_upgrade_refuses_to_drop_a_users_view_unless_told(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create view public.mine as select * from pgrag.entities")
        connection.execute(OTHER_RELEASE)
    refused = pgrag("db", "upgrade", dsn=dsn)
    assert_error(refused, 3, "mine", "--drop-dependents")
    every = pgrag("--json", "db", "upgrade", "--all", dsn=dsn)
    assert every.returncode == 3
    assert json.loads(every.stdout)["workspaces"]["default"]["error"]["type"] == "DependentObjectsError"
    assert every.stderr.startswith("pgrag: error: default: ")
    told = pgrag("db", "upgrade", "--drop-dependents", dsn=dsn)
    assert told.returncode == 0
    assert "mine" in told.stdout


# ---------------------------------------------------------------- documents in, answers out


@pytest.mark.models
def test_ingest_query_status_documents_and_delete(dsn: str, folder: Path) -> None:
    report = pgrag_json("ingest", str(folder), "--label", "harbour", dsn=dsn)
    assert set(report) == names(IngestReport)
    assert (report["added"], report["skipped"], report["failures"]) == (2, 0, [])
    again = pgrag("ingest", str(folder), "--label", "harbour", dsn=dsn)
    assert again.returncode == 0
    assert again.stdout.startswith("added 0, updated 0, skipped 2, failed 0 documents: ")
    assert "PGRAG_LLM_MODEL" in again.stdout, "says plainly that there was no LLM"

    listed = pgrag_json("documents", dsn=dsn)["documents"]
    assert [set(document) for document in listed] == [names(DocumentInfo)] * 2
    uris = {document["uri"] for document in listed}
    assert uris == {(folder / name).resolve().as_uri() for name in ("varnholm.md", "institute.txt")}
    assert all(document["labels"] == ["harbour"] for document in listed)
    lines = pgrag("documents", dsn=dsn).stdout.splitlines()
    assert lines[0].split("\t") == ["status", "chunks", "tokens", "title", "uri", "error"]
    assert {line.split("\t")[4] for line in lines[1:]} == uris

    answer = pgrag_json("query", "Who keeps the lighthouse of Varnholm?", dsn=dsn)
    assert set(answer) == names(QueryResult)
    assert "Ingrid Solberg" in answer["answer"]
    first = answer["references"][0]
    assert set(first) == names(Reference)
    assert "Ingrid Solberg" in ENGLISH[first["start"] : first["end"]]
    printed = pgrag("query", "Who keeps the lighthouse of Varnholm?", "-v", dsn=dsn)
    assert "Ingrid Solberg" in printed.stdout
    assert f"[1] {first['title']} — {first['uri']}, chunk {first['ordinal']}, characters " in printed.stdout
    assert "timings: " in printed.stderr
    assert "Ingrid" not in printed.stderr, "no document text in the log"
    context = pgrag("query", "王小明在哪里工作？", "--only-context", "--mode", "naive", "--top-k", "5", dsn=dsn)
    assert "东方研究所" in context.stdout
    named = pgrag_json("query", "?", "--low", "Coastal Agency", "--high", "repairs", "--mode", "local", dsn=dsn)
    assert named["retrieval"]["keywords"] == {"low": ["Coastal Agency"], "high": ["repairs"]}

    text = pgrag("status", dsn=dsn).stdout
    shown = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert shown["workspace"].startswith("default (schema pgrag, ")
    assert shown["embeddings"] == "multilingual-e5-small (384 dimensions)"
    assert shown["LLM"].startswith("none: names and sentences; set PGRAG_LLM_MODEL")
    assert (shown["documents"], shown["chunks"]) == ("2 (0 failed, 0 empty)", "2 (0 pending, 0 failed)")
    assert int(shown["entities"].split()[0]) > 2
    assert shown["stale"] == "0"
    assert set(pgrag_json("refresh", dsn=dsn)) == names(RefreshReport)

    result = pgrag("--json", "delete", "--yes", str(folder / "varnholm.md"), "gone.md", dsn=dsn)
    removed = json.loads(result.stdout)
    assert set(removed) == names(DeleteReport)
    assert (result.returncode, removed["documents"], removed["missing"]) == (1, 1, ["gone.md"])
    assert pgrag("delete", "--yes", str(folder), dsn=dsn).stdout.startswith("deleted 1 document, ")
    gone = pgrag("delete", "--yes", str(folder), dsn=dsn)
    assert (gone.returncode, gone.stdout.splitlines()[1]) == (1, f"not in workspace default: {folder}")


@pytest.mark.models
def test_a_text_on_standard_input(dsn: str) -> None:
    report = pgrag_json("ingest", "-", "--uri", "note:harbour", stdin=ENGLISH, dsn=dsn)
    assert report["added"] == 1
    assert [document["uri"] for document in pgrag_json("documents", dsn=dsn)["documents"]] == ["note:harbour"]


@pytest.mark.models
def test_files_that_cannot_be_read_are_told_and_do_not_stop_the_others(dsn: str, folder: Path) -> None:
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 8)
    result = pgrag("ingest", str(folder), str(folder / "missing.md"), dsn=dsn)
    assert result.returncode == 1
    assert result.stdout.startswith("added 2, ")
    failures = [line for line in result.stdout.splitlines() if line.startswith("failed: ")]
    assert len(failures) == 2
    assert sum("binary.txt" in line for line in failures) == 1
    assert sum("missing.md" in line for line in failures) == 1
    assert "Traceback" not in result.stderr


@pytest.mark.models
def test_ctrl_c_leaves_a_state_that_the_same_command_finishes(dsn: str, tmp_path: Path) -> None:
    text = "\n\n".join(f"Ingrid Solberg wrote report number {n} for the Coastal Agency in Bergen." for n in range(200))
    (tmp_path / "long.txt").write_text(text, "utf-8")
    words = ["ingest", str(tmp_path / "long.txt"), "--chunk-tokens", "32", "--chunk-overlap", "0"]
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(PGRAG_DSN=dsn),
    )
    with process, psycopg.connect(dsn, autocommit=True) as connection:
        deadline = time.monotonic() + 60
        while not connection.execute("select from pgrag.chunk where extracted_at is not null limit 1").fetchall():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PROGRAM_SECONDS)
    assert process.returncode == 130
    assert err == "pgrag: interrupted; run the same command again to go on\n"
    state = pgrag_json("status", dsn=dsn)
    assert set(state) == {"stats", "failures", "llm_model", "usage"}
    assert set(state["stats"]) == names(Stats)
    assert state["stats"]["chunks_pending"] > 0
    assert pgrag(*words, dsn=dsn).returncode == 0
    stats = pgrag_json("status", dsn=dsn)["stats"]
    assert (stats["chunks_pending"], stats["chunks_failed"], stats["documents"]) == (0, 0, 1)


# ---------------------------------------------------------------- at a terminal


@pytest.mark.models
def test_delete_asks_at_a_terminal(dsn: str) -> None:
    pgrag_json("ingest", "-", "--uri", "note:1", stdin=CHINESE, dsn=dsn)
    code, shown = at_a_terminal(["delete", "note:1"], "n\n", dsn)
    assert "Delete 1 document from workspace default? [y/N]" in shown
    assert code == 1
    assert len(pgrag_json("documents", dsn=dsn)["documents"]) == 1
    code, _ = at_a_terminal(["delete", "note:1"], "y\n", dsn)
    assert code == 0
    assert pgrag_json("documents", dsn=dsn) == {"documents": []}


@pytest.mark.models
def test_progress_at_a_terminal_stays_off_standard_output(dsn: str, folder: Path) -> None:
    code, shown = at_a_terminal(["ingest", "--json", str(folder)], "", dsn)
    assert code == 0
    assert "chunks" in shown, "the bar is on standard error"
    code, shown = at_a_terminal(["ingest", "--json", "--no-progress", str(folder)], "", dsn)
    assert (code, shown) == (0, "")


def at_a_terminal(words: list[str], typed: str, dsn: str) -> tuple[int, str]:
    """Run with a terminal as standard input and error; check that standard output, a pipe, holds what it should.

    Returns the exit code and what the terminal showed.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *words], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=environment(PGRAG_DSN=dsn)
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    out, _ = process.communicate(timeout=PROGRAM_SECONDS)
    if "--json" in words:
        json.loads(out)
    return process.returncode, shown.decode("utf-8", "replace").removeprefix(typed.replace("\n", "\r\n"))
