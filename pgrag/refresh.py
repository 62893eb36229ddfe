"""Refresh: entities and relations whose sources changed are derived anew, counted and embedded, in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

from pgrag.context import entity_line, relation_line
from pgrag.embedding import embed_distinct
from pgrag.errors import DatabaseError, ModelAccessError, ModelError
from pgrag.records import Notes, StaleEntity, StaleRelation
from pgrag.store import StaleKind, Store
from pgrag.summaries import Summariser
from pgrag.tokens import Tokenizer
from pgrag.types import Embedder, RefreshReport

logger = logging.getLogger(__name__)

BATCH = 256
SUMMARY_BATCH = 32  # a summary is a model call: what is written stays if a later batch fails


class Refresher:
    """Recomputes what is marked stale. Several may run at once: each row is leased to one of them."""

    def __init__(
        self,
        store: Store,
        embedder: Embedder,
        tokenizer: Tokenizer,
        embedding_batch: int,
        summariser: Summariser | None = None,
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._tokenizer = tokenizer
        self._embedding_batch = embedding_batch
        self._summariser = summariser
        self._batch = BATCH if summariser is None else SUMMARY_BATCH

    async def run(self) -> RefreshReport:
        """Until nothing is stale but what others hold. Raises ModelError if a model fails: the marks stay.

        Entities come first: a relation's profile holds the names of its ends.
        """
        entities = relations = 0
        while stale_entities := await self._store.claim_stale_entities(self._batch):
            entities += await self._entities(stale_entities)
        while stale_relations := await self._store.claim_stale_relations(self._batch):
            relations += await self._relations(stale_relations)
        if entities or relations:
            logger.info("refreshed %d entities and %d relations", entities, relations)
        return RefreshReport(entities, relations)

    async def _entities(self, stale: Sequence[StaleEntity]) -> int:
        async with self._leased(stale):
            summaries, noted = await self._summaries("entity", {e.id: e.name for e in stale})
            stale = [replace(e, description=summaries.get(e.id, e.description)) for e in stale]
            tokens = self._tokenizer.count_many([entity_line(e.name, e.type, e.description) for e in stale])
            profiles = [f"{e.name}\n{e.description}" if e.description else e.name for e in stale]
            vectors = await embed_distinct(self._embedder, profiles, self._embedding_batch)
            return await self._store.finish_stale("entity", stale, tokens, vectors, summaries, noted)

    async def _relations(self, stale: Sequence[StaleRelation]) -> int:
        async with self._leased(stale):
            names = {r.id: f"{r.source} - {r.target}" for r in stale}
            summaries, noted = await self._summaries("relation", names)
            stale = [replace(r, description=summaries.get(r.id, r.description)) for r in stale]
            tokens = self._tokenizer.count_many([relation_line(r.source, r.target, r.description) for r in stale])
            profiles = ["\t".join((", ".join(r.keywords), r.source, r.target, r.description)) for r in stale]
            vectors = await embed_distinct(self._embedder, profiles, self._embedding_batch)
            return await self._store.finish_stale("relation", stale, tokens, vectors, summaries, noted)

    async def _summaries(self, kind: StaleKind, names: Mapping[int, str]) -> tuple[dict[int, str], list[int]]:
        """Summaries of those whose notes are too many or too long, by id, and the ids of the notes they hold.

        One that fails is left out and only logged: a model's trouble with one subject holds up no other.
        """
        if self._summariser is None:
            return {}, []
        due: list[tuple[Notes, list[str]]] = []
        for notes in await self._store.stale_notes(kind, list(names)):
            texts = [*([notes.summary] if notes.summary else []), *notes.notes]
            if self._summariser.due(texts):
                due.append((notes, texts))
        written = await asyncio.gather(
            *(self._summariser.summarise(names[notes.id], texts, notes.chunk_ids) for notes, texts in due),
            return_exceptions=True,  # the others are waited for: they are paid
        )
        summaries: dict[int, str] = {}
        noted: list[int] = []
        for (notes, _), summary in zip(due, written, strict=True):
            if isinstance(summary, str):
                summaries[notes.id] = summary
                noted += notes.note_ids
            elif isinstance(summary, ModelError) and not isinstance(summary, ModelAccessError):
                logger.warning("the notes on %s stand as they are until the next one: %s", names[notes.id], summary)
            else:
                raise summary
        return summaries, noted

    @asynccontextmanager
    async def _leased(self, stale: Sequence[StaleEntity] | Sequence[StaleRelation]) -> AsyncIterator[None]:
        tokens = list({s.lease_token for s in stale})
        keeping = asyncio.create_task(self._keep_leases(tokens))
        try:
            yield
        except BaseException:  # a cancelled or failed refresh must not keep the next one waiting for its leases
            await self._release(tokens)
            raise
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])

    async def _release(self, tokens: Sequence[UUID]) -> None:
        try:
            await self._store.release_stale(tokens)
        except DatabaseError as error:  # the first error matters more; the leases run out by themselves
            logger.warning("could not give stale marks back: %s", error)

    async def _keep_leases(self, tokens: Sequence[UUID]) -> None:
        """A model may take longer than a lease: nobody else shall pay for the same summaries meanwhile."""
        while True:
            await asyncio.sleep(self._store.lease_seconds / 3)
            try:
                await self._store.extend_stale(tokens)
            except DatabaseError as error:  # whoever works notices by himself
                logger.warning("could not prolong leases: %s", error)
