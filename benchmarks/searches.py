"""Questions about loaded graphs, and what searches for them take and find."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import asyncpg
import numpy as np
from graphs import DIMENSION, Space
from loading import Model, connect
from pgvector import HalfVector
from pgvector.psycopg import register_vector
from pydantic import SecretStr
from server import counting_proxy, processor_ms

from pgrag import PgRAG
from pgrag.config import Settings
from pgrag.database.pool import open_pool, prepare_connection, quoted
from pgrag.database.store import Store
from pgrag.errors import ExtractionError, PgragError
from pgrag.search.options import query_options
from pgrag.search.terms import search_terms
from pgrag.types import Chunk, ChunkRanking, Extraction, Keywords, Mode

if TYPE_CHECKING:
    from pgrag.types import Vectors

SEEDS = 40
BLOCK = 10
EFS = (40, 100, 200, 400, 800)
NOISE = 0.35  # how far a question is from the fact that it asks for
FACTS = """
select f.text, s.name, t.name, c.body, fv.embedding, rv.embedding, sv.embedding, tv.embedding
from fact f join relation r on r.id = f.relation_id join entity s on s.id = r.source join entity t on t.id = r.target
join chunk c on c.id = f.chunk_id join fact_vector fv on fv.fact_id = f.id
join relation_vector rv on rv.relation_id = r.id
join entity_vector sv on sv.entity_id = s.id join entity_vector tv on tv.entity_id = t.id
where f.id = any (%s) order by f.id"""

OPERATOR = """
select format('operator(%I.<=>)', n.nspname) from pg_extension e join pg_namespace n on n.oid = e.extnamespace
where e.extname = 'vector'"""


@dataclass(frozen=True, slots=True)
class Scan:
    """A vector channel as `retrieve()` reads it: by which of the question's vectors, how many rows, which ef_search.

    That is `ef` at least, and as many as `search_breadth()` says for `tables`.
    """

    kind: str
    vector: Literal["low", "high", "question"]
    limit: int
    ef: int
    tables: tuple[str, ...]


GRAPH = ("entity_vector", "relation_vector")
ENTITIES, RELATIONS = Scan("entity", "low", 500, 100, GRAPH), Scan("relation", "high", 500, 100, GRAPH)
CHUNKS, FACTS_NEAR = (
    Scan("chunk", "question", 200, 100, ("chunk_vector",)),
    Scan("fact", "question", 100, 200, ("fact_vector",)),
)
CHUNKS_NEAR = Scan("chunk", "question", 100, 100, ("chunk_vector",))
SCANS = (ENTITIES, RELATIONS, CHUNKS, CHUNKS_NEAR, FACTS_NEAR)
MIX_SCANS = (ENTITIES, RELATIONS, CHUNKS)  # the floor of the goals


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a fact, as models would prepare it."""

    text: str
    keywords: Keywords
    vectors: Mapping[str, Vectors]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to search."""

    mode: str
    ranking: str
    lexical: float

    @property
    def scans(self) -> tuple[Scan, ...]:
        """The HNSW scans that it cannot do without."""
        graph = {Mode.LOCAL: (ENTITIES,), Mode.GLOBAL: (RELATIONS,), Mode.NAIVE: ()}
        found = graph.get(Mode(self.mode), (ENTITIES, RELATIONS))
        if self.ranking == ChunkRanking.PAGERANK and self.mode != Mode.NAIVE:
            return (*found, CHUNKS_NEAR, FACTS_NEAR)
        return (*found, CHUNKS) if self.mode in (Mode.MIX, Mode.NAIVE) else found


DEFAULT = Variant(str(Mode.MIX), Settings().chunk_ranking, Settings().lexical)
BARE = Variant(str(Mode.MIX), str(ChunkRanking.VECTOR), 0.0)


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds of one variant; `rows` of entities, relations and chunks, on average."""

    mode: str
    ranking: str
    lexical: float
    p50_ms: float
    p95_ms: float
    cpu_ms: float | None
    wire: int
    rows: tuple[float, float, float]
    floor_ms: float
    ratio: float
    cpu_ratio: float | None
    mix_ratio: float
    hub: float


@dataclass(frozen=True, slots=True)
class Recall:
    """Of the 40 nearest of a kind, the share that the index finds, by ef_search; `shipped` is the one in use."""

    kind: str
    shipped: int
    recall: Mapping[int, float]
    p50_ms: Mapping[int, float]


class Prepared:
    """Embedder, extractor and keyword extractor of `PgRAG` for questions whose vectors are ready."""

    model, prefixes, dimension = Model.model, Model.prefixes, DIMENSION
    cosine_threshold = Model.cosine_threshold
    label = digest = "benchmark"

    def __init__(self, questions: Sequence[Question]) -> None:
        self._vectors = {text: v for q in questions for text, v in _texts(q).items()}
        self._keywords = {q.text: q.keywords for q in questions}

    async def embed(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> Vectors:
        """Those made for the texts."""
        return np.stack([self._vectors[text] for text in texts])

    async def keywords(self, question: str, history: Sequence[Mapping[str, str]] = ()) -> Keywords:
        """Those of the question."""
        return self._keywords[question]

    async def extract(self, chunks: Sequence[Chunk]) -> list[Extraction | PgragError]:
        """Never asked for."""
        return [ExtractionError("this workspace is for searching") for _ in chunks]


def _texts(question: Question) -> dict[str, Vectors]:
    terms = search_terms(question.text, question.keywords, Mode.MIX)
    texts = {"question": question.text, "low": terms.low or "", "high": terms.high or ""}
    return {text: question.vectors[name] for name, text in texts.items()}


# ---------------------------------------------------------------- the questions


def draw_questions(settings: Settings, count: int, seed: int, *, hub: bool) -> list[Question]:
    """Questions about facts drawn by lot, or about those of the entity of the highest degree.

    They name both ends, one question in five one of them with a letter missing, and some words of the passage.
    """
    random = np.random.default_rng([seed, hub])
    space = Space()
    with connect(settings) as connection:
        register_vector(connection)
        if hub:
            found = connection.execute(
                "select f.id from fact f join relation r on r.id = f.relation_id "
                "where (select id from entity order by degree desc, id limit 1) in (r.source, r.target) order by f.id"
            ).fetchall()
            ids = random.permutation([i for (i,) in found])[:count]
        else:
            last = connection.execute("select max(id) from fact").fetchone()
            ids = random.integers(1, last[0] + 1 if last else 1, 2 * count)
        rows = connection.execute(FACTS, [sorted({int(i) for i in ids})]).fetchall()
    rows = [rows[i] for i in random.permutation(len(rows))[:count]]
    questions = []
    for number, (fact, source, target, body, *stored) in enumerate(rows):
        of_fact, of_relation, of_source, of_target = (np.asarray(v.to_numpy(), np.float32) for v in stored)
        vectors = np.stack([of_fact, of_source + of_target, of_relation])
        question, low, high = space.near(random, vectors, NOISE)
        asked = target if number % 5 else target[:-3] + target[-2:]
        some = [str(w) for w in random.choice(body.replace(".", "").split(), 4)]
        about = [w for w in fact.split() if w.islower()][:3]
        text = f"What has {source} to do with {asked}, {' '.join(about)} and {' '.join(some)} ({number})?"
        keywords = Keywords((source, asked), tuple(about) or (fact,))
        questions.append(Question(text, keywords, {"question": question, "low": low, "high": high}))
    return questions


def parameters(question: Question, variant: Variant) -> dict[str, Any]:
    """What `PgRAG.retrieve` asks of the store with default settings."""
    mode = Mode(variant.mode)
    terms = search_terms(question.text, question.keywords, mode)
    options = query_options(Settings(), mode, {})
    naive = mode is Mode.NAIVE
    return {
        "question": question.vectors["question"], "low": None if naive else question.vectors["low"],
        "high": None if naive else question.vectors["high"], "words": list(terms.words), "parts": list(terms.parts),
        "keys": list(terms.keys), "similar": list(terms.similar), "mode": variant.mode, "top_k": options.top_k,
        "chunk_top_k": options.chunk_top_k, "ranking": variant.ranking, "threshold": Model.cosine_threshold,
        "degree_cap": options.degree_cap, "hops": options.hops, "lexical": variant.lexical,
        "nearness": options.nearness, "entity_tokens": options.max_entity_tokens,
        "relation_tokens": options.max_relation_tokens, "total_tokens": options.max_total_tokens,
    }  # fmt: skip


# ---------------------------------------------------------------- measuring


class Clock:
    """Wall and processor milliseconds of what one backend was asked."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.wall: list[float] = []
        self.cpu: list[float] = []

    @contextmanager
    def lap(self) -> Iterator[None]:
        before, started = processor_ms(self._pid), time.perf_counter()
        yield
        self.wall.append((time.perf_counter() - started) * 1000)
        after = processor_ms(self._pid)
        if before is not None and after is not None:
            self.cpu.append(after - before)

    @property
    def mean_cpu(self) -> float | None:
        """None where it is not ours to see."""
        return float(np.mean(self.cpu)) if self.cpu else None


async def measure(
    settings: Settings, questions: Sequence[Question], about_hub: Sequence[Question], variants: Sequence[Variant]
) -> list[Measured]:
    """All bare scans and all variants in turn for ten questions each, so that what slows the machine slows them all.

    The scans of a question follow each other in one session, as within a search.
    """
    wire = await count_requests(settings, questions[:3], variants)
    one = settings.model_copy(update={"pool_size": 1})
    async with open_pool(one) as pool, bare_scans(settings, SCANS) as (connection, scans):
        store = Store(pool, settings, DIMENSION)
        pid = await pool.fetchval("select pg_backend_pid()")
        efs = {scan: await breadth(connection, settings, scan) for scan in SCANS}
        clocks = {variant: Clock(pid) for variant in variants}
        hub_clocks = {variant: Clock(pid) for variant in variants}
        floors = {scan: Clock(connection.get_server_pid()) for scan in SCANS}
        rows: dict[Variant, list[list[int]]] = {variant: [] for variant in variants}
        for measured, (of_hub, block) in product((False, True), _blocks(questions, about_hub)):
            for question, scan in product(block, SCANS) if not of_hub else ():
                await connection.execute(f"set hnsw.ef_search = {efs[scan]}")
                with (floors[scan] if measured else Clock(pid)).lap():
                    await scans[scan].fetchrow(HalfVector(question.vectors[scan.vector]))
            for variant in variants:
                clock = (hub_clocks if of_hub else clocks)[variant] if measured else Clock(pid)
                for question in block:
                    asked = parameters(question, variant)
                    with clock.lap():
                        found = await store.retrieve(**asked)
                    if measured and not of_hub:
                        rows[variant].append(
                            [sum(r["layer"] == x for r in found) for x in ("entity", "relation", "chunk")]
                        )
    results = []
    for v, clock in clocks.items():
        p50, p95 = (float(x) for x in np.percentile(clock.wall, [50, 95]))
        floor, floor_cpu = _floor(floors, v.scans)
        mix_floor, _ = _floor(floors, MIX_SCANS)
        entities, relations, chunks = (float(x) for x in np.mean(rows[v], axis=0))
        cpu = clock.mean_cpu
        results.append(Measured(
            v.mode, v.ranking, v.lexical, p50, p95, cpu, wire[v], (entities, relations, chunks), floor, p50 / floor,
            cpu / floor_cpu if cpu and floor_cpu else None, p50 / mix_floor,
            float(np.median(hub_clocks[v].wall)) / p50,
        ))  # fmt: skip
    return results


def _blocks(questions: Sequence[Question], about_hub: Sequence[Question]) -> list[tuple[bool, Sequence[Question]]]:
    """Those about the hub spread evenly among the others."""
    placed = [
        ((start + BLOCK / 2) / len(these), of_hub, these[start : start + BLOCK])
        for of_hub, these in ((False, questions), (True, about_hub))
        for start in range(0, len(these), BLOCK)
    ]
    return [(of_hub, block) for _, of_hub, block in sorted(placed, key=lambda place: place[:2])]


def _floor(clocks: Mapping[Scan, Clock], scans: Sequence[Scan]) -> tuple[float, float | None]:
    """The sum of the medians, and of the mean processor times."""
    cpu = [clocks[scan].mean_cpu for scan in scans]
    return sum(float(np.median(clocks[scan].wall)) for scan in scans), None if None in cpu else sum(c or 0 for c in cpu)


@asynccontextmanager
async def bare_scans(
    settings: Settings, scans: Sequence[Scan], *, exact: bool = False
) -> AsyncIterator[tuple[Any, dict[Scan, Any]]]:
    """A connection and, on it, bare scans of indexes (or of whole tables) as prepared statements of one row.

    hnsw.ef_search is to be set before each.
    """
    assert settings.dsn is not None, "a DSN is needed"
    connection = await asyncpg.connect(settings.dsn.get_secret_value())
    try:
        await prepare_connection(connection)
        avoided = "enable_indexscan" if exact else "enable_seqscan"
        for setting in ("jit = off", "plan_cache_mode = force_generic_plan", f"{avoided} = off"):
            await connection.execute(f"set {setting}")
        distance = f"embedding {await connection.fetchval(OPERATOR)} $1"
        statements = {}
        for scan in scans:
            table, row = f"{quoted(settings.schema_name)}.{scan.kind}_vector", f"{scan.kind}_id"
            statements[scan] = await connection.prepare(
                f"select count(*), array_agg({row}), array_agg(distance) "  # noqa: S608 - names of our tables
                f"from (select {row}, {distance} as distance from {table} order by {distance} limit {scan.limit}) s"
            )
        yield connection, statements
    finally:
        await connection.close()


async def breadth(connection: Any, settings: Settings, scan: Scan) -> int:
    """The ef_search that the workspace uses for the scan."""
    wanted = f"select {quoted(settings.schema_name)}.search_breadth(variadic $1)"
    return max(scan.ef, await connection.fetchval(wanted, list(scan.tables)))


async def count_requests(
    settings: Settings, questions: Sequence[Question], variants: Sequence[Variant]
) -> dict[Variant, int]:
    """Requests of the last of the questions, asked of PgRAG through a counting proxy."""
    assert settings.dsn is not None, "a DSN is needed"
    prepared = Prepared(questions)
    wire = {}
    async with counting_proxy(settings.dsn.get_secret_value()) as proxy:
        through = settings.model_copy(update={"dsn": SecretStr(proxy.dsn), "pool_size": 1})
        async with PgRAG(settings=through, embedder=prepared, extractor=prepared, keyword_extractor=prepared) as rag:
            for variant in variants:
                for question in questions:
                    proxy.turns = 0
                    await rag.retrieve(
                        question.text, mode=variant.mode, chunk_ranking=variant.ranking, lexical=variant.lexical
                    )
                wire[variant] = proxy.turns
    return wire


async def measure_recall(settings: Settings, questions: Sequence[Question]) -> list[Recall]:
    """Of each kind; the distances decide, so that of equally near rows any will do."""
    results = []
    for scan in (ENTITIES, RELATIONS, FACTS_NEAR, CHUNKS):
        bare = replace(scan, limit=SEEDS)
        vectors = [HalfVector(q.vectors[scan.vector]) for q in questions]
        async with bare_scans(settings, [bare], exact=True) as (_, statements):
            exact = [max((await statements[bare].fetchrow(vector))[2]) for vector in vectors]
        recall, p50 = {}, {}
        async with bare_scans(settings, [bare]) as (connection, statements):
            shipped = await breadth(connection, settings, scan)
            for ef in sorted({*EFS, shipped}):
                await connection.execute(f"set hnsw.ef_search = {ef}")
                times, shares = [], []
                for vector, last in zip(vectors, exact, strict=True):
                    started = time.perf_counter()
                    row = await statements[bare].fetchrow(vector)
                    times.append((time.perf_counter() - started) * 1000)
                    shares.append(sum(distance <= last for distance in row[2]) / SEEDS)
                recall[ef], p50[ef] = float(np.mean(shares)), float(np.median(times))
        results.append(Recall(scan.kind, shipped, recall, p50))
    return results
