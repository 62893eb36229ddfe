"""A dump restored by the owner of the workspace, an ordinary role: in another database, on a newer server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from pgrag.database.migrate import check, upgrade
from pgrag.server.account import server_account
from pgrag.server.binaries import Binaries, find_binaries
from pgrag.types import QueryResult
from tests.migration.conftest import unique
from tests.migration.support import run, settings_for, to_role
from tests.support.postgres import create_database, drop_database, embedded_binaries, start_test_server
from tests.support.rag import ask, graph, ingest

DOCUMENTS = {
    "motors": "Alpha Motors builds cars in Berlin. Berlin lies on the Spree.",
    "court": "Gamma sues Delta over the cars of Alpha Motors.",
}
QUESTION = "Who builds cars in Berlin?"


@pytest.fixture
def owned(server: Any, role: str) -> Iterator[str]:
    """A database with a workspace of two documents, as the ordinary role sees it who made it."""
    for dsn in database(server, role):
        ingest(dsn, DOCUMENTS)
        yield dsn


@pytest.fixture
def target(server: Any, role: str) -> Iterator[str]:
    """Another database of the server; an administrator created the extensions, and the role may create schemas."""
    yield from database(server, role)


@pytest.fixture(scope="module")
def newest_server(server: Any) -> Iterator[Any]:
    """A server of the newest version, if that is newer than the one under test."""
    newest = embedded_binaries()
    if programs().major >= newest.major:
        pytest.skip(f"there is no server newer than {newest.major} to restore into")
    with start_test_server(binaries=newest) as running:
        yield running


@pytest.fixture
def newer_target(newest_server: Any, role: str) -> Iterator[str]:
    """Like `target`, on the newest server."""
    run(newest_server.url(), SQL("create role {} login").format(Identifier(role)))
    yield from database(newest_server, role)


def database(server: Any, role: str) -> Iterator[str]:
    name = unique("restore")
    create_database(server.url(), name)
    dsn = server.url(database=name)
    for extension in ("vector", "pg_trgm"):
        run(dsn, f"create extension {extension}")
    to_role(dsn, "grant create on database {database} to {role}", role)
    yield make_conninfo(dsn, user=role)
    drop_database(server.url(), name)


def programs() -> Binaries:
    """The programs of the server under test."""
    return find_binaries(server_account())


def dump(dsn: str, file: Path) -> None:
    """The workspace as its owner dumps it, with the program of the server's own version."""
    call(programs().program("pg_dump"), "--schema=pgrag", f"--file={file}", f"--dbname={dsn}")


def restore(file: Path, dsn: str) -> None:
    """Statement by statement, up to the first error."""
    options = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1")
    call(embedded_binaries().program("psql"), *options, f"--file={file}", f"--dbname={dsn}")


def call(*argv: str) -> None:
    result = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def told(result: QueryResult) -> tuple[Any, ...]:
    """What a user sees of an answer."""
    return result.answer, result.references, result.context, [passage.uri for passage in result.retrieval.chunks]


def test_into_another_database(owned: str, target: str, tmp_path: Path) -> None:
    dump(owned, tmp_path / "dump.sql")
    restore(tmp_path / "dump.sql", target)
    assert_works(target, owned)


def test_into_a_newer_server(owned: str, newer_target: str, tmp_path: Path) -> None:
    dump(owned, tmp_path / "dump.sql")
    restore(tmp_path / "dump.sql", newer_target)
    assert_works(newer_target, owned)
    run(newer_target, "alter function pgrag.raise_unless_current(text) volatile")
    assert check(settings_for(newer_target)) == [
        "routine raise_unless_current(text) was changed by hand: run `pgrag db upgrade`"
    ]
    upgrade(settings_for(newer_target))
    assert check(settings_for(newer_target)) == []
    run(newer_target, "alter view pgrag.documents rename column uri to renamed")
    assert check(settings_for(newer_target)) == ["view documents was changed by hand: run `pgrag db upgrade`"]


def assert_works(dsn: str, original: str) -> None:
    """The restored workspace is that of the original, answers as it does, and can be worked on."""
    assert check(settings_for(dsn)) == []
    assert upgrade(settings_for(dsn)) == []
    assert graph(dsn) == graph(original)
    answered = ask(dsn, QUESTION)
    assert answered.references
    assert told(answered) == told(ask(original, QUESTION))
    ingest(dsn, {"river": "The Spree flows through Berlin."})
    assert "river" in [passage.uri for passage in ask(dsn, "What flows through Berlin?").retrieval.chunks]
