"""The two drivers say the same of the same error state."""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg
import pytest

from pgrag.database.errors import translate
from pgrag.errors import (
    CodeTreeError,
    DatabaseError,
    DependentObjectsError,
    MissingRightError,
    PgragError,
    RefusedValueError,
    StatementCancelledError,
    UsageError,
    WorkspaceError,
)

RAISE = "do $$ begin raise exception 'it''s gone' using errcode = '{}', detail = E'one\\ntwo', hint = 'Look.'; end $$"


def run_time(dsn: str, statement: str) -> asyncpg.PostgresError:
    async def run() -> asyncpg.PostgresError:
        connection = await asyncpg.connect(dsn)
        try:
            with pytest.raises(asyncpg.PostgresError) as raised:
                await connection.execute(statement)
        finally:
            await connection.close()
        return raised.value

    return asyncio.run(run())


def migration(dsn: str, statement: str) -> psycopg.Error:
    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.Error) as raised:
        connection.execute(statement.encode())
    return raised.value


@pytest.mark.parametrize(
    ("state", "kind", "said"),
    [
        ("PGR01", CodeTreeError, "here: it's gone: restart this process, or run `pgrag db upgrade`"),
        ("PGR02", UsageError, "it's gone. Look."),
        ("42501", MissingRightError, "here: it's gone: an administrator must grant it to this role"),
        ("2BP01", DependentObjectsError, "here: it's gone (one; two) Look."),
        ("3F000", WorkspaceError, "here: it's gone: the workspace is missing or incomplete: run `pgrag init`"),
        ("42P01", WorkspaceError, "here: it's gone: the workspace is missing or incomplete: run `pgrag init`"),
        ("42883", WorkspaceError, "here: it's gone: the workspace is missing or incomplete: run `pgrag init`"),
        ("57014", StatementCancelledError, "here: it's gone: the server cancelled the statement: if a "),
        ("55P03", StatementCancelledError, "here: it's gone: a lock of another session was in the way: "),
        ("XX000", DatabaseError, "here: it's gone (one; two) Look."),
        ("22P02", RefusedValueError, "here: it's gone (one; two) Look."),
        ("54000", RefusedValueError, "here: it's gone (one; two) Look."),
    ],
)
def test_both_drivers_say_the_same(shared_dsn: str, state: str, kind: type[PgragError], said: str) -> None:
    errors = [translate(driver(shared_dsn, RAISE.format(state)), "here") for driver in (run_time, migration)]
    assert [type(error) for error in errors] == [kind, kind]
    assert str(errors[0]) == str(errors[1])
    assert str(errors[0]).startswith(said)


def test_a_missing_right_shows_the_statement_and_no_more_than_its_beginning(shared_dsn: str) -> None:
    error = migration(shared_dsn, RAISE.format("42501"))
    said = str(translate(error, statement="create  table\n" + "x" * 300))
    assert said.startswith("it's gone: an administrator must grant it to this role; the statement was: create table x")
    assert len(said) < 300
