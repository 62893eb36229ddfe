"""Ingest: documents become rows, waiting chunks become facts, what was touched is refreshed.

Registering a document commits its chunks as waiting; from then on everything can stop at any instruction and be taken
up by the next run. No lock and no transaction is held while a model works.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.to_thread

from pgrag.database.rows import ChunkResult, ClaimedChunk, NewChunk, NewDocument, StoredDocument
from pgrag.database.store import Store
from pgrag.documents.loaders import SkippedFile
from pgrag.documents.reading import Batch, DocumentDefaults, Source, is_unchanged, read
from pgrag.embedding.check import embed_distinct
from pgrag.errors import (
    BudgetError,
    DatabaseError,
    DocumentError,
    ExtractionError,
    ModelAccessError,
    ModelError,
    PgragError,
    RefusedValueError,
    UnreadableAnswerError,
)
from pgrag.extraction.assemble import Assembled, assemble
from pgrag.graph.leases import leased
from pgrag.graph.refresh import Refresher
from pgrag.llm.lanes import HOPELESS, in_lanes
from pgrag.text.folding import words
from pgrag.text.tokens import Tokenizer
from pgrag.types import (
    Document,
    DocumentChunker,
    DocumentFailure,
    Embedder,
    Extraction,
    Extractor,
    IngestProgress,
    IngestReport,
)

logger = logging.getLogger(__name__)

BACKOFF_SECONDS = 2.0
UNREADABLE_ATTEMPTS = 2
PAUSES = (0.025, 1.0)  # seconds between looks at the queue: at first, at most
PROGRESS_SECONDS = 0.5
EMPTY = "is empty: there is nothing to ingest"
NO_DEFAULTS = DocumentDefaults()

Progress = Callable[[IngestProgress], None]


@dataclass(slots=True)
class _Run:
    """What one call of `ingest` has done so far."""

    started: float = field(default_factory=time.monotonic)
    uris: set[str] = field(default_factory=set)
    documents: dict[int, str] = field(default_factory=dict)
    added: int = 0
    updated: int = 0
    skipped: int = 0
    changed_settings: list[str] = field(default_factory=list)
    failures: list[DocumentFailure] = field(default_factory=list)
    skipped_files: list[SkippedFile] = field(default_factory=list)
    chunks: int = 0
    reused: int = 0
    since_refresh: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    stopped: PgragError | None = None
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class Ingestor:
    """Puts documents into a workspace."""

    def __init__(
        self,
        store: Store,
        embedder: Embedder,
        extractor: Extractor,
        tokenizer: Tokenizer,
        chunker: DocumentChunker,
        refresher: Refresher,
        *,
        embedding_batch: int = 32,
        claim_batch: int = 16,
        workers: int = 2,
        refresh_chunks: int = 200,
        refresh_seconds: float = 60.0,
        max_attempts: int = 5,
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._extractor = extractor
        self._tokenizer = tokenizer
        self._chunker = chunker
        self._refresher = refresher
        self._embedding_batch = embedding_batch
        self._claim_batch = claim_batch
        self._workers = workers
        self._refresh_chunks = refresh_chunks
        self._refresh_seconds = refresh_seconds
        self._max_attempts = max_attempts
        self._settings_digest = hashlib.sha256(f"{chunker.digest}\n{extractor.digest}".encode()).hexdigest()

    async def run(
        self, sources: Iterable[Source], defaults: DocumentDefaults = NO_DEFAULTS, *, progress: Progress | None = None
    ) -> IngestReport:
        """Ingests files, folders and documents; returns when all their chunks are extracted or have failed for good.

        A document that cannot be read, and a chunk that cannot be extracted, are in the report and fail nothing else.
        Raises DatabaseError (or a subclass) when the database is out of reach or was upgraded, ModelAccessError when a
        model refuses everything, BudgetError at max_cost; what is done stays done.
        """
        run = _Run()
        batches = read(sources, defaults)
        while batch := await anyio.to_thread.run_sync(next, batches, None):
            await self._register(run, batch)
        await self._work_off(run, progress)
        return await self._report(run)

    async def resume(self, *, progress: Progress | None = None) -> IngestReport:
        """Works on every chunk that waits, whoever brought it; errors as `run`."""
        run = _Run()
        for document in await self._store.unfinished_documents():
            if document.chunks_done < document.chunks:
                run.documents[document.id] = document.uri
                run.chunks += document.chunks - document.chunks_done
        run.uris.update(run.documents.values())
        await self._work_off(run, progress)
        return await self._report(run)

    # ------------------------------------------------------------ registering

    async def _register(self, run: _Run, batch: Batch) -> None:
        run.failures += batch.failures
        run.skipped_files += batch.skipped_files
        run.uris.update(batch.uris)
        states = await self._store.document_states(batch.uris)
        new: list[NewDocument] = []
        for document, digest in batch.documents:
            state = states.get(document.uri)
            if state is not None and is_unchanged(state, digest):
                run.skipped += 1
                if state.settings_digest != self._settings_digest:
                    run.changed_settings.append(document.uri)
                continue
            try:
                prepared = await anyio.to_thread.run_sync(self._prepare, document, digest)
            except DocumentError as error:
                run.failures.append(DocumentFailure(document.uri, str(error)))
                continue
            if prepared.chunks:
                new.append(prepared)
            else:
                run.failures.append(DocumentFailure(document.uri, EMPTY))
        if not new:
            return
        for stored in await self._put(run, new):
            run.documents[stored.id] = stored.uri
            run.added += stored.added
            run.updated += not stored.added
            run.chunks += stored.chunks
            run.reused += stored.reused

    async def _put(self, run: _Run, new: Sequence[NewDocument]) -> list[StoredDocument]:
        """Stores them together; if a value of one is refused, each by itself."""
        try:
            return await self._store.put_documents(new, self._settings_digest)
        except RefusedValueError as error:
            if len(new) == 1:
                run.failures.append(DocumentFailure(new[0].uri, str(error)))
                return []
        return [stored for document in new for stored in await self._put(run, [document])]

    def _prepare(self, document: Document, digest: str) -> NewDocument:
        """Chunks and words of a document (CPU work, in a thread)."""
        chunks = [
            NewChunk(c, hashlib.sha256(c.body.encode()).hexdigest(), Counter(words(c.model_text)))
            for c in self._chunker.chunk(document)
        ]
        return NewDocument(
            document.uri, document.title, document.mime, digest, document.metadata, document.labels, document.body,
            document.published_at, chunks,
        )  # fmt: skip

    # ------------------------------------------------------------ working

    async def _work_off(self, run: _Run, progress: Progress | None) -> None:
        finished = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                working = group.create_task(in_lanes(self._workers, partial(self._worker, run)))
                group.create_task(self._keep_fresh(run, finished))
                if progress is not None:
                    group.create_task(self._tell(run, progress, finished))
                await asyncio.wait([working])
                finished.set()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        if run.stopped is not None:
            raise run.stopped
        if progress is not None:
            await self._show(run, progress)

    async def _worker(self, run: _Run, failed: asyncio.Event) -> None:
        documents = list(run.documents)
        store = self._store
        pause = PAUSES[0]
        try:
            async with leased(store.lease_seconds, store.extend_leases, store.release_chunks) as token:
                while documents and run.stopped is None and not failed.is_set():
                    run.since_refresh += await store.adopt_extractions()
                    claimed = await store.claim_chunks(documents, self._claim_batch, token)
                    await self._work_on(run, claimed)
                    if claimed:
                        pause = PAUSES[0]
                        run.moved.set()  # wakes the workers that found nothing
                        run.moved = asyncio.Event()
                        continue
                    wait = await store.waiting_seconds(documents)
                    if wait is None:
                        return
                    pause = min(max(wait, 2 * pause), PAUSES[1])  # 0: another process works on an equal text
                    await _first(run.moved, pause)
        except (BudgetError, ModelAccessError) as error:  # what others have under way is paid for: they finish it
            run.stopped = run.stopped or error

    async def _work_on(self, run: _Run, claimed: Sequence[ClaimedChunk]) -> None:
        if not claimed:
            return
        extracted = await self._extractor.extract([c.chunk for c in claimed])
        if len(extracted) != len(claimed):
            raise ExtractionError(f"{self._extractor.label}: {len(extracted)} results for {len(claimed)} chunks")
        good: list[tuple[ClaimedChunk, Assembled]] = []
        bad: list[tuple[ClaimedChunk, PgragError]] = []
        stop: PgragError | None = None
        for chunk, extraction in zip(claimed, extracted, strict=True):
            if isinstance(extraction, Extraction):
                good.append((chunk, assemble(extraction, self._tokenizer)))
            elif isinstance(extraction, HOPELESS):  # nothing is wrong with the chunk
                stop = extraction
            else:
                bad.append((chunk, extraction))
        try:
            saved = await self._save(good)
        except PgragError as error:
            if isinstance(error, HOPELESS):
                raise
            saved = set()
            for pair in good:  # one chunk must not fail the others: each by itself
                try:
                    saved |= await self._save([pair])
                except PgragError as own:
                    if isinstance(own, HOPELESS):
                        raise
                    bad.append((pair[0], own))
        for chunk, assembled in good:
            if chunk.id in saved:
                run.dropped.update(assembled.dropped)
        await self._fail(bad)
        run.since_refresh += len(saved)
        if stop is not None:
            raise stop

    async def _fail(self, bad: Sequence[tuple[ClaimedChunk, PgragError]]) -> None:
        """Records failures. What a model wrote and nobody can read is asked for once more: each time is paid for."""
        for unreadable in (False, True):
            failures = [
                (chunk, str(error) or type(error).__name__)
                for chunk, error in bad
                if isinstance(error, UnreadableAnswerError) is unreadable
            ]
            for chunk, reason in failures:
                logger.warning("%s, chunk %d: %s", chunk.uri, chunk.chunk.ordinal, reason)
            if failures:
                attempts = min(self._max_attempts, UNREADABLE_ATTEMPTS) if unreadable else self._max_attempts
                await self._store.fail_chunks(failures, BACKOFF_SECONDS, attempts)

    async def _save(self, good: Sequence[tuple[ClaimedChunk, Assembled]]) -> set[int]:
        """Embeds and stores; one request for all texts of the batch."""
        if not good:
            return set()
        texts = [text for chunk, a in good for text in (chunk.chunk.model_text, *(f.model_text for f in a.facts))]
        vectors = await embed_distinct(self._embedder, texts, self._embedding_batch)
        results: list[ChunkResult] = []
        at = 0
        for chunk, a in good:
            end = at + 1 + len(a.facts)
            results.append(ChunkResult(chunk, a.keywords, a.mentions, a.facts, vectors[at], vectors[at + 1 : end]))
            at = end
        return await self._store.save_extraction(results)

    async def _keep_fresh(self, run: _Run, finished: asyncio.Event) -> None:
        """Refreshes every so many chunks or seconds, and once at the end."""
        last = time.monotonic()
        while not await _first(finished, 0.5):
            due = time.monotonic() - last >= self._refresh_seconds and run.since_refresh > 0
            if due or run.since_refresh >= self._refresh_chunks:
                run.since_refresh = 0
                try:
                    await self._refresher.run()
                except (BudgetError, ModelAccessError) as error:  # the workers finish what they have under way
                    run.stopped = run.stopped or error
                    return
                except ModelError as error:
                    logger.warning("the refresh is put off: %s", error)
                last = time.monotonic()
        await self._refresher.run()

    async def _tell(self, run: _Run, progress: Progress, finished: asyncio.Event) -> None:
        await self._show(run, progress)
        while not await _first(finished, PROGRESS_SECONDS):
            await self._show(run, progress)

    async def _show(self, run: _Run, progress: Progress) -> None:
        try:
            counts = await self._store.progress(list(run.documents))
        except DatabaseError as error:  # no reason to break off what is paid for: the workers notice by themselves
            logger.warning("the progress cannot be told: %s", error)
            return
        progress(IngestProgress(**{**counts, "documents": len(run.uris)}))  # those that were skipped too

    # ------------------------------------------------------------ reporting

    async def _report(self, run: _Run) -> IngestReport:
        mine = set(run.documents.values())
        failures = list(run.failures)
        failures += [
            DocumentFailure(row["uri"], row["error"], row["ordinal"])
            for row in await self._store.failures(sorted(mine))
        ]
        empty = [d.uri for d in await self._store.documents("empty", sorted(run.uris))]
        return IngestReport(
            added=run.added, updated=run.updated, skipped=run.skipped, changed_settings=tuple(run.changed_settings),
            failures=tuple(failures), empty=tuple(empty), chunks=run.chunks, chunks_reused=run.reused,
            dropped=dict(run.dropped), seconds=time.monotonic() - run.started, notice=self._extractor.label,
            skipped_files=tuple((str(s.path), s.reason) for s in run.skipped_files),
        )  # fmt: skip


async def _first(event: asyncio.Event, seconds: float) -> bool:
    """Waits for the event, so long at most; whether it came."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
