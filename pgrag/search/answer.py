"""Answers from a context: quoted sentences without a model, or written by one, whole or in pieces."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pgrag.database.store import Store
from pgrag.errors import ModelError, UsageError
from pgrag.llm import prompts
from pgrag.llm.gateway import Gateway
from pgrag.llm.repair import may_be_thinking, without_thinking
from pgrag.llm.replies import ChatResult
from pgrag.text.tokens import Tokenizer
from pgrag.types import Retrieval, RetrievedChunk

if TYPE_CHECKING:
    from pgrag.types import Vectors

logger = logging.getLogger(__name__)

NOTHING_FOUND = "Nothing was found."


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How an answer shall be: `response_type` its form, `user_prompt` more instructions, `history` the turns before."""

    response_type: str = prompts.RESPONSE_TYPE
    user_prompt: str = ""
    history: Sequence[prompts.Message] = ()


DEFAULT_ANSWER_OPTIONS = AnswerOptions()


@dataclass(frozen=True, slots=True)
class PreparedQuestion:
    """A question with all that its answer is made of; without vector and context where nothing is searched.

    `state` is that of the texts before the search, where answers are kept.
    """

    question: str
    vector: Vectors | None
    retrieval: Retrieval
    context: str | None
    answer_options: AnswerOptions
    prompt: Sequence[prompts.Message]
    state: str | None


class Answerer(Protocol):
    """Makes an answer from what was found."""

    @property
    def label(self) -> str:
        """One line for people: how answers are made."""

    async def state(self) -> str | None:
        """Of the texts, where an answer is kept only as long as they stay the same."""

    def prompt(self, question: str, context: str | None, answer_options: AnswerOptions) -> list[prompts.Message]:
        """What a model is sent; empty where none is asked. Without a context: the question by itself."""

    def overhead(self, question: str, answer_options: AnswerOptions) -> int:
        """Tokens of the prompt without the context, at most."""

    async def answer(self, prepared: PreparedQuestion) -> str:
        """The answer; `[n]` cites the n-th passage."""

    def stream(self, prepared: PreparedQuestion) -> AsyncGenerator[str, None]:
        """The same in pieces."""


class QuotingAnswerer:
    """The answer without an LLM: the sentences nearest to the question, quoted, each with its citation."""

    label = "no LLM: sentences quoted from the passages"
    chunks = 4
    sentences = 6

    def __init__(self, store: Store, tokenizer: Tokenizer) -> None:
        self._store = store
        self._tokenizer = tokenizer

    async def state(self) -> None:
        """Nothing is kept."""

    def prompt(self, question: str, context: str | None, answer_options: AnswerOptions) -> list[prompts.Message]:
        """No model is asked. Raises UsageError for what only a model can do."""
        if context is None or answer_options != DEFAULT_ANSWER_OPTIONS:
            raise UsageError("mode bypass, response_type, user_prompt and history need an LLM: set PGRAG_LLM_MODEL")
        return []

    def overhead(self, question: str, answer_options: AnswerOptions) -> int:
        """The question's own tokens."""
        return self._tokenizer.count(question)

    async def answer(self, prepared: PreparedQuestion) -> str:
        """The best sentence of each of the first passages and the best of all, in the order of the passages."""
        chunks = prepared.retrieval.chunks
        number = {c.id: n for n, c in enumerate(chunks, 1)}
        if not number or prepared.vector is None:
            return NOTHING_FOUND
        facts = await self._store.rank_facts(prepared.vector, list(number), 200)
        best: dict[int, str] = {}
        for chunk_id, text, _ in facts:
            best.setdefault(number[chunk_id], text)
        quoted = {text: n for n, text in sorted(best.items())[: self.chunks]}
        for chunk_id, text, _ in facts:
            if len(quoted) >= self.sentences:
                break
            quoted.setdefault(text, number[chunk_id])
        if not quoted:
            return "\n".join(f"{_shortened(c)} [{n}]" for n, c in enumerate(chunks[:3], 1))
        return "\n".join(f"{_quotable(text)} [{n}]" for text, n in sorted(quoted.items(), key=lambda item: item[1]))

    async def stream(self, prepared: PreparedQuestion) -> AsyncGenerator[str, None]:
        """The whole answer as one piece."""
        yield await self.answer(prepared)


class LLMAnswerer:
    """The answer written by a language model from the context."""

    def __init__(self, store: Store, gateway: Gateway, model: str, tokenizer: Tokenizer) -> None:
        self._store = store
        self._gateway = gateway
        self._model = model
        self._tokenizer = tokenizer
        self.label = f"answer by {model}"

    async def state(self) -> str:
        """Of all texts."""
        return await self._store.corpus_state()

    def prompt(self, question: str, context: str | None, answer_options: AnswerOptions) -> list[prompts.Message]:
        """The messages of the one call that answers. Raises UsageError for a wrong history."""
        if context is None:
            system = (
                [{"role": "system", "content": answer_options.user_prompt}]
                if answer_options.user_prompt.strip()
                else []
            )
            return [*system, *prompts.checked_history(answer_options.history), {"role": "user", "content": question}]
        return prompts.answer_messages(
            question,
            context,
            language=prompts.language_of(question),
            response_type=answer_options.response_type,
            user_prompt=answer_options.user_prompt,
            history=answer_options.history,
        )

    def overhead(self, question: str, answer_options: AnswerOptions) -> int:
        """Tokens of system prompt, history, question and wrappers."""
        return prompts.prompt_tokens(self.prompt(question, "", answer_options), self._tokenizer)

    async def answer(self, prepared: PreparedQuestion) -> str:
        """Without the model's thoughts. Raises ModelError, also when nothing is left, and BudgetError."""
        if prepared.context == "":  # searched, and nothing found: a model could only invent
            return NOTHING_FOUND
        result = await self._gateway.chat(
            "answer",
            prepared.prompt,
            model=self._model,
            state=prepared.state,
            usable=_holds_an_answer,
        )
        return self._checked(without_thinking(result.text), result)

    async def stream(self, prepared: PreparedQuestion) -> AsyncGenerator[str, None]:
        """The answer in pieces as the model writes them, without a block of thoughts before. Raises as `answer`."""
        if prepared.context == "":
            yield NOTHING_FOUND
            return
        started = self._gateway.stream(
            "answer", prepared.prompt, model=self._model, state=prepared.state, usable=_holds_an_answer
        )
        async with aclosing(started) as stream:
            written = held = ""
            thinking = True  # until it is clear that no block of thoughts begins the answer, or the block has ended
            async for piece in stream:
                if thinking:
                    held += piece
                    if may_be_thinking(held):
                        continue
                    thinking = False
                    piece = without_thinking(held).lstrip()
                if piece:
                    written += piece
                    yield piece
            if thinking and (rest := without_thinking(held)).strip():
                written = rest
                yield rest
        self._checked(written, stream.result)

    def _checked(self, answer: str, result: ChatResult | None) -> str:
        cut = result is not None and result.truncated
        if not answer.strip():
            why = "it was cut off while the model was thinking: raise max_output_tokens" if cut else "ask again"
            raise ModelError(f"{self._model} wrote no answer: {why}")
        if cut:
            logger.warning("the answer of %s was cut off: raise max_output_tokens", self._model)
        return answer


def _holds_an_answer(result: ChatResult) -> bool:
    return bool(without_thinking(result.text).strip())


def _shortened(chunk: RetrievedChunk, limit: int = 300) -> str:
    text = _quotable(chunk.body)
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0] + " …"


def _quotable(text: str) -> str:
    """The text on one line, without what would read as a citation of ours: footnotes such as [12]."""
    return re.sub(r"\[(\d+)\]", r"(\1)", " ".join(text.split()))
