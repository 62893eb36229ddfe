"""The command line before any database: help, wrong words, wrong settings, a server that is not there."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pgrag import __version__
from pgrag.config import Settings
from pgrag.server.embedded import ServerStatus
from tests.cli.command import COMMAND, UNREACHABLE, assert_error, environment, pgrag
from tests.support.limits import PROGRAM_SECONDS

COMMANDS = (
    "init", "ingest", "retry", "query", "status", "documents", "delete", "refresh", "reembed", "eval",
    "db upgrade", "db check", "db current", "server start", "server stop", "server status",
)  # fmt: skip
HEAVY = {
    "spacy",
    "litellm",
    "numpy",
    "sqlalchemy",
    "asyncpg",
    "psycopg",
    "alembic",
    "tiktoken",
    "onnxruntime",
    "pgvector",
}


def test_version() -> None:
    for command in (COMMAND, [str(Path(sys.executable).parent / "pgrag")]):
        result = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=PROGRAM_SECONDS)
        assert (result.returncode, result.stdout, result.stderr) == (0, f"pgrag {__version__}\n", "")


@pytest.mark.parametrize("words", ["--version", "--help", "query --help"])
def test_help_and_version_import_nothing_heavy(words: str) -> None:
    program = "import sys; from pgrag.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-c", program, *words.split()],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PROGRAM_SECONDS,
    )
    assert result.returncode == 0
    loaded = {name.split(".")[0] for name in result.stderr.split()}
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_help_lists_the_commands_in_groups_with_examples_and_exit_codes() -> None:
    text = pgrag("--help").stdout
    for command in COMMANDS:
        assert re.search(rf"^│ {command.split()[0]} +\w", text, re.MULTILINE), command
    for panel in ("Documents", "Look", "Operate", "Options of every command"):
        assert f"─ {panel} ─" in text
    assert "pgrag ingest docs/ notes.md" in text
    assert "0 done, 1 something failed, 2 wrong use, 3 database, 4 stopped at --max-cost, 130 interrupted" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_the_common_options(command: str) -> None:
    result = pgrag(*command.split(), "--help")
    assert result.returncode == 0
    for option in ("--dsn", "--workspace", "-w", "--config", "--json", "--verbose", "-v"):
        assert re.search(rf"^│.* {option} ", result.stdout, re.MULTILINE), option


def test_the_defaults_in_the_help_are_the_defaults() -> None:
    shown: dict[str, str] = {}
    for command in ("query", "ingest"):
        for option, default in re.findall(
            r"^│ --([a-z-]+).*\(default ([\w.]+)\)", pgrag(command, "--help").stdout, re.M
        ):
            if (name := option.replace("-", "_")) in Settings.model_fields:
                shown[name] = default
    assert set(shown) == {
        "top_k", "chunk_top_k", "chunk_ranking", "lexical", "rounds", "degree_cap", "hops", "max_entity_tokens",
        "max_relation_tokens", "max_total_tokens", "chunk_tokens", "chunk_overlap",
    }  # fmt: skip
    defaults = Settings()
    assert shown == {name: str(getattr(defaults, name)) for name in shown}


def test_without_words_the_help_is_shown_as_wrong_use() -> None:
    result = pgrag()
    assert result.returncode == 2
    assert "Usage: pgrag [OPTIONS] COMMAND" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ingset"], ("No such command 'ingset'", "'ingest'", "pgrag --help")),
        (["query"], ("Missing argument 'QUESTION'", "pgrag query --help")),
        (["query", "why?", "--mode", "nonsense"], ("'nonsense'", "'local'", "'mix'", "'naive'")),
        (["query", "why?", "--top-k", "many"], ("--top-k", "integer")),
        (["query", "why?", "--lexical", "much"], ("--lexical", "number")),
        (["query", "why?", "--lexical", "1.5"], ("lexical", "less than or equal to 1")),
        (["query", "why?", "--nearness", "-1"], ("nearness", "greater than or equal to 0")),
        (["query", "why?", "--rounds", "3"], ("rounds", "less than or equal to 2")),
        (["status", "--jsno"], ("--jsno", "--json", "pgrag status --help")),
        (["db"], ("Missing command", "pgrag db --help")),
        (["delete", "note:1"], ("--yes",)),
        (["ingest", "-"], ("--uri",)),
        (["ingest", "a.md", "--uri", "note:1"], ("--uri",)),
        (["ingest", "-", "-", "--uri", "note:1"], ("standard input is one document",)),
        (["-w", "Not-A-Name", "status"], ("workspace",)),
        (["--config", "/nowhere/pgrag.toml", "status"], ("cannot read the settings file /nowhere/pgrag.toml",)),
        (["ingest", "a.md", "--chunk-tokens", "1"], ("chunk_tokens", "16")),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(words: list[str], told: tuple[str, ...]) -> None:
    assert_error(pgrag(*words, dsn=UNREACHABLE), 2, *told)


def test_options_are_taken_before_and_after_the_command_and_the_nearest_wins() -> None:
    before = pgrag("--json", "--workspace", "Not A Name", "status")
    after = pgrag("status", "--json", "--workspace", "Not A Name")
    assert before.returncode == after.returncode == 2
    assert json.loads(before.stdout) == json.loads(after.stdout)
    assert json.loads(before.stdout)["error"]["type"] == "ConfigError"
    assert pgrag("-w", "Not A Name", "db", "-w", "also bad", "current", "-w", "good", dsn=UNREACHABLE).returncode == 3


def test_an_error_with_json_is_one_document_and_the_same_line() -> None:
    for words in (["--json", "query"], ["query", "--mode", "x", "why", "--json"], ["status", "--json", "-w", "Bad"]):
        result = pgrag(*words, dsn=UNREACHABLE)
        document = json.loads(result.stdout)
        assert list(document) == ["error"]
        assert list(document["error"]) == ["type", "message"]
        assert result.stderr == f"pgrag: error: {document['error']['message']}\n"
        assert result.returncode == 2
    assert pgrag("query", "--", "--json", "extra").stdout == "", "a question is no option"


@pytest.mark.parametrize("command", ["init", "query why?", "db check", "ingest ."])
def test_an_unreachable_server_is_exit_code_3(command: str, tmp_path: Path) -> None:
    assert_error(pgrag(*command.split(), dsn=UNREACHABLE, cwd=tmp_path), 3, "127.0.0.1")


@pytest.mark.parametrize("command", ["status", "db current"])
def test_no_password_is_shown_even_in_the_most_talkative_log(command: str, tmp_path: Path) -> None:
    result = pgrag("--json", "-vv", *command.split(), dsn=UNREACHABLE, cwd=tmp_path)
    assert result.returncode == 3
    assert "Traceback" in result.stderr
    assert "s3cret" not in result.stdout + result.stderr
    assert json.loads(result.stdout)["error"]["type"] == "DatabaseError"


def test_a_dsn_in_the_settings_file_is_masked_too(tmp_path: Path) -> None:
    (tmp_path / "pgrag.toml").write_text(f'dsn = "{UNREACHABLE}"\n', "utf-8")
    result = pgrag("-vv", "db", "current", cwd=tmp_path)
    assert result.returncode == 3
    assert "s3cret" not in result.stdout + result.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        result = subprocess.run(
            [*COMMAND, "--version"], stdout=write, stderr=subprocess.PIPE, text=True, timeout=PROGRAM_SECONDS
        )
    finally:
        os.close(write)
    assert (result.returncode, result.stderr) == (141, "")


def test_ctrl_c_while_standard_input_is_read() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--json", "-v", "ingest", "-", "--uri", "note:1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(PGRAG_DSN=UNREACHABLE, PYTHONUNBUFFERED="1"),
    )
    with process:
        assert process.stdin is not None
        process.stdin.write("a" * 1_000_000)  # more than a pipe holds: it returns once the command reads
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PROGRAM_SECONDS)
    assert process.returncode == 130
    assert err == "pgrag: interrupted; run the same command again to go on\n"
    assert json.loads(out)["error"]["type"] == "Interrupted"


@pytest.mark.parametrize(
    ("data", "told"),
    [(b"good\xff\xfe", b"is not UTF-8 text (byte 0xff at 4)"), (b" \n", b"is empty"), (bytes(99), b"binary")],
)
def test_standard_input_that_is_no_text_is_refused(data: bytes, told: bytes) -> None:
    result = subprocess.run(
        [*COMMAND, "ingest", "-", "--uri", "note:1"],
        input=data,
        capture_output=True,
        timeout=PROGRAM_SECONDS,
        env=environment(PGRAG_DSN=UNREACHABLE),
    )
    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr.startswith(b"pgrag: error: standard input (note:1) ")
    assert told in result.stderr
    assert result.stderr.count(b"\n") == 1


def test_status_of_an_embedded_server_that_was_never_started() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # tmp_path is closed to the account that the server runs as under root
        home = Path(directory, "home")
        document = json.loads(pgrag("server", "status", "--json", PGRAG_HOME=str(home)).stdout)
        assert set(document) == {field.name for field in dataclasses.fields(ServerStatus)}
        assert (document["running"], document["pid"], document["bytes"]) == (False, None, 0)
        text = pgrag("server", "status", PGRAG_HOME=str(home)).stdout
        assert text.startswith("server   not running\nversion  not set up yet\n")
        stopped = pgrag("server", "stop", PGRAG_HOME=str(home))
        assert (stopped.returncode, stopped.stdout) == (0, "was not running\n")
        assert not home.exists(), "looking changes nothing"
