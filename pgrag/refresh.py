"""Refresh: entities and relations whose sources changed are derived anew, counted and embedded, in batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pgrag.context import entity_line, relation_line
from pgrag.embedding import embed_distinct
from pgrag.records import StaleEntity, StaleRelation
from pgrag.store import Store
from pgrag.tokens import Tokenizer
from pgrag.types import Embedder, RefreshReport

if TYPE_CHECKING:
    from pgrag.types import Vectors

logger = logging.getLogger(__name__)

BATCH = 256


class Refresher:
    """Recomputes what is marked stale. Several may run at once: each row is leased to one of them."""

    def __init__(self, store: Store, embedder: Embedder, tokenizer: Tokenizer, embedding_batch: int) -> None:
        self._store = store
        self._embedder = embedder
        self._tokenizer = tokenizer
        self._embedding_batch = embedding_batch

    async def run(self) -> RefreshReport:
        """Until nothing is stale but what others hold. Raises ModelError if the embedder fails: the marks stay."""
        entities = relations = 0
        while stale_relations := await self._store.claim_stale_relations(BATCH):
            relations += await self._relations(stale_relations)
        while stale_entities := await self._store.claim_stale_entities(BATCH):
            entities += await self._entities(stale_entities)
        if entities or relations:
            logger.info("refreshed %d entities and %d relations", entities, relations)
        return RefreshReport(entities, relations)

    async def _entities(self, stale: Sequence[StaleEntity]) -> int:
        tokens = self._tokenizer.count_many([entity_line(e.name, e.type, e.description) for e in stale])
        profiles = [f"{e.name}\n{e.description}" if e.description else e.name for e in stale]
        vectors = await self._embed("entity", stale, profiles)
        return await self._store.finish_entities(stale, tokens, vectors)

    async def _relations(self, stale: Sequence[StaleRelation]) -> int:
        tokens = self._tokenizer.count_many([relation_line(r.source, r.target, r.description) for r in stale])
        profiles = ["\t".join((", ".join(r.keywords), r.source, r.target, r.description)) for r in stale]
        vectors = await self._embed("relation", stale, profiles)
        return await self._store.finish_relations(stale, tokens, vectors)

    async def _embed(
        self, kind: Literal["entity", "relation"], stale: Sequence[StaleEntity | StaleRelation], profiles: Sequence[str]
    ) -> Vectors:
        try:
            return await embed_distinct(self._embedder, profiles, self._embedding_batch)
        except BaseException:  # a cancelled or failed refresh must not keep the next one waiting for its leases
            await self._store.release_stale(kind, stale)
            raise
