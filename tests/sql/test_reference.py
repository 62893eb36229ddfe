"""`retrieve()` against the rules in plain Python, row by row, over drawn graphs and questions.

The draws are the same in every run; REFERENCE_EXAMPLES=1000 draws so many new ones. A failure prints the graph, the
question and how to draw them again. Each of these changes to the SQL by itself makes a test of this file fail:

seeds    threshold > for >= · no names · 30 similar names for 3 · similar ones beside an exact one · no vector quota
walk     rank before depth · seed before rank · second hop without cap or with twice · on along all edges · neighbours
         without bound · more than top_k seeds
lists    global before local, entities or relations · relations twice · passages of relations that entities have too ·
         the first item before how many · walked passages outside the graph · no fall-back without a question
budgets  < for <=, each layer · total without the graph · graph budgets not shrunk · 5 links of an item for 50
ranking  names not passed on · shares of passages and seeds, names and facts, nearness and walk swapped · no damping at
         one step · no support · words in full at the start · 11 facts · mentions not divided by · 9 neighbours ·
         29 passages · 4 of a seed · start at 19
words    parts of a word by min · not in the order · one more is rare · length without average
filter   not heard by descriptions of entities, of relations, names, weights, facts, mentions or words · no seeds from
         passages · mentions miscounted · weight by chunks for texts · one label for all · ? for many characters
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import asyncpg
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from pgrag.config import Settings
from pgrag.database import migrate
from tests.sql.reference_drawn import (
    DIMENSION,
    WORDS,
    graph_of_words,
    graphs,
    load_statement,
    parameters,
    questions,
    table_rows,
    wordings,
)
from tests.sql.reference_graph import Graph
from tests.sql.reference_lists import Asked, Row
from tests.sql.reference_ranking import UndecidedError
from tests.sql.reference_search import BOUNDS, Bounds, search
from tests.sql.reference_words import Bm25, candidates, part_shares
from tests.sql.support import Workspace, bounds_statement
from tests.support import postgres
from tests.support.models import WordEmbedder

NOT_ASCII = "東京大学院спрена生ïé"


@pytest.fixture(scope="module")
def small(server: postgres.Postgresql) -> Iterator[Workspace]:
    """A workspace of short vectors without vector indexes: what is nearest is exact."""
    postgres.create_database(server.url(), "reference")
    url = str(server.url(database="reference"))
    migrate.initialise(Settings(dsn=SecretStr(url)), WordEmbedder(DIMENSION))
    with asyncio.Runner() as runner:
        opened = Workspace(url, runner, DIMENSION)
        for table in ("chunk", "entity", "relation", "fact"):
            opened.rows(f"drop index pgrag.{table}_vector_embedding_idx")
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def letters(small: Workspace) -> str:
    """What this server takes for letters when it compares names, beside ASCII: a matter of its LC_CTYPE."""
    return "".join(c for c in NOT_ASCII if small.one("select show_trgm($1) <> '{}'", c))


def put(workspace: Workspace, graph: Graph) -> None:
    workspace.empty()
    workspace.one(load_statement(), table_rows(graph))


def answered(rows: Sequence[asyncpg.Record]) -> list[Row]:
    """The rows of `retrieve()` as the reference writes them."""
    columns = {
        "entity": ("name", "type", "body"),
        "relation": ("name", "target", "keywords", "body", "weight"),
        "chunk": ("uri", "ordinal", "body"),
    }
    for name in columns:
        ranks = [row["rank"] for row in rows if row["layer"] == name]
        assert ranks == list(range(1, len(ranks) + 1))
    reasons = [row["why"].split("+") for row in rows]
    assert all(len(set(why)) == len(why) for why in reasons)
    return [
        Row(r["layer"], r["id"], r["score"], frozenset(why), r["tokens"], tuple(r[c] for c in columns[r["layer"]]))
        for r, why in zip(rows, reasons, strict=True)
    ]


def assert_same(found: Sequence[Row], expected: Sequence[Row]) -> None:
    """Rows in their order; scores as four-byte floats have them."""
    assert [(r.layer, r.id) for r in found] == [(r.layer, r.id) for r in expected]
    for row, wanted in zip(found, expected, strict=True):
        assert (row.why, row.tokens, row.told) == (wanted.why, wanted.tokens, wanted.told), row
        assert row.score == (None if wanted.score is None else pytest.approx(wanted.score, abs=2e-6, rel=2e-6)), row


def assert_as_the_rules_say(
    workspace: Workspace, letters: str, graph: Graph, questions: Sequence[Asked], bounds: Bounds = BOUNDS
) -> None:
    put(workspace, graph)
    for asked in questions:
        found = answered(workspace.retrieve(**parameters(asked)))
        try:
            expected = search(graph, asked, letters, [row.id for row in found if row.layer == "chunk"], bounds)
        except UndecidedError:
            event("undecided")
            continue
        event(f"{asked.mode}, {asked.ranking}")
        assert_same(found, expected)


EXAMPLES = os.environ.get("REFERENCE_EXAMPLES")
pytestmark = pytest.mark.timeout(24 * 3600 if EXAMPLES else 240)
COMPARED = settings(
    max_examples=int(EXAMPLES or 100),
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@given(graph=graphs(), asked=st.lists(questions(), min_size=4, max_size=4))
@COMPARED
def test_every_row_is_as_the_rules_say(small: Workspace, letters: str, graph: Graph, asked: list[Asked]) -> None:
    assert_as_the_rules_say(small, letters, graph, asked)


@given(graph=graphs(), asked=st.lists(questions(filtered=True), min_size=4, max_size=4))
@COMPARED
def test_every_row_of_a_filtered_search_is_as_the_rules_say(
    small: Workspace, letters: str, graph: Graph, asked: list[Asked]
) -> None:
    assert_as_the_rules_say(small, letters, graph, asked)


@pytest.fixture(scope="module", params=[500, 1], ids=["measured", "by the index"])
def bounded(small: Workspace, request: pytest.FixtureRequest) -> Iterator[Workspace]:
    """Looks at eight passages as they are, at the four nearest of more, and measures up to some one by one."""
    small.rows(bounds_statement(every=8, measured=request.param, nearest=4))
    yield small
    small.rows(bounds_statement())


@given(graph=graphs(), asked=st.lists(questions(filtered=True), min_size=3, max_size=3))
@settings(COMPARED, max_examples=COMPARED.max_examples // 2)
def test_of_many_allowed_passages_those_that_matter_are_searched(
    bounded: Workspace, letters: str, graph: Graph, asked: list[Asked]
) -> None:
    few = [replace(one, chunk_top_k=min(one.chunk_top_k, 4)) for one in asked]
    assert_as_the_rules_say(bounded, letters, graph, few, Bounds(8, 4))


@given(
    texts=st.lists(st.lists(st.sampled_from(WORDS[:6]), max_size=6), max_size=25),
    wording=wordings(),
    budget=st.integers(1, 12),
)
@settings(COMPARED, max_examples=COMPARED.max_examples * 2)
def test_words_within_a_budget_score_by_bm25(
    small: Workspace, texts: list[list[str]], wording: tuple[tuple[str, ...], tuple[tuple[str, ...], ...]], budget: int
) -> None:
    graph = graph_of_words(texts)
    put(small, graph)
    words, parts = wording
    placed = [(word, 1 << i) for i, part in enumerate(parts) for word in part]
    placed += [(word, 0) for word in words if word not in dict(placed)]
    rows = small.rows(
        "select chunk_id, score, part from pgrag.search_words($1, 1000, $2, $3) "
        "with ordinality as s (chunk_id, score, part, n) order by n",
        [word for word, _ in placed],
        budget,
        [bit for _, bit in placed],
    )
    found = [i for i, *_ in rows]
    counted = {c.id: c.words for c in graph.chunks.values()}
    kinds = candidates(counted, words, budget)
    assert len(found) == len(set(found))
    assert set(found) <= set.union(*kinds)
    assert [len(kind & set(found)) for kind in kinds] == [min(len(kind), budget) for kind in kinds]
    scores, share = Bm25(counted, words).scores(), part_shares(counted, parts, found)
    assert [score for _, score, _ in rows] == pytest.approx([scores[i] for i in found], rel=1e-9)
    assert [part for *_, part in rows] == pytest.approx([share[i] for i in found], rel=1e-9)
    place = {i: score / max(score for _, score, _ in rows) + part for i, score, part in rows}
    assert found == sorted(found, key=lambda i: (-place[i], i))
