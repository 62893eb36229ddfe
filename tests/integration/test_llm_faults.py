"""What a model server does wrong, over real HTTP: waited out, mended, or shown; no chunk fails another."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pgrag import Document, PgRAG
from pgrag.errors import BudgetError, ExitCode, ModelAccessError, ModelError
from pgrag.types import IngestReport
from tests.support.llm import NOTHING, Brain, enclosed, llm_rag, record, think, using
from tests.support.models import WordEmbedder
from tests.support.openai_server import Answer, OpenAIServer, Reply, Request, failing, rate_limited
from tests.support.rag import count, rows, value

NAMES = ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Gorse", "Hazel", "Ivy", "Juniper")
TOLD = "{year}: {name} sailed the long way round the cape with a cargo of tea and a crew of twenty men."
TEN = "\n\n".join(TOLD.format(name=name, year=1800 + i) for i, name in enumerate(NAMES))  # a chunk each
ONE: dict[str, Any] = {"gleaning": 0}


@pytest.fixture
def llm() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


def ingest(dsn: str, llm: OpenAIServer, text: str = TEN, **settings: Any) -> IngestReport:
    return asyncio.run(using(llm_rag(dsn, llm, **settings), lambda rag: rag.ingest([Document("a", text)])))


def usual(request: Request) -> Reply:
    return Reply(json.dumps(record(enclosed(request, "passage"))))


def first(faults: list[Answer], marker: str) -> Callable[[Request], Reply]:
    """These faults, one after the other, for the chunk that holds the marker; else the usual answer."""
    left = list(faults)

    def reply(request: Request) -> Reply:
        if marker in enclosed(request, "passage") and left:
            fault = left.pop(0)
            return fault(request) if callable(fault) else fault
        return usual(request)

    return reply


# ---------------------------------------------------------------- what passes


@pytest.mark.parametrize(
    ("faults", "settings"),
    [
        ([rate_limited("0")] * 3, {"llm_retries": 5}),
        ([failing(500)], {}),
        ([Reply(delay=30)], {"llm_timeout": 0.5}),
    ],
)
def test_a_fault_that_passes_costs_a_wait(
    words_dsn: str, llm: OpenAIServer, faults: list[Answer], settings: dict[str, Any]
) -> None:
    """429 with Retry-After three times, 500 once, a stall once (CASES 9, 10)."""
    brain = think(llm, extraction=first(faults, "Gorse"))
    report = ingest(words_dsn, llm, **ONE, **settings)
    assert report.failures == ()
    assert brain.counts == Counter({"extraction": 10 + len(faults)})
    assert count(words_dsn, "entity") == 10
    assert value(words_dsn, "select sum(calls) from llm_usage") == 10, "what failed was not paid"


def test_retry_after_is_waited_for(words_dsn: str, llm: OpenAIServer) -> None:
    think(llm, extraction=first([rate_limited("1")], "Gorse"))
    started = time.monotonic()
    assert ingest(words_dsn, llm, **ONE).failures == ()
    assert time.monotonic() - started > 1


def test_chunks_are_read_side_by_side(words_dsn: str, llm: OpenAIServer) -> None:
    think(llm, extraction=lambda request: Reply(usual(request).text, delay=0.1))
    ingest(words_dsn, llm, **ONE, llm_concurrency=3)
    assert llm.busiest["chat"] == 3


# ---------------------------------------------------------------- what stays


def test_an_answer_nobody_can_read_is_paid_for_twice_at_most(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm, extraction=Reply("I am sorry, I cannot help with that."))
    report = ingest(words_dsn, llm, **{**ONE, "max_attempts": 5})
    assert brain.counts == Counter({"extraction": 2 * len(report.failures)})
    assert len(report.failures) == count(words_dsn, "chunk") == 10
    assert count(words_dsn, "chunk", "attempts = 2 and retry_at = 'infinity'") == 10


@pytest.mark.parametrize(
    ("fault", "words", "settings"),
    [
        (failing(400, "the text offends"), "refused the request (status 400): the text offends", {}),
        (failing(500, "boom"), "failed (2 tries): boom", {}),
        (Reply(delay=30), "raise the setting llm_timeout", {"llm_timeout": 0.3, "llm_retries": 0}),
        (Reply("<think>Gorse, hmm"), "holds only thinking", {}),
        (Reply("<think>Gorse, hmm</think>"), "is empty", {}),
        (Reply(""), "is empty", {}),
        (Reply(None), "is empty", {}),
        (Reply('{"entities": [{"name": "Gor', finish_reason="length"), "cut off: length", {}),
        (Reply("", finish_reason="length"), "cut off: length", {}),
        (Reply("I am sorry, I cannot help with that."), "holds no record; it begins 'I am sorry", {}),
    ],
)
def test_one_chunk_that_fails_for_good(
    words_dsn: str, llm: OpenAIServer, fault: Reply, words: str, settings: dict[str, Any]
) -> None:
    """The others are searchable, the failure is shown, `retry` completes it, and nothing else is asked."""
    brain: Brain = think(llm, extraction=first([fault] * 5, "Gorse"))

    async def work(rag: PgRAG) -> None:
        report = await rag.ingest([Document("a", TEN)])
        (failure,) = report.failures
        assert (failure.uri, failure.ordinal) == ("a", 6)
        assert words in failure.error
        assert await rag.failures() == [failure]
        (document,) = await rag.documents()
        assert (document.status, document.chunks, document.chunks_done, document.chunks_failed) == ("failed", 10, 9, 1)
        assert document.error == f"chunk 6: {failure.error}"
        found = await rag.retrieve("Elm sailed round the cape")
        assert any("Elm" in chunk.body for chunk in found.chunks)
        assert count(words_dsn, "entity") == 9
        assert count(words_dsn, "stale") == 0

        brain.replies.clear()
        brain.forget()
        await rag.ingest([Document("a", TEN)])
        assert brain.counts["extraction"] == 0, "a chunk that gave up waits for retry"
        report = await rag.retry()
        assert (report.failures, await rag.failures()) == ((), [])
        assert brain.counts == Counter({"keywords": 0, "extraction": 1})
        assert (await rag.documents())[0].status == "complete"
        assert count(words_dsn, "entity") == 10

    asyncio.run(using(llm_rag(words_dsn, llm, **{**ONE, **settings}), work))


def test_an_answer_that_cannot_be_read_is_asked_for_again_in_the_same_run(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm, extraction=first([Reply("Well, hard to say.")], "Gorse"))
    report = ingest(words_dsn, llm, **ONE, max_attempts=2)
    assert report.failures == ()
    assert brain.counts == Counter({"extraction": 11})
    cached = [text for (text,) in rows(words_dsn, "select response from llm_cache")]
    assert len(cached) == 10
    assert not any("hard to say" in text for text in cached), "the answer that is of use took its place"


def test_a_text_in_which_there_is_nothing_is_flagged(words_dsn: str, llm: OpenAIServer) -> None:
    think(llm, extraction=Reply(NOTHING))
    report = ingest(words_dsn, llm)
    assert (report.failures, report.empty) == ((), ("a",))
    (status,) = rows(words_dsn, "select status from document")
    assert status == ("empty",)


def test_what_is_whole_of_a_cut_answer_is_kept_and_the_cut_counted(words_dsn: str, llm: OpenAIServer) -> None:
    text = json.dumps(record("Alder hired Birch."))
    cut = text[: text.index("relations") + 40]
    think(llm, extraction=Reply(cut, finish_reason="length"))
    report = ingest(words_dsn, llm, "Alder hired Birch.")
    assert report.failures == ()
    assert report.dropped["answer cut off: raise max_output_tokens"] == 1
    assert sorted(rows(words_dsn, "select name from entity")) == [("Alder",), ("Birch",)]
    assert count(words_dsn, "relation") == 0


@pytest.mark.parametrize(
    "answer",
    [
        "```json\n{text}\n```",
        "Certainly!\n{text}\nI hope this helps.",
        "<think>a plan</think>{text}",
        "{text},",
        '("entity"<|>Alder<|>person<|>Alder hired Birch.)##("entity"<|>Birch<|>person<|>Alder hired Birch.)##'
        '("relationship"<|>Alder<|>Birch<|>Alder hired Birch.<|>hired<|>8)<|COMPLETE|>',
        "entity<|#|>Alder<|#|>person<|#|>Alder hired Birch.\nentity<|#|>Birch<|#|>person<|#|>Alder hired Birch.\n"
        "relation<|#|>Alder<|#|>Birch<|#|>hired<|#|>Alder hired Birch.\n<|COMPLETE|>",
    ],
)
def test_answers_in_other_forms_are_read(words_dsn: str, llm: OpenAIServer, answer: str) -> None:
    think(llm, extraction=Reply(answer.replace("{text}", json.dumps(record("Alder hired Birch.")))))
    assert ingest(words_dsn, llm, "Alder hired Birch.").failures == ()
    assert sorted(rows(words_dsn, "select name, type, description from entity")) == [
        ("Alder", "person", "Alder hired Birch."),
        ("Birch", "person", "Alder hired Birch."),
    ]
    assert rows(words_dsn, "select keywords, description from relation") == [(["hired"], "Alder hired Birch.")]


def test_a_gleaning_that_cannot_be_read_costs_only_itself(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm, gleaning=Reply("As I said before, that is all I can see of this."))
    report = ingest(words_dsn, llm)
    assert report.failures == ()
    assert report.dropped == {"gleaning answer that cannot be read": 10}
    assert brain.counts == Counter({"extraction": 10, "gleaning": 10})
    assert count(words_dsn, "entity") == 10


# ---------------------------------------------------------------- what stops a run


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_server_that_refuses_everything_stops_the_run_at_once(
    words_dsn: str, llm: OpenAIServer, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    brain = think(llm, extraction=failing(status, "not for you"))
    with pytest.raises(ModelAccessError, match=r"not for you.*(set llm_api_key|check the settings)") as caught:
        ingest(words_dsn, llm, llm_concurrency=2, workers=2)
    assert "\n" not in str(caught.value)
    assert brain.counts["extraction"] <= 4, "what was under way, and no more"
    assert count(words_dsn, "chunk", "lease_until is not null or attempts > 0 or error is not null") == 0
    assert caplog.text == ""
    brain.replies.clear()
    assert ingest(words_dsn, llm).failures == ()
    assert count(words_dsn, "entity") == 10


def test_max_cost_stops_the_run_cleanly_and_it_goes_on(words_dsn: str, llm: OpenAIServer) -> None:
    """CASES 27: what is paid for is in the graph, every lease is given back, and nothing is paid for twice."""
    price = 20_000 * 0.15e-6 + 1_000 * 0.60e-6  # of openai/gpt-4o-mini, a call
    brain = think(llm, extraction=lambda request: Reply(usual(request).text, usage=(20_000, 1_000), delay=0.05))
    settings: dict[str, Any] = {
        "llm_model": "openai/gpt-4o-mini",
        "llm_concurrency": 2,
        "workers": 2,
        "claim_batch": 3,
        "max_output_tokens": 1000,
        **ONE,
    }
    with pytest.raises(BudgetError, match="raise max_cost and run the same again") as caught:
        ingest(words_dsn, llm, max_cost=5 * price, **settings)
    assert caught.value.exit_code is ExitCode.BUDGET, "4, as the command line returns it"
    paid = brain.counts["extraction"]
    assert 3 <= paid <= 6
    assert value(words_dsn, "select sum(calls) from llm_usage") == paid, "every answer that was sent is counted"
    assert count(words_dsn, "chunk", "extracted_at is not null") == paid, "and is in the graph"
    assert count(words_dsn, "chunk", "lease_until is not null or attempts > 0 or error is not null") == 0
    assert count(words_dsn, "entity_vector") == count(words_dsn, "entity") == paid, "and can be searched"
    assert count(words_dsn, "stale") == 0
    report = ingest(words_dsn, llm, max_cost=20 * price, **settings)
    assert report.failures == ()
    assert brain.counts["extraction"] == 10
    assert count(words_dsn, "entity") == 10
    assert float(value(words_dsn, "select sum(cost) from llm_usage")) == pytest.approx(10 * price)


def test_summaries_that_exceed_max_cost_let_the_workers_finish(words_dsn: str, llm: OpenAIServer) -> None:
    """In the middle of a run: no answer that is under way, and so paid for, is thrown away."""
    brain = think(llm, extraction=lambda request: Reply(usual(request).text, usage=(1000, 100), delay=0.4))
    text = "\n\n".join(
        f"Alder told story {n} of the long way round the cape with a cargo of tea and men." for n in range(30)
    )
    settings: dict[str, Any] = {
        "llm_model": "openai/gpt-4o-mini", "llm_concurrency": 4, "claim_batch": 4, "refresh_chunks": 4,
        "summary_fragments": 2, "max_output_tokens": 100, "max_cost": 0.0035, **ONE,
    }  # fmt: skip
    brain.replies["summary"] = Reply("Alder told stories.", usage=(10_000, 1_000))
    with pytest.raises(BudgetError):
        ingest(words_dsn, llm, text, **settings)
    assert brain.counts["summary"] >= 1
    assert 4 < brain.counts["extraction"] < 30
    assert llm.aborted == 0
    assert count(words_dsn, "chunk", "extracted_at is not null") == brain.counts["extraction"]
    assert (
        count(words_dsn, "chunk", "lease_until is not null")
        == count(words_dsn, "stale", "lease_until is not null")
        == 0
    )


def test_a_refresh_that_fails_in_the_middle_is_put_off(words_dsn: str, llm: OpenAIServer) -> None:
    class Dying(WordEmbedder):
        failed = 0

        async def embed(self, texts: Any, kind: Any) -> Any:
            if not self.failed and any(
                "\n" in text.strip() for text in texts
            ):  # a profile: the name, then the description
                self.failed += 1
                raise ModelError("the embedding server is gone")
            return await super().embed(texts, kind)

    think(llm, extraction=lambda request: Reply(usual(request).text, delay=0.3))
    embedder = Dying()
    report = ingest(words_dsn, llm, **ONE, embedder=embedder, refresh_chunks=2, claim_batch=2, llm_concurrency=2)
    assert (report.failures, embedder.failed) == ((), 1)
    assert count(words_dsn, "entity_vector") == 10


def test_max_cost_of_a_question(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm)

    async def work(rag: PgRAG) -> None:
        await rag.ingest([Document("a", TEN)])

    asyncio.run(using(llm_rag(words_dsn, llm), work))
    brain.forget()
    settings: dict[str, Any] = {"llm_model": "openai/gpt-4o-mini", "max_cost": 0}
    with pytest.raises(BudgetError):
        asyncio.run(using(llm_rag(words_dsn, llm, **settings), lambda rag: rag.query("Who sailed?")))
    assert brain.counts == Counter()


@pytest.mark.parametrize("purpose", ["keywords", "answer"])
def test_a_question_whose_model_fails_says_which_setting(words_dsn: str, llm: OpenAIServer, purpose: Any) -> None:
    brain = think(llm)

    async def work(rag: PgRAG) -> None:
        await rag.ingest([Document("a", TEN)])
        brain.replies[purpose] = Reply(delay=30)
        with pytest.raises(ModelError, match="raise the setting llm_timeout"):
            await rag.query("Who sailed?")
        brain.replies.clear()
        assert (await rag.query("Who sailed?")).answer

    asyncio.run(using(llm_rag(words_dsn, llm, llm_timeout=0.5, llm_retries=0), work))


def test_cancelling_gives_everything_back(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm, extraction=first([Reply(delay=30)], "Gorse"))

    async def work(rag: PgRAG) -> None:
        task = asyncio.ensure_future(rag.ingest([Document("a", TEN)]))
        while count(words_dsn, "llm_cache") < 9:  # noqa: ASYNC110 - another thread's rows
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert count(words_dsn, "chunk", "lease_until is not null") == 0
        assert (await rag.ingest([Document("a", TEN)])).failures == ()

    asyncio.run(using(llm_rag(words_dsn, llm, **ONE), work))
    assert brain.counts == Counter({"extraction": 11})
    assert count(words_dsn, "entity") == 10
