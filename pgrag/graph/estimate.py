"""What an ingest would do and cost, found out without a call to any model and without a write to the database."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal, Protocol

import anyio.to_thread

from pgrag.config import Settings
from pgrag.database.store import Store
from pgrag.documents.reading import Batch, DocumentDefaults, Source, is_unchanged, read
from pgrag.errors import DocumentError
from pgrag.graph.ingest import EMPTY
from pgrag.llm import prompts
from pgrag.text.tokens import Tokenizer
from pgrag.types import Chunk, DocumentChunker, DocumentFailure, Extractor, IngestEstimate

# Tokens of an answer by tokens of its chunk: means over answers of several models to texts in several languages.
ANSWER_RATIO = 1.2
GLEANING_RATIO = 0.45

Text = tuple[str, tuple[str, ...]]  # a chunk's digest and headings: what one extraction is for


class PricedModels(Protocol):
    """What an estimate asks of the models of a workspace."""

    @property
    def paid_extraction(self) -> str | None:
        """The LLM that extracts, if one does."""

    @property
    def paid_embedding(self) -> str | None:
        """The embedding model on a server, if there is one."""

    @property
    def embedding_name(self) -> str:
        """The model whose vectors a workspace has or will have."""

    def extractor(self) -> Extractor:
        """What extracts."""

    async def cost(
        self, server: Literal["llm", "embedding"], model: str, prompt_tokens: int, completion_tokens: int = 0
    ) -> Decimal | None:
        """US dollars; None for a model without a known price."""


@dataclass(slots=True)
class _Sum:
    """What was counted so far."""

    new: int = 0
    changed: int = 0
    skipped: int = 0
    failures: list[DocumentFailure] = field(default_factory=list)
    skipped_files: list[tuple[str, str]] = field(default_factory=list)
    chunks: int = 0
    texts: set[Text] = field(default_factory=set)
    to_extract: int = 0
    calls: int = 0
    prompt: int = 0
    completion: int = 0
    embedding: int = 0


class Estimator:
    """Estimates ingests into a workspace; `store` is None where there is none yet."""

    def __init__(
        self,
        settings: Settings,
        models: PricedModels,
        chunker: DocumentChunker,
        tokenizer: Tokenizer,
        store: Store | None,
    ) -> None:
        self._settings = settings
        self._models = models
        self._chunker = chunker
        self._tokenizer = tokenizer
        self._store = store
        self._llm = models.paid_extraction
        self._overheads: dict[prompts.Language, tuple[int, int]] = {}

    async def run(self, sources: Iterable[Source], defaults: DocumentDefaults) -> IngestEstimate:
        """The estimate. Raises DatabaseError, and ModelAccessError for a model that cannot be."""
        total = _Sum()
        batches = read(sources, defaults)
        while batch := await anyio.to_thread.run_sync(next, batches, None):
            await self._count(total, batch)
        return IngestEstimate(
            total.new, total.changed, total.skipped, tuple(total.failures), tuple(total.skipped_files), total.chunks,
            total.to_extract, total.calls, total.prompt, total.completion, total.embedding, await self._cost(total),
            self._llm, self._models.embedding_name, self._assumptions(),
        )  # fmt: skip

    async def _count(self, total: _Sum, batch: Batch) -> None:
        total.failures += batch.failures
        total.skipped_files += [(str(skipped.path), skipped.reason) for skipped in batch.skipped_files]
        states = await self._store.document_states(batch.uris) if self._store else {}
        found: dict[Text, Chunk] = {}
        for document, digest in batch.documents:
            state = states.get(document.uri)
            if is_unchanged(state, digest):
                total.skipped += 1
                continue
            try:
                chunks = await anyio.to_thread.run_sync(self._chunker.chunk, document)
            except DocumentError as error:
                total.failures.append(DocumentFailure(document.uri, str(error)))
                continue
            if not chunks:
                total.failures.append(DocumentFailure(document.uri, EMPTY))
                continue
            total.new += state is None
            total.changed += state is not None
            total.chunks += len(chunks)
            found |= {text: chunk for chunk in chunks if (text := _text(chunk)) not in total.texts}
        total.texts |= found.keys()
        known = await self._store.extracted_texts(sorted({digest for digest, _ in found})) if self._store else set()
        for text, chunk in found.items():
            if text not in known:
                self._add(total, chunk)

    def _add(self, total: _Sum, chunk: Chunk) -> None:
        """One chunk to extract."""
        total.to_extract += 1
        if self._llm is None:
            total.embedding += 3 * chunk.tokens
            return
        asked, gleaned = self._overhead(prompts.language_of(chunk.model_text))
        limit = self._settings.max_output_tokens or math.inf
        conversation, answers = asked + chunk.tokens, 0
        for call in range(1 + self._settings.gleaning):
            answer = int(min(limit, math.ceil((GLEANING_RATIO if call else ANSWER_RATIO) * chunk.tokens)))
            total.calls += 1
            total.prompt += conversation
            answers += answer
            conversation += answer + gleaned
        total.completion += answers
        total.embedding += chunk.tokens + 2 * answers

    def _overhead(self, language: prompts.Language) -> tuple[int, int]:
        """Tokens of the extraction prompt without its passage, and of the one for gleaning."""
        if language not in self._overheads:
            settings = self._settings
            asked = prompts.extraction_messages(
                "", language=language, entity_types=settings.entity_types, output_language=settings.output_language
            )
            gleaned = prompts.gleaning_messages([], "", language=language)
            self._overheads[language] = (
                prompts.prompt_tokens(asked, self._tokenizer),
                prompts.prompt_tokens(gleaned, self._tokenizer),
            )
        return self._overheads[language]

    async def _cost(self, total: _Sum) -> Decimal | None:
        parts: list[Decimal | None] = []
        if self._llm is not None and total.calls:
            parts.append(await self._models.cost("llm", self._llm, total.prompt, total.completion))
        if self._models.paid_embedding is not None and total.embedding:
            parts.append(await self._models.cost("embedding", self._models.paid_embedding, total.embedding))
        known = [part for part in parts if part is not None]
        return sum(known, Decimal(0)) if len(known) == len(parts) else None

    def _assumptions(self) -> str:
        if self._llm is None:
            return (
                f"no call to an LLM counted ({self._models.extractor().label}); "
                "embedded are the chunks, their sentences, and as many tokens of profiles"
            )
        return (
            f"assumed: answers of {ANSWER_RATIO:g} tokens a token of the chunk, {GLEANING_RATIO:g} for each gleaning; "
            "to embed, as many again for facts and for profiles; not counted: summaries, repetitions, discounts, and "
            "answers that the workspace has already"
        )


def _text(chunk: Chunk) -> Text:
    return hashlib.sha256(chunk.body.encode()).hexdigest(), chunk.headings
