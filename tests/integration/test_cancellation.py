"""Searches that are stopped: by their caller, by a limit, by Ctrl-C, by a server that dies or no longer answers.

What is searched is locked by another session, so that a search waits in PostgreSQL for as long as a test needs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import psycopg
import pytest
from pydantic import SecretStr

from pgrag import PgRAG, Settings
from pgrag.database import migrate
from pgrag.database.pool import CANCEL_SECONDS, CLOSE_SECONDS, prepare_connection
from pgrag.errors import DatabaseError, ExitCode, StatementCancelledError
from tests.cli.command import COMMAND, assert_error, environment, pgrag
from tests.integration.test_sync import open_sync
from tests.support.limits import PROGRAM_SECONDS
from tests.support.models import WordEmbedder
from tests.support.postgres import Postgresql, create_database, start_test_server
from tests.support.rag import ingest, open_rag, rows, value, with_rag

QUESTION = "Who knows Birch?"
TEXTS = {"a": "Alder knows Birch.", "b": "Cedar knows Dogwood."}
SEARCHING = """
    select pid from pg_stat_activity where wait_event_type = 'Lock' and query like '%retrieve(%'
        and datname = current_database() and pid <> pg_backend_pid()
"""
PROMPT = 5.0  # seconds within which a stopped search is gone from the server, even of a busy machine: it takes 0.02


@contextmanager
def locked(dsn: str, *tables: str) -> Iterator[None]:
    """Nobody else can read these tables meanwhile; by default those that every search reads."""
    with psycopg.connect(dsn) as connection:
        names = ", ".join(f"pgrag.{table}" for table in tables or ("entity_vector", "chunk_vector"))
        connection.execute(f"lock table {names}".encode())
        yield
        connection.rollback()


def wait_until(dsn: str, searches: int, seconds: float = 10.0) -> float:
    """How long it took until so many searches run in the database."""
    started = time.monotonic()
    with psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            found = len(connection.execute(SEARCHING).fetchall())
            took = time.monotonic() - started
            if found == searches:
                return took
            assert took < seconds, f"{found} searches run, not {searches}"
            time.sleep(0.01)


async def searching(dsn: str) -> None:
    await asyncio.to_thread(wait_until, dsn, 1)


async def gone(dsn: str) -> float:
    return await asyncio.to_thread(wait_until, dsn, 0)


# ---------------------------------------------------------------- stopped by the caller


async def cancel_the_task(dsn: str, call: Callable[[], Awaitable[Any]]) -> None:
    async def run() -> None:
        await call()

    task = asyncio.create_task(run())
    await searching(dsn)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def time_out(dsn: str, call: Callable[[], Awaitable[Any]]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await call()


async def leave_the_scope(dsn: str, call: Callable[[], Awaitable[Any]]) -> None:
    with anyio.move_on_after(30) as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await searching(dsn)
            scope.cancel()
    assert scope.cancelled_caught


@pytest.mark.parametrize("stop", [cancel_the_task, time_out, leave_the_scope])
@pytest.mark.parametrize("method", ["retrieve", "query", "stream"])
def test_a_stopped_call_stops_its_statement_and_keeps_its_connection(
    words_dsn: str, method: str, stop: Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[None]]
) -> None:
    ingest(words_dsn, TEXTS)

    async def work(rag: PgRAG) -> None:
        await rag.retrieve(QUESTION)
        session = "select pid from pg_stat_activity where application_name = 'pgrag' and datname = current_database()"
        before = rows(words_dsn, session)
        with locked(words_dsn):
            for _ in range(3):
                await stop(words_dsn, lambda: getattr(rag, method)(QUESTION))
                assert await gone(words_dsn) < PROMPT
                started = time.monotonic()
                assert len(await rag.documents()) == 2, "the only connection is free at once"
                assert time.monotonic() - started < PROMPT
        assert (await rag.retrieve(QUESTION)).chunks[0].uri == "a"
        assert rows(words_dsn, session) == before != [], "and is the same"

    with_rag(words_dsn, work, pool_size=1)


@pytest.mark.parametrize("anyios", [True, False], ids=["anyio", "asyncio"])
def test_a_program_that_is_stopped_whole_leaves_no_statement_behind(words_dsn: str, anyios: bool) -> None:
    async def run() -> None:
        async with open_rag(words_dsn) as rag:
            await rag.retrieve(QUESTION)

    async def main() -> None:
        with locked(words_dsn):
            await (leave_the_scope if anyios else cancel_the_task)(words_dsn, run)
            assert await gone(words_dsn) < PROMPT

    asyncio.run(main())


def test_one_of_many_searches_is_stopped_and_the_others_answer(words_dsn: str) -> None:
    ingest(words_dsn, TEXTS)

    async def work(rag: PgRAG) -> list[Any]:
        with locked(words_dsn):
            tasks = [asyncio.create_task(rag.retrieve(QUESTION)) for _ in range(4)]
            await asyncio.to_thread(wait_until, words_dsn, 2)  # the others wait for a connection
            for task in tasks[::2]:
                task.cancel()
            await asyncio.to_thread(wait_until, words_dsn, 2)
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = with_rag(words_dsn, work, pool_size=2)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, False, True, False]
    assert [results[n].chunks[0].uri for n in (1, 3)] == ["a", "a"]


def test_ctrl_c_in_the_blocking_twin(words_dsn: str) -> None:
    ingest(words_dsn, TEXTS)
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        wait_until(words_dsn, 1)
        signal.pthread_kill(main, signal.SIGINT)

    with open_sync(words_dsn, settings=Settings(dsn=SecretStr(words_dsn), pool_size=1)) as rag:
        rag.documents()
        for method in (rag.retrieve, rag.query, rag.stream):
            pressing = threading.Thread(target=press)
            with locked(words_dsn):
                pressing.start()
                with pytest.raises(KeyboardInterrupt):
                    method(QUESTION)
                assert wait_until(words_dsn, 0) < PROMPT
                pressing.join()
                assert len(rag.documents()) == 2
        assert rag.retrieve(QUESTION).chunks[0].uri == "a"


@pytest.mark.models
def test_ctrl_c_on_the_command_line(dsn: str) -> None:
    with locked(dsn):
        process = subprocess.Popen(
            [*COMMAND, "query", QUESTION, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(PGRAG_DSN=dsn),
        )
        with process:
            wait_until(dsn, 1, 60)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PROGRAM_SECONDS)
        assert process.returncode == ExitCode.INTERRUPTED == 130
        assert err == "pgrag: interrupted; run the same command again to go on\n"
        assert json.loads(out)["error"]["type"] == "Interrupted"
        assert wait_until(dsn, 0) < PROMPT


# ---------------------------------------------------------------- stopped by a limit


def test_the_limit_of_a_search_is_named_and_is_no_loss_of_the_connection(words_dsn: str) -> None:
    ingest(words_dsn, TEXTS)

    async def work(rag: PgRAG) -> None:
        await rag.documents()
        with locked(words_dsn):
            started = time.monotonic()
            with pytest.raises(StatementCancelledError) as caught:
                await rag.retrieve(QUESTION)
            assert 0.2 <= time.monotonic() - started < 0.2 + PROMPT
            assert str(caught.value) == (
                "a search took longer than 0.2 s and was cancelled: raise the setting statement_timeout "
                "(PGRAG_STATEMENT_TIMEOUT, or in pgrag.toml)"
            )
            assert await gone(words_dsn) < PROMPT
            assert len(await rag.documents()) == 2
        assert (await rag.retrieve(QUESTION)).chunks

    with_rag(words_dsn, work, pool_size=1, statement_timeout=0.2)


def test_the_limit_holds_for_every_statement_that_searches(words_dsn: str) -> None:
    ingest(words_dsn, TEXTS)

    async def work(rag: PgRAG) -> None:
        with locked(words_dsn, "fact_vector"):
            assert (await rag.retrieve(QUESTION, mode="naive")).chunks, "which needs no facts"
            with pytest.raises(StatementCancelledError, match="PGRAG_STATEMENT_TIMEOUT"):
                await rag.query(QUESTION, mode="naive")

    with_rag(words_dsn, work, statement_timeout=0.3)


def test_the_limit_of_a_search_is_none_of_an_ingest(words_dsn: str) -> None:
    ingest(words_dsn, {"a": "Alder knows Birch."})

    async def work(rag: PgRAG) -> None:
        with locked(words_dsn):
            work = asyncio.create_task(rag.ingest_texts(["Cedar knows Birch."], uris=["b"]))
            await asyncio.sleep(0.6)
            assert not work.done()
        assert (await work).failures == ()
        with locked(words_dsn, "document"):
            work = asyncio.create_task(rag.delete("b"))
            await asyncio.sleep(0.4)
            assert not work.done()
        assert (await work).documents == 1

    with_rag(words_dsn, work, statement_timeout=0.1)


@pytest.mark.models
def test_the_limit_on_the_command_line(dsn: str) -> None:
    with locked(dsn):
        result = pgrag("query", QUESTION, dsn=dsn, PGRAG_STATEMENT_TIMEOUT="0.5")
        assert_error(result, ExitCode.DATABASE, "longer than 0.5 s", "PGRAG_STATEMENT_TIMEOUT", "pgrag.toml")


@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
def test_a_limit_of_the_server_is_told_from_ours(words_dsn: str, limit: str) -> None:
    ingest(words_dsn, TEXTS)
    name = value(words_dsn, "select current_database()")
    rows(words_dsn, f"alter database {name} set {limit} = '200ms'")
    with locked(words_dsn), pytest.raises(StatementCancelledError, match=f"{limit} of the role or the database") as e:
        with_rag(words_dsn, lambda rag: rag.retrieve(QUESTION))
    assert "PGRAG_" not in str(e.value)


def test_an_administrator_cancels_a_search(words_dsn: str) -> None:
    async def work(rag: PgRAG) -> None:
        with locked(words_dsn):
            task = asyncio.create_task(rag.retrieve(QUESTION))
            await searching(words_dsn)
            [(pid,)] = rows(words_dsn, SEARCHING)
            rows(words_dsn, "select pg_cancel_backend(%s)", pid)
            with pytest.raises(StatementCancelledError, match=r"due to user request.*else try again"):
                await task

    with_rag(words_dsn, work)


def test_the_limit_of_a_callers_pool_is_named(words_dsn: str) -> None:
    async def run() -> None:
        limited = asyncpg.create_pool(words_dsn, min_size=0, command_timeout=0.3, init=prepare_connection)
        async with limited as pool, open_rag(words_dsn, pool=pool) as rag:
            await rag.retrieve(QUESTION)
            told = pytest.raises(StatementCancelledError, match="command_timeout of the pool")
            with locked(words_dsn, "document"), told:
                await rag.documents()
            assert await rag.documents() == []

    asyncio.run(run())


def test_no_limit_is_left_in_a_session_that_a_pooler_may_give_to_others(words_dsn: str) -> None:
    async def run() -> None:
        async with asyncpg.create_pool(words_dsn, min_size=1, max_size=1, init=prepare_connection) as pool:
            changed = "select name, setting from pg_settings where source in ('client', 'session') order by name"
            before = await pool.fetch(changed)
            async with open_rag(words_dsn, pool=pool, statement_timeout=0.3) as rag:
                await rag.retrieve(QUESTION)
                with locked(words_dsn), pytest.raises(StatementCancelledError):
                    await rag.retrieve(QUESTION)
            assert await pool.fetch(changed) == before

    asyncio.run(run())


# ---------------------------------------------------------------- the server dies, or no longer answers


@pytest.fixture(scope="module")
def frail() -> Iterator[Postgresql]:
    """A server of its own, with an initialised workspace in its database `frail`."""
    with start_test_server() as server:
        create_database(server.url(), "frail")
        migrate.initialise(Settings(dsn=SecretStr(server.url(database="frail"))), WordEmbedder())
        ingest(server.url(database="frail"), TEXTS)
        yield server


def postmaster(server: Postgresql) -> int:
    return int(Path(server.get_data_directory(), "postmaster.pid").read_text().split("\n")[0])


@contextmanager
def frozen(server: Postgresql) -> Iterator[None]:
    """The server and pgrag's sessions on it are there, and do nothing."""
    ours = rows(server.url(database="frail"), "select pid from pg_stat_activity where application_name = 'pgrag'")
    pids = [postmaster(server), *(pid for (pid,) in ours)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def test_a_lost_connection_is_made_again_and_the_search_repeated(frail: Postgresql) -> None:
    dsn = frail.url(database="frail")

    async def work(rag: PgRAG) -> Any:
        with locked(dsn):
            task = asyncio.create_task(rag.retrieve(QUESTION))
            await searching(dsn)
            [(pid,)] = rows(dsn, SEARCHING)
            rows(dsn, "select pg_terminate_backend(%s)", pid)
            await asyncio.sleep(0.3)
            await searching(dsn)
        return await task

    assert with_rag(dsn, work, pool_size=1).chunks[0].uri == "a"


def test_a_server_that_dies_during_a_search_and_comes_back(frail: Postgresql) -> None:
    dsn = frail.url(database="frail")

    async def work(rag: PgRAG) -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute("lock table pgrag.entity_vector, pgrag.chunk_vector")
            task = asyncio.create_task(rag.retrieve(QUESTION))
            await searching(dsn)
            os.kill(postmaster(frail), signal.SIGQUIT)  # the crash of all of it
            await asyncio.to_thread(frail.terminate)
            connection.close()
        with pytest.raises(DatabaseError, match=r"the connection to the database was lost .*: try again"):
            await task
        await asyncio.to_thread(frail.start)
        assert (await rag.retrieve(QUESTION)).chunks[0].uri == "a"

    with_rag(dsn, work, pool_size=1)


def test_a_server_that_no_longer_answers_holds_nobody(frail: Postgresql) -> None:
    dsn = frail.url(database="frail")

    async def work(rag: PgRAG) -> None:
        await rag.retrieve(QUESTION)
        with frozen(frail):
            started = time.monotonic()
            with pytest.raises(StatementCancelledError, match=r"longer than 0\.3 s"):
                await rag.retrieve(QUESTION)
            assert time.monotonic() - started < 0.3 + CANCEL_SECONDS + PROMPT
            with pytest.raises(DatabaseError, match="connection to the database was lost") as caught:
                await rag.retrieve(QUESTION)
            assert not isinstance(caught.value, StatementCancelledError), "no search was begun"
        assert (await rag.retrieve(QUESTION)).chunks[0].uri == "a"

    with_rag(f"{dsn}?connect_timeout=1", work, pool_size=1, statement_timeout=0.3)


def test_nor_does_it_hold_who_wants_to_leave(frail: Postgresql) -> None:
    async def run() -> float:
        async with open_rag(frail.url(database="frail")) as rag:
            await rag.retrieve(QUESTION)
            server.enter_context(frozen(frail))
            started = time.monotonic()
        return time.monotonic() - started

    with ExitStack() as server:
        assert asyncio.run(run()) < CLOSE_SECONDS + PROMPT
