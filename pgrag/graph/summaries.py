"""Descriptions that grew too long are summarised by a language model: in one call, or in groups and then again."""

from __future__ import annotations

from collections.abc import Sequence

from pgrag.errors import ModelError
from pgrag.graph.summary_answer import clean_summary
from pgrag.llm import prompts
from pgrag.llm.gateway import Gateway
from pgrag.llm.replies import ChatResult
from pgrag.text.tokens import Tokenizer


class Summariser:
    """Merges fragments about one subject into a description of at most `max_tokens` tokens."""

    def __init__(
        self,
        gateway: Gateway,
        model: str,
        tokenizer: Tokenizer,
        *,
        min_fragments: int = 8,
        min_tokens: int = 1200,
        max_tokens: int = 600,
        context_tokens: int = 12_000,
        output_language: str | None = None,
    ) -> None:
        self._gateway = gateway
        self._model = model
        self._tokenizer = tokenizer
        self._min_fragments = min_fragments
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens
        self._context_tokens = context_tokens
        self._output_language = output_language

    def due(self, fragments: Sequence[str]) -> bool:
        """Whether these fragments are too many or too long to stand as they are."""
        return len(fragments) >= self._min_fragments or sum(self._tokenizer.count_many(fragments)) > self._min_tokens

    async def summarise(self, subject: str, fragments: Sequence[str], chunks: Sequence[int]) -> str:
        """One description from fragments, old to new; `chunks` are the ids of the chunks behind them.

        Notes beyond one context are summarised in groups, and the summaries again. Raises ModelError, BudgetError.
        """
        remaining = list(fragments)
        while len(groups := self._groups(remaining)) > 1:
            remaining = [await self._once(subject, group, chunks) for group in groups]
        return await self._once(subject, remaining, chunks)

    async def _once(self, subject: str, fragments: Sequence[str], chunks: Sequence[int]) -> str:
        if len(fragments) == 1 and self._tokenizer.count(fragments[0]) <= self._max_tokens:
            return fragments[0]
        messages = prompts.summary_messages(
            subject,
            fragments,
            language=prompts.language_of("\n".join(fragments)),
            max_tokens=self._max_tokens,
            output_language=self._output_language,
        )
        result = await self._gateway.chat(
            "summary",
            messages,
            model=self._model,
            chunks=chunks,
            usable=lambda cached: _read(cached) is not None,
        )
        summary = _read(result)
        if summary is None:
            why = "was cut off: raise max_output_tokens" if result.truncated else "holds none"
            raise ModelError(f"the answer of {self._model} that should be a summary of {subject!r} {why}")
        return self._cut(summary)

    def _cut(self, summary: str) -> str:
        """A model may not keep to the length it was asked for; twice as long is the most that is taken."""
        end = self._tokenizer.prefix_end(summary, 2 * self._max_tokens)
        return summary[:end].rstrip()

    def _groups(self, fragments: Sequence[str]) -> list[list[str]]:
        """Consecutive fragments that fit one context, at least two a group; one longer than that is cut."""
        groups: list[list[str]] = [[]]
        total = 0
        for fragment in fragments:
            cut = fragment[: self._tokenizer.prefix_end(fragment, self._context_tokens // 2)]
            size = self._tokenizer.count(cut)
            if len(groups[-1]) >= 2 and total + size > self._context_tokens:
                groups.append([])
                total = 0
            groups[-1].append(cut)
            total += size
        return groups


def _read(result: ChatResult) -> str | None:
    """The summary in an answer; what was cut off would lose facts for good."""
    return None if result.truncated else clean_summary(result.text)
