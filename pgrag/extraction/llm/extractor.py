"""Extraction by a language model: one call a chunk, and one more that asks what was left out."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pgrag.config import ENTITY_TYPES
from pgrag.errors import ExtractionError, PgragError
from pgrag.extraction.llm.parse import ParsedExtraction, merge_gleaned, parse_extraction
from pgrag.llm import prompts
from pgrag.llm.gateway import Gateway
from pgrag.llm.lanes import each
from pgrag.llm.replies import ChatResult
from pgrag.types import Chunk, Extraction

RULES = "1"  # raise it with every change of the parser that changes results


class LLMExtractor:
    """Entities, relations and keywords of chunks by a model (an `Extractor`).

    An answer is cached before it is read, so that neither a kill nor a better parser pays for it again.
    """

    def __init__(
        self,
        gateway: Gateway,
        model: str,
        *,
        entity_types: Sequence[str] = ENTITY_TYPES,
        output_language: str | None = None,
        gleaning: int = 1,
    ) -> None:
        self._gateway = gateway
        self._model = model
        self._entity_types = tuple(entity_types)
        self._output_language = output_language
        self._gleaning = gleaning
        self.label = f"LLM: extraction by {model}"

    @property
    def digest(self) -> str:
        """Of the model, the prompts and everything that shapes the answer."""
        files = [prompts.load(n, lang).digest for n in ("extract", "glean") for lang in prompts.LANGUAGES]
        parts = [self._model, *files, *self._entity_types, self._output_language or "", str(self._gleaning), RULES]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    async def extract(self, chunks: Sequence[Chunk]) -> list[Extraction | PgragError]:
        """One result a chunk, in order; a chunk whose answer cannot be had or read is an error in the list.

        After an error by which no chunk can fare better, such as a BudgetError, no more are asked for.
        """
        return await each(chunks, self._gateway.settings.llm_concurrency, self._extract)

    async def _extract(self, chunk: Chunk) -> Extraction:
        text = chunk.model_text
        language = prompts.language_of(text)
        forbidden = prompts.example_names(language, text)
        asked = prompts.extraction_messages(
            text, language=language, entity_types=self._entity_types, output_language=self._output_language
        )
        answer, parsed = await self._ask("extraction", asked, chunk, forbidden, again=True)
        extraction = parsed.extraction
        for _ in range(self._gleaning):
            asked = prompts.gleaning_messages(asked, answer.text, language=language)
            try:
                answer, more = await self._ask("gleaning", asked, chunk, forbidden, known_new=not answer.cached)
            except ExtractionError:
                extraction = _counted(extraction, {"gleaning answer that cannot be read": 1})
                break
            extraction = merge_gleaned(extraction, more.extraction)
            if not (more.extraction.mentions or more.extraction.facts):
                break
        return extraction

    async def _ask(
        self,
        purpose: str,
        messages: Sequence[prompts.Message],
        chunk: Chunk,
        forbidden: frozenset[str],
        *,
        again: bool = False,
        known_new: bool = False,
    ) -> tuple[ChatResult, ParsedExtraction]:
        """The answer, as it is and as it is read. `again`: a cached one that cannot be read is asked for once more."""

        def read(result: ChatResult) -> ParsedExtraction:
            return parse_extraction(result.text, finish_reason=result.finish_reason, names_in_prompt=forbidden)

        def readable(result: ChatResult) -> bool:
            try:
                read(result)
            except ExtractionError:
                return False
            return True

        result = await self._gateway.chat(
            purpose,
            messages,
            model=self._model,
            schema=prompts.schema("extraction"),
            chunks=() if chunk.id is None else (chunk.id,),
            usable=readable if again else None,
            known_new=known_new,
        )
        parsed = read(result)
        counts = {f"mended: {reason}": n for reason, n in parsed.mended.items()}
        if not parsed.complete:
            counts["answer cut off: raise max_output_tokens"] = 1
        return result, replace(parsed, extraction=_counted(parsed.extraction, counts))


def _counted(extraction: Extraction, more: Mapping[str, int]) -> Extraction:
    return replace(extraction, dropped=dict(Counter(extraction.dropped) + Counter(more))) if more else extraction
