"""What comes back from a language model: read from LiteLLM's responses, whole or in pieces."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pgrag.llm import litellm_calls
from pgrag.llm.litellm_models import Model
from pgrag.llm.retry import CallError
from pgrag.llm.spending import Bill
from pgrag.text.folding import clean
from pgrag.text.tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatResult:
    """An answer, and what it cost (US dollars; nothing if `cached`). `priced` is false where the price is not known."""

    text: str
    finish_reason: str
    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: Decimal = Decimal(0)
    cached: bool = False
    priced: bool = True

    @property
    def truncated(self) -> bool:
        """The model was cut off at its limit of tokens."""
        return self.finish_reason == "length"


class ChatStream:
    """The pieces of an answer as they come, once; `result` is the whole after the last one.

    Close it (`contextlib.aclosing`) when you stop earlier: the request then ends, is counted, and is not kept.
    """

    def __init__(self) -> None:
        self.result: ChatResult | None = None
        self.pieces: AsyncGenerator[str, None]

    def __aiter__(self) -> AsyncGenerator[str, None]:
        return self.pieces

    async def aclose(self) -> None:
        """Ends the request."""
        await self.pieces.aclose()


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's words, why it stopped, and its bill."""

    text: str
    finish_reason: str
    bill: Bill

    def result(self, model: str) -> ChatResult:
        """As callers get it."""
        bill = self.bill
        return ChatResult(
            clean(self.text), self.finish_reason, model, bill.prompt_tokens, bill.completion_tokens, bill.amount,
            priced=bill.cost is not None,
        )  # fmt: skip


def read_reply(model: Model, response: Any) -> Reply:
    """The reply in a response. Raises CallError if there is none."""
    if not response.choices:
        raise CallError("the reply holds no choices")
    choice = response.choices[0]
    usage = getattr(response, "usage", None)
    return Reply(choice.message.content or "", choice.finish_reason or "stop", model.bill(*_tokens(usage), usage))


class StreamReader:
    """Reads one streamed response; `open` may be called again after it failed."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._stream: Any = None
        self._seconds = 0.0
        self._parts: list[str] = []
        self._finish_reason = "stop"
        self._usage: Any = None
        self._began = False
        self.complete = False

    async def open(self, options: Mapping[str, Any]) -> str | None:
        """Asks, and waits for the first piece; None if the answer is empty. Raises CallError."""
        self._seconds = options["timeout"]
        self._stream = await litellm_calls.request(self._model.litellm.acompletion, options)
        try:
            return await self.next()
        except BaseException:
            await self.close()
            raise

    async def next(self) -> str | None:
        """The next piece; None at the end. Raises CallError."""
        while (chunk := await litellm_calls.next_chunk(self._stream, self._seconds)) is not None:
            self._usage = getattr(chunk, "usage", None) or self._usage
            for choice in chunk.choices[:1]:
                self._began = self._began or choice.finish_reason is None
                self._finish_reason = choice.finish_reason or self._finish_reason
                if piece := choice.delta.content:
                    self._parts.append(piece)
                    return str(piece)
        if (
            not self._began and _tokens(self._usage)[0] == 0
        ):  # LiteLLM makes an end of its own when the connection broke
            raise CallError("the connection ended before the answer began")
        self.complete = True
        return None

    async def close(self) -> None:
        """Ends the connection."""
        with contextlib.suppress(OSError, RuntimeError):  # it may be broken already
            await self._stream.aclose()

    def reply(self, prompt: Sequence[str], encoding: str) -> Reply:
        """What was read so far; without a usage from the server its tokens are counted with `encoding`."""
        text = "".join(self._parts)
        if self._usage is not None:
            bill = self._model.bill(*_tokens(self._usage), self._usage)
        else:
            tokenizer = Tokenizer(encoding)
            bill = self._model.bill(sum(tokenizer.count_many(prompt)), tokenizer.count(text))
        return Reply(text, self._finish_reason, bill)


def _tokens(usage: Any) -> tuple[int, int]:
    return int(getattr(usage, "prompt_tokens", 0) or 0), int(getattr(usage, "completion_tokens", 0) or 0)
