"""Refresh: entities and relations whose sources changed are derived anew, counted and embedded, in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar
from uuid import UUID

from pgrag.database.rows import Fragments, StaleEntity, StaleRelation
from pgrag.database.store import StaleKind, Store
from pgrag.embedding.check import embed_distinct
from pgrag.errors import ModelAccessError, ModelError
from pgrag.graph.leases import leased
from pgrag.graph.summaries import Summariser
from pgrag.llm.lanes import in_lanes
from pgrag.text.lines import entity_line, relation_line
from pgrag.text.tokens import Tokenizer
from pgrag.types import Embedder, RefreshReport

logger = logging.getLogger(__name__)

LANES = 2  # while one waits for a model, the other writes
BATCH = 128
SUMMARY_BATCH = 32  # of these: a summary is a model call, and what is written stays if a later batch fails


T = TypeVar("T", StaleEntity, StaleRelation)


class _Due(NamedTuple):
    """What is known of a subject, and the texts that its summary is made of."""

    fragments: Fragments
    texts: list[str]


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

    async def run(self) -> RefreshReport:
        """Until nothing is stale but what others hold. Raises ModelError if a model fails: the marks stay.

        Entities come first: a relation's profile holds the names of its ends.
        """
        entities = await self._in_lanes(self._store.claim_stale_entities, self._entities)
        relations = await self._in_lanes(self._store.claim_stale_relations, self._relations)
        if entities or relations:
            logger.info("refreshed %d entities and %d relations", entities, relations)
        return RefreshReport(entities, relations)

    async def _in_lanes(
        self, claim: Callable[[int, UUID], Awaitable[list[T]]], work: Callable[[Sequence[T]], Awaitable[int]]
    ) -> int:
        """Works off what there is to claim; returns how many."""

        async def lane(failed: asyncio.Event) -> int:
            done = 0
            store = self._store
            async with leased(store.lease_seconds, store.extend_stale, store.release_stale) as token:
                while not failed.is_set() and (claimed := await claim(BATCH, token)):
                    done += await work(claimed)
            return done

        return sum(await in_lanes(LANES, lane))

    async def _entities(self, claimed: Sequence[StaleEntity]) -> int:
        done = 0
        due = await self._due("entity", claimed)
        for stale in _parts(claimed, due):
            summaries, noted = await self._summaries({e.id: e.name for e in stale}, due)
            stale = [replace(e, description=summaries.get(e.id, e.description)) for e in stale]
            tokens = self._tokenizer.count_many([entity_line(e.name, e.type, e.description) for e in stale])
            profiles = [f"{e.name}\n{e.description}" if e.description else e.name for e in stale]
            vectors = await embed_distinct(self._embedder, profiles, self._embedding_batch)
            done += await self._store.finish_stale("entity", stale, tokens, vectors, summaries, noted)
        return done

    async def _relations(self, claimed: Sequence[StaleRelation]) -> int:
        done = 0
        due = await self._due("relation", claimed)
        for stale in _parts(claimed, due):
            summaries, noted = await self._summaries({r.id: f"{r.source} - {r.target}" for r in stale}, due)
            stale = [replace(r, description=summaries.get(r.id, r.description)) for r in stale]
            tokens = self._tokenizer.count_many([relation_line(r.source, r.target, r.description) for r in stale])
            profiles = ["\t".join((", ".join(r.keywords), r.source, r.target, r.description)) for r in stale]
            vectors = await embed_distinct(self._embedder, profiles, self._embedding_batch)
            done += await self._store.finish_stale("relation", stale, tokens, vectors, summaries, noted)
        return done

    async def _due(self, kind: StaleKind, stale: Sequence[StaleEntity | StaleRelation]) -> dict[int, _Due]:
        """What is to be summarised, by id: where there are too many fragments, or too long ones."""
        if self._summariser is None:
            return {}
        due = [
            _Due(found, [*([found.summary] if found.summary else []), *found.fragments])
            for found in await self._store.stale_fragments(kind, [s.id for s in stale])
        ]
        return {d.fragments.id: d for d in due if self._summariser.due(d.texts)}

    async def _summaries(self, names: Mapping[int, str], due: Mapping[int, _Due]) -> tuple[dict[int, str], list[int]]:
        """Summaries of those of `names` that are due, by id, and the ids of the fragments they hold.

        One that fails is left out and only logged: a model's trouble with one subject holds up no other.
        """
        asked = [due[i] for i in names if i in due]
        if self._summariser is None or not asked:
            return {}, []
        written = await asyncio.gather(
            *(self._summariser.summarise(names[d.fragments.id], d.texts, d.fragments.chunk_ids) for d in asked),
            return_exceptions=True,  # the others are waited for: they are paid
        )
        summaries: dict[int, str] = {}
        noted: list[int] = []
        for (fragments, _), summary in zip(asked, written, strict=True):
            if isinstance(summary, str):
                summaries[fragments.id] = summary
                noted += fragments.source_ids
            elif isinstance(summary, ModelError) and not isinstance(summary, ModelAccessError):
                logger.warning(
                    "the fragments on %s stand as they are until the next one: %s", names[fragments.id], summary
                )
            else:
                raise summary
        return summaries, noted


def _parts(stale: Sequence[T], due: Mapping[int, _Due]) -> Iterator[Sequence[T]]:
    """Those that need no model at once, the others a few at a time."""
    if plain := [s for s in stale if s.id not in due]:
        yield plain
    rest = [s for s in stale if s.id in due]
    for start in range(0, len(rest), SUMMARY_BATCH):
        yield rest[start : start + SUMMARY_BATCH]
