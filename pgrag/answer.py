"""Answers from a context: quoted sentences without a model, or written by one, whole or in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pgrag import prompts
from pgrag.errors import UsageError
from pgrag.llm.gateway import Gateway
from pgrag.llm.keyword_answer import parse_keywords
from pgrag.llm.mend import without_thinking
from pgrag.store import Store
from pgrag.tokens import Tokenizer
from pgrag.types import Keywords, Retrieval, RetrievedChunk

if TYPE_CHECKING:
    from pgrag.types import Vectors

MESSAGE_TOKENS = 8  # what a chat format adds to each message, at most


@dataclass(frozen=True, slots=True)
class Wishes:
    """How the caller wants the answer: `response_type` its form, `user_prompt` more instructions, `history` earlier turns."""

    response_type: str = prompts.RESPONSE_TYPE
    user_prompt: str = ""
    history: Sequence[prompts.Message] = ()


class Answerer(Protocol):
    """Makes an answer from what was found."""

    @property
    def label(self) -> str:
        """One line for people: how answers are made."""

    def prompt(self, question: str, context: str, wishes: Wishes) -> list[prompts.Message]:
        """What a model is sent: empty where none is asked."""

    def overhead(self, question: str, wishes: Wishes) -> int:
        """Tokens of the prompt without the context, at most."""

    async def answer(
        self, question: str, vector: Vectors, retrieval: Retrieval, context: str, wishes: Wishes
    ) -> str:
        """The answer; `[n]` cites the n-th passage."""

    def stream(
        self, question: str, vector: Vectors, retrieval: Retrieval, context: str, wishes: Wishes
    ) -> AsyncIterator[str]:
        """The same in pieces."""


class QuotingAnswerer:
    """The answer without an LLM: the sentences nearest to the question, quoted, each with its citation."""

    label = "no LLM: sentences quoted from the passages"
    passages = 4
    sentences = 6

    def __init__(self, store: Store, tokenizer: Tokenizer) -> None:
        self._store = store
        self._tokenizer = tokenizer

    def prompt(self, question: str, context: str, wishes: Wishes) -> list[prompts.Message]:
        """No model is asked."""
        return []

    def overhead(self, question: str, wishes: Wishes) -> int:
        """The question's own tokens. Raises UsageError for wishes that only a model can grant."""
        if wishes != Wishes():
            raise UsageError("response_type, user_prompt and history need a language model: set PGRAG_LLM_MODEL")
        return self._tokenizer.count(question)

    async def answer(
        self, question: str, vector: Vectors, retrieval: Retrieval, context: str, wishes: Wishes
    ) -> str:
        """The best sentence of each of the first passages and the best of all, in the order of the passages."""
        number = {c.id: n for n, c in enumerate(retrieval.chunks, 1)}
        if not number:
            return "Nothing was found."
        facts = await self._store.rank_facts(vector, list(number), 200)
        best: dict[int, str] = {}
        for chunk_id, text, _ in facts:
            best.setdefault(number[chunk_id], text)
        quoted = {text: n for n, text in sorted(best.items())[: self.passages]}
        for chunk_id, text, _ in facts:
            if len(quoted) >= self.sentences:
                break
            quoted.setdefault(text, number[chunk_id])
        if not quoted:
            return "\n".join(f"{_shortened(c)} [{n}]" for n, c in enumerate(retrieval.chunks[:3], 1))
        return "\n".join(f"{text} [{n}]" for text, n in sorted(quoted.items(), key=lambda item: item[1]))

    async def stream(
        self, question: str, vector: Vectors, retrieval: Retrieval, context: str, wishes: Wishes
    ) -> AsyncIterator[str]:
        """The whole answer as one piece."""
        yield await self.answer(question, vector, retrieval, context, wishes)


class LLMAnswerer:
    """The answer written by a language model from the context."""

    def __init__(self, gateway: Gateway, model: str, tokenizer: Tokenizer) -> None:
        self._gateway = gateway
        self._model = model
        self._tokenizer = tokenizer
        self.label = f"answer by {model}"

    def prompt(self, question: str, context: str, wishes: Wishes) -> list[prompts.Message]:
        """The messages of the one call that answers. Raises UsageError for a wrong history."""
        return prompts.answer_messages(
            question,
            context,
            language=prompts.language_of(question),
            response_type=wishes.response_type,
            user_prompt=wishes.user_prompt,
            history=wishes.history,
        )

    def overhead(self, question: str, wishes: Wishes) -> int:
        """Tokens of system prompt, history, question and wrappers."""
        messages = self.prompt(question, "", wishes)
        return sum(self._tokenizer.count_many(m["content"] for m in messages)) + MESSAGE_TOKENS * len(messages)

    async def answer(
        self, question: str, vector: Vectors, retrieval: Retrieval, context: str, wishes: Wishes
    ) -> str:
        """Without the model's thoughts. Raises ModelError, BudgetError."""
        result = await self._gateway.chat(
            "answer", self.prompt(question, context, wishes), model=self._model, chunks=[c.id for c in retrieval.chunks]
        )
        return without_thinking(result.text)

    async def stream(
        self, question: str, vector: Vectors, retrieval: Retrieval, context: str, wishes: Wishes
    ) -> AsyncIterator[str]:
        """The answer in pieces as the model writes them. Raises ModelError, BudgetError."""
        pieces = self._gateway.stream(
            "answer", self.prompt(question, context, wishes), model=self._model, chunks=[c.id for c in retrieval.chunks]
        )
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()


class LLMKeywords:
    """Both levels of keywords by one cached call (a `KeywordExtractor`)."""

    def __init__(self, gateway: Gateway, model: str) -> None:
        self._gateway = gateway
        self._model = model

    async def keywords(self, question: str, history: Sequence[prompts.Message] = ()) -> Keywords:
        """The model's keywords; empty if its answer cannot be read: the question then serves both levels."""
        result = await self._gateway.chat(
            "keywords",
            prompts.keyword_messages(question, language=prompts.language_of(question), history=history),
            model=self._model,
            schema=prompts.schema("keywords"),
        )
        return parse_keywords(result.text) or Keywords()


def _shortened(chunk: RetrievedChunk, limit: int = 300) -> str:
    text = " ".join(chunk.body.split())
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0] + " …"
