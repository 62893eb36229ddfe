"""What a workspace holds, read with SQL: passages, entities and relations with all their sources and vectors."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import psycopg
from pgvector.psycopg import register_vector

from pgrag.embedding.keyless import KeylessEmbedder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgrag.config import Settings

    Floats = NDArray[np.float32]

PASSAGES = """
select c.id, d.uri, array_to_string(c.headings || c.body, E'\\n'), v.embedding
from chunk c join document d on d.id = c.document_id join chunk_vector v on v.chunk_id = c.id order by c.id"""

ENTITIES = """
select e.name, e.type, e.description, v.embedding,
       array(select distinct m.chunk_id from mention m where m.entity_id = e.id and m.chunk_id is not null order by 1),
       array(select f.text from fact_entity x join fact f on f.id = x.fact_id
             where x.entity_id = e.id and x.role <> 'named' and e.description = '' order by f.chunk_id, f.ordinal)
from entity e join entity_vector v on v.entity_id = e.id order by e.id"""

RELATIONS = """
select s.name, t.name, r.keywords, r.description, r.weight, v.embedding,
       array(select distinct f.chunk_id from fact f where f.relation_id = r.id and f.chunk_id is not null order by 1)
from relation r join entity s on s.id = r.source join entity t on t.id = r.target
join relation_vector v on v.relation_id = r.id order by r.id"""

UNFINISHED = """
select (select count(*) from chunk where extracted_at is null) + (select count(*) from stale)"""


@dataclass(frozen=True, slots=True)
class Passages:
    """Chunks as models read them (headings, then text), with the uris of their documents; `vectors` is (n, d)."""

    ids: tuple[int, ...]
    uris: tuple[str, ...]
    texts: tuple[str, ...]
    vectors: Floats


@dataclass(frozen=True, slots=True)
class Entity:
    """`sources` are chunk ids; `facts` the texts of its relations' facts, given where it has no description."""

    name: str
    type: str
    description: str
    vector: Floats
    sources: tuple[int, ...]
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A pair of entities, by name; `sources` are chunk ids."""

    source: str
    target: str
    keywords: tuple[str, ...]
    description: str
    weight: float
    vector: Floats
    sources: tuple[int, ...]


class RememberingEmbedder(KeylessEmbedder):
    """The keyless embedder, which embeds a text once: for all that ask, and with a `file` in all runs."""

    def __init__(self, file: Path | None = None) -> None:
        """`file` is an SQLite database, made if need be; one run at a time may write into it."""
        super().__init__()
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
        self._known = sqlite3.connect(file or ":memory:", isolation_level=None)
        self._known.execute("pragma synchronous = off")
        self._known.execute("create table if not exists vector (key blob primary key, value blob) without rowid")

    async def embed(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> Floats:
        """As KeylessEmbedder."""
        keys = {text: hashlib.sha256(f"{self.model}\0{kind}\0{text}".encode()).digest() for text in texts}
        found = self._find(keys.values())
        if new := [text for text, key in keys.items() if key not in found]:
            made = {keys[t]: v.tobytes() for t, v in zip(new, await super().embed(new, kind), strict=True)}
            self._known.execute("begin")
            self._known.executemany("insert or ignore into vector values (?, ?)", made.items())
            self._known.execute("commit")
            found |= made
        vectors = [np.frombuffer(found[keys[text]], np.float32) for text in texts]
        return np.stack(vectors) if vectors else np.zeros((0, self.dimension), np.float32)

    def _find(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        rows = (self._known.execute("select key, value from vector where key = ?", [key]).fetchone() for key in keys)
        return {row[0]: row[1] for row in rows if row}


def workspace_of(directory: Path, extraction: str) -> str:
    """The workspace that holds a set with one extraction."""
    return "".join(c if c.isalnum() else "_" for c in f"q_{directory.name.lower()}_{extraction}")


@contextmanager
def connect(settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    """A read-only connection to the workspace of opened settings (those of an open `PgRAG`)."""
    assert settings.dsn is not None, "open PgRAG first"
    with psycopg.connect(settings.dsn.get_secret_value(), autocommit=True) as connection:
        connection.read_only = True
        register_vector(connection)
        connection.execute(
            "select set_config('search_path', quote_ident(%s) || ', ' || current_setting('search_path'), false)",
            [settings.schema_name],
        )
        yield connection


def check_complete(connection: psycopg.Connection[Any]) -> None:
    """Exits where chunks wait for extraction or entities and relations for their vectors."""
    row = connection.execute(UNFINISHED).fetchone()
    if row and row[0]:
        raise SystemExit(f"{row[0]} chunks, entities or relations of the workspace are not done yet")


def read_passages(connection: psycopg.Connection[Any]) -> Passages:
    """All chunks, in the order of their ids."""
    rows = _rows(connection, PASSAGES)
    vectors = np.stack([_vector(row[3]) for row in rows]) if rows else np.zeros((0, 0), np.float32)
    return Passages(tuple(r[0] for r in rows), tuple(r[1] for r in rows), tuple(r[2] for r in rows), vectors)


def read_entities(connection: psycopg.Connection[Any]) -> list[Entity]:
    """All entities, in the order of their ids."""
    rows = _rows(connection, ENTITIES)
    return [Entity(r[0], r[1], r[2], _vector(r[3]), tuple(r[4]), tuple(r[5])) for r in rows]


def read_relations(connection: psycopg.Connection[Any]) -> list[Relation]:
    """All relations, in the order of their ids."""
    rows = _rows(connection, RELATIONS)
    return [Relation(r[0], r[1], tuple(r[2]), r[3], r[4], _vector(r[5]), tuple(r[6])) for r in rows]


def _rows(connection: psycopg.Connection[Any], query: Any) -> list[tuple[Any, ...]]:
    with connection.cursor(binary=True) as cursor:
        return cursor.execute(query).fetchall()


def _vector(value: Any) -> Floats:
    return np.asarray(value.to_numpy(), np.float32)
