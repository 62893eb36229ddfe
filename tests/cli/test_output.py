"""What is printed, and what never is."""

from __future__ import annotations

import io
import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pgrag.cli.app import _fail, _single_cause
from pgrag.cli.documents import _matching
from pgrag.cli.log import configure_logging
from pgrag.cli.output import amount, emit_json, fields, one_line, plain, size, table
from pgrag.cli.progress import ingest_progress
from pgrag.cli.secrets import secrets_of
from pgrag.cli.session import Session
from pgrag.errors import DatabaseError, DocumentError
from pgrag.text.jsonable import jsonable
from pgrag.text.masking import mask
from pgrag.types import IngestProgress, IngestReport, Mode


def test_literal_secrets_are_hidden_wherever_they_turn_up() -> None:
    secrets = secrets_of(
        "postgresql://ann:s3cret%2Fword@db/x", {"OPENAI_API_KEY": "abcdef-123456", "HOME": "/tmp/home"}
    )
    assert mask("s3cret/word, s3cret%2Fword, abcdef-123456, /tmp/home", secrets) == "***, ***, ***, /tmp/home"


def test_a_password_that_is_also_a_name_does_not_black_out_the_message() -> None:
    secrets = secrets_of("postgresql://myuser:myuser@db/x", {"PGPASSWORD": "pgrag"})
    assert mask('pgrag: role "myuser" may not create extensions', secrets) == (
        'pgrag: role "myuser" may not create extensions'
    )
    assert secrets_of("postgresql://[not a dsn", {}) == ()


def test_control_characters_cannot_steer_a_terminal() -> None:
    assert plain("a\x1b[2Jb\x00\u202ec\td\ne") == "a\\u001b[2Jb\\u0000\\u202ec\td\ne"
    assert one_line(" two\n lines\x07 ") == "two lines\\u0007"


def test_json_of_the_values_that_travel() -> None:
    moment = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
    value = {"mode": Mode.MIX, "at": moment, "path": Path("/tmp/x"), "bad": float("nan"), "list": (1, 2.5, None, True)}
    assert json.loads(json.dumps(jsonable(value))) == {
        "mode": "mix",
        "at": "2024-05-01T12:00:00+00:00",
        "path": "/tmp/x",
        "bad": None,
        "list": [1, 2.5, None, True],
    }
    assert jsonable(IngestReport(added=2, dropped={"long name": 1}))["dropped"] == {"long name": 1}
    with pytest.raises(TypeError, match="no JSON form for object"):
        jsonable(object())


def test_json_is_valid_whatever_the_terminal_can_print(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding in ("utf-8", "ascii", "latin-1"):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace"))
        emit_json({"uri": "file:///caf\u00e9/\u4e2d\u6587\udc80"})
        assert json.loads(raw.getvalue().decode(encoding)) == {"uri": "file:///caf\u00e9/\u4e2d\u6587\udc80"}


def test_tables_are_tab_separated_lines_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    table(("uri", "tokens"), [("a\tb\nc", 3), (None, 4)])
    assert capsys.readouterr().out == "uri\ttokens\na b c\t3\n\t4\n"


def test_numbers_for_people() -> None:
    assert [size(n) for n in (0, 999, 1000, 12_345_678)] == ["0 bytes", "999 bytes", "1.0 kB", "12.3 MB"]
    assert [amount(1, "entity", "entities"), amount(1200, "entity", "entities")] == ["1 entity", "1,200 entities"]
    assert fields([("a", 1), ("long", "x\ny")]) == "a     1\nlong  x y"


def test_log_lines_are_masked_and_single(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("pgrag")
    before = (logger.handlers, logger.propagate, logger.level)
    try:
        configure_logging(0, ("hunter2",))
        logging.getLogger("pgrag.database.store").info("not shown")
        logging.getLogger("pgrag.database.store").warning(
            "lost\nthe connection to postgresql://ann:hunter2@db (hunter2)"
        )
        assert capsys.readouterr().err == ("pgrag: warning: lost the connection to postgresql://ann:***@db (***)\n")
        configure_logging(1, ())
        logging.getLogger("pgrag.database.store").info("connected")
        logging.getLogger("pgrag.database.store").debug("not shown")
        assert capsys.readouterr().err.endswith("INFO pgrag.database.store: connected\n")
    finally:
        logger.handlers, logger.propagate = before[0], before[1]
        logger.setLevel(before[2])


def test_progress_without_a_terminal_is_off_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in (None, False):
        with ingest_progress(wanted, verbose=0) as show:
            assert show is None
    with ingest_progress(True, verbose=0) as show:
        assert show is not None
        for done in range(3):
            show(
                IngestProgress(documents=2, chunks_total=5, chunks_done=done, chunks_failed=1, entities=1, relations=2)
            )
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "2 documents, 1/5 chunks, 1 entity, 2 relations, 0 facts, 1 failed\n", "one line in two seconds"


def test_delete_understands_uris_paths_folders_and_files_of_many_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = tmp_path.resolve().as_uri()
    stored = ["note:1", f"{base}/a.md", f"{base}/docs/b.md", f"{base}/docs2/c.md", f"{base}/rows.jsonl#1"]
    assert _matching(["note:1"], stored) == ["note:1"]
    assert _matching(["a.md"], stored) == [f"{base}/a.md"]
    assert _matching(["docs", "docs/"], stored) == [f"{base}/docs/b.md"]
    assert _matching(["rows.jsonl"], stored) == [f"{base}/rows.jsonl#1"]
    assert _matching([f"{base}/a.md", "a.md"], stored) == [f"{base}/a.md"], "each document once"
    assert _matching(["gone.md", "http://x/y"], stored) == ["gone.md", "http://x/y"], "reported as missing"


def test_an_error_is_masked_put_on_one_line_and_given_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(dsn="postgresql://ann:s3cret-word@db/x")
    error = DatabaseError("cannot reach postgresql://ann:s3cret-word@db/x\n(s3cret-word)")
    assert _fail(session, [], error) == 3
    assert capsys.readouterr() == ("", "pgrag: error: cannot reach postgresql://ann:***@db/x (***)\n")
    assert _fail(session, ["--json"], error) == 3
    document = json.loads(capsys.readouterr().out)
    assert document == {"error": {"type": "DatabaseError", "message": "cannot reach postgresql://ann:***@db/x (***)"}}


def test_an_unexpected_error_is_called_a_bug_and_shows_its_traceback_only_when_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        raise ValueError("no password=hunter2 here")
    except ValueError as raised:
        error = raised
    assert _fail(Session(), [], error) == 1
    assert capsys.readouterr().err == (
        "pgrag: error: ValueError: no password=*** here (this is a bug in pgrag, please report it; "
        "run the same command again with -v for the details)\n"
    )
    assert _fail(Session(verbose=1), [], error) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback ")
    assert "hunter2" not in shown
    assert _fail(Session(), [], OSError(28, "No space left on device")) == 1
    assert "bug" not in capsys.readouterr().err


def test_the_error_inside_a_task_group_is_the_one_that_is_told() -> None:
    inner = DocumentError("one")
    assert _single_cause(BaseExceptionGroup("x", [ValueError("two"), ExceptionGroup("y", [inner])])) is inner
    assert _single_cause(inner) is inner
