"""All vectors again, by another model: resumable, and without extracting anything again."""

from __future__ import annotations

from pgrag.database.store import Store, VectorKind
from pgrag.embedding.check import embed_distinct
from pgrag.graph.refresh import Refresher
from pgrag.types import Embedder, ReembedReport

BATCH = 256


class Reembedder:
    """Embeds every chunk and fact that has no vector, then refreshes entities and relations."""

    def __init__(self, store: Store, embedder: Embedder, refresher: Refresher, embedding_batch: int) -> None:
        self._store = store
        self._embedder = embedder
        self._refresher = refresher
        self._embedding_batch = embedding_batch

    async def run(self) -> ReembedReport:
        """Until nothing lacks a vector. Raises ModelError, DatabaseError: run it again to go on."""
        chunks = await self._fill("chunk")
        facts = await self._fill("fact")
        refreshed = await self._refresher.run()
        return ReembedReport(chunks, facts, refreshed.entities, refreshed.relations)

    async def _fill(self, kind: VectorKind) -> int:
        done = after = 0
        while missing := await self._store.missing_vectors(kind, after, BATCH):
            vectors = await embed_distinct(self._embedder, [text for _, text in missing], self._embedding_batch)
            done += await self._store.put_vectors(kind, [i for i, _ in missing], vectors)
            after = missing[-1][0]
        return done
