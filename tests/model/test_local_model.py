"""A real language model, over its own HTTP server, through ingest and query.

It is far too small for the work: what it writes is not looked at. That each answer, usable or not, ends in a state that
is told clearly, and is asked for and counted once, is.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import pytest
from pydantic import SecretStr

from pgrag import PgRAG, Settings
from pgrag.errors import ModelError
from pgrag.llm.gateway import Gateway
from pgrag.types import Chunk, Document, ExtractedMention, Extraction, UsageRow
from tests.support.local_model import LocalModel, wait_until_idle
from tests.support.models import FixedKeywords, FunctionExtractor, WordEmbedder
from tests.support.rag import count, rows, value

pytestmark = pytest.mark.model

T = TypeVar("T")

NAME = "openai/smollm2"
SAY = [{"role": "user", "content": "Tell me a story about a fox and a river."}]
DOCUMENT = Document("engine.txt", "Ada Lovelace wrote the first program. She worked with Charles Babbage in London.")
TOO_LONG = r"too long for openai/smollm2: request \(\d+ tokens\) exceeds the available context size \(256 tokens\)"


def settings_for(model: LocalModel, **more: Any) -> Settings:
    """Settings for the local model: short answers, one try."""
    given = {
        "llm_model": NAME, "llm_api_base": model.url, "llm_api_key": SecretStr("none"), "max_output_tokens": 60,
        "gleaning": 0, "max_attempts": 1, "llm_retries": 0,
    }  # fmt: skip
    return Settings(**{**given, **more})


def with_gateway(model: LocalModel, work: Callable[[Gateway], Awaitable[T]], **settings: Any) -> T:
    """The result of `work` on a gateway without a cache."""

    async def run() -> T:
        gateway = Gateway(settings_for(model, **settings))
        try:
            return await work(gateway)
        finally:
            await gateway.aclose()

    return asyncio.run(run())


def with_rag(
    dsn: str, model: LocalModel, work: Callable[[PgRAG], Awaitable[T]], extractor: Any = None, **settings: Any
) -> T:
    """The result of `work` on a PgRAG: the local model does what is not given."""

    async def run() -> T:
        given = settings_for(model, dsn=SecretStr(dsn), **settings)
        async with PgRAG(settings=given, embedder=WordEmbedder(), extractor=extractor) as rag:
            return await work(rag)

    return asyncio.run(run())


def numbers(at_least: int) -> dict[str, Any]:
    """A JSON schema whose shortest answer is long."""
    items = {"type": "array", "items": {"type": "integer"}, "minItems": at_least}
    return {"type": "object", "properties": {"n": items}, "required": ["n"], "additionalProperties": False}


def named(chunk: Chunk) -> Extraction:
    """Acme, described by the whole chunk."""
    return Extraction((ExtractedMention("Acme", "organization", chunk.body),), ())


async def until_busy(model: LocalModel) -> None:
    """Waits until the server works on a request."""
    deadline = time.monotonic() + 30
    while not await asyncio.to_thread(lambda: model.busy):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def by_purpose(usage: list[UsageRow]) -> dict[str, UsageRow]:
    assert {row.model for row in usage} <= {NAME}
    return {row.purpose: row for row in usage}


# ---------------------------------------------------------------- the gateway


def test_an_answer_keeps_to_the_json_schema(model: LocalModel) -> None:
    schema = {
        "type": "object",
        "properties": {"zebra": {"type": "integer"}, "gnu": {"enum": ["left", "right"]}},
        "required": ["zebra", "gnu"],
        "additionalProperties": False,
    }
    result = with_gateway(model, lambda gateway: gateway.chat("test", SAY, model=NAME, schema=schema))
    answer = json.loads(result.text)
    assert answer.keys() == {"zebra", "gnu"}, "no story: the schema was sent, and held to"
    assert isinstance(answer["zebra"], int)
    assert answer["gnu"] in ("left", "right")
    assert (result.finish_reason, result.truncated) == ("stop", False)


def test_a_stream_comes_in_pieces_with_the_tokens_of_the_server(model: LocalModel) -> None:
    before = model.written

    async def work(gateway: Gateway) -> tuple[list[str], Any]:
        stream = gateway.stream("test", SAY, model=NAME)
        return [piece async for piece in stream], stream.result

    pieces, result = with_gateway(model, work, max_output_tokens=24)
    assert len(pieces) > 10
    assert result.text == "".join(pieces)
    assert result.truncated
    assert result.completion_tokens == 24 == model.written - before
    assert result.prompt_tokens > 10


def test_a_stream_left_early_ends_the_work_of_the_server(model: LocalModel) -> None:
    cancelled = model.log.count("cancel task")

    async def work(gateway: Gateway) -> tuple[list[str], Any, Any]:
        stream = gateway.stream("test", SAY, model=NAME)
        pieces = []
        async with aclosing(stream):
            async for piece in stream:
                pieces.append(piece)
                if len(pieces) == 3:
                    break
        return pieces, stream.result, gateway.usage

    pieces, result, usage = with_gateway(model, work, max_output_tokens=3000)
    assert len(pieces) == 3
    assert result is None
    assert usage.calls == 1
    assert usage.completion_tokens > 0, "what was read is paid for"
    assert wait_until_idle(model)
    assert model.log.count("cancel task") == cancelled + 1


def test_an_answer_that_is_cut_off_says_so(model: LocalModel, small_model: LocalModel) -> None:
    result = with_gateway(model, lambda g: g.chat("test", SAY, model=NAME), max_output_tokens=8)
    assert result.truncated
    assert result.completion_tokens == 8

    full = with_gateway(
        small_model, lambda g: g.chat("test", SAY, model=NAME, schema=numbers(300)), max_output_tokens=None
    )
    assert full.truncated, "by the server: prompt and answer fill its context"
    assert small_model.context - 2 <= full.prompt_tokens + full.completion_tokens <= small_model.context
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(full.text)


def test_a_prompt_that_does_not_fit_is_refused_in_one_clear_line(small_model: LocalModel) -> None:
    long = [{"role": "user", "content": "word " * 300}]
    with pytest.raises(ModelError, match=TOO_LONG) as refused:
        with_gateway(small_model, lambda g: g.chat("test", long, model=NAME), llm_retries=5)
    assert str(refused.value).endswith(
        "lower the setting chunk_tokens or max_total_tokens, or give the model more context"
    )
    assert "\n" not in str(refused.value)

    async def stream(gateway: Gateway) -> list[str]:
        return [piece async for piece in gateway.stream("test", long, model=NAME)]

    with pytest.raises(ModelError, match=TOO_LONG):
        with_gateway(small_model, stream)


def test_a_server_that_is_too_slow_names_the_setting(model: LocalModel) -> None:
    started = time.monotonic()
    with pytest.raises(ModelError, match=r"did not answer within 0\.2 s: raise the setting llm_timeout$"):
        with_gateway(
            model,
            lambda g: g.chat("test", SAY, model=NAME, schema=numbers(100)),
            max_output_tokens=200,
            llm_timeout=0.2,
        )
    assert time.monotonic() - started < 10
    assert wait_until_idle(model, 60)


# ---------------------------------------------------------------- ingest


def test_a_document_goes_in_and_nothing_is_asked_twice(words_dsn: str, model: LocalModel) -> None:
    before = model.written
    longer = {"gleaning": 1, "max_output_tokens": 120}  # room for an entity
    report = with_rag(words_dsn, model, lambda rag: rag.ingest(DOCUMENT), **longer)
    assert (report.added, report.chunks, report.notice) == (1, 1, f"LLM: extraction by {NAME}")
    [document] = with_rag(words_dsn, model, lambda rag: rag.documents())
    if report.failures:
        [failure] = report.failures
        assert (failure.uri, failure.ordinal, document.status) == (DOCUMENT.uri, 0, "failed")
        assert "model's answer" in failure.error
    else:
        assert document.status in ("complete", "empty")
        assert (document.status == "complete") == (count(words_dsn, "mention") > 0)
        assert count(words_dsn, "chunk_vector") == 1
        assert count(words_dsn, "entity_vector") == count(words_dsn, "entity") > 0 or document.status == "empty"
    assert count(words_dsn, "stale") == 0

    usage = by_purpose(with_rag(words_dsn, model, lambda rag: rag.usage()))
    assert usage.keys() <= {"extraction", "gleaning"}
    assert usage["extraction"].calls == 1
    assert usage["extraction"].prompt_tokens > 1500, "the instructions, by the model's own tokenizer"
    written = model.written - before
    assert 0 < written == sum(row.completion_tokens for row in usage.values()) <= 240
    assert all(row.calls_without_price == row.calls for row in usage.values())

    again = with_rag(words_dsn, model, lambda rag: rag.ingest(DOCUMENT), **longer)
    assert again.added == 0
    assert again.skipped == (document.status != "failed")
    assert model.written - before == written
    assert by_purpose(with_rag(words_dsn, model, lambda rag: rag.usage())) == usage


def test_an_answer_cut_off_before_its_first_record_is_a_failure_that_can_be_tried_again(
    words_dsn: str, model: LocalModel
) -> None:
    report = with_rag(words_dsn, model, lambda rag: rag.ingest(DOCUMENT), max_output_tokens=4)
    [failure] = report.failures
    assert (failure.uri, failure.ordinal) == (DOCUMENT.uri, 0)
    assert "cut off: length" in failure.error
    assert "allow longer answers" in failure.error
    [document] = with_rag(words_dsn, model, lambda rag: rag.documents())
    assert (document.status, document.chunks_failed) == ("failed", 1)
    assert failure.error in (document.error or "")

    with_rag(words_dsn, model, lambda rag: rag.retry(), max_output_tokens=60)
    [document] = with_rag(words_dsn, model, lambda rag: rag.documents())
    assert document.chunks_done + document.chunks_failed == 1
    usage = by_purpose(with_rag(words_dsn, model, lambda rag: rag.usage()))
    assert usage["extraction"].calls == 2
    assert 4 < usage["extraction"].completion_tokens <= 64


def test_a_model_without_room_for_the_instructions_fails_each_chunk_clearly(
    words_dsn: str, small_model: LocalModel
) -> None:
    documents = [DOCUMENT, Document("other.txt", "Carol sails to Ostend.")]
    report = with_rag(words_dsn, small_model, lambda rag: rag.ingest(documents))
    assert [failure.uri for failure in report.failures] == ["engine.txt", "other.txt"]
    for failure in report.failures:
        assert "exceeds the available context size (256 tokens)" in failure.error
        assert "lower the setting" in failure.error
    assert with_rag(words_dsn, small_model, lambda rag: rag.usage()) == []
    stats = with_rag(words_dsn, small_model, lambda rag: rag.stats())
    assert (stats.documents_failed, stats.chunks_failed, stats.entities) == (2, 2, 0)
    with pytest.raises(ModelError, match=TOO_LONG):
        with_rag(words_dsn, small_model, lambda rag: rag.query("Who wrote the first program?"))


def test_cancelled_while_the_model_writes_it_is_taken_up_again(words_dsn: str, model: LocalModel) -> None:
    async def cancel(rag: PgRAG) -> None:
        task = asyncio.create_task(rag.ingest(DOCUMENT))
        await until_busy(model)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert wait_until_idle(model)
    with_rag(words_dsn, model, cancel)
    state = "select extracted_at, attempts, retry_at, lease_until, lease_token from chunk"
    assert rows(words_dsn, state) == [(None, 0, None, None, None)]
    assert value(words_dsn, "select status from document") == "pending"

    report = with_rag(words_dsn, model, lambda rag: rag.ingest(DOCUMENT))
    assert report.added + report.updated == 1
    assert value(words_dsn, "select status from document") in ("complete", "empty", "failed")
    assert value(words_dsn, "select status from document") == "failed" or report.failures == ()
    assert by_purpose(with_rag(words_dsn, model, lambda rag: rag.usage()))["extraction"].calls == 1


def test_many_descriptions_are_summarised_once(words_dsn: str, model: LocalModel) -> None:
    notes = [Document(f"{i}.txt", f"Acme opened its plant number {i} in the year {1900 + i}.") for i in range(1, 10)]
    extractor = FunctionExtractor(named)
    before = model.written
    with_rag(words_dsn, model, lambda rag: rag.ingest(notes), extractor, max_output_tokens=150)
    usage = by_purpose(with_rag(words_dsn, model, lambda rag: rag.usage()))
    assert usage.keys() == {"summary"}
    assert usage["summary"].calls == 1
    written = model.written - before
    assert usage["summary"].completion_tokens == written > 0
    assert value(words_dsn, "select length(description) > 0 from entity where name = 'Acme'")
    assert count(words_dsn, "stale") == 0
    with_rag(words_dsn, model, lambda rag: rag.refresh(), extractor, max_output_tokens=150)
    assert model.written - before == written


def test_embeddings_of_a_server_and_a_text_too_long_for_it(empty_dsn: str, embedding_model: LocalModel) -> None:
    settings = Settings(
        dsn=SecretStr(empty_dsn),
        embedding_model=NAME,
        embedding_api_base=embedding_model.url,
        embedding_api_key=SecretStr("none"),
        max_attempts=1,
    )
    documents = [Document("acme.txt", "Acme builds bridges."), Document("long.txt", "Acme " * 300)]

    async def run() -> tuple[Any, Any, Any, Any]:
        async with PgRAG(settings=settings, extractor=FunctionExtractor(named), keyword_extractor=FixedKeywords()) as r:
            return await r.ingest(documents), await r.retrieve("Acme"), await r.stats(), await r.usage()

    started = time.monotonic()
    report, found, stats, usage = asyncio.run(run())
    assert time.monotonic() - started < 30, "what cannot succeed is not repeated"
    [failure] = report.failures
    assert failure.uri == "long.txt"
    assert re.search(r"too long for openai/smollm2: .*input \(\d+ tokens\) is too large to process", failure.error)
    assert failure.error.endswith("lower the setting chunk_tokens")
    assert (stats.embedding_model, stats.dimension, stats.chunks_failed) == (NAME, 576, 1)
    assert [chunk.uri for chunk in found.chunks] == ["acme.txt"]
    assert found.chunks[0].score > 0
    [row] = usage
    assert row.purpose == "embedding"
    assert row.prompt_tokens > row.calls > 1
    assert row.completion_tokens == 0


# ---------------------------------------------------------------- query


def test_a_question_takes_two_calls_and_the_same_again_none(words_dsn: str, model: LocalModel) -> None:
    notes = [Document("acme.txt", "Acme builds bridges in Ghent."), Document("pond.txt", "Ducks swim in the pond.")]
    extractor = FunctionExtractor(named)
    question = "Who builds bridges?"
    before = model.written

    async def ask(rag: PgRAG) -> tuple[list[str], Any]:
        await rag.ingest(notes)
        stream = await rag.stream(question)
        return [piece async for piece in stream], stream.result

    pieces, streamed = with_rag(words_dsn, model, ask, extractor)
    assert len(pieces) > 3
    assert streamed.answer == "".join(pieces)
    assert {reference.uri for reference in streamed.references} == {"acme.txt", "pond.txt"}
    assert streamed.notice == f"answer by {NAME}"
    usage = by_purpose(with_rag(words_dsn, model, lambda rag: rag.usage(), extractor))
    assert {purpose: row.calls for purpose, row in usage.items()} == {"keywords": 1, "answer": 1}
    written = model.written - before
    assert sum(row.completion_tokens for row in usage.values()) == written > 0

    again = with_rag(words_dsn, model, lambda rag: rag.query(question), extractor)
    assert again.answer == streamed.answer.strip()
    assert again.references == streamed.references
    assert again.retrieval.keywords == streamed.retrieval.keywords
    assert model.written - before == written
    assert by_purpose(with_rag(words_dsn, model, lambda rag: rag.usage(), extractor)) == usage


def test_keywords_that_are_cut_off_leave_the_question_to_search_with(words_dsn: str, model: LocalModel) -> None:
    extractor = FunctionExtractor(named)

    async def search(rag: PgRAG) -> Any:
        await rag.ingest(Document("acme.txt", "Acme builds bridges in Ghent."))
        return await rag.retrieve("Who builds bridges in Ghent?")

    found = with_rag(words_dsn, model, search, extractor, max_output_tokens=3)
    assert (found.keywords.low, found.keywords.high) == ((), ())
    assert [chunk.uri for chunk in found.chunks] == ["acme.txt"]
    [entity] = found.entities
    assert entity.name == "Acme"
    usage = by_purpose(with_rag(words_dsn, model, lambda rag: rag.usage(), extractor))
    assert (usage["keywords"].calls, usage["keywords"].completion_tokens) == (1, 3)
