"""The comparison with post-graph-rag as it is measured: a corpus, two processes on one server, and figures of both."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import psycopg
from graphs import CHUNKS_PER_DOCUMENT, FACTS_PER_CHUNK, Graph
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from server import counting_proxy

from peers.environment import Process, peer_variables, process
from peers.worker import write_lines
from pgrag import Settings
from pgrag.server.configuration import ADMINISTRATOR, ROLE

WORKER = Path(__file__).with_name("post_graph_rag_worker.py")
TENTHS = 10
BLOCK = 10
COUNTED = 5  # documents, and questions, whose requests are counted
DELETED = 8
WORD = re.compile(rb"[a-z]+")
TYPES = ("person", "organization", "location", "event", "concept", "artifact")
PREDICATES = (
    "founded", "supplies", "acquired", "audits", "advises", "owns", "leads", "cites", "insures", "licenses", "trains",
    "sponsors", "builds", "repairs", "funds", "inspects",
)  # fmt: skip
TEXT_COLUMNS = """
select n.nspname, c.relname, array_agg(a.attname order by a.attnum)
from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid
join pg_type t on t.oid = a.atttypid
where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema') and a.attnum > 0
  and not a.attisdropped and a.attgenerated = '' and t.typname not in ('vector', 'halfvec', 'sparsevec')
group by 1, 2 order by 1, 2"""
SIZE = """
select sum(pg_total_relation_size(c.oid))::bigint from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema')"""
GRAPH = {
    "pgrag": "select (select count(*) from pgrag.entity), (select count(*) from pgrag.relation)",
    "peer": "select (select count(*) from public.entities), (select count(*) from public.relations)",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to ask one of the systems; `options` are those of its query."""

    side: str
    name: str
    options: Mapping[str, Any]


def variants() -> list[Variant]:
    """What is asked in turn."""
    s = Settings()
    budgets = {
        "max_total_tokens": s.max_total_tokens,
        "max_entity_tokens": s.max_entity_tokens,
        "max_relation_tokens": s.max_relation_tokens,
    }
    return [
        Variant("pgrag", "mix, defaults", {}),
        Variant("peer", "mix, defaults", {}),
        Variant("pgrag", "mix, vector, no words", {"chunk_ranking": "vector", "lexical": 0.0}),
        Variant("peer", "mix, sizes as pgrag", {"top_k": s.top_k, "max_hops": s.hops, **budgets}),
        Variant("pgrag", "naive", {"mode": "naive"}),
        Variant("peer", "naive, sizes as pgrag", {"mode": "naive", "top_k": s.chunk_top_k, **budgets}),
    ]


# ---------------------------------------------------------------- the corpus


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents and questions as the workers read them."""

    documents: list[dict[str, Any]]
    questions: list[dict[str, Any]]

    def write(self, directory: Path) -> None:
        """As JSON lines."""
        write_lines(directory / "corpus.jsonl", self.documents)
        write_lines(directory / "questions.jsonl", self.questions)

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The documents of each tenth, by number, and at last those that are not timed."""
        edges = [len(self.documents) * i // (TENTHS + 1) for i in range(TENTHS + 2)]
        return list(pairwise(edges))

    @property
    def chunks(self) -> int:
        """How many are timed."""
        return self.parts[-1][0] * CHUNKS_PER_DOCUMENT

    def only_in(self, number: int) -> set[str]:
        """Words of a document that are in no other."""
        others = {word for i, d in enumerate(self.documents) if i != number for word in _words(d)}
        return _words(self.documents[number]) - others


def make_corpus(chunks: int, questions: int) -> Corpus:
    """At least so many chunks to time and a tenth more, in whole documents; questions about facts of the timed ones."""
    graph = Graph(4 * CHUNKS_PER_DOCUMENT * -(-chunks * (TENTHS + 1) // (TENTHS * CHUNKS_PER_DOCUMENT)))
    names = graph.names()
    rows: list[dict[str, Any]] = []
    for number, (facts, text) in enumerate(graph.texts(names)):
        pairs = graph.pairs[graph.fact_relation[number * FACTS_PER_CHUNK : (number + 1) * FACTS_PER_CHUNK]].tolist()
        triples = [
            (names[s], PREDICATES[(31 * s + t) % len(PREDICATES)], names[t], fact)
            for (s, t), fact in zip(pairs, facts, strict=True)
        ]
        described: dict[int, str] = {}
        for (s, t), fact in zip(pairs, facts, strict=True):
            described.setdefault(s, fact)
            described.setdefault(t, fact)
        entities = [(names[i], TYPES[i % len(TYPES)], fact) for i, fact in described.items()]
        rows.append({"text": text, "entities": entities, "triples": triples})
    documents = [
        {"uri": f"document-{start}", "chunks": rows[start : start + CHUNKS_PER_DOCUMENT]}
        for start in range(0, len(rows), CHUNKS_PER_DOCUMENT)
    ]
    corpus = Corpus(documents, [])
    random = np.random.default_rng(3)
    for number in range(questions):
        document: Any = documents[random.integers(corpus.parts[-1][0])]
        chunk: Any = document["chunks"][random.integers(CHUNKS_PER_DOCUMENT)]
        s, predicate, t, fact = chunk["triples"][random.integers(FACTS_PER_CHUNK)]
        about = [word for word in fact.split() if word.islower()][:3]
        question = f"What has {s} to do with {t}, {' '.join(about)} ({number})?"
        row = {"question": question, "low": (s, t), "high": (predicate, *about), "chunk": chunk["text"]}
        corpus.questions.append(row)
    return corpus


def _words(document: Mapping[str, Any]) -> set[str]:
    return {w.strip(".").lower() for chunk in document["chunks"] for w in chunk["text"].split()} - {""}


# ---------------------------------------------------------------- the measuring


def uri_of(dsn: str) -> str:
    """The same as a URI, which is all that the peer reads."""
    values = {k: str(v) for k, v in conninfo_to_dict(dsn).items() if v is not None}
    user, database = values.pop("user"), values.pop("dbname")
    return f"postgresql://{quote(user)}@/{quote(database)}?{urlencode(values)}"


@dataclass(slots=True)
class Figures:
    """Of one system. Times are net of models; `blocks` are seconds of each tenth of the documents."""

    blocks: list[float] = field(default_factory=list)
    ingest_requests: float = 0.0
    embedded: int = 0
    distinct: int = 0
    entities: int = 0
    relations: int = 0
    megabytes: float = 0.0
    memory_mb: dict[str, float] = field(default_factory=dict)
    delete_ms: list[float] = field(default_factory=list)
    refresh_ms: list[float] = field(default_factory=list)
    words_before: int = 0
    words_after: int = 0
    remain_in: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Asked:
    """Of one variant."""

    side: str
    name: str
    ms: list[float] = field(default_factory=list)
    characters: list[int] = field(default_factory=list)
    found: int = 0
    requests: float = 0.0

    def percentile(self, q: float) -> float:
        """In milliseconds."""
        return float(np.percentile(self.ms, q))


def measure(
    corpus: Corpus, systems: Mapping[str, Process], dsns: Mapping[str, str]
) -> tuple[dict[str, Figures], list[Asked]]:
    """Everything, the systems in turn."""
    figures = {side: Figures() for side in systems}
    *timed, counted = corpus.parts
    for side, system in systems.items():
        figures[side].memory_mb["idle"] = system.do("memory")["mb"]
        system.do("open", dsn=uri_of(dsns[side]), connections=None)
    for first, end in timed:
        for side, system in systems.items():
            done = system.do("ingest", first=first, end=end)
            figures[side].blocks.append(done["seconds"] - done["models"])
            figures[side].embedded, figures[side].distinct = done["asked"], done["distinct"]
        _say(f"{end} documents are in")
    for side, system in systems.items():
        figures[side].memory_mb["ingest"] = system.do("memory")["mb"]
        f = figures[side]
        f.megabytes, f.entities, f.relations = tidy(dsns[side], side)
    asked = ask_all(corpus, systems)
    for side, system in systems.items():
        figures[side].memory_mb["queries"] = system.do("memory")["mb"]
        system.do("close")
    for side, system in systems.items():
        figures[side].ingest_requests = asyncio.run(count_requests(system, dsns[side], counted, asked, side))
    _say("requests are counted")
    delete_some(corpus, systems, dsns, figures)
    return figures, asked


def ask_all(corpus: Corpus, systems: Mapping[str, Process]) -> list[Asked]:
    """All variants in turn for ten questions at a time; the first ten once before, unmeasured."""
    wanted = variants()
    asked = [Asked(v.side, v.name) for v in wanted]
    count = len(corpus.questions)
    for n, start in enumerate((0, *range(0, count, BLOCK))):
        for variant, result in zip(wanted, asked, strict=True):
            end = min(start + BLOCK, count)
            done = systems[variant.side].do("query", variant=variant.options, first=start, end=end)
            if n:
                result.ms += done["ms"]
                result.characters += done["characters"]
                result.found += done["found"]
        _say(f"{min(n * BLOCK, count)} questions are asked")
    return asked


async def count_requests(
    system: Process, dsn: str, documents: tuple[int, int], asked: Sequence[Asked], side: str
) -> float:
    """Requests on the wire of each variant's queries, into `asked`; returns those of a chunk ingested.

    By one connection, which has done the same before.
    """
    ask = partial(asyncio.to_thread, system.do)  # the proxy passes on meanwhile
    async with counting_proxy(dsn) as wire:
        await ask("open", dsn=uri_of(wire.dsn), connections=1)
        for variant, result in zip(variants(), asked, strict=True):
            if variant.side == side:
                await ask("query", variant=variant.options, first=0, end=COUNTED)
                before = wire.turns
                await ask("query", variant=variant.options, first=0, end=COUNTED)
                result.requests = (wire.turns - before) / COUNTED
        first, end = documents[0], min(documents[1], documents[0] + 1 + COUNTED)
        await ask("ingest", first=first, end=first + 1)
        before = wire.turns
        await ask("ingest", first=first + 1, end=end)
        requests = (wire.turns - before) / ((end - first - 1) * CHUNKS_PER_DOCUMENT)
        await ask("close")
    return requests


def delete_some(
    corpus: Corpus, systems: Mapping[str, Process], dsns: Mapping[str, str], figures: Mapping[str, Figures]
) -> None:
    """Deletes documents in turn, and looks for the words that were in no other."""
    last = corpus.parts[-1][0]
    chosen = [last * (2 * i + 1) // (2 * DELETED) for i in range(DELETED)]
    words = {word for number in chosen for word in corpus.only_in(number)}
    for side, system in systems.items():
        found = words_in(dsns[side], words)
        figures[side].words_before = len(set().union(*found.values()))
        system.do("open", dsn=uri_of(dsns[side]), connections=None)
    for number in chosen:
        for side, system in systems.items():
            done = system.do("delete", document=number)
            figures[side].delete_ms.append(done["seconds"] * 1000)
            figures[side].refresh_ms.append(done["refresh"] * 1000)
    for side, system in systems.items():
        system.do("close")
        found = words_in(dsns[side], words)
        figures[side].words_after = len(set().union(*found.values()))
        figures[side].remain_in = {table: len(those) for table, those in found.items() if those}


def tidy(dsn: str, side: str) -> tuple[float, int, int]:
    """Vacuums and analyses, so that the server does not while it is measured; MB of all tables, entities, relations."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("vacuum (analyze)")
        [(size,)] = connection.execute(SIZE).fetchall()
        [(entities, relations)] = connection.execute(GRAPH[side]).fetchall()
    return float(size) / 2**20, entities, relations


def words_in(dsn: str, words: set[str]) -> dict[str, set[str]]:
    """Which of the words are in which table, in whatever column but vectors."""
    found: dict[str, set[str]] = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for schema, table, columns in connection.execute(TEXT_COLUMNS).fetchall():
            query = sql.SQL("copy {} ({}) to stdout").format(
                sql.Identifier(schema, table), sql.SQL(", ").join(map(sql.Identifier, columns))
            )
            stored: set[bytes] = set()
            with connection.cursor().copy(query) as rows:
                for row in rows:  # its line ends, and those in JSON, are a backslash and a letter
                    stored.update(WORD.findall(bytes(row).replace(rb"\n", b" ").lower()))
            found[table] = {word for word in words if word.encode() in stored}
    return found


def make_database(dsn: str) -> str:
    """The DSN of the peer's database, which its role owns."""
    name = "post_graph_rag"
    with psycopg.connect(make_conninfo(dsn, user=ADMINISTRATOR), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {} owner {}").format(sql.Identifier(name), sql.Identifier(ROLE)))
    with psycopg.connect(make_conninfo(dsn, user=ADMINISTRATOR, dbname=name), autocommit=True) as connection:
        connection.execute("create extension vector")
    return make_conninfo(dsn, dbname=name)


def run(corpus: Corpus, dsn: str, python: Path, directory: Path) -> tuple[dict[str, Figures], list[Asked]]:
    """Starts both systems and measures them."""
    dsns = {"pgrag": dsn, "peer": make_database(dsn)}
    # where pgrag is imported from is the caller's affair
    own = {name: value for name, value in os.environ.items() if not name.startswith("PGRAG_")}
    own |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    # isolated: a module beside the worker is named after the peer's package
    started = {"pgrag": ([sys.executable, "-P"], own), "peer": ([str(python), "-I"], peer_variables())}
    with ExitStack() as stack:
        systems = {
            side: stack.enter_context(process(side, [*interpreter, str(WORKER), str(directory), side], variables))
            for side, (interpreter, variables) in started.items()
        }
        return measure(corpus, systems, dsns)


def _say(text: str) -> None:
    print(f"  {time.strftime('%X')} {text}", file=sys.stderr, flush=True)
