"""How searches are carried out on a graph as uneven as real ones: the plans of what really ran, and what it read.

Timings say little on a shared machine: what counts is rows and pages.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, product
from statistics import median
from typing import Any

import pytest

from tests.sql.support import Workspace, document
from tests.support import postgres
from tests.support.plans import Plan, Watched, scans, whole_tables
from tests.support.skewed import BUSY_RELATION, CHUNKS, EVERY, HUB, skewed_dsn

MODES = ("local", "global", "hybrid", "mix", "naive")
RANKINGS = ("vector", "weight", "pagerank")
CAP = 32  # the default of degree_cap
PER_ITEM = 50  # source links of an entity or a relation
RECALL = 0.95  # of 100 passages, where a filtered search walks an index; where it compares all: 1
PAGE_COSTS = (1.1, 4.0)  # random_page_cost of the embedded server, and PostgreSQL's own default
OPTIONS = (
    "question", "low", "high", "words", "keys", "similar", "mode", "ranking", "hops", "top_k", "chunk_top_k",
    "degree_cap", "entity_tokens", "relation_tokens", "lexical", "nearness", "filter",
)  # fmt: skip
DEFAULTS = {
    "words": [], "keys": [], "similar": [], "mode": "mix", "ranking": "pagerank", "hops": 1, "top_k": 40,
    "chunk_top_k": 20, "degree_cap": CAP, "entity_tokens": 6000, "relation_tokens": 8000, "lexical": 0.2,
}  # fmt: skip
ARGUMENTS = ", ".join(f"p_{option} => ${i}" for i, option in enumerate(OPTIONS, 1))


class Session(Watched):
    """A session with a prepared search."""

    def __init__(self, dsn: str, page_cost: float = PAGE_COSTS[0]) -> None:
        super().__init__(dsn)
        self.run(f"set random_page_cost = {page_cost}")
        self.run("set statement_timeout = '30s'")  # where a walk has lost its bounds
        self.run(f"prepare search as select * from pgrag.retrieve({ARGUMENTS})")  # noqa: S608 - a constant

    def search(self, **options: Any) -> tuple[list[tuple[Any, ...]], list[Plan]]:
        """Rows and plans of one execution; options as those of retrieve."""
        chosen = {**DEFAULTS, **options}
        assert set(chosen) <= set(OPTIONS)
        values = [chosen.get(option) for option in OPTIONS]
        return self.run(f"execute search({', '.join(['%s'] * len(values))})", *values)

    def one(self, statement: str, *values: Any) -> Any:
        """The first value of a statement."""
        return self.run(statement, *values)[0][0][0]

    def vector(self, kind: str, number: int) -> str:
        """A stored vector."""
        return str(self.one(f"select embedding::text from pgrag.{kind}_vector where {kind}_id = %s", number))  # noqa: S608

    def about(self, entity: int, **options: Any) -> dict[str, Any]:
        """A question about an entity: its name, its vector, and that of a passage that mentions it."""
        key = self.one("select key from pgrag.entity_alias where entity_id = %s", entity)
        chunk = self.one("select min(chunk_id) from pgrag.mention where entity_id = %s", entity)
        vector = self.vector("entity", entity)
        question = self.vector("chunk", chunk)
        return {"question": question, "low": vector, "high": vector, "keys": [key], "similar": [key, key[:-1]],
                "words": ["w1", "w7", "w300", "w9000"], **options}  # fmt: skip


@pytest.fixture(scope="module")
def skewed(server: postgres.Postgresql) -> str:
    """The database of the uneven graph."""
    return skewed_dsn(server)


@pytest.fixture
def sessions(skewed: str) -> Iterator[Callable[..., Session]]:
    """Opens sessions that are closed after the test."""
    opened: list[Session] = []

    def open_session(page_cost: float = PAGE_COSTS[0]) -> Session:
        opened.append(Session(skewed, page_cost))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


@pytest.fixture
def session(sessions: Callable[..., Session]) -> Session:
    """One session."""
    return sessions()


def many_links(plans: Sequence[Plan]) -> set[tuple[str, str, float]]:
    """Of the nodes that follow links of entities, relations and chunks: those that read more than they may."""
    found = scans(plans, "adjacency", "mention", "fact", "fact_entity")
    return {(function, str(node), node.read) for function, node in found if node.read > PER_ITEM}


def vector_channels(mode: str, ranking: str) -> set[str]:
    channels = {
        "local": {"entity"},
        "global": {"relation"},
        "hybrid": {"entity", "relation"},
        "mix": {"entity", "relation", "chunk"},
        "naive": {"chunk"},
    }[mode]
    return channels | ({"chunk", "fact"} if ranking == "pagerank" and mode != "naive" else set())


# ---------------------------------------------------------------- indexes


@pytest.mark.parametrize(("top_k", "page_cost"), [(5, 4.0), (40, 1.1), (400, 4.0)])
def test_every_search_reads_indexes_and_no_whole_table(
    sessions: Callable[..., Session], top_k: int, page_cost: float
) -> None:
    session = sessions(page_cost)
    about = session.about(HUB, top_k=top_k, chunk_top_k=max(20, top_k // 2))
    for (mode, ranking), hops in zip(product(MODES, RANKINGS), cycle((1, 2, 3, 3)), strict=False):
        rows, plans = session.search(**{**about, "mode": mode, "ranking": ranking, "hops": hops})
        case = (mode, ranking, hops)
        assert {row[0] for row in rows} == ({"chunk"} if mode == "naive" else {"entity", "relation", "chunk"}), case
        assert whole_tables(plans) == set(), case
        assert many_links(plans) == set(), case
        near = [node for _, node in scans(plans) if node.index.endswith("_embedding_idx") and node.loops]
        assert {node.table for node in near} == {f"{c}_vector" for c in vector_channels(mode, ranking)}, case
        for node in near:
            assert node.kind == "Index Scan"
            assert "$" in node.facts["Order By"], "a generic plan"
            limit = next(node for node in reversed(node.above) if node.kind == "Limit")
            assert limit.expected <= 500, "of a limit that is a parameter, a tenth of the table is expected"
            # ef_search follows top_k
            assert max(100, top_k if node.table in ("entity_vector", "relation_vector") else 0) <= node.read <= 1000
        words = [(function, node) for function, node in scans(plans, "chunk_search") if node.kind == "Bitmap Heap Scan"]
        assert bool(words) == (mode == "mix" or (ranking == "pagerank" and mode != "naive")), case
        assert all(function == "search_words" and node.read <= 600 for function, node in words)


def only_name(session: Session, entity: int, **options: Any) -> dict[str, Any]:
    """A question that is nothing but a name."""
    return {"keys": session.about(entity)["keys"], "mode": "local", "ranking": "weight", **options}


@pytest.mark.parametrize("page_cost", PAGE_COSTS)
@pytest.mark.parametrize("cap", [1, 5, CAP, 300])
def test_of_a_hub_degree_cap_edges_are_read_from_the_index(
    sessions: Callable[..., Session], cap: int, page_cost: float
) -> None:
    session = sessions(page_cost)
    for hops in (1, 2, 3):
        rows, plans = session.search(
            **only_name(session, HUB, hops=hops, degree_cap=cap, entity_tokens=10**6, relation_tokens=10**6)
        )
        edges = [node for _, node in scans(plans, "adjacency") if node.loops]
        assert edges
        for node in edges:
            assert (node.kind, node.index) == ("Index Only Scan", "adjacency_hop_idx")
            assert node.facts["Heap Fetches"] == 0
            assert node.read <= cap
        # 8 neighbours go on from every entity, and caps shrink to a quarter with every hop, but not below 2
        reads = [cap, 8 * max(2, cap // 4), 64 * max(2, cap // 16)][:hops]
        assert cap <= sum(node.loops * node.read for node in edges) <= sum(reads)
        if hops == 1:
            assert [node.loops for node in edges] == [1]
            assert len([row for row in rows if row[0] == "relation"]) == cap


def test_edges_come_by_weight(session: Session) -> None:
    """What is read is not just any of a hub's edges."""
    best = session.run(
        "select relation_id from pgrag.adjacency where entity_id = %s order by weight desc, relation_id limit %s",
        HUB,
        CAP,
    )[0]
    rows, _ = session.search(**only_name(session, HUB))
    assert [(row[2],) for row in rows if row[0] == "relation"] == best


@pytest.mark.parametrize("page_cost", PAGE_COSTS)
def test_of_an_item_fifty_source_links_are_read(sessions: Callable[..., Session], page_cost: float) -> None:
    """The hub with 40,000 mentions, and a relation with 20,000 facts."""
    session = sessions(page_cost)
    assert session.one("select count(*) from pgrag.mention where entity_id = %s", HUB) == CHUNKS * 2 // 3
    assert session.one("select count(*) from pgrag.fact where relation_id = %s", BUSY_RELATION) == CHUNKS // 3
    for options, table in (
        (only_name(session, HUB, entity_tokens=40, relation_tokens=0, chunk_top_k=100), "mention"),
        ({"high": session.vector("relation", BUSY_RELATION), "mode": "global", "ranking": "weight", "top_k": 1,
          "entity_tokens": 0, "chunk_top_k": 100}, "fact"),
    ):  # fmt: skip
        rows, plans = session.search(**options)
        links = [node for _, node in scans(plans, table) if node.loops]
        assert links
        assert {(node.loops, node.read) for node in links} == {(1, PER_ITEM)}, [str(node) for node in links]
        assert len(rows) == 1 + PER_ITEM


# ---------------------------------------------------------------- the tenth call


@pytest.mark.parametrize(
    ("mode", "ranking", "every"),
    [
        *product(MODES, ["pagerank"], [0]),
        ("mix", "vector", 0),
        ("mix", "weight", 0),
        ("mix", "pagerank", 100),
        ("mix", "vector", 10),
    ],
)
def test_the_tenth_call_reads_what_the_second_read(session: Session, mode: str, ranking: str, every: int) -> None:
    """Though others were asked in between; the client's own statement gets its generic plan at the sixth."""
    options = {"mode": mode, "ranking": ranking, "hops": 2, "filter": share(every) if every else None}
    questions = [session.about(entity, **options) for entity in (HUB, 6, 501, 10_001, 100_001)]
    calls = [session.search(**questions[0 if call in (2, 10) else call % len(questions)]) for call in range(1, 11)]
    (rows, plans), (later_rows, later_plans) = calls[1], calls[9]
    assert rows
    assert rows == later_rows
    assert [plan.shape for plan in plans] == [plan.shape for plan in later_plans]
    assert [plan.pages for plan in plans] == [plan.pages for plan in later_plans]
    if not every:  # with a filter, plans are made for the passages at hand
        shapes = defaultdict(set)
        for plan in (plan for _, plans in calls for plan in plans):
            shapes[plan.function, plan.query].add(plan.shape)
        assert {statement: len(found) for statement, found in shapes.items() if len(found) > 1} == {}


def test_the_first_call_decides_no_plan(sessions: Callable[..., Session]) -> None:
    """ef_search follows top_k and has a part in the costs: whatever was asked first, later plans are the same."""
    shapes = set()
    for first in (5, 40, 400):
        session = sessions()
        session.search(**session.about(HUB, top_k=first, chunk_top_k=first // 2))
        rows, plans = session.search(**session.about(501))
        shapes.add((len(rows), *(plan.shape for plan in plans)))
    assert len(shapes) == 1


def test_words_are_looked_up_in_their_index_from_the_first_passage_on(workspace: Workspace) -> None:
    """A session keeps the plan that it made when there was one: of the whole table it would soon be a slow one."""
    workspace.put(document("u", "the lighthouse keeper", "a harbour pilot"))
    session = Watched(workspace.dsn)
    try:
        rows, plans = session.run("select chunk_id from pgrag.search_words('{lighthouse}')")
    finally:
        session.close()
    assert len(rows) == 1
    found = [node for _, node in scans(plans, "chunk_search") if node.read]
    assert {node.kind for node in found} == {"Bitmap Heap Scan", "Bitmap Index Scan"}
    assert whole_tables(plans) == set()


# ---------------------------------------------------------------- hubs


def pages(session: Session, question: dict[str, Any]) -> int:
    """Pages that a search reads; the session must have searched before, for at first the catalogs are read too."""
    rows, plans = session.search(**question)
    assert rows
    return plans[-1].pages


def some_entities(session: Session, low: int, high: int, count: int) -> list[int]:
    """Entities that have a vector, of a degree in a range."""
    query = (
        "select e.id from pgrag.entity e join pgrag.entity_vector v on v.entity_id = e.id "
        "where degree between %s and %s order by md5(e.id::text) limit %s"
    )
    return [number for (number,) in session.run(query, low, high, count)[0]]


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize(("mode", "ranking"), [("local", "vector"), ("mix", "weight"), ("mix", "pagerank")])
def test_a_question_about_the_hub_reads_what_any_question_reads(
    session: Session, mode: str, ranking: str, hops: int
) -> None:
    middle = session.one("select percentile_disc(.5) within group (order by degree) from pgrag.entity")
    options = {"mode": mode, "ranking": ranking, "hops": hops}
    hub, *others = [session.about(entity, **options) for entity in (HUB, *some_entities(session, middle, middle, 7))]
    pages(session, hub)
    assert pages(session, hub) <= 1.5 * median(pages(session, other) for other in others)


def test_the_hub_alone_reads_what_any_entity_at_the_cap_reads(session: Session) -> None:
    entities = [HUB, *some_entities(session, CAP, 3 * CAP, 9)]
    for hops in (1, 2, 3):
        hub, *others = [only_name(session, entity, hops=hops) for entity in entities]
        pages(session, hub)
        assert pages(session, hub) <= 1.5 * median(pages(session, other) for other in others)


# ---------------------------------------------------------------- filters


def share(every: int) -> str:
    """The filter that leaves every so manieth document."""
    return json.dumps({"metadata": {f"every{every}": True}})


def nearest(session: Session, question: str, every: int, limit: int) -> set[int]:
    """The nearest allowed chunks, by comparing all."""
    query = """
        with near as materialized (
            select chunk_id, embedding <=> %s::halfvec as distance
            from pgrag.document d join pgrag.chunk c on c.document_id = d.id
            join pgrag.chunk_vector v on v.chunk_id = c.id
            where d.metadata @> %s::jsonb)
        select chunk_id from near order by distance limit %s"""
    return {i for (i,) in session.run(query, question, json.dumps({f"every{every}": True}), limit)[0]}


def strangers(session: Session, rows: Sequence[tuple[Any, ...]], every: int) -> int:
    """How many rows are of no allowed document: chunks of others, entities and relations that only others know."""
    query = """
        with allowed as materialized (
            select c.id from pgrag.chunk c join pgrag.document d on d.id = c.document_id where d.metadata @> %s::jsonb)
        select count(*) from unnest(%s::text[], %s::bigint[]) as r (layer, id)
        where not case layer
            when 'chunk' then r.id in (select id from allowed)
            when 'entity' then exists (
                select from pgrag.mention m where m.entity_id = r.id and m.chunk_id in (select id from allowed))
            else exists (
                select from pgrag.fact f where f.relation_id = r.id and f.chunk_id in (select id from allowed)) end"""
    layers, ids = [row[0] for row in rows], [row[2] for row in rows]
    return int(session.one(query, json.dumps({f"every{every}": True}), layers, ids))


@pytest.mark.parametrize("every", EVERY)
def test_a_filter_leaves_as_many_passages_as_asked_for_or_all(session: Session, every: int) -> None:
    """CASES 29. Naive, and mix where nearness alone orders: both are compared with the nearest of all allowed."""
    recalls = []
    for entity, mode in product([HUB, *some_entities(session, 3, 3, 2)], ("naive", "mix")):
        about = session.about(entity, mode=mode, chunk_top_k=100, filter=share(every), nearness=1, lexical=0)
        rows, _ = session.search(**about)
        found = {row[2] for row in rows if row[0] == "chunk"}
        assert len(found) == min(100, CHUNKS // every)
        assert strangers(session, rows, every) == 0
        assert mode == "naive" or {row[0] for row in rows} == {"entity", "relation", "chunk"}
        recalls.append(len(found & nearest(session, about["question"], every, 100)) / len(found))
    assert min(recalls) >= (RECALL if every in (1, 10) else 1)


@pytest.mark.parametrize("every", EVERY)
def test_a_filter_reads_no_more_than_it_must(session: Session, every: int) -> None:
    wide = every <= 10
    seen = {}
    for mode, entity in product(("naive", "mix"), (501, HUB)):
        question = session.about(entity, mode=mode, filter=share(every), hops=2)
        pages(session, question)
        rows, plans = session.search(**question)
        assert len([row for row in rows if row[0] == "chunk"]) == 20
        walked = [node for _, node in scans(plans, "chunk_vector") if node.index == "chunk_vector_embedding_idx"]
        assert any(node.loops for node in walked) == wide, (
            "few are compared one by one, of many the index finds the nearest"
        )
        # vectors as short as these are read all together where many are wanted by key
        assert whole_tables(plans) <= ({("load_scope", "fact_vector")} if wide else set())
        assert all(node.read <= 1000 for function, node in scans(plans, "mention") if function == "scope_chunks")
        seen[mode, entity] = plans[-1].pages
    for mode in ("naive", "mix"):
        assert seen[mode, HUB] <= 1.5 * seen[mode, 501]


def test_of_a_hub_a_thousand_source_links_are_looked_through(session: Session) -> None:
    """Where a filter leaves too many passages to look at all, and few of the hub's: twenty are wanted."""
    rows, plans = session.search(**only_name(session, HUB, filter=share(100)))
    links = [node for function, node in scans(plans, "mention") if function == "scope_chunks"]
    assert [(node.loops, node.read) for node in links] == [(1, 1000)]
    assert rows[0][3] == "Hub"
