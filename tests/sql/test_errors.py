"""The two drivers say the same of the same error state."""

from __future__ import annotations

import asyncio
import logging

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
from tests.sql.support import Workspace

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
        ("22012", DatabaseError, "here: it's gone (one; two) Look."),
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


@pytest.mark.parametrize(
    ("raised", "tries"),
    [
        ("raise exception 'cache lookup failed for function 77' using errcode = 'XX000'", 2),
        ("raise exception 'could not open relation with OID 77' using errcode = 'XX000'", 2),
        ("raise exception 'deadlock detected' using errcode = '40P01'", 2),
        ("raise exception 'a fault of ours' using errcode = 'XX000'", 1),
        ("raise exception 'no such value' using errcode = '22P02'", 1),
    ],
)
def test_what_passes_is_tried_again(own_workspace: Workspace, raised: str, tries: int) -> None:
    own_workspace.rows("create sequence pgrag.tries")
    own_workspace.rows(
        "create function pgrag.flaky() returns int language plpgsql as $$ begin "
        f"if nextval('pgrag.tries') = 1 then {raised}; end if; return 7; end $$"
    )
    if tries == 1:
        with pytest.raises(PgragError):
            own_workspace.do(own_workspace.store._call("flaky"))
    else:
        assert own_workspace.do(own_workspace.store._call("flaky"))[0][0] == 7
    assert own_workspace.one("select last_value from pgrag.tries") == tries


def test_a_value_that_the_driver_refuses_is_not_tried_again(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(RefusedValueError, match="invalid input"):
        workspace.do(workspace.store.documents(5))  # type: ignore[arg-type]
    assert caplog.records == []
