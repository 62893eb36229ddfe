"""What one small document costs in a big workspace: writes read by index, whatever else there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import asyncpg
import numpy as np
import pytest
from pydantic import SecretStr

from pgrag.config import Settings
from pgrag.database.pool import prepare_connection
from pgrag.database.store import Store
from tests.sql.support import OneConnection, document, fact, result
from tests.support import postgres
from tests.support.plans import Plan, watch, whole_tables
from tests.support.skewed import EMBEDDER, skewed_dsn

BIG = {"chunk", "chunk_search", "document", "entity", "entity_alias", "fact", "fact_entity", "lexeme", "llm_cache",
       "llm_cache_source", "mention", "relation", "adjacency"}  # fmt: skip


@pytest.fixture(scope="module")
def skewed(server: postgres.Postgresql) -> str:
    return skewed_dsn(server)


def watched(dsn: str, *steps: Callable[[Store], Awaitable[Any]]) -> list[list[Plan]]:
    """The plans of each step, in one transaction that is rolled back."""

    async def main() -> list[list[Plan]]:
        settings = Settings(dsn=SecretStr(dsn))
        connection = await asyncpg.connect(dsn)
        try:
            await prepare_connection(connection)
            await connection.execute("begin")
            await connection.execute(
                "insert into pgrag.llm_cache (key, purpose, model, response) "
                "select 'k' || n, 'extract', 'm', 'r' from generate_series(1, 50000) n; "
                "insert into pgrag.llm_cache_source select 'k' || n, n from generate_series(1, 50000) n; "
                "analyze pgrag.llm_cache, pgrag.llm_cache_source"
            )
            store = Store(OneConnection(connection), settings, EMBEDDER.dimension)
            found: list[Plan] = []
            await watch(connection, found)
            told = []
            for step in steps:
                found.clear()
                await step(store)
                await asyncio.sleep(0.05)  # the notices
                told.append(list(found))
            await connection.execute("rollback")
            return told
        finally:
            await connection.close()

    return asyncio.run(main())


def ones(count: int) -> Any:
    return np.ones((count, EMBEDDER.dimension), np.float32)


def test_a_small_document_reads_no_whole_table(skewed: str) -> None:
    async def put(store: Store) -> None:
        await store.put_documents([document("small", fact("Pump", "Valve", "Pump feeds valve w1 w2 w3."))], "")

    async def update(store: Store) -> None:
        await store.put_documents([document("small", fact("Pump", "Valve", "Pump feeds valve w1 w2 w4."))], "")

    async def work(store: Store) -> None:
        await store.adopt_extractions()
        results = [result(claimed) for claimed in await store.claim_chunks(None, 16)]
        assert await store.save_extraction(
            [replace(r, vector=ones(1)[0], fact_vectors=ones(len(r.facts))) for r in results]
        )
        entities = await store.claim_stale_entities(100)
        await store.finish_stale("entity", entities, [5] * len(entities), ones(len(entities)))
        relations = await store.claim_stale_relations(100)
        await store.finish_stale("relation", relations, [5] * len(relations), ones(len(relations)))

    async def delete(store: Store) -> None:
        await store.delete_documents(["small"])

    names = ("put", "work", "update", "work again", "delete")
    for name, plans in zip(names, watched(skewed, put, work, update, work, delete), strict=True):
        assert plans
        assert {(f, t) for f, t in whole_tables(plans) if t in BIG} == set(), name


def test_the_report_of_a_run_reads_its_own_documents(skewed: str) -> None:
    async def report(store: Store) -> None:
        assert [d.uri for d in await store.documents("complete", ["doc/1", "doc/2"])] == ["doc/1", "doc/2"]
        assert await store.documents("empty", ["doc/1", "doc/2"]) == []
        assert await store.failures(["doc/1", "doc/2"]) == []

    async def resume(store: Store) -> None:
        assert await store.unfinished_documents() == []

    reported, resumed = watched(skewed, report, resume)
    assert whole_tables(reported) == set()
    assert {table for _, table in whole_tables(resumed)} <= {"document"}, "and the chunks of none that is complete"
