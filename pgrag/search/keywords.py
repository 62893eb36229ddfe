"""A question's keywords by a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pgrag.llm import prompts
from pgrag.llm.gateway import Gateway
from pgrag.search.keyword_answer import parse_keywords
from pgrag.types import Keywords


class LLMKeywords:
    """Both levels of keywords by one cached call (a `KeywordExtractor`)."""

    def __init__(self, gateway: Gateway, model: str) -> None:
        self._gateway = gateway
        self._model = model

    async def keywords(self, question: str, history: Sequence[Mapping[str, str]] = ()) -> Keywords:
        """The model's keywords; empty if its answer cannot be read: the question then serves both levels.

        Raises ModelError, BudgetError, and UsageError for a wrong history.
        """
        turns = [dict(turn) for turn in history]
        cache = self._gateway.cache
        # What was said before may come from texts that go while the model works: the answer is not kept then.
        state = await cache.corpus_state() if turns and cache is not None else None
        result = await self._gateway.chat(
            "keywords",
            prompts.keyword_messages(question, language=prompts.language_of(question), history=turns),
            model=self._model,
            schema=prompts.schema("keywords"),
            state=state,
        )
        return parse_keywords(result.text) or Keywords()
