"""Loads graphs in bulk into workspaces that pgrag made, as pgrag would have left them; indexes are made after the rows.

What pgrag derives is derived by its own SQL (`compose_entities`, `compose_relations`).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
from graphs import CHUNKS_PER_DOCUMENT, DIMENSION, FACTS_PER_CHUNK, VECTOR_KINDS, Graph
from psycopg import sql

from pgrag.config import Settings
from pgrag.database.migrate import check, initialise
from pgrag.text.folding import name_key, words
from pgrag.text.lines import entity_line, relation_line
from pgrag.text.tokens import Tokenizer

TYPES = ("person", "organization", "location", "event", "concept", "artifact")
COMPOSED = 10_000  # entities or relations a transaction
HNSW_BYTES = 2 * DIMENSION + 1300  # of memory a vector, while an index is built

MENTIONS = """
insert into mention (chunk_id, key, entity_id, name, type, description, tokens)
select chunk_id, key, entity_id, name, type, description, length(description) / 3 from (
    select f.chunk_id, x.key, x.entity_id, e.name, e.type,
           case when row_number() over (partition by x.entity_id order by f.chunk_id) % 3 = 1
                then min(f.text) else '' end as description
    from fact_entity x join fact f on f.id = x.fact_id join entity e on e.id = x.entity_id
    group by f.chunk_id, x.key, x.entity_id, e.name, e.type) m
order by chunk_id, key"""

# what filters select by: a label that one document in ten has, and metadata that one in a hundred has
MARKS = """
update document set labels = array['region ' || id % 10], metadata = jsonb_build_object('team', id % 100)
where labels = '{}' and metadata = '{}'"""

LEXEMES = """
insert into lexeme (word, chunks, occurrences)
select word, ndoc, 0 from ts_stat('select words from chunk_search')
union all select '', count(*), sum(length) from chunk_search"""

INDEXES = """
select i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid), a.amname = 'hnsw', i.indrelid::regclass::text
from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
where c.relnamespace = current_schema()::regnamespace
  and not exists (select from pg_constraint k where k.conindid = i.indexrelid) order by 1"""

FOREIGN_KEYS = """
select conrelid::regclass::text, conname, pg_get_constraintdef(oid)
from pg_constraint where connamespace = current_schema()::regnamespace and contype = 'f' order by 1, 2"""


class Model:
    """Who made the vectors, as far as a workspace wants to know."""

    model = "benchmark"
    dimension = DIMENSION
    prefixes = ("", "")
    cosine_threshold = 0.2


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded, and what it took."""

    rows_seconds: float
    indexes_seconds: float
    index_memory_mb: float


@contextmanager
def connect(settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    """A connection with the workspace first in its search_path; each statement commits."""
    assert settings.dsn is not None, "a DSN is needed"
    with psycopg.connect(settings.dsn.get_secret_value(), autocommit=True) as connection:
        connection.execute(
            "select set_config('search_path', quote_ident(%s) || ', ' || current_setting('search_path'), false)",
            [settings.schema_name],
        )
        yield connection


def load(settings: Settings, graph: Graph) -> Loaded:
    """Makes the workspace anew and loads the graph; raises SystemExit where pgrag finds it is not as it should be."""
    started = time.monotonic()
    with connect(settings) as connection:
        connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(settings.schema_name)))
    initialise(settings, Model())
    with connect(settings) as connection:
        connection.execute("set synchronous_commit = off")
        connection.execute("set work_mem = '256MB'")
        connection.execute("set maintenance_work_mem = '1GB'")
        indexes = connection.execute(INDEXES).fetchall()
        keys = connection.execute(FOREIGN_KEYS).fetchall()
        _execute(connection, *(f"drop index {name}" for name, *_ in indexes))
        _execute(connection, *(f'alter table {table} drop constraint "{name}"' for table, name, _ in keys))
        _rows(connection, graph)
        _execute(connection, MARKS, MENTIONS, LEXEMES)
        _execute(connection, *(definition for _, definition, hnsw, _ in indexes if not hnsw), "analyze")
        _derive(connection, settings)
        _execute(connection, *(f'alter table {table} add constraint "{name}" {rule}' for table, name, rule in keys))
        for kind in VECTOR_KINDS:
            _copy_vectors(connection, kind, graph)
        loaded = time.monotonic()
        most = max(_build_hnsw(connection, table, definition) for _, definition, hnsw, table in indexes if hnsw)
        _execute(connection, "vacuum (analyze)")
    if wrong := check(settings):
        raise SystemExit(f"{settings.workspace} is not as pgrag would have made it: {wrong[0]}")
    return Loaded(loaded - started, time.monotonic() - loaded, most)


def mark(settings: Settings) -> None:
    """Gives the documents of a workspace that was loaded without them what filters select by."""
    with connect(settings) as connection:
        if connection.execute(MARKS).rowcount:
            connection.execute("vacuum (analyze) document")


def _rows(connection: psycopg.Connection[Any], graph: Graph) -> None:
    """The rows that nothing else implies."""
    names = graph.names()
    keys = [name_key(name) for name in names]
    with connection.cursor() as cursor:
        with cursor.copy("copy entity (id, name, type) from stdin") as copy:
            for i, name in enumerate(names):
                copy.write_row((i + 1, name, TYPES[i % len(TYPES)]))
        with cursor.copy("copy entity_alias (key, entity_id) from stdin") as copy:
            for i, key in enumerate(keys):
                copy.write_row((key, i + 1))
        with cursor.copy("copy relation (id, source, target) from stdin") as copy:
            for i, (source, target) in enumerate(graph.pairs.tolist()):
                copy.write_row((i + 1, source + 1, target + 1))
    texts = list(graph.texts(names))
    counted = [body for _, body in texts[:200]]
    rate = Tokenizer().count("\n".join(counted)) / sum(map(len, counted))
    with connection.cursor() as cursor:
        with cursor.copy(
            "copy document (id, uri, title, mime, sha256, settings_digest, body, tokens, status) from stdin"
        ) as copy:
            for i in range(0, len(texts), CHUNKS_PER_DOCUMENT):
                body = "\n\n".join(body for _, body in texts[i : i + CHUNKS_PER_DOCUMENT])
                number = i // CHUNKS_PER_DOCUMENT + 1
                copy.write_row((number, f"file:///benchmark/{number}.txt", f"Report {number}", "text/plain",
                                _digest(body), "benchmark", body, round(rate * len(body)), "complete"))  # fmt: skip
        columns = "id, document_id, ordinal, body, sha256, start_char, end_char, tokens, extracted_at"
        with cursor.copy(f"copy chunk ({columns}) from stdin") as copy:
            start = 0
            for i, (_, body) in enumerate(texts):
                document, ordinal = divmod(i, CHUNKS_PER_DOCUMENT)
                start = start if ordinal else 0
                copy.write_row((i + 1, document + 1, ordinal, body, _digest(body), start, start + len(body),
                                round(rate * len(body)), "now"))  # fmt: skip
                start += len(body) + 2
        with cursor.copy("copy chunk_search (chunk_id, length, words) from stdin") as copy:
            for i, (_, body) in enumerate(texts):
                counts = Counter(words(body))
                copy.write_row((i + 1, counts.total(), " ".join(f"'{word}':{n}" for word, n in counts.items())))
        relations = graph.fact_relation.tolist()
        with cursor.copy(
            "copy fact (id, chunk_id, ordinal, relation_id, text, strength, tokens, keywords) from stdin"
        ) as copy:
            for i, (facts, _) in enumerate(texts):
                for ordinal, text in enumerate(facts):
                    number = i * FACTS_PER_CHUNK + ordinal
                    said = text.split()
                    copy.write_row((number + 1, i + 1, ordinal, relations[number] + 1, text, 1 + number % 3,
                                    round(rate * len(text)), "{" + said[2] + "," + said[4] + "}"))  # fmt: skip
        with cursor.copy("copy fact_entity (fact_id, key, entity_id, role) from stdin") as copy:
            for i, ((source, target), named) in enumerate(
                zip(graph.pairs[relations].tolist(), graph.named.tolist(), strict=True)
            ):
                for entity, role in ((source, "source"), (target, "target"), (named, "named")):
                    if entity >= 0:
                        copy.write_row((i + 1, keys[entity], entity + 1, role))


def _derive(connection: psycopg.Connection[Any], settings: Settings) -> None:
    """What refresh would: composed by pgrag's functions, tokens by what the tokenizer makes of a byte on average."""
    tokenizer = Tokenizer()
    ends = "(select name from entity where id = source), (select name from entity where id = target)"
    for table, columns, line in (
        ("entity", "name, type, description", entity_line),
        ("relation", f"{ends}, description", relation_line),
    ):
        plural = {"entity": "compose_entities", "relation": "compose_relations"}[table]
        (last,) = _one(connection, f"select max(id) from {table}")  # noqa: S608 - names of our tables
        for start in range(1, last + 1, COMPOSED):
            connection.execute(
                f"select {plural}(array(select id from {table} where id between %s and %s), %s, %s)",  # noqa: S608 - names of our tables
                [start, start + COMPOSED - 1, *settings.description_limits],
            )
        _execute(connection, "truncate stale", f"vacuum (analyze) {table}")
        sample = connection.execute(f"select tokens, {columns} from {table} order by id limit 1000").fetchall()  # noqa: S608 - names of our tables
        rate = sum(tokenizer.count(line(*parts)) for _, *parts in sample) / sum(tokens for tokens, *_ in sample)
        connection.execute(f"update {table} set tokens = ceil(tokens * %s)", [rate])  # noqa: S608 - names of our tables
    for table in ("document", "chunk", "entity", "relation", "fact"):
        connection.execute(f"select setval(pg_get_serial_sequence('{table}', 'id'), max(id)) from {table}")  # noqa: S608 - names of our tables


def _copy_vectors(connection: psycopg.Connection[Any], kind: str, graph: Graph) -> None:
    """By COPY in its binary format, of which numpy makes whole blocks."""
    row = np.dtype([("columns", ">i2"), ("id_bytes", ">i4"), ("id", ">i8"), ("bytes", ">i4"), ("dimension", ">i2"),
                    ("unused", ">i2"), ("embedding", ">f2", (DIMENSION,))])  # fmt: skip
    done = 0
    with (
        connection.cursor() as cursor,
        cursor.copy(f"copy {kind}_vector ({kind}_id, embedding) from stdin binary") as copy,
    ):
        copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
        for vectors in graph.vectors(kind):
            block = np.zeros(len(vectors), row)
            block["columns"], block["id_bytes"], block["bytes"], block["dimension"] = 2, 8, 4 + 2 * DIMENSION, DIMENSION
            block["id"] = np.arange(done, done + len(vectors)) + 1
            block["embedding"] = vectors
            copy.write(block.tobytes())
            done += len(vectors)
        copy.write(b"\xff\xff")


def _build_hnsw(connection: psycopg.Connection[Any], table: str, definition: str) -> float:
    """By all processors, in memory: a graph that does not fit is finished many times slower. Returns megabytes."""
    (rows,) = _one(connection, f"select count(*) from {table}")  # noqa: S608 - names of our tables
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**21
    megabytes = min(half, 64.0 + int(rows) * HNSW_BYTES / 2**20)
    _execute(
        connection,
        f"set maintenance_work_mem = '{megabytes:.0f}MB'",
        f"set max_parallel_maintenance_workers = {max(1, (os.cpu_count() or 2) - 1)}",
        f"alter table {table} set (parallel_workers = {max(1, (os.cpu_count() or 2) - 1)})",
        definition,
        f"alter table {table} reset (parallel_workers)",
        "set maintenance_work_mem = '1GB'",
    )
    return megabytes


def _execute(connection: psycopg.Connection[Any], *statements: Any) -> None:
    for statement in statements:
        connection.execute(statement)


def _one(connection: psycopg.Connection[Any], statement: Any) -> Any:
    row = connection.execute(statement).fetchone()
    assert row is not None
    return row


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
