"""The way to language models: every answer is committed to the cache before anybody sees it, and counted."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Protocol

from pydantic import BaseModel

from pgrag.config import Settings
from pgrag.database.rows import Response
from pgrag.llm import litellm_calls
from pgrag.llm.litellm_models import Model
from pgrag.llm.replies import ChatResult, ChatStream, Reply, StreamReader, read_reply
from pgrag.llm.requests import Options, Requests
from pgrag.llm.retry import CallError
from pgrag.llm.singleflight import SingleFlight, finish
from pgrag.llm.spending import Usage
from pgrag.text.folding import clean

logger = logging.getLogger(__name__)

Messages = Sequence[Mapping[str, str]]
Schema = type[BaseModel] | Mapping[str, Any]
Usable = Callable[[ChatResult], bool]


class ResponseCache(Protocol):
    """Keeps what was paid for (the store does). What a call says is committed when it returns."""

    async def get_cached(self, keys: Sequence[str]) -> Mapping[str, str]:
        """The responses that are there, by key."""

    async def put_cached(self, response: Response) -> None:
        """Keeps a response, and counts one call."""

    async def count_usage(
        self, purpose: str, model: str, prompt_tokens: int, completion_tokens: int, cost: Decimal
    ) -> None:
        """Counts one call whose response is not kept."""

    async def corpus_state(self) -> str:
        """Changes whenever texts are added or removed."""


@dataclass(frozen=True, slots=True)
class _Request:
    purpose: str
    model: str
    messages: list[dict[str, str]]
    schema: Schema | None = None
    chunks: tuple[int, ...] = ()
    state: str | None = None

    @property
    def texts(self) -> list[str]:
        return [message["content"] for message in self.messages]


class Gateway:
    """Asks language models through `cache`. Safe to share between tasks, loops and threads.

    Raises ModelError, its ModelAccessError where no request can succeed, and BudgetError at the setting max_cost.
    `requests` are those of another gateway, to share its limits, budget and connections.
    """

    def __init__(
        self,
        settings: Settings,
        cache: ResponseCache | None = None,
        *,
        requests: Requests | None = None,
    ) -> None:
        self.settings = settings
        self.cache = cache
        self.requests = requests or Requests(settings)
        self._single_flight: SingleFlight[ChatResult] = SingleFlight()

    @property
    def usage(self) -> Usage:
        """What was asked and spent so far."""
        return self.requests.spending.usage

    async def aclose(self) -> None:
        """Closes the connections of this event loop; the gateway may still be used."""
        await self.requests.aclose()

    async def chat(
        self,
        purpose: str,
        messages: Messages,
        *,
        model: str,
        schema: Schema | None = None,
        chunks: Sequence[int] = (),
        state: str | None = None,
        known_new: bool = False,
        usable: Usable | None = None,
    ) -> ChatResult:
        """The answer: from the cache, from the same request if it is under way, or asked for and committed.

        `schema` (a JSON schema, or a pydantic model) asks for JSON of that form where the model can be held to it; the
        text is not checked. `chunks` are the ids of the chunks whose text is sent; the answer goes when they go. With a
        `state` of all texts it is kept only in that state. An empty answer is counted and not kept; a cached one that
        is not `usable` is asked for again. `known_new` saves looking for what nobody can have asked yet.
        """
        request = _Request(purpose, model, _cleaned(messages), schema=schema, chunks=tuple(chunks), state=state)
        key = self._key(request)

        async def run() -> ChatResult:
            hit = await self._hit(key, model, usable) if not known_new else None
            return hit or await self._ask(request, key)

        result, own = await self._single_flight.join(key, run)
        if not own or result.cached:
            self.requests.spending.add_cached()
            return replace(result, cached=True)
        return result

    def stream(
        self,
        purpose: str,
        messages: Messages,
        *,
        model: str,
        state: str | None = None,
        usable: Usable | None = None,
    ) -> ChatStream:
        """The same answer in pieces, committed with its last piece. What is in the cache comes in one piece."""
        stream = ChatStream()
        stream.pieces = self._pieces(stream, _Request(purpose, model, _cleaned(messages), state=state), usable)
        return stream

    # ------------------------------------------------------------ asking

    async def _ask(self, request: _Request, key: str) -> ChatResult:
        started = time.perf_counter()
        model, options = await self._options(request)

        async def send(given: Options) -> Reply:
            async with self.requests.slot("llm"):
                return read_reply(model, await litellm_calls.request(model.litellm.acompletion, given))

        with self.requests.budget(model, request.texts, options.get("max_tokens")):
            reply = await self.requests.repeated("llm", options, send)
            self.requests.spending.add(reply.bill)
        result = reply.result(request.model)
        await finish(self._keep(request, key, result, time.perf_counter() - started))
        return result

    async def _pieces(self, stream: ChatStream, request: _Request, usable: Usable | None) -> AsyncGenerator[str, None]:
        key = self._key(request)
        if (hit := await self._hit(key, request.model, usable)) is not None:
            self.requests.spending.add_cached()
            stream.result = hit
            yield hit.text
            return
        started = time.perf_counter()
        model, options = await self._options(request)
        options |= {"stream": True, "stream_options": {"include_usage": True}}
        reader = StreamReader(model)

        async def end() -> None:  # also when the caller stops in the middle
            await reader.close()
            reply = reader.reply(request.texts, self.settings.tokenizer)
            self.requests.spending.add(reply.bill)
            result = reply.result(request.model)
            await self._keep(request, key if reader.complete else None, result, time.perf_counter() - started)
            stream.result = result if reader.complete else None

        with self.requests.budget(model, request.texts, options.get("max_tokens")):
            async with self.requests.slot("llm"):
                piece = await self.requests.repeated("llm", options, reader.open)
                try:
                    while piece is not None:
                        yield piece
                        piece = await reader.next()
                except CallError as error:
                    self.requests.fail("llm", request.model, error)
                finally:
                    await finish(end())

    async def _options(self, request: _Request) -> tuple[Model, dict[str, Any]]:
        model = await self.requests.model("llm", request.model)
        options = self.requests.options("llm", model)
        options |= {"messages": request.messages, "temperature": self.settings.temperature}
        if self.settings.max_output_tokens is not None:
            options["max_tokens"] = self.settings.max_output_tokens
        if request.schema is not None and model.takes_schema:
            options["response_format"] = _response_format(request.schema)
        return model, options

    # ------------------------------------------------------------ keeping

    def _key(self, request: _Request) -> str:
        schema = request.schema.model_json_schema() if isinstance(request.schema, type) else request.schema
        parts = [
            request.purpose, request.model, request.messages, schema, self.settings.temperature,
            self.settings.max_output_tokens,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    async def _hit(self, key: str, model: str, usable: Usable | None) -> ChatResult | None:
        response = None if self.cache is None else (await self.cache.get_cached([key])).get(key)
        if response is None:
            return None
        stored = json.loads(response)
        hit = ChatResult(stored["text"], stored["finish_reason"], model, cached=True)
        return hit if usable is None or usable(hit) else None

    async def _keep(self, request: _Request, key: str | None, result: ChatResult, seconds: float) -> None:
        """Commits an answer, or only counts it: without a key, or empty."""
        tokens = result.prompt_tokens, result.completion_tokens
        logger.info("%s by %s: %d + %d tokens, %.1f s", request.purpose, request.model, *tokens, seconds)
        if self.cache is None:
            return
        if key is None or not result.text.strip():
            await self.cache.count_usage(request.purpose, request.model, *tokens, result.cost)
            return
        text = json.dumps({"text": result.text, "finish_reason": result.finish_reason}, ensure_ascii=False)
        await self.cache.put_cached(
            Response(
                key, request.purpose, request.model, text, *tokens, result.cost,
                chunks=request.chunks, state=request.state,
            )
        )  # fmt: skip


def _response_format(schema: Schema) -> Any:
    if isinstance(schema, type):
        return schema
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, "strict": True}}


def _cleaned(messages: Messages) -> list[dict[str, str]]:
    """Without what neither PostgreSQL nor JSON can hold: the same texts are sent, hashed and kept."""
    return [{key: clean(value) for key, value in message.items()} for message in messages]
