"""What the tests of sql/ share: texts that say their facts, a workspace at work, and what should come of it.

A chunk of these tests is lines of `name | type | description` (a mention), `source > target | keywords | strength |
text` (a fact) and anything else (only words). `snapshot` reads from the tables what `reference.expected_graph` makes of
the texts alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

import asyncpg
import numpy as np
from pgvector import HalfVector
from pydantic import SecretStr

from pgrag.config import Settings
from pgrag.database.pool import open_pool
from pgrag.database.rows import ChunkResult, ClaimedChunk, NewChunk, NewDocument, StoredDocument
from pgrag.database.store import Store
from pgrag.database.trees import code_digest
from pgrag.extraction.assemble import assemble
from pgrag.text.folding import words
from pgrag.text.lines import entity_line, relation_line
from pgrag.text.tokens import Tokenizer
from pgrag.types import Chunk, ExtractedFact, ExtractedMention, Extraction, FactEntity, Role
from tests.support.models import WordEmbedder

T = TypeVar("T")
CODE = code_digest()
EMBEDDER = WordEmbedder()


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer()


# ---------------------------------------------------------------- texts


def seeded(seed: int) -> random.Random:
    """Random values, the same in every run."""
    return random.Random(seed)  # noqa: S311 - no secret


def document(
    uri: str,
    *bodies: str,
    headings: tuple[str, ...] = (),
    title: str = "",
    published_at: datetime | None = None,
    metadata: Mapping[str, Any] | None = None,
    labels: Sequence[str] = (),
) -> NewDocument:
    """A document of these chunks, an empty line between them."""
    chunks: list[NewChunk] = []
    start = 0
    for ordinal, body in enumerate(bodies):
        chunk = Chunk(ordinal, body, start, start + len(body), tokenizer().count(body), headings)
        chunks.append(NewChunk(chunk, digest(body), Counter(words(chunk.model_text))))
        start += len(body) + 2
    text = "\n\n".join(bodies)
    return NewDocument(uri, title, "text/plain", digest(text), metadata or {}, labels, text, published_at, chunks)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def said(body: str) -> Extraction:
    """What a chunk says, by the rules above; `themes: a, b` are its content keywords."""
    mentions: list[ExtractedMention] = []
    facts: list[ExtractedFact] = []
    keywords: tuple[str, ...] = ()
    for line in body.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if line.startswith("themes: "):
            keywords = _listed(line.removeprefix("themes: "))
        elif len(parts) == 3:
            mentions.append(ExtractedMention(*parts))
        elif len(parts) == 4:
            source, target = (name.strip() for name in parts[0].split(" > "))
            ends = (FactEntity(source, Role.SOURCE), FactEntity(target, Role.TARGET))
            facts.append(ExtractedFact(parts[3], ends, _listed(parts[1]), float(parts[2])))
    return Extraction(tuple(mentions), tuple(facts), keywords)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def fact(source: str, target: str, text: str, strength: float = 1, keywords: str = "") -> str:
    """The line of a fact."""
    return f"{source} > {target} | {keywords} | {strength:g} | {text}"


def mention(name: str, type_: str = "", description: str = "") -> str:
    """The line of a mention."""
    return f"{name} | {type_} | {description}"


def half(text: str) -> HalfVector:
    """The vector of a text as a parameter."""
    return HalfVector(EMBEDDER.vector(text))


def bounds_statement(every: int = 500, measured: int = 500, nearest: int = 100, scanned: int = 20_000) -> str:
    """Has filtered searches look at other numbers of passages, or at those shipped again."""
    return (
        "create or replace function pgrag.scope_bounds() returns pgrag.bounds language sql immutable "
        f"as 'select {every}, {measured}, {nearest}, {scanned}'"
    )


# ---------------------------------------------------------------- a workspace at work


def run(dsn: str, work: Callable[[Store], Awaitable[T]], **settings: Any) -> T:
    """One piece of work on a store of its own, in an event loop of its own: a process, as far as the database sees."""

    async def main() -> T:
        chosen = Settings(dsn=SecretStr(dsn), **settings)
        async with open_pool(chosen) as pool:
            return await work(Store(pool, chosen, EMBEDDER.dimension))

    return asyncio.run(main())


def at_once(*work: Callable[[], T]) -> list[T]:
    """The results of functions that run in a thread each, started together."""

    async def main() -> list[T]:
        return await asyncio.gather(*(asyncio.to_thread(one) for one in work))

    return asyncio.run(main())


def result(claimed: ClaimedChunk, extraction: Extraction | None = None) -> ChunkResult:
    """What a worker stores for a chunk."""
    made = assemble(said(claimed.chunk.body) if extraction is None else extraction, tokenizer())
    vectors = [EMBEDDER.vector(f.text) for f in made.facts]
    return ChunkResult(
        claimed,
        made.keywords,
        made.mentions,
        made.facts,
        EMBEDDER.vector(claimed.chunk.model_text),
        np.stack(vectors) if vectors else np.zeros((0, EMBEDDER.dimension), np.float32),
    )


async def work_off(store: Store, documents: Sequence[int] | None = None, batch: int = 16) -> int:
    """Claims, extracts and stores until nothing can be claimed; returns how many chunks."""
    done = 0
    while True:
        adopted = await store.adopt_extractions()
        claimed = await store.claim_chunks(documents, batch)
        if not claimed and not adopted:
            return done
        done += adopted + len(await store.save_extraction([result(c) for c in claimed]))


async def refresh(store: Store) -> None:
    """Until nothing is stale."""
    while (entities := await store.claim_stale_entities(500)) or (relations := await store.claim_stale_relations(500)):
        if entities:
            lines = [entity_line(e.name, e.type, e.description) for e in entities]
            names = embedded([e.name for e in entities])
            await store.finish_stale("entity", entities, tokenizer().count_many(lines), names)
        else:
            lines = [relation_line(r.source, r.target, r.description) for r in relations]
            profiles = [f"{r.source}\t{r.target}\t{r.description}" for r in relations]
            await store.finish_stale("relation", relations, tokenizer().count_many(lines), embedded(profiles))


def embedded(texts: Sequence[str]) -> Any:
    """(len(texts), dimension) vectors."""
    return np.stack([EMBEDDER.vector(text) for text in texts])


class Workspace:
    """An empty workspace and the usual steps on it, one call each. Its connections live as long as itself."""

    def __init__(self, dsn: str, runner: asyncio.Runner, dimension: int = EMBEDDER.dimension) -> None:
        self.dsn = dsn
        self._runner = runner
        self._settings = Settings(dsn=SecretStr(dsn))
        self._opened = open_pool(self._settings)
        self._pool: asyncpg.Pool = runner.run(self._opened.__aenter__())
        self.store = Store(self._pool, self._settings, dimension)

    def close(self) -> None:
        self._runner.run(self._opened.__aexit__(None, None, None))

    def empty(self) -> None:
        """Leaves what the workspace was made with, and nothing else."""
        tables = self.rows(
            "select quote_ident(relname) from pg_class where relnamespace = 'pgrag'::regnamespace and relkind = 'r' "
            "and relname not in ('meta', 'alembic_version')"
        )
        self.rows(f"truncate {', '.join('pgrag.' + table for (table,) in tables)} restart identity")

    def do(self, work: Awaitable[T]) -> T:
        """The result of a call of the store."""

        async def main() -> T:
            return await work

        return self._runner.run(main())

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.do(self._pool.fetch(query, *values))]

    def one(self, query: str, *values: Any) -> Any:
        """The only value of a query."""
        [(value,)] = self.rows(query, *values)
        return value

    def count(self, table: str) -> int:
        return int(self.one(f"select count(*) from pgrag.{table}"))  # noqa: S608 - a table of ours

    def put(self, *documents: NewDocument) -> list[StoredDocument]:
        return self.do(self.store.put_documents(documents, "settings"))

    def work(self, documents: Sequence[int] | None = None) -> int:
        return self.do(work_off(self.store, documents))

    def refresh(self) -> None:
        self.do(refresh(self.store))

    def ingest(self, *documents: NewDocument) -> list[StoredDocument]:
        """Put, worked off and refreshed."""
        stored = self.put(*documents)
        self.work()
        self.refresh()
        return stored

    def claim(self, limit: int = 100, documents: Sequence[int] | None = None) -> list[ClaimedChunk]:
        return self.do(self.store.claim_chunks(documents, limit))

    def save(self, *claimed: ClaimedChunk) -> set[int]:
        return self.do(self.store.save_extraction([result(c) for c in claimed]))

    def delete(self, *uris: str) -> Mapping[str, Any]:
        return self.do(self.store.delete_documents(uris))

    def status(self) -> dict[str, str]:
        return dict(self.rows("select uri, status from pgrag.document"))

    def retrieve(self, **parameters: Any) -> list[asyncpg.Record]:
        return self.do(self.store.retrieve(**parameters))

    def cached(self, key: str, response: str, *chunks: int) -> None:
        """A response made from these chunks."""
        self.rows("select pgrag.put_cached($1, $2, 'extract', 'm', $3, 1, 1, 0, $4)", CODE, key, response, list(chunks))

    def cache_keys(self) -> set[str]:
        return {key for (key,) in self.rows("select key from pgrag.llm_cache")}

    def chunk_ids(self, uri: str) -> list[int]:
        """In the order of the document."""
        query = "select c.id from pgrag.chunk c join pgrag.document d on d.id = c.document_id where uri = $1"
        return [i for (i,) in self.rows(f"{query} order by ordinal", uri)]


class OneConnection:
    """In place of a pool, for a store that works in an open transaction: always the same connection."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def acquire(self) -> asyncpg.Connection:
        return self._connection

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """As the connection's."""
        rows: list[asyncpg.Record] = await self._connection.fetch(query, *arguments)
        return rows

    async def release(self, connection: asyncpg.Connection, *, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """It stays open."""


async def until_blocked(connection: asyncpg.Connection, count: int = 1) -> None:
    """Waits until so many sessions of this database wait for a lock."""
    query = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    for _ in range(500):
        if await connection.fetchval(query) >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits for a lock")


async def while_open(
    dsn: str, first: Callable[[Store], Awaitable[Any]], second: Callable[[Store], Awaitable[T]], blocked: int = 1
) -> T:
    """The result of `second`, which begins while the transaction of `first` is open and is blocked by it.

    `blocked` is how many sessions wait for a lock before `first` commits.
    """
    settings = Settings(dsn=SecretStr(dsn))
    async with open_pool(settings) as pool, pool.acquire() as connection, pool.acquire() as other:
        transaction = connection.transaction()
        await transaction.start()
        await first(Store(OneConnection(connection), settings, EMBEDDER.dimension))
        waiting = asyncio.ensure_future(second(Store(pool, settings, EMBEDDER.dimension)))
        await until_blocked(other, blocked)
        await transaction.commit()
        return await waiting


# ---------------------------------------------------------------- what has come of it


def snapshot(workspace: Workspace) -> dict[str, Any]:
    """Entities by key and relations by their keys, as the tables have them. Degree and adjacency must agree."""
    keys = dict(workspace.rows("select entity_id, key from pgrag.entity_alias"))
    entities = {
        keys[i]: rest
        for i, *values in workspace.rows("select id, name, type, description, degree, mentions from pgrag.entity")
        for rest in [tuple(values)]
    }
    relations = {}
    both = set()
    for i, source, target, keywords, description, weight in workspace.rows(
        "select id, source, target, keywords, description, weight from pgrag.relation"
    ):
        relations[tuple(sorted((keys[source], keys[target])))] = (keywords, description, round(weight, 4))
        both |= {(source, i, target, weight), (target, i, source, weight)}
    assert set(workspace.rows("select entity_id, relation_id, other_id, weight from pgrag.adjacency")) == both
    return {"entities": entities, "relations": relations}


def texts_of(workspace: Workspace) -> dict[str, str]:
    """Everything that can be read in the schema: (table.column) -> all its values as one text, from the catalog."""
    columns = workspace.rows(
        "select table_name, column_name from information_schema.columns c join information_schema.tables t "
        "using (table_schema, table_name) where table_schema = 'pgrag' and table_type = 'BASE TABLE' "
        "and (data_type in ('text', 'jsonb', 'tsvector', 'character varying', 'ARRAY'))"
    )
    return {
        f"{table}.{column}": workspace.one(
            f'select coalesce(string_agg("{column}"::text, chr(10)), \'\') from pgrag."{table}"'  # noqa: S608 - ours
        )
        for table, column in columns
    }
