"""Evaluations of a real workspace: known ranks give known numbers. Small models, and a scripted one over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from pgrag import PgRAG
from pgrag.config import Settings
from pgrag.database.pool import open_pool
from pgrag.database.store import Store
from pgrag.embedding.keyless import KeylessEmbedder
from pgrag.errors import BudgetError, ModelAccessError, ModelError, UsageError, WorkspaceError
from pgrag.evaluate.results import EvaluationReport, Gold, Kind, Outcome, Question, Variant
from pgrag.evaluate.run import Evaluator
from pgrag.evaluate.variants import grid, with_baseline
from pgrag.llm.gateway import Gateway
from pgrag.search.answer import LLMAnswerer, QuotingAnswerer
from pgrag.search.keywords import LLMKeywords
from pgrag.text.tokens import Tokenizer
from pgrag.types import Document, Keywords, Mode, RetrievedChunk
from tests.support.llm import Brain, llm_rag, llm_settings, think, using
from tests.support.models import FixedKeywords, WordEmbedder
from tests.support.openai_server import OpenAIServer, Reply, failing
from tests.support.postgres import Postgresql, create_database, drop_database
from tests.support.rag import ingest, open_rag

PORTS = [
    Document("ports/varn.md", "Varn exports salted herring in oak barrels."),
    Document("ports/lom.md", "Lom imports copper wire and green glass."),
    Document("ports/quor.md", "Quor repairs wooden masts every winter."),
    Document("ports/esk.md", "Esk weaves sailcloth of flax."),
]
SMALL = {"chunk_tokens": 32, "chunk_overlap": 0}
HERRING = Question("herring", "salted herring oak barrels", (Gold("varn.md"),), ("Varn",), Kind.SINGLE_FACT)
GLASS = Question("glass", "copper wire green glass", (Gold(text="GREEN   glass"), Gold("nowhere.md")), (), "trade")
NOTHING = Question("nothing", "wooden masts winter", kind=Kind.NULL)
NAIVE, MIX = Variant(Mode.NAIVE), Variant(Mode.MIX)


@pytest.fixture(scope="module")
def ports(server: Postgresql, words_template: str) -> Iterator[str]:
    """A database with PORTS in it, one chunk each, for tests that only read."""
    create_database(server.url(), "ports", template=words_template)
    dsn = server.url(database="ports")
    assert ingest(dsn, PORTS, **SMALL).chunks == len(PORTS)
    yield dsn
    drop_database(server.url(), "ports")


@pytest.fixture
def llm() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


class Counting(FixedKeywords):
    """Remembers the questions it was asked; refuses one."""

    def __init__(self, refused: str = "") -> None:
        super().__init__(("Varn",), ("trade",))
        self.asked: list[str] = []
        self.refused = refused

    async def keywords(self, question: str, history: Sequence[Mapping[str, str]] = ()) -> Keywords:
        self.asked.append(question)
        if question == self.refused:
            raise ModelError("it has no words")
        return await super().keywords(question, history)


@asynccontextmanager
async def opened(dsn: str, **settings: Any) -> AsyncIterator[tuple[Store, Settings, Tokenizer]]:
    given = Settings(dsn=dsn, **settings)
    async with open_pool(given) as pool:
        yield Store(pool, given, WordEmbedder().dimension), given, Tokenizer(given.tokenizer)


def evaluate(
    dsn: str, questions: Sequence[Question], variants: Sequence[Variant], *, embedder: Any = None, keywords: Any = None,
    settings: Mapping[str, Any] | None = None, **details: Any,
) -> EvaluationReport:  # fmt: skip
    """The report of an evaluation without a language model."""

    async def run() -> EvaluationReport:
        async with opened(dsn, **(settings or {})) as (store, given, tokenizer):
            answerer = QuotingAnswerer(store, tokenizer)
            parts = (embedder or WordEmbedder(), keywords or Counting(), answerer, tokenizer)
            return await Evaluator(store, given, *parts).run(questions, variants, name="ports", **details)

    return asyncio.run(run())


def by_label(report: EvaluationReport, question: str) -> dict[str, Outcome]:
    return {outcome.variant: outcome for outcome in report.outcomes if outcome.question == question}


# ---------------------------------------------------------------- numbers


def test_known_ranks_give_known_numbers(ports: str) -> None:
    report = evaluate(ports, [HERRING, GLASS, NOTHING], [NAIVE], ks=[5, 1, 2])
    herring, glass, nothing = report.outcomes
    assert herring.found[0] == "ports/varn.md:0"
    assert len(herring.found) == len(PORTS)
    assert (herring.recall, herring.all_gold) == ({1: 1.0, 2: 1.0, 5: 1.0}, {1: 1.0, 2: 1.0, 5: 1.0})
    assert (herring.mrr, herring.ndcg, herring.precision) == (1.0, 1.0, 1.0)
    assert (glass.recall, glass.all_gold) == ({1: 0.5, 2: 0.5, 5: 0.5}, {1: 0.0, 2: 0.0, 5: 0.0})
    assert (herring.ranks, glass.ranks, nothing.ranks) == ((1,), (1, None), ())
    assert (glass.mrr, glass.ndcg, glass.precision) == (1.0, pytest.approx(1 / (1 + 0.63093), abs=1e-5), 1.0)
    assert (nothing.recall, nothing.mrr, nothing.ndcg, nothing.precision) == (None, None, None, None)
    assert all(o.answer is None and o.exact_match is None and o.error == "" for o in report.outcomes)
    assert (report.name, report.baseline, report.ks) == ("ports", "naive", (1, 2, 5))
    rows = {row.kind: row for row in report.rows}
    assert list(rows) == ["", "single_fact", "null", "trade"]
    assert rows[""].metrics["recall@5"].mean == 0.75
    assert rows["trade"].metrics["recall@5"].mean == 0.5
    assert rows["null"].metrics["cost"].mean == 0
    assert report.warnings == (
        "gold names 1 document that the workspace does not have: nowhere.md",
        "1 question of kind null measured in answers only, and none were asked for",
    )


class SlowToLoad(KeylessEmbedder):
    """A model in this process that takes half a second to load, with the vectors of words."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> NDArray[np.float32]:
        if not self.asked:
            await asyncio.sleep(0.5)
        self.asked += texts
        return await WordEmbedder().embed(texts, kind)


def test_loading_a_model_is_no_question_s_time(ports: str) -> None:
    embedder = SlowToLoad()
    report = evaluate(ports, [HERRING, NOTHING], [NAIVE], embedder=embedder)
    assert embedder.asked[0] == HERRING.text
    assert sorted(embedder.asked[1:]) == sorted([HERRING.text, NOTHING.text])
    assert max(outcome.seconds["embedding"] for outcome in report.outcomes) < 0.5


def test_a_rank_below_the_first_is_what_is_measured(ports: str) -> None:
    asked = Question("q", "copper wire green glass and herring", (Gold("varn.md"), Gold("lom.md")))
    [found] = evaluate(ports, [asked], [NAIVE]).outcomes
    assert found.found[:2] == ("ports/lom.md:0", "ports/varn.md:0")
    second = Question("q", asked.text, (Gold("varn.md"),))
    [found] = evaluate(ports, [second], [NAIVE], ks=[1, 2]).outcomes
    assert (found.recall, found.mrr, found.precision) == ({1: 0.0, 2: 1.0}, 0.5, 0.5)


def test_context_and_seconds_are_those_of_the_search(ports: str) -> None:
    report = evaluate(ports, [HERRING], [NAIVE, MIX])
    naive, mix = by_label(report, "herring")["naive"], by_label(report, "herring")["mix"]
    tokenizer = Tokenizer(Settings().tokenizer)
    assert naive.context_tokens == sum(tokenizer.count(document.body) for document in PORTS)
    assert mix.context_tokens > naive.context_tokens  # the layers of the graph
    for outcome in (naive, mix):
        assert set(outcome.seconds) == {"keywords", "embedding", "search"}
        assert (outcome.llm_tokens, outcome.cost) == (0, 0)
    assert naive.seconds["keywords"] == 0 < mix.seconds["keywords"]
    assert naive.seconds["embedding"] < mix.seconds["embedding"]


def test_gains_are_differences_to_the_baseline_by_question(ports: str) -> None:
    least = Variant(Mode.NAIVE, {"chunk_top_k": 1})
    asked = [
        Question("both", "copper wire green glass herring", (Gold("varn.md"), Gold("lom.md"))),
        Question("one", HERRING.text, HERRING.gold),
    ]
    report = evaluate(ports, asked, [least, NAIVE], baseline="naive", ks=[2])
    rows = {row.variant: row for row in report.rows}
    assert rows["naive"].metrics["recall@2"].mean == 1.0
    assert rows["naive chunk_top_k=1"].metrics["recall@2"].mean == 0.75
    assert rows["naive chunk_top_k=1"].gains["recall@2"].mean == -0.25
    assert rows["naive"].gains == {}
    assert report.warnings == ("recall@2 cannot be reached with a smaller chunk_top_k: naive chunk_top_k=1",)


def test_an_evaluation_finds_what_a_query_finds(ports: str) -> None:
    seen: dict[str, tuple[str, ...]] = {}

    async def ask() -> None:
        async with open_rag(ports, keywords=Counting()) as rag:
            for mode in ("naive", "local", "global", "hybrid", "mix"):
                chunks: tuple[RetrievedChunk, ...] = (await rag.retrieve(GLASS.text, mode=mode)).chunks
                seen[mode] = tuple(f"{chunk.uri}:{chunk.ordinal}" for chunk in chunks)

    asyncio.run(ask())
    report = evaluate(ports, [GLASS], [Variant(Mode(mode)) for mode in seen])
    assert {label: outcome.found for label, outcome in by_label(report, "glass").items()} == seen


# ---------------------------------------------------------------- once a question


def test_keywords_and_vectors_are_made_once_for_all_variants(ports: str) -> None:
    keywords, embedder = Counting(), WordEmbedder()
    variants = [NAIVE, *(Variant(mode) for mode in (Mode.LOCAL, Mode.GLOBAL, Mode.HYBRID, Mode.MIX))]
    report = evaluate(ports, [HERRING, GLASS], variants, keywords=keywords, embedder=embedder, concurrency=1)
    assert not any(outcome.error for outcome in report.outcomes)
    assert keywords.asked == [HERRING.text, GLASS.text]
    assert embedder.asked == [HERRING.text, "Varn", "trade", GLASS.text, "Varn", "trade"]


def test_naive_alone_needs_no_keywords(ports: str) -> None:
    keywords = Counting()
    assert evaluate(ports, [HERRING], [NAIVE], keywords=keywords).outcomes[0].error == ""
    assert keywords.asked == []


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_outcomes_stand_in_the_order_of_questions_and_variants(ports: str, concurrency: int) -> None:
    questions = [Question(str(n), f"{HERRING.text} {n}", HERRING.gold) for n in range(7)]
    done: list[tuple[int, int]] = []
    report = evaluate(ports, questions, [MIX, NAIVE], concurrency=concurrency, progress=lambda *told: done.append(told))
    expected = [(str(n), label) for n in range(7) for label in ("mix", "naive")]
    assert [(outcome.question, outcome.variant) for outcome in report.outcomes] == expected
    assert done == [(n, 7) for n in range(1, 8)]


# ---------------------------------------------------------------- errors


def test_a_question_that_fails_is_an_outcome_with_an_error(ports: str) -> None:
    broken = Question("broken", "who trades with whom", (Gold("varn.md"),))
    empty = Question("empty", " \0 ", (Gold("varn.md"),))
    keywords = Counting(refused=broken.text)
    report = evaluate(ports, [HERRING, broken, empty], [NAIVE, MIX], keywords=keywords)
    assert by_label(report, "broken")["mix"].error == "it has no words"
    assert by_label(report, "broken")["naive"].error == ""
    assert {outcome.error for outcome in by_label(report, "empty").values()} == {"the question is empty"}
    rows = {row.variant: row for row in report.rows if not row.kind}
    assert [(rows[label].questions, rows[label].errors) for label in ("naive", "mix")] == [(3, 1), (3, 2)]
    assert rows["mix"].metrics["recall@5"].n == 1
    assert rows["mix"].gains == {}  # one question is left to compare
    assert report.warnings == ("3 outcomes failed and are in no mean, the first: broken, mix: it has no words",)


def test_what_cannot_be_run_is_refused_before_it_begins(ports: str) -> None:
    for problem, details in {
        "unknown query option hop": {"variants": [Variant(Mode.MIX, {"hop": 2})]},
        "query option hops": {"variants": [Variant(Mode.MIX, {"hops": 9})]},
        "no variant is called 'best'": {"baseline": "best"},
        "there is no question": {"questions": []},
        "two questions have the id 'herring'": {"questions": [HERRING, HERRING]},
        "ks are ranks from 1 on": {"ks": [0, 5]},
        "concurrency is 1 or more": {"concurrency": 0},
        "with answers only": {"variants": [Variant(Mode.BYPASS)]},
    }.items():
        given: dict[str, Any] = {"questions": [HERRING], "variants": [MIX], **details}
        with pytest.raises(UsageError, match=problem):
            evaluate(ports, given.pop("questions"), given.pop("variants"), **given)
    with pytest.raises(WorkspaceError):
        evaluate(ports, [HERRING], [MIX], settings={"workspace": "absent"})


# ---------------------------------------------------------------- grids


def test_a_grid_is_the_product_without_options_that_make_no_difference() -> None:
    options = {"chunk_ranking": ["vector", "pagerank"], "chunk_top_k": ["5", 10]}
    assert [variant.label for variant in grid(Settings(), ["naive", "mix", Mode.BYPASS], options)] == [
        "naive chunk_top_k=5",
        "naive chunk_top_k=10",
        "mix chunk_ranking=vector chunk_top_k=5",
        "mix chunk_ranking=vector chunk_top_k=10",
        "mix chunk_ranking=pagerank chunk_top_k=5",
        "mix chunk_ranking=pagerank chunk_top_k=10",
        "bypass",
    ]
    assert grid(Settings(), ["local"], {"hops": "2"}) == [Variant(Mode.LOCAL, {"hops": 2})]
    assert grid(Settings(), ["mix", "mix"], {}) == [MIX]


@pytest.mark.parametrize(
    ("modes", "options", "problem"),
    [
        (["best"], {}, "unknown mode 'best'"),
        (["mix"], {"hop": [1]}, "unknown query option hop: use chunk_ranking"),
        (["naive"], {"hops": [0]}, "query option hops: "),
        (["mix"], {"chunk_ranking": ["random"]}, "query option chunk_ranking: "),
        (["mix"], {"hops": []}, "query option hops has no value to try"),
    ],
)
def test_wrong_grids(modes: list[str], options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        grid(Settings(), modes, options)


def test_the_baseline_is_naive_or_the_variant_named() -> None:
    settings, narrow = Settings(), Variant(Mode.NAIVE, {"chunk_top_k": 5})
    assert with_baseline(settings, [MIX]) == ([NAIVE, MIX], "naive")
    assert with_baseline(settings, [MIX, narrow]) == ([MIX, narrow], "naive chunk_top_k=5")
    assert with_baseline(settings, [MIX, narrow], "naive") == ([NAIVE, MIX, narrow], "naive")
    assert with_baseline(settings, [MIX, NAIVE], "mix") == ([MIX, NAIVE], "mix")
    assert with_baseline(settings, [MIX], "local") == ([Variant(Mode.LOCAL), MIX], "local")


# ---------------------------------------------------------------- answers and what they cost


def with_llm(
    dsn: str,
    llm: OpenAIServer,
    work: Callable[[Evaluator], Awaitable[Any]],
    model: str = "openai/gpt-4o-mini",
    **more: Any,
) -> Any:
    """The result of `work` on an evaluator whose keywords and answers are the server's."""

    async def run() -> Any:
        settings = llm_settings(dsn, llm, llm_model=model, **more)
        async with open_pool(settings) as pool:
            store, tokenizer = Store(pool, settings, WordEmbedder().dimension), Tokenizer(settings.tokenizer)
            gateway = Gateway(settings, store)
            answerer = LLMAnswerer(store, gateway, model, tokenizer)
            parts = (store, settings, WordEmbedder(), LLMKeywords(gateway, model), answerer, tokenizer)
            try:
                return await work(Evaluator(*parts, tally=gateway.requests.spending.tally))
            finally:
                await gateway.aclose()

    return asyncio.run(run())


def answering(llm: OpenAIServer, **replies: Any) -> Brain:
    """Keywords for 300 + 30 tokens, answers for 5000 + 50."""
    usual = {
        "keywords": Reply('{"low_level_keywords": ["Varn"], "high_level_keywords": ["trade"]}', usage=(300, 30)),
        "answer": Reply("Varn [1].", usage=(5000, 50)),
        "bypass": Reply("I do not know.", usage=(20, 5)),
    }
    return think(llm, **{**usual, **replies})


def price(prompt: int, completion: int) -> Decimal:
    return prompt * Decimal("0.15e-6") + completion * Decimal("0.60e-6")


@pytest.fixture
def own_ports(words_dsn: str) -> str:
    """PORTS in a database of the test's own: answers are kept in it."""
    assert ingest(words_dsn, PORTS, **SMALL).failures == ()
    return words_dsn


def test_each_variant_costs_what_it_would_alone(own_ports: str, llm: OpenAIServer) -> None:
    brain = answering(llm)
    variants = [NAIVE, Variant(Mode.LOCAL), MIX, Variant(Mode.BYPASS)]
    asked = [HERRING, Question("glass", GLASS.text, GLASS.gold, ("Lom imports glass", "Lom"), "trade"), NOTHING]

    async def work(evaluator: Evaluator) -> Any:
        first = await evaluator.run(asked, variants, name="ports", answers=True)
        brain.forget()
        return first, await evaluator.run(asked, variants, name="ports", answers=True)

    first, second = with_llm(own_ports, llm, work)
    for question in ("herring", "glass", "nothing"):
        found = by_label(first, question)
        assert [found[v.label].llm_tokens for v in variants] == [5050, 5380, 5380, 25]
        assert [found[v.label].cost for v in variants] == [
            price(5000, 50),
            price(5300, 80),
            price(5300, 80),
            price(20, 5),
        ]
        assert set(found["mix"].seconds) == {"keywords", "embedding", "search", "answer"}
        assert set(found["bypass"].seconds) == {"answer"}
    assert (by_label(first, "herring")["mix"].exact_match, by_label(first, "herring")["mix"].f1) == (1.0, 1.0)
    assert (by_label(first, "glass")["mix"].exact_match, by_label(first, "glass")["mix"].f1) == (0.0, 0.0)
    nothing = by_label(first, "nothing")
    assert (nothing["mix"].exact_match, nothing["bypass"].exact_match, nothing["bypass"].f1) == (0.0, 1.0, None)
    assert by_label(first, "herring")["bypass"].recall is None
    assert first.settings["answers"] == "answer by openai/gpt-4o-mini"
    nowhere = "gold names 1 document that the workspace does not have: nowhere.md"
    assert first.warnings == (nowhere,)
    # again: everything is in the cache, and the report says so
    assert brain.counts.total() == 0
    assert {(outcome.llm_tokens, outcome.cost) for outcome in second.outcomes} == {(0, 0)}
    assert second.warnings == (
        nowhere,
        "15 answers of models came from the cache: no tokens and no cost of them are counted",
    )
    assert [(o.answer, o.exact_match) for o in second.outcomes] == [(o.answer, o.exact_match) for o in first.outcomes]


def test_without_answers_the_answer_model_is_not_asked(own_ports: str, llm: OpenAIServer) -> None:
    brain = answering(llm)
    report = with_llm(own_ports, llm, lambda e: e.run([HERRING, GLASS], [NAIVE, MIX], name="ports"))
    assert brain.counts == {"keywords": 2}
    assert [o.llm_tokens for o in report.outcomes] == [0, 330, 0, 330]
    assert report.settings["answers"] is None


def test_a_price_that_is_not_known_is_no_cost_of_0(own_ports: str, llm: OpenAIServer) -> None:
    answering(llm)
    report = with_llm(own_ports, llm, lambda e: e.run([HERRING], [NAIVE, MIX], name="ports"), model="openai/scripted")
    naive, mix = report.outcomes
    assert (naive.cost, mix.cost, mix.llm_tokens) == (0, None, 330)
    assert report.warnings == ("the cost of 1 outcome is not known: there is no price for the model",)


def test_a_failing_answer_is_one_error_and_its_keywords_are_counted(own_ports: str, llm: OpenAIServer) -> None:
    answering(llm, answer=failing(400, "no such answer"))
    report = with_llm(own_ports, llm, lambda e: e.run([HERRING], [NAIVE, MIX], name="ports", answers=True))
    naive, mix = report.outcomes
    assert "no such answer" in naive.error
    assert "no such answer" in mix.error
    assert (naive.llm_tokens, mix.llm_tokens, mix.cost) == (0, 330, price(300, 30))
    assert mix.recall is None


def test_max_cost_stops_the_run_and_keeps_what_is_done(own_ports: str, llm: OpenAIServer) -> None:
    answering(llm)
    questions = [Question(str(n), f"{HERRING.text} {n}", HERRING.gold, ("Varn",)) for n in range(6)]
    each = price(300, 30) + 2 * price(5000, 50)

    async def work(evaluator: Evaluator) -> Any:
        return await evaluator.run(questions, [NAIVE, MIX], name="ports", answers=True, concurrency=1)

    report = with_llm(own_ports, llm, work, max_cost=float(each * 3), max_output_tokens=50)
    assert 1 <= len(report.questions) < 6
    assert [o.question for o in report.outcomes] == [q.id for q in report.questions for _ in range(2)]
    assert not any(outcome.error for outcome in report.outcomes)
    assert report.warnings[-1].startswith(f"stopped after {len(report.questions)} of 6 questions: stopped before a")
    assert "max_cost" in report.settings["stopped"]
    with pytest.raises(BudgetError):
        with_llm(own_ports, llm, lambda e: e.run([GLASS], [MIX], name="ports"), max_cost=0)


def test_a_refused_key_ends_the_run_at_once(own_ports: str, llm: OpenAIServer) -> None:
    brain = answering(llm, keywords=failing(401, "wrong key"))
    questions = [Question(str(n), f"{HERRING.text} {n}", HERRING.gold) for n in range(9)]
    with pytest.raises(ModelAccessError):
        with_llm(own_ports, llm, lambda e: e.run(questions, [MIX], name="ports", concurrency=1))
    assert brain.counts["keywords"] == 1


def test_cancelling_ends_all_work(own_ports: str, llm: OpenAIServer) -> None:
    brain = answering(llm, answer=Reply(delay=30))
    questions = [Question(str(n), f"{HERRING.text} {n}", HERRING.gold) for n in range(9)]

    async def work(evaluator: Evaluator) -> list[Any]:
        running = asyncio.create_task(evaluator.run(questions, [MIX], name="ports", answers=True))
        for _ in range(500):
            await asyncio.sleep(0.02)
            if brain.counts["answer"] == 4:
                break
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return [task for task in asyncio.all_tasks() if "Evaluator" in repr(task)]

    assert with_llm(own_ports, llm, work) == []
    assert brain.counts == {"keywords": 2, "answer": 4}  # every other question begins with naive
    assert llm.aborted == 4


def test_quoted_answers_cost_nothing(ports: str) -> None:
    report = evaluate(ports, [HERRING, NOTHING], [NAIVE], answers=True)
    herring, nothing = report.outcomes
    assert herring.answer is not None
    assert herring.answer.startswith("Varn exports salted herring")
    assert (herring.exact_match, nothing.exact_match) == (0.0, 0.0)
    assert herring.f1 is not None
    assert 0 < herring.f1 < 1
    assert (herring.llm_tokens, herring.cost) == (0, 0)


# ---------------------------------------------------------------- the library's own


def test_the_library_evaluates_a_workspace(own_ports: str, llm: OpenAIServer) -> None:
    brain = answering(llm)

    async def work(rag: PgRAG) -> EvaluationReport:
        return await rag.evaluate([HERRING, GLASS], answers=True, response_type="One word")

    report = asyncio.run(using(llm_rag(own_ports, llm, llm_model="openai/gpt-4o-mini"), work))
    assert (report.name, report.baseline, report.verdicts) == ("default", "naive", ())
    assert [(o.variant, o.llm_tokens, o.cost) for o in report.outcomes[:2]] == [
        ("naive", 5050, price(5000, 50)),
        ("mix", 5380, price(5300, 80)),
    ]
    assert by_label(report, "herring")["mix"].exact_match == 1.0
    assert all("One word" in request.body["messages"][0]["content"] for request in brain.of("answer"))


def test_a_judge_compares_the_answers_of_two_variants(own_ports: str, llm: OpenAIServer) -> None:
    answering(llm)

    async def work(rag: PgRAG) -> EvaluationReport:
        with pytest.raises(UsageError, match="a judge compares two variants, not 'naive' and 'best': use naive, mix"):
            await rag.evaluate([HERRING], judge=("naive", "best"))
        return await rag.evaluate([HERRING, GLASS], judge=("naive", "mix"))

    report = asyncio.run(using(llm_rag(own_ports, llm), work))
    [overall] = [v for v in report.verdicts if v.kind == "" and v.criterion == "overall"]
    assert (overall.questions, overall.first_wins, overall.second_wins, overall.ties) == (2, 0, 0, 1)  # the same words
    assert report.settings["judge"] == "openai/scripted"
