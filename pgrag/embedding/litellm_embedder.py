"""Embedding models of any provider, behind the interface of `pgrag.types.Embedder`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pgrag.errors import ModelError, PgragError
from pgrag.llm import litellm_calls
from pgrag.llm.gateway import Gateway
from pgrag.llm.litellm_models import Model
from pgrag.llm.requests import Options
from pgrag.llm.singleflight import finish
from pgrag.text.folding import clean

if TYPE_CHECKING:
    from pgrag.types import Vectors

logger = logging.getLogger(__name__)

PURPOSE = "embedding"
COSINE_THRESHOLD = 0.2
PROBE = "probe"
BLANK = "."  # sent for a text of white space only, which servers refuse


class LiteLLMEmbedder:
    """Embeds with the setting `embedding_model`, through a gateway whose limits and budget it shares.

    Use `open`: the length of the vectors must be known.
    """

    cosine_threshold = COSINE_THRESHOLD

    def __init__(self, gateway: Gateway, model: str, dimension: int) -> None:
        self._gateway = gateway
        self._settings = gateway.settings
        self.model = model
        self.dimension = dimension
        self.prefixes = (self._settings.embedding_query_prefix, self._settings.embedding_passage_prefix)

    @classmethod
    async def open(cls, gateway: Gateway, dimension: int | None = None) -> LiteLLMEmbedder:
        """The embedder of the settings. Its dimension is the setting's, else `dimension` (a workspace's), else the one
        LiteLLM's map gives for the model, else that of one short text, which is embedded. Raises ModelError."""
        settings = gateway.settings
        name = settings.embedding_model
        if name is None:
            raise ModelError("no embedding model is named: set embedding_model")
        known = settings.embedding_dimension or dimension
        if known is None:
            known = (await gateway.requests.model("embedding", name)).dimension
        if known is None:
            probe = cls(gateway, name, 0)
            known = len(next(iter(await probe._ask([PROBE], "passage"))))
        return cls(gateway, name, known)

    async def embed(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> Vectors:
        """(len(texts), dimension) float32 unit vectors; `embedding_batch` texts a request, several requests at a time.

        Raises ModelError, also for vectors of another number or length, zero or not finite, and BudgetError.
        """
        from pgrag.embedding.check import unit_vectors  # numpy is loaded when it is needed

        given: list[Any] = [None] * len(texts)
        size = self._settings.embedding_batch

        async def work(start: int) -> None:
            given[start : start + size] = await self._ask(texts[start : start + size], kind)

        try:
            async with asyncio.TaskGroup() as group:
                for start in range(0, len(texts), size):
                    group.create_task(work(start))
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        advice = ": set embedding_dimension to {size} in a workspace made for it"
        return unit_vectors(self.model, given, len(texts), self.dimension, advice)

    async def _ask(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> list[Any]:
        """The vectors of one request as the server gave them, in the order of the texts."""
        requests = self._gateway.requests
        model = await requests.model("embedding", self.model)
        prefix = self.prefixes[0 if kind == "query" else 1]
        given_texts = [prefix + clean(text) if text.strip() else BLANK for text in texts]
        options = requests.options("embedding", model) | {"input": given_texts} | model.input_type(kind)
        if self._settings.embedding_dimension is not None:
            options["dimensions"] = self._settings.embedding_dimension
        started = time.perf_counter()

        async def send(given: Options) -> tuple[list[Any], Any]:
            async with requests.slot("embedding"):
                return self._read(await litellm_calls.request(model.litellm.aembedding, given), len(texts))

        with requests.budget(model, given_texts, None, embedding=True):
            vectors, usage = await requests.repeated("embedding", options, send)
            await finish(self._count(model, usage, len(texts), time.perf_counter() - started))
        return vectors

    def _read(self, response: Any, count: int) -> tuple[list[Any], Any]:
        rows = [row if isinstance(row, dict) else dict(row) for row in response.data or ()]
        if len(rows) != count:
            raise ModelError(f"{self.model} returned {len(rows)} vectors for {count} texts")
        rows.sort(key=lambda row: row.get("index") or 0)
        return [row.get("embedding") for row in rows], getattr(response, "usage", None)

    async def _count(self, model: Model, usage: Any, texts: int, seconds: float) -> None:
        tokens = int(getattr(usage, "prompt_tokens", 0) or 0)
        bill = model.bill(tokens, 0, usage, embedding=True)
        self._gateway.requests.spending.add(bill)
        logger.info("%s of %d texts by %s: %d tokens, %.1f s", PURPOSE, texts, self.model, tokens, seconds)
        if self._gateway.cache is not None:
            await self._gateway.cache.count_usage(PURPOSE, self.model, tokens, 0, bill.amount)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first, an error of pgrag's if there is one."""
    flat: list[BaseException] = []
    for error in errors.exceptions:
        flat.append(_first(error) if isinstance(error, BaseExceptionGroup) else error)
    return next((error for error in flat if isinstance(error, PgragError)), flat[0])
