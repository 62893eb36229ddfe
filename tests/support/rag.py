"""Workspaces with the small models, for tests that are about pgrag and not about a model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
from psycopg.sql import SQL, Identifier
from pydantic import SecretStr

from pgrag import PgRAG, Settings
from pgrag.errors import PgragError
from pgrag.types import (
    Chunk,
    Document,
    ExtractedFact,
    ExtractedMention,
    Extraction,
    FactEntity,
    IngestReport,
    QueryResult,
    Role,
)
from tests.support.models import FixedKeywords, FunctionExtractor, WordEmbedder

T = TypeVar("T")
VECTORS = ("chunk_vector", "fact_vector", "entity_vector", "relation_vector")


def capitals(chunk: Chunk) -> Extraction:
    """Capitalised words are entities; a sentence is a fact, from the first name in it to the second."""
    sentences = [s.strip() for s in re.split(r"(?<=[.!?])\s+", chunk.body) if s.strip()]
    facts = []
    for sentence in sentences:
        names = list(dict.fromkeys(re.findall(r"\b[A-Z][\w-]*", sentence)))
        roles = (Role.SOURCE, Role.TARGET, *[Role.NAMED] * len(names))
        facts.append(ExtractedFact(sentence, tuple(map(FactEntity, names, roles))))
    mentions = dict.fromkeys(entity.name for fact in facts for entity in fact.entities)
    return Extraction(tuple(map(ExtractedMention, mentions)), tuple(facts))


def extractor(function: Callable[[Chunk], Extraction | PgragError] = capitals) -> FunctionExtractor:
    """An extractor of the given function."""
    return FunctionExtractor(function)


def failing_on(marker: str, error: PgragError) -> Callable[[Chunk], Extraction | PgragError]:
    """`capitals`, but an error for chunks that hold the marker."""
    return lambda chunk: error if marker in chunk.body else capitals(chunk)


def open_rag(
    dsn: str,
    *,
    embedder: Any = None,
    extracts: Any = None,
    keywords: Any = None,
    pool: Any = None,
    chunker: Any = None,
    **settings: Any,
) -> PgRAG:
    """A PgRAG over the small models; `settings` by name."""
    return PgRAG(
        settings=Settings(dsn=SecretStr(dsn), **settings),
        embedder=embedder or WordEmbedder(),
        extractor=extracts or extractor(),
        keyword_extractor=keywords or FixedKeywords(),
        pool=pool,
        chunker=chunker,
    )


def with_rag(dsn: str, work: Callable[[PgRAG], Awaitable[T]], **details: Any) -> T:
    """The result of `work` on an open PgRAG; `details` as `open_rag`."""

    async def run() -> T:
        async with open_rag(dsn, **details) as rag:
            return await work(rag)

    return asyncio.run(run())


def ingest(dsn: str, sources: Any, *, progress: Any = None, labels: Any = (), **details: Any) -> IngestReport:
    """The report of one ingest; a mapping is texts by uri."""
    items = [Document(uri, body) for uri, body in sources.items()] if isinstance(sources, dict) else sources
    return with_rag(dsn, lambda rag: rag.ingest(items, progress=progress, labels=labels), **details)


def ask(dsn: str, question: str, **details: Any) -> QueryResult:
    """The result of one query; query options by name, models and settings as `open_rag` in `opening`."""
    opening = details.pop("opening", {})
    return with_rag(dsn, lambda rag: rag.query(question, **details), **opening)


def rows(dsn: str, statement: str, *values: Any, schema: str = "pgrag") -> list[tuple[Any, ...]]:
    """Rows of a statement on a workspace, committed."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL("set search_path to {}, public").format(Identifier(schema)))
        text: Any = statement
        cursor = connection.execute(text, values or None)
        return cursor.fetchall() if cursor.description else []


def value(dsn: str, statement: str, *values: Any, schema: str = "pgrag") -> Any:
    """The only value of a statement on a workspace."""
    [(found,)] = rows(dsn, statement, *values, schema=schema)
    return found


def count(dsn: str, table: str, where: str = "true") -> int:
    """How many rows of a table meet a condition."""
    found: int = value(dsn, f"select count(*) from {table} t where {where}")  # noqa: S608 - a test's own constants
    return found


def database_text(dsn: str, schema: str = "pgrag") -> str:
    """Everything in the tables of a workspace, as text."""
    tables = rows(dsn, "select tablename from pg_tables where schemaname = %s", schema, schema=schema)
    return "\n".join(
        str(row)
        for (table,) in tables
        for row in rows(dsn, f'select t::text from "{table}" t', schema=schema)  # noqa: S608 - names of our tables
    )


def graph(dsn: str, schema: str = "pgrag") -> dict[str, list[tuple[Any, ...]]]:
    """Everything that was found in the documents, without ids: equal for equal graphs."""
    parts = {
        "documents": "select uri, sha256, status, body from document",
        "chunks": "select d.uri, c.ordinal, c.body, c.extracted_at is not null from chunk c "
        "join document d on d.id = c.document_id",
        "mentions": "select d.uri, c.ordinal, m.key, m.name, e.name from mention m join entity e on e.id = m.entity_id "
        "join chunk c on c.id = m.chunk_id join document d on d.id = c.document_id",
        "entities": "select name, type, description, degree, mentions, tokens from entity",
        "relations": "select source, target, keywords, description, weight from relations",
        "sources": "select uri, ordinal, fact, entities, strength from sources",
        "words": "select word, chunks, occurrences from lexeme where word <> ''",
        **{table: f"select count(*) from {table}" for table in VECTORS},  # noqa: S608
        "stale": "select kind, id from stale",
    }
    found = {name: sorted(rows(dsn, query, schema=schema), key=repr) for name, query in parts.items()}
    ends = {(min(s, t), max(s, t), *rest) for s, t, *rest in map(_hashable, found["relations"])}
    return {**found, "relations": sorted(ends, key=repr)}


def _hashable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tuple(item) if isinstance(item, list) else item for item in row)
