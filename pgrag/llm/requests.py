"""Requests to model servers: so many at a time, repeated where that helps, within the budget, with usable errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Literal, NoReturn, TypeVar

from anyio.lowlevel import RunVar
from pydantic import SecretStr

from pgrag.config import Settings
from pgrag.errors import ModelAccessError, ModelError
from pgrag.llm import litellm_calls
from pgrag.llm.litellm_models import Model, load
from pgrag.llm.retry import CallError, CallTimeoutError, with_retries
from pgrag.llm.spending import Spending
from pgrag.text.masking import mask

logger = logging.getLogger(__name__)

Server = Literal["llm", "embedding"]
Options = Mapping[str, Any]
T = TypeVar("T")

RESERVED_COMPLETION = 1024  # tokens of an answer under way, for max_cost
BYTES_A_TOKEN = 3  # of UTF-8 in such estimates; in truth there are about four
MODEL_SETTINGS = (
    "extraction_model", "keyword_model", "answer_model", "evaluate_model", "llm_model", "embedding_model",
)  # fmt: skip

# Of a failed request: the first that applies is the error to raise, and says which setting helps.
FAILURES: tuple[tuple[Callable[[CallError], bool], type[ModelError], str], ...] = (
    (
        lambda e: isinstance(e, CallTimeoutError),
        ModelError,
        "{model}{place} did not answer within {seconds:g} s{tries}: raise the setting {server}_timeout",
    ),
    (
        lambda e: e.status in (401, 403),
        ModelAccessError,
        "{model}{place} refuses the key: {words}: set {server}_api_key (any word where the server wants none) or the "
        "provider's own variable",
    ),
    (
        lambda e: e.status == 404,
        ModelAccessError,
        "{model}{place} is not there: {words}: check the settings {setting} and {server}_api_base",
    ),
    (
        lambda e: e.status == 429 and not e.passing,
        ModelAccessError,
        "{model}: the account has no credit left: {words}",
    ),
    (
        litellm_calls.too_long,
        ModelError,
        "the text is too long for {model}: {words}: lower the setting {shorter}",
    ),
    (
        lambda e: e.status == 429,
        ModelError,
        "{model} is asked too often{tries}: {words}: lower {server}_concurrency",
    ),
    (
        lambda e: e.passing,
        ModelError,
        "{model}{place} failed{tries}: {words}: check the server and {server}_api_base",
    ),
    (
        lambda _: True,
        ModelError,
        "{model}{place} refused the request (status {status}): {words}",
    ),
)
SHORTER: Mapping[Server, str] = {
    "llm": "chunk_tokens or max_total_tokens, or give the model more context",  # the instructions are 2,000 tokens
    "embedding": "chunk_tokens",
}


class Requests:
    """What the requests of one process share. `sleep` waits between repetitions."""

    def __init__(self, settings: Settings, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.settings = settings
        self.spending = Spending(settings.max_cost)
        self._sleep = sleep
        self._slots: RunVar[dict[Server, asyncio.Semaphore]] = RunVar(f"pgrag-slots-{id(self)}")
        self._refused: set[tuple[str, str]] = set()  # (model, option) as servers said
        self._litellm: Any = None

    async def model(self, server: Server, name: str) -> Model:
        """The model of that name. Raises ModelAccessError if LiteLLM knows no provider for it."""
        if self._litellm is None:
            self._litellm = await load()
        try:
            return Model.find(self._litellm, name, self._api_base(server))
        except Exception as error:
            raise ModelAccessError(
                f"{name!r} names no model LiteLLM can place: write provider/model in {self._setting(name)}, e.g. "
                "openai/gpt-4o-mini, ollama_chat/llama3.1, or openai/NAME for a server that speaks OpenAI's protocol"
            ) from error

    def options(self, server: Server, model: Model) -> dict[str, Any]:
        """The options every request to this server has."""
        timeout = self.settings.llm_timeout if server == "llm" else self.settings.embedding_timeout
        options: dict[str, Any] = {"model": model.full, "timeout": timeout}
        if base := self._api_base(server):
            options["api_base"] = base
        if key := self._api_key(server):
            options["api_key"] = key.get_secret_value()
        return options

    def slot(self, server: Server) -> asyncio.Semaphore:
        """Lets so many requests of this event loop through at a time as the setting says."""
        try:
            slots = self._slots.get()
        except LookupError:
            slots = {
                "llm": asyncio.Semaphore(self.settings.llm_concurrency),
                "embedding": asyncio.Semaphore(self.settings.embedding_concurrency),
            }
            self._slots.set(slots)
        return slots[server]

    @contextmanager
    def budget(
        self, model: Model, prompt: Sequence[str], max_tokens: int | None, *, embedding: bool = False
    ) -> Iterator[None]:
        """Raises BudgetError unless a request of about this size fits; holds its estimated cost meanwhile."""
        estimate: Decimal | None = Decimal(0)
        if self.spending.limit is not None:
            tokens = sum(len(text.encode()) for text in prompt) // BYTES_A_TOKEN + 1
            answer = 0 if embedding else max_tokens or RESERVED_COMPLETION
            estimate = model.bill(tokens, answer, embedding=embedding).cost
        with self.spending.reserve(model.full, estimate):
            yield

    async def repeated(self, server: Server, options: Options, send: Callable[[Options], Awaitable[T]]) -> T:
        """What `send` makes of the options, with repetitions. Raises ModelError, ModelAccessError.

        An option the server does not take is left out, now and in later requests to the model.
        """

        async def once() -> T:
            while True:
                given = {k: v for k, v in options.items() if (options["model"], k) not in self._refused}
                try:
                    return await send(given)
                except CallError as error:
                    option = litellm_calls.refused_option(error, list(given))
                    if option is None:
                        raise
                    logger.info("%s does not take %s: going on without", options["model"], option)
                    self._refused.add((options["model"], option))

        try:
            return await with_retries(once, self.settings.llm_retries, self._sleep)
        except CallError as error:
            self.fail(server, options["model"], error)

    def fail(self, server: Server, model: str, error: CallError) -> NoReturn:
        """Raises the error that says what happened and which setting helps."""
        keys = [key.get_secret_value() for key in (self._api_key("llm"), self._api_key("embedding")) if key]
        base = self._api_base(server)
        kind, text = next((kind, text) for applies, kind, text in FAILURES if applies(error))
        raise kind(
            text.format(
                model=model,
                place=f" at {mask(base, keys)}" if base else "",
                words=mask(error.words, keys),
                tries=f" ({error.tries} tries)" if error.tries > 1 else "",
                status=error.status,
                server=server,
                setting=self._setting(model),
                seconds=self.settings.llm_timeout if server == "llm" else self.settings.embedding_timeout,
                shorter=SHORTER[server],
            )
        ) from error

    async def aclose(self) -> None:
        """Closes idle connections of this event loop."""
        if self._litellm is not None:
            await litellm_calls.close_connections(self._litellm)

    def _api_base(self, server: Server) -> str | None:
        return self.settings.llm_api_base if server == "llm" else self.settings.embedding_api_base

    def _api_key(self, server: Server) -> SecretStr | None:
        return self.settings.llm_api_key if server == "llm" else self.settings.embedding_api_key

    def _setting(self, model: str) -> str:
        return next((name for name in MODEL_SETTINGS if getattr(self.settings, name) == model), "llm_model")
