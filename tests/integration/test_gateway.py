"""The gateway to model servers against a scripted server over real HTTP: requests are counted one by one."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np
import psycopg
import pytest
from pydantic import BaseModel, SecretStr

from pgrag.config import Settings
from pgrag.database.pool import open_pool
from pgrag.database.store import Store
from pgrag.embedding.litellm_embedder import LiteLLMEmbedder
from pgrag.errors import BudgetError, ExitCode, ModelAccessError, ModelError
from pgrag.llm.gateway import Gateway
from pgrag.llm.replies import ChatResult
from pgrag.llm.requests import Requests
from tests.support.limits import PROGRAM_SECONDS
from tests.support.models import WordEmbedder
from tests.support.openai_server import (
    OpenAIServer,
    Reply,
    Request,
    failing,
    malformed,
    rate_limited,
    reset,
    word_vector,
)
from tests.support.rag import ingest, rows

T = TypeVar("T")

KEY = "sk-test-0123456789abcdef"
ASK = [{"role": "user", "content": "who runs checkout"}]


def spent(dsn: str) -> list[tuple[Any, ...]]:
    """What is counted: purpose, model, calls, tokens of prompts and completions, US dollars."""
    return rows(dsn, "select purpose, model, calls, prompt_tokens, completion_tokens, cost from usage order by 1, 2")


def kept(dsn: str) -> list[str]:
    """The responses that are kept."""
    return [response for (response,) in rows(dsn, "select response from llm_cache order by created_at, key")]


class Answer(BaseModel):
    """A schema."""

    names: list[str]


class Waits(list[float]):
    """Records how long a gateway would have waited, and does not wait."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


@pytest.fixture
def llm() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


def settings_for(llm: OpenAIServer, **more: Any) -> Settings:
    """Settings for the scripted server."""
    key = SecretStr(KEY)
    given = {
        "llm_model": "openai/scripted",
        "embedding_model": "openai/scripted-embedding",
        "llm_api_base": llm.url,
        "embedding_api_base": llm.url,
        "llm_api_key": key,
        "embedding_api_key": key,
    }
    return Settings(**{**given, **more})


def run(
    llm: OpenAIServer,
    work: Callable[[Gateway], Awaitable[T]],
    dsn: str | None = None,
    waits: Waits | None = None,
    store: type[Store] = Store,
    **more: Any,
) -> T:
    """The work, done with a gateway of its own that is closed afterwards; it keeps answers in the database, if any."""

    async def main() -> T:
        settings = settings_for(llm, dsn=dsn, **more)
        async with AsyncExitStack() as stack:
            cache = None
            if dsn is not None:
                pool = await stack.enter_async_context(open_pool(settings))
                cache = store(pool, settings, WordEmbedder().dimension)
            gateway = Gateway(settings, cache, requests=Requests(settings, Waits() if waits is None else waits))
            stack.push_async_callback(gateway.aclose)
            return await work(gateway)

    return asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    """Waits for what another thread brings about."""
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about in 5 s")


def embedder(gateway: Gateway, model: str = "openai/e") -> LiteLLMEmbedder:
    """An embedder of the server's 64 dimensions."""
    return LiteLLMEmbedder(gateway, model, 64)


def chat(gateway: Gateway, text: str = "", **more: Any) -> Awaitable[ChatResult]:
    """One chat request."""
    messages = [{"role": "user", "content": text}] if text else ASK
    return gateway.chat("answer", messages, **{"model": "openai/scripted", **more})


# ---------------------------------------------------------------- answers, cache, usage


def test_an_answer_with_its_tokens_goes_by_the_settings(llm: OpenAIServer) -> None:
    llm.script(Reply("Ada Park runs it.", usage=(11, 5)))
    result = run(llm, chat, max_output_tokens=77)
    assert result == ChatResult("Ada Park runs it.", "stop", "openai/scripted", 11, 5, priced=False)
    (request,) = llm.requests
    assert request.body == {"model": "scripted", "messages": ASK, "temperature": 0.0, "max_tokens": 77}
    assert request.headers["authorization"] == f"Bearer {KEY}"


def test_a_repeated_question_makes_no_request_in_this_gateway_nor_in_another(llm: OpenAIServer, words_dsn: str) -> None:
    llm.script(Reply("once", usage=(3, 1)))

    ingest(words_dsn, {"a": "Ada Park runs it."})
    [(chunk,)] = rows(words_dsn, "select id from chunk")

    async def twice(gateway: Gateway) -> tuple[ChatResult, ChatResult]:
        return await chat(gateway, chunks=[chunk]), await chat(gateway, chunks=[chunk])

    first, second = run(llm, twice, words_dsn)
    third = run(llm, chat, words_dsn)
    assert (first.cached, second.cached, third.cached) == (False, True, True)
    assert first.text == second.text == third.text == "once"
    assert second.cost == second.prompt_tokens == 0
    assert llm.counts == {"chat": 1}
    assert rows(words_dsn, "select chunk_id from llm_cache_source") == [(chunk,)]
    assert spent(words_dsn) == [("answer", "openai/scripted", 1, 3, 1, Decimal(0))]


def test_every_part_of_a_request_makes_another_answer(llm: OpenAIServer, words_dsn: str) -> None:

    async def ask(gateway: Gateway) -> None:
        for more in (
            {},
            {"schema": Answer},
            {"schema": {"type": "object"}},
            {"model": "openai/other"},
        ):
            assert not (await chat(gateway, **more)).cached
            assert (await chat(gateway, **more)).cached
        assert not (await gateway.chat("keywords", ASK, model="openai/scripted")).cached
        assert not (await chat(gateway, "other words")).cached

    run(llm, ask, words_dsn)
    run(llm, chat, words_dsn, temperature=0.7)
    run(llm, chat, words_dsn, max_output_tokens=9)
    assert llm.counts == {"chat": 8}


def test_what_is_known_to_be_new_is_not_looked_for_but_kept(llm: OpenAIServer, words_dsn: str) -> None:
    looked = 0

    class Watched(Store):
        async def get_cached(self, keys: Sequence[str]) -> dict[str, str]:
            nonlocal looked
            looked += 1
            return await super().get_cached(keys)

    async def ask(gateway: Gateway) -> list[bool]:
        both = await asyncio.gather(chat(gateway, known_new=True), chat(gateway))
        return [*(result.cached for result in both), (await chat(gateway)).cached]

    assert run(llm, ask, words_dsn, store=Watched) == [False, True, True]
    assert llm.counts == {"chat": 1}
    assert looked == 1, "by the last: the second waits for the first"


def test_a_truncated_answer_is_kept_and_says_so(llm: OpenAIServer, words_dsn: str) -> None:
    llm.script(Reply("cut in the", finish_reason="length"))
    for cached in (False, True):
        result = run(llm, chat, words_dsn)
        assert (result.text, result.truncated, result.cached) == ("cut in the", True, cached)


@pytest.mark.parametrize("text", ["", None, " \n"])
def test_an_empty_answer_is_counted_and_asked_again(llm: OpenAIServer, words_dsn: str, text: str | None) -> None:
    llm.script(Reply(text, usage=(9, 0)), Reply("now", usage=(9, 1)))
    assert run(llm, chat, words_dsn).text.strip() == ""
    assert run(llm, chat, words_dsn).text == "now"
    assert spent(words_dsn) == [("answer", "openai/scripted", 2, 18, 1, Decimal(0))]
    assert len(kept(words_dsn)) == 1


def test_identical_requests_at_one_time_are_one(llm: OpenAIServer, words_dsn: str) -> None:
    llm.respond(Reply("shared", delay=0.2))

    async def ask(gateway: Gateway) -> list[ChatResult]:
        return list(await asyncio.gather(*(chat(gateway) for _ in range(6)), chat(gateway, "another")))

    results = run(llm, ask, words_dsn)
    assert llm.counts == {"chat": 2}
    assert [r.cached for r in results].count(False) == 2
    assert {r.text for r in results} == {"shared"}
    assert [row[2] for row in spent(words_dsn)] == [2]


def test_nul_and_lone_surrogates_are_not_sent(llm: OpenAIServer) -> None:
    run(llm, lambda gateway: chat(gateway, "a\0b\ud800c 中文"))
    assert llm.requests[0].body["messages"][0]["content"] == "abc 中文"


def test_a_known_model_has_its_price_and_an_unknown_one_is_counted(llm: OpenAIServer, words_dsn: str) -> None:
    llm.respond(Reply("x", usage=(1000, 100)))

    async def ask(gateway: Gateway) -> Gateway:
        priced = await chat(gateway, model="openai/gpt-4o-mini")
        assert (priced.cost, priced.priced) == (Decimal("0.00021"), True)
        assert (await chat(gateway)).priced is False
        return gateway

    usage = run(llm, ask, words_dsn).usage
    assert (usage.calls, usage.unpriced, usage.cost) == (2, 1, Decimal("0.00021"))
    assert (usage.prompt_tokens, usage.completion_tokens) == (2000, 200)
    assert [row[-1] for row in spent(words_dsn)] == [Decimal("0.00021"), Decimal(0)]


# ---------------------------------------------------------------- structured output and refused options


@pytest.mark.parametrize("schema", [Answer, {"type": "object", "required": ["names"]}])
def test_a_schema_is_sent_as_a_json_schema(llm: OpenAIServer, schema: Any) -> None:
    llm.script(Reply('{"names": []}'))
    assert run(llm, lambda gateway: chat(gateway, schema=schema)).text == '{"names": []}'
    sent = llm.requests[0].body["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["strict"] is True
    assert sent["json_schema"]["schema"]["required"] == ["names"]


def test_a_model_known_to_take_no_schema_is_asked_without(llm: OpenAIServer) -> None:
    run(llm, lambda gateway: chat(gateway, schema=Answer, model="openai/gpt-3.5-turbo"))
    assert "response_format" not in llm.requests[0].body


def test_refused_options_are_left_out_from_then_on(llm: OpenAIServer) -> None:
    llm.script(
        failing(400, "response_format not supported"), failing(400, "'temperature' does not support 0"), Reply("1")
    )

    async def ask(gateway: Gateway) -> list[str]:
        return [(await chat(gateway, text, schema=Answer)).text for text in ("a", "b")]

    waits = Waits()
    assert run(llm, ask, None, waits) == ["1", "ok"]
    sent = [("response_format" in r.body, "temperature" in r.body) for r in llm.requests]
    assert sent == [(True, True), (False, True), (False, False), (False, False)]
    assert waits == []


def test_a_reasoning_model_gets_no_temperature(llm: OpenAIServer) -> None:
    run(llm, lambda gateway: chat(gateway, model="openai/o3-mini"), max_output_tokens=50)
    body = llm.requests[0].body
    assert "temperature" not in body
    assert body["max_completion_tokens"] == 50


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    "fault",
    [
        failing(500),
        failing(503),
        failing(529),
        failing(409),
        failing(408),
        rate_limited(),
        malformed(),
        reset(),
        Reply(body=b'{"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}'),
        Reply(body=b'{"error": "upstream"}'),
    ],
)
def test_passing_faults_are_repeated_until_the_answer(llm: OpenAIServer, words_dsn: str, fault: Reply) -> None:
    llm.script(fault, fault, Reply("at last"))
    waits = Waits()
    assert run(llm, chat, words_dsn, waits).text == "at last"
    assert llm.counts == {"chat": 3}
    assert len(waits) == 2
    assert 0.5 <= waits[0] <= 1
    assert 1 <= waits[1] <= 2
    assert [row[2] for row in spent(words_dsn)] == [1]


def test_retry_after_is_waited_for(llm: OpenAIServer) -> None:
    llm.script(rate_limited("7"), rate_limited("86400"), Reply("fine"))
    waits = Waits()
    run(llm, chat, None, waits)
    assert 7 <= waits[0] <= 8
    assert 120 <= waits[1] <= 121


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (failing(500, "boom"), "failed (3 tries): boom: check the server"),
        (rate_limited(), "is asked too often (3 tries): Rate limit reached: lower llm_concurrency"),
        (reset(), "failed (3 tries): Connection error"),
        (malformed(), "failed (3 tries)"),
    ],
)
def test_a_fault_that_stays_is_an_error_after_all_tries(llm: OpenAIServer, fault: Reply, words: str) -> None:
    llm.respond(fault)
    with pytest.raises(ModelError) as caught:
        run(llm, chat, llm_retries=2)
    assert words in str(caught.value)
    assert "openai/scripted" in str(caught.value)
    assert not isinstance(caught.value, ModelAccessError)
    assert llm.counts == {"chat": 3}


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (failing(400, "bad tool"), ModelError, "refused the request (status 400): bad tool"),
        (failing(401, f"Incorrect API key provided: {KEY}"), ModelAccessError, "set llm_api_key"),
        (failing(403, "no right"), ModelAccessError, "set llm_api_key"),
        (failing(404, "no such model"), ModelAccessError, "check the settings llm_model and llm_api_base"),
        (failing(422, "bad field"), ModelError, "bad field"),
        (failing(429, "You exceeded your current quota", "insufficient_quota"), ModelAccessError, "no credit left"),
        (failing(400, "maximum context length is 8192", "context_length_exceeded"), ModelError, "lower the setting"),
    ],
)
def test_lasting_faults_end_at_once_and_say_what_to_do(
    llm: OpenAIServer, fault: Reply, kind: type[ModelError], words: str
) -> None:
    llm.respond(fault)
    with pytest.raises(ModelError) as caught:
        run(llm, chat)
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert llm.counts == {"chat": 1}


def test_a_stall_is_repeated_and_then_names_its_setting(llm: OpenAIServer) -> None:
    llm.script(Reply(delay=5), Reply("fast"))
    assert run(llm, chat, llm_timeout=0.3).text == "fast"
    llm.respond(Reply(delay=5))
    with pytest.raises(ModelError, match=r"did not answer within 0.3 s \(2 tries\): raise the setting llm_timeout"):
        run(llm, chat, llm_timeout=0.3, llm_retries=1)
    llm.respond(Reply(delay=5), kind="embeddings")
    with pytest.raises(ModelError, match="raise the setting embedding_timeout"):
        run(llm, lambda g: embedder(g).embed(["a"], "query"), embedding_timeout=0.3, llm_retries=0)


def test_no_server_no_key_and_no_such_provider(llm: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:9/v1 failed \(2 tries\): Connection error"):
        run(llm, chat, llm_api_base="http://127.0.0.1:9/v1", llm_retries=1)
    with pytest.raises(ModelAccessError, match="set llm_api_key"):
        run(llm, chat, llm_api_key=None)
    with pytest.raises(ModelAccessError, match=r"'gpt-nonesuch' names no model.*provider/model in answer_model"):
        run(llm, lambda g: chat(g, model="gpt-nonesuch"), answer_model="gpt-nonesuch")
    assert llm.requests == []


def test_a_response_is_committed_before_anything_else_and_never_lost_by_cancelling(
    llm: OpenAIServer, words_dsn: str
) -> None:
    llm.script(Reply("paid for"))

    async def ask(gateway: Gateway) -> None:
        await gateway.requests.model("llm", "openai/scripted")  # its import is not what is timed
        with psycopg.connect(words_dsn) as other:
            other.execute("lock table pgrag.llm_cache in share mode")  # the answer can be looked for, and not written
            task = asyncio.ensure_future(chat(gateway))
            await until(lambda: gateway.usage.calls)
            task.cancel()
            await asyncio.wait([task], timeout=0.3)
            assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert kept(words_dsn) == ['{"text": "paid for", "finish_reason": "stop"}']

    run(llm, ask, words_dsn)
    assert run(llm, chat, words_dsn).cached
    assert llm.counts == {"chat": 1}


def test_cancelling_ends_the_request(llm: OpenAIServer) -> None:
    llm.respond(Reply(delay=30))

    async def ask(gateway: Gateway) -> float:
        task = asyncio.ensure_future(chat(gateway))
        await until(lambda: llm.requests)
        started = time.perf_counter()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: llm.aborted)
        return time.perf_counter() - started

    assert run(llm, ask) < 2
    assert llm.counts == {"chat": 1}


# ---------------------------------------------------------------- limits


def test_requests_at_one_time_are_limited_by_kind(llm: OpenAIServer) -> None:
    llm.respond(Reply(delay=0.1))
    llm.respond(Reply(delay=0.1), kind="embeddings")

    async def ask(gateway: Gateway) -> None:
        texts = [f"text {n}" for n in range(10)]
        questions = [chat(gateway, f"question {n}") for n in range(8)]
        await asyncio.gather(*questions, embedder(gateway).embed(texts, "passage"))

    run(llm, ask, llm_concurrency=3, embedding_concurrency=5, embedding_batch=1)
    assert llm.counts == {"chat": 8, "embeddings": 10}
    assert llm.busiest == {"chat": 3, "embeddings": 5}


def test_max_cost_stops_before_the_request_that_does_not_fit(llm: OpenAIServer, words_dsn: str) -> None:
    llm.respond(Reply("x", usage=(20_000, 5_000)))  # 20,000 * 0.15 + 5,000 * 0.60 per million: $0.006

    async def ask(gateway: Gateway) -> None:
        for n in range(10):
            await chat(gateway, f"question {n}", model="openai/gpt-4o-mini")

    with pytest.raises(BudgetError) as caught:
        run(llm, ask, words_dsn, max_cost=0.02, max_output_tokens=5_000)
    assert caught.value.exit_code is ExitCode.BUDGET
    assert "$0.0180 spent" in str(caught.value)
    assert "max_cost $0.0200" in str(caught.value)
    assert llm.counts == {"chat": 3}
    run(llm, ask, words_dsn, max_cost=0.05, max_output_tokens=5_000)  # goes on where it stopped
    assert llm.counts == {"chat": 10}


def test_max_cost_counts_what_is_under_way(llm: OpenAIServer) -> None:
    llm.respond(Reply("x", delay=0.2))

    async def ask(gateway: Gateway) -> list[object]:
        return list(
            await asyncio.gather(
                *(chat(gateway, f"question {n}", model="openai/gpt-4o-mini") for n in range(4)),
                return_exceptions=True,
            )
        )

    results = run(llm, ask, max_cost=0.013, max_output_tokens=10_000)  # each may cost $0.006
    assert [type(result) for result in results].count(BudgetError) == 2
    assert llm.counts == {"chat": 2}


def test_one_gateway_serves_two_event_loops(llm: OpenAIServer) -> None:
    gateway = Gateway(settings_for(llm, llm_concurrency=1))
    llm.respond(Reply(delay=0.05))
    texts: list[str] = []

    async def ask(number: int) -> None:
        texts.append((await chat(gateway, "for both")).text)  # one request, or each its own
        await asyncio.gather(*(chat(gateway, f"loop {number} question {n}") for n in range(4)))
        await gateway.aclose()

    threads = [threading.Thread(target=lambda n=n: asyncio.run(ask(n))) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["ok", "ok"]
    assert llm.counts["chat"] in (9, 10)
    assert gateway.usage.calls == llm.counts["chat"]


# ---------------------------------------------------------------- streams


async def pieces_of(gateway: Gateway, **more: Any) -> tuple[list[str], ChatResult | None]:
    stream = gateway.stream("answer", ASK, model="openai/scripted", **more)
    return [piece async for piece in stream], stream.result


def test_a_stream_comes_in_pieces_and_is_committed_with_the_last(llm: OpenAIServer, words_dsn: str) -> None:
    llm.script(Reply("Ada Park runs it", usage=(7, 4)))
    pieces, result = run(llm, pieces_of, words_dsn)
    assert pieces == ["Ada", " Park", " runs", " it"]
    assert result == ChatResult("Ada Park runs it", "stop", "openai/scripted", 7, 4, priced=False)
    assert spent(words_dsn) == [("answer", "openai/scripted", 1, 7, 4, Decimal(0))]
    pieces, result = run(llm, pieces_of, words_dsn)
    assert pieces == ["Ada Park runs it"]
    assert result is not None
    assert result.cached
    assert run(llm, chat, words_dsn).cached  # a whole answer and a streamed one are the same answer
    assert llm.counts == {"chat": 1}


def test_the_first_piece_comes_before_the_last_is_made(llm: OpenAIServer) -> None:
    llm.script(Reply("a b c d", piece_delay=0.15))

    async def ask(gateway: Gateway) -> list[float]:
        await gateway.requests.model("llm", "openai/scripted")
        return [time.perf_counter() async for _ in gateway.stream("answer", ASK, model="openai/scripted")]

    times = run(llm, ask)
    assert len(times) == 4
    assert times[-1] - times[0] > 0.1  # the server waits 0.45 s between them


def test_a_truncated_stream_says_so(llm: OpenAIServer) -> None:
    llm.script(Reply("half a", finish_reason="length"))
    _, result = run(llm, pieces_of)
    assert result is not None
    assert result.truncated


def test_a_stream_is_repeated_before_its_first_piece_only(llm: OpenAIServer, words_dsn: str) -> None:
    waits = Waits()
    llm.script(failing(503), Reply("a b", cut=0), Reply("a b c"))
    assert run(llm, pieces_of, words_dsn, waits)[0] == ["a", " b", " c"]
    assert (llm.counts["chat"], len(waits)) == (3, 2)
    [(*_, whole, _)] = spent(words_dsn)
    llm.script(Reply("a b c d", cut=2))
    got: list[str] = []
    other = [{"role": "user", "content": "who runs billing"}]

    async def ask(gateway: Gateway) -> None:
        async for piece in gateway.stream("answer", other, model="openai/scripted"):
            got.append(piece)

    with pytest.raises(ModelError, match="openai/scripted"):
        run(llm, ask, words_dsn)
    assert got == ["a", " b"]
    assert llm.counts["chat"] == 4
    assert len(kept(words_dsn)) == 1
    [(_, _, calls, _, completion_tokens, _)] = spent(words_dsn)
    assert calls == 2  # what came was paid for
    assert completion_tokens > whole


def test_a_stream_left_early_ends_the_request_is_counted_and_not_kept(llm: OpenAIServer, words_dsn: str) -> None:
    llm.script(Reply("one two three four", piece_delay=0.2))

    async def ask(gateway: Gateway) -> None:
        async with aclosing(gateway.stream("answer", ASK, model="openai/scripted")) as stream:
            async for piece in stream:
                assert piece == "one"
                break
        assert stream.result is None
        await until(lambda: llm.aborted)

    run(llm, ask, words_dsn)
    assert kept(words_dsn) == []
    assert spent(words_dsn) == [("answer", "openai/scripted", 1, 3, 1, Decimal(0))]


def test_a_stream_that_stalls_names_the_setting(llm: OpenAIServer) -> None:
    llm.respond(Reply("a b", piece_delay=5))
    with pytest.raises(ModelError, match="raise the setting llm_timeout"):
        run(llm, pieces_of, llm_timeout=0.3)


# ---------------------------------------------------------------- embeddings


def test_embeddings_are_unit_vectors_in_order_in_batches(llm: OpenAIServer, words_dsn: str) -> None:
    texts = [f"text number {n}" for n in range(10)]

    async def embed(gateway: Gateway) -> Any:
        return await embedder(gateway).embed(texts, "passage")

    llm.respond(
        lambda request: Reply(vectors=[[3 * x for x in word_vector(t, 64)] for t in request.body["input"]]),
        kind="embeddings",
    )
    vectors = run(llm, embed, words_dsn, embedding_batch=4)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [word_vector(text, 64) for text in texts], atol=1e-6)
    assert sorted(len(request.body["input"]) for request in llm.requests) == [2, 4, 4]
    [row] = spent(words_dsn)
    assert row[:4] == ("embedding", "openai/e", 3, 30)


def test_vectors_that_come_in_another_order_are_put_right(llm: OpenAIServer) -> None:
    def shuffled(request: Request) -> Reply:
        data = [
            {"object": "embedding", "index": i, "embedding": word_vector(text, 64)}
            for i, text in enumerate(request.body["input"])
        ][::-1]
        return Reply(body=json.dumps({"object": "list", "model": "e", "data": data}).encode())

    llm.respond(shuffled, kind="embeddings")
    vectors = run(llm, lambda g: embedder(g).embed(["one", "two"], "query"))
    np.testing.assert_allclose(vectors, [word_vector("one", 64), word_vector("two", 64)], atol=1e-6)


def test_prefixes_tell_questions_from_passages(llm: OpenAIServer) -> None:
    async def embed(gateway: Gateway) -> tuple[str, str]:
        made = embedder(gateway)
        await made.embed(["who\0"], "query")
        await made.embed(["what", " "], "passage")
        return made.prefixes

    done = run(llm, embed, embedding_query_prefix="query: ", embedding_passage_prefix="passage: ")
    assert done == ("query: ", "passage: ")
    assert [request.body["input"] for request in llm.requests] == [["query: who"], ["passage: what", "."]]


@pytest.mark.parametrize(
    ("model", "parameter", "query", "passage"),
    [
        ("nvidia_nim/nvidia/nv-embedqa-e5-v5", "input_type", "query", "passage"),
        ("voyage/voyage-3.5", "input_type", "query", "document"),
        ("openai/e", "input_type", None, None),
    ],
)
def test_providers_that_take_an_input_type_get_it(
    llm: OpenAIServer, model: str, parameter: str, query: str | None, passage: str | None
) -> None:
    async def embed(gateway: Gateway) -> None:
        made = embedder(gateway, model)
        await made.embed(["a"], "query")
        await made.embed(["b"], "passage")

    run(llm, embed)
    assert [request.body.get(parameter) for request in llm.requests] == [query, passage]


def test_the_dimension_is_the_settings_the_maps_or_a_probes(llm: OpenAIServer) -> None:
    async def size(gateway: Gateway) -> int:
        opened = await LiteLLMEmbedder.open(gateway)
        assert (await opened.embed(["a b"], "passage")).shape == (1, opened.dimension)
        return opened.dimension

    assert run(llm, size) == 64
    assert [request.body["input"] for request in llm.requests] == [["probe"], ["a b"]]
    assert run(llm, size, embedding_dimension=32) == 32
    assert llm.requests[-1].body["dimensions"] == 32
    llm.dimension = 1536
    count = len(llm.requests)
    assert run(llm, size, embedding_model="openai/text-embedding-3-small") == 1536
    assert len(llm.requests) == count + 1
    assert "dimensions" not in llm.requests[-1].body


def test_a_server_that_cannot_shorten_vectors_is_asked_without_and_must_fit(llm: OpenAIServer) -> None:
    def refusing(request: Request) -> Reply:
        return (
            failing(400, "model does not support matryoshka representation")
            if "dimensions" in request.body
            else Reply()
        )

    llm.respond(refusing, kind="embeddings")

    async def embed(gateway: Gateway) -> None:
        await (await LiteLLMEmbedder.open(gateway)).embed(["a"], "passage")

    run(llm, embed, embedding_dimension=64)
    with pytest.raises(ModelError, match="returned a vector of 64 numbers for text 0 where 32 were expected"):
        run(llm, embed, embedding_dimension=32)


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        ([[1.0] * 64], "returned 1 vectors for 2 texts"),
        ([[1.0] * 64, [1.0] * 63], "vector of 63 numbers for text 1"),
        ([[1.0] * 64, [0.0] * 64], "zero or non-finite vector for text 1"),
        ([[float("nan")] + [1.0] * 63, [1.0] * 64], "zero or non-finite vector for text 0"),
        ([[1.0] * 64, [None] * 64], "text 1"),
    ],
)
def test_vectors_that_cannot_be_used_are_refused(llm: OpenAIServer, vectors: list[list[float]], words: str) -> None:
    llm.respond(Reply(vectors=vectors), kind="embeddings")
    with pytest.raises(ModelError) as caught:
        run(llm, lambda g: embedder(g).embed(["a", "b"], "passage"), llm_retries=0)
    assert words in str(caught.value)


def test_embedding_faults(llm: OpenAIServer) -> None:
    def embed(gateway: Gateway) -> Awaitable[Any]:
        return embedder(gateway).embed(["a"], "passage")

    llm.script(failing(500), rate_limited("2"), kind="embeddings")
    waits = Waits()
    run(llm, embed, None, waits)
    assert llm.counts == {"embeddings": 3}  # LiteLLM itself repeats nothing
    assert 2 <= waits[1] <= 3
    llm.script(failing(400, "maximum context length is 8192 tokens"), failing(401, "no"), kind="embeddings")
    with pytest.raises(ModelError, match=r"too long for openai/e: .*lower the setting chunk_tokens$"):
        run(llm, embed)
    with pytest.raises(ModelAccessError, match="set embedding_api_key"):
        run(llm, embed)
    assert llm.counts == {"embeddings": 5}


def test_no_texts_make_no_request(llm: OpenAIServer) -> None:
    assert run(llm, lambda g: embedder(g).embed([], "query")).shape == (0, 64)
    assert llm.requests == []


# ---------------------------------------------------------------- what stays hidden, and what is left behind


def test_neither_prompt_nor_key_is_logged(llm: OpenAIServer, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    caplog.set_level(logging.INFO)
    llm.script(failing(500, f"broke with {KEY}"), Reply("the answer itself"), failing(400, "no"))
    run(llm, lambda g: chat(g, "a very private question"))
    with pytest.raises(ModelError):
        run(llm, lambda g: chat(g, "another very private question"))
    out = "".join(capfd.readouterr()) + caplog.text
    assert "answer by openai/scripted" in out
    assert "private" not in out
    assert "answer itself" not in out
    assert KEY not in out


IMPORTING = """
import asyncio, os, sys
import pgrag.embedding.litellm_embedder, pgrag.llm.gateway
from pgrag.config import Settings
from pgrag.database.pool import open_pool
from pgrag.database.store import Store
assert "litellm" not in sys.modules
gateway = pgrag.llm.gateway.Gateway(Settings(llm_api_base=sys.argv[1], llm_api_key="sk-x"))
async def main():
    print((await gateway.chat("answer", [{"role": "user", "content": "hi"}], model="openai/m")).text)
    await gateway.aclose()
asyncio.run(main())
assert "LITELLM_LOCAL_MODEL_COST_MAP" not in os.environ
"""


def test_litellm_is_imported_late_and_leaves_no_warning(llm: OpenAIServer) -> None:
    command = [sys.executable, "-W", "error", "-c", IMPORTING, llm.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr
    assert "Warning" not in done.stderr
    assert llm.counts == {"chat": 1}
