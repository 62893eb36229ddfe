"""The workspace in PostgreSQL as the run-time sees it: each method is one call of a function in `sql/`.

All texts that are bound are cleaned here; errors of the driver become pgrag's here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID, uuid4

import asyncpg
import numpy as np
from pgvector import HalfVector

from pgrag.config import Settings
from pgrag.database.errors import translate
from pgrag.database.pool import fetch, quoted
from pgrag.database.rows import (
    ChunkResult,
    ClaimedChunk,
    Columns,
    DocumentState,
    Fragments,
    NewDocument,
    Response,
    StaleEntity,
    StaleRelation,
    StoredDocument,
)
from pgrag.database.trees import code_digest
from pgrag.database.vectors import usable
from pgrag.errors import DimensionError
from pgrag.text.folding import clean, clean_json
from pgrag.types import Chunk, DocumentInfo, Stats, UsageRow

if TYPE_CHECKING:
    from pgrag.types import Vectors

logger = logging.getLogger(__name__)

RETRIED = (  # a competitor was in the way, or the connection went: the transaction is repeated whole
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.ForeignKeyViolationError,
    asyncpg.RestrictViolationError,  # what PostgreSQL 18 calls it
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the connection went while it was being set up
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    ConnectionError,
)
ATTEMPTS = 6
EMPTY: Mapping[int, str] = {}

StaleKind = Literal["entity", "relation"]
VectorKind = Literal["chunk", "fact"]


class Store:
    """A workspace over a pool of connections, checked before (`pool.read_workspace`). Several tasks may share it."""

    def __init__(self, pool: asyncpg.Pool, settings: Settings, dimension: int) -> None:
        self._pool = pool
        self._settings = settings
        self._dimension = dimension
        self._schema = quoted(settings.schema_name)
        self._where = f"workspace {settings.workspace}"
        self._code = code_digest()

    # ------------------------------------------------------------ documents

    async def document_states(self, uris: Sequence[str]) -> dict[str, DocumentState]:
        """Digests and states of the documents that exist, by uri."""
        rows = await self._call("document_states", list(uris))
        return {row["uri"]: DocumentState(row["sha256"], row["settings_digest"], row["status"]) for row in rows}

    async def extracted_texts(self, digests: Sequence[str]) -> set[tuple[str, tuple[str, ...]]]:
        """(sha256, headings) of the chunks with these digests that have an extraction: equal ones take it over."""
        rows = await self._fetch(
            f"select sha256, headings from {self._schema}.chunk where extracted_at is not null and sha256 = any ($1)",
            list(digests),
        )
        return {(row["sha256"], tuple(row["headings"])) for row in rows}

    async def put_documents(self, documents: Sequence[NewDocument], settings_digest: str) -> list[StoredDocument]:
        """Inserts or replaces documents with their chunks in one transaction; equal chunks keep their extraction."""
        docs = Columns(("uri", "title", "mime", "sha256", "metadata", "labels", "body", "published_at"))
        chunks = Columns(
            ("c_document", "c_ordinal", "c_body", "c_sha256", "c_start", "c_end", "c_page", "c_headings", "c_tokens")
        )
        words = Columns(("w_chunk", "w_word", "w_count"))
        for number, doc in enumerate(documents, 1):
            docs.add(
                doc.uri, doc.title, doc.mime, doc.sha256, _json(dict(doc.metadata)),
                _json(list(doc.labels)), doc.body, doc.published_at,
            )  # fmt: skip
            for new in doc.chunks:
                c = new.chunk
                chunks.add(
                    number, c.ordinal, c.body, new.sha256, c.start, c.end, c.page, _json(list(c.headings)), c.tokens
                )
                for word, count in new.words.items():
                    words.add(len(chunks.lists[0]), word, count)
        fragments, tokens = self._description_limits()
        rows = await self._call(
            "put_documents",
            code=self._code,
            fragments=fragments,
            tokens=tokens,
            settings_digest=settings_digest,
            **docs.parameters,
            **chunks.parameters,
            **words.parameters,
        )
        return [StoredDocument(r["uri"], r["document_id"], r["added"], r["chunks"], r["reused"]) for r in rows]

    async def delete_documents(self, uris: Sequence[str]) -> Mapping[str, Any]:
        """Deletes documents with all that only they said: uris found, and counts of what went."""
        rows = await self._call("delete_documents", self._code, *self._description_limits(), list(uris))
        return dict(rows[0])

    async def documents(self, status: str | None = None, uris: Sequence[str] | None = None) -> list[DocumentInfo]:
        """All documents, or those with a status, or of these uris, by uri."""
        if uris is not None:
            return await self._documents("uri = any ($1) and ($2::text is null or status = $2)", list(uris), status)
        return await self._documents("$1::text is null or status = $1", status)

    async def unfinished_documents(self) -> list[DocumentInfo]:
        """Those with chunks that wait or failed, by uri."""
        return await self._documents("status in ('pending', 'failed')")

    async def _documents(self, where: str, *values: Any) -> list[DocumentInfo]:
        query = f'select * from {self._schema}.documents where {where} order by uri collate "C"'
        rows = await self._fetch(query, *values)
        return [
            DocumentInfo(**{**dict(row), "labels": tuple(row["labels"]), "metadata": json.loads(row["metadata"])})
            for row in rows
        ]

    # ------------------------------------------------------------ the queue

    async def adopt_extractions(self, limit: int = 500) -> int:
        """Gives waiting chunks the extraction of an equal text; returns how many got one."""
        return int((await self._call("adopt_extractions", limit))[0][0])

    async def claim_chunks(
        self, documents: Sequence[int] | None, limit: int, token: UUID | None = None
    ) -> list[ClaimedChunk]:
        """Leases up to `limit` waiting chunks of these documents, or of all. Raises CodeTreeError after an upgrade.

        The worker's own token lets it give back, or claim again, what it claimed where a lost or cancelled call never
        told.
        """
        rows = await self._call(
            "claim_chunks", self._code, _list(documents), limit, self._settings.lease_seconds, token or uuid4()
        )
        return [
            ClaimedChunk(
                row["chunk_id"], row["lease_token"], row["document_id"], row["uri"],
                Chunk(row["ordinal"], row["body"], row["start_char"], row["end_char"], row["tokens"],
                      tuple(row["headings"]), row["page"], row["chunk_id"]),
            )
            for row in rows
        ]  # fmt: skip

    async def save_extraction(self, results: Sequence[ChunkResult]) -> set[int]:
        """Stores results in one transaction; returns the chunks whose lease still held."""
        chunks = Columns(("chunk", "lease_token", "keywords", "vector"))
        mentions = Columns(("m_chunk", "m_key", "m_name", "m_type", "m_description", "m_tokens"))
        facts = Columns(
            ("f_chunk", "f_ordinal", "f_text", "f_context", "f_keywords", "f_strength", "f_tokens", "f_vector")
        )
        parts = Columns(("e_chunk", "e_ordinal", "e_key", "e_role"))
        for result in sorted(results, key=lambda r: r.claimed.id):
            chunk_id = result.claimed.id
            (vector,) = self._vectors(result.vector[None])
            chunks.add(chunk_id, result.claimed.token, _json(list(result.keywords)), vector)
            for m in result.mentions:
                mentions.add(chunk_id, m.key, m.name, m.type, m.description, m.tokens)
            vectors = self._vectors(result.fact_vectors)
            for ordinal, (fact, fact_vector) in enumerate(zip(result.facts, vectors, strict=True)):
                facts.add(
                    chunk_id, ordinal, fact.text, fact.context, _json(list(fact.keywords)), fact.strength, fact.tokens,
                    fact_vector,
                )  # fmt: skip
                for key, role in fact.entities:
                    parts.add(chunk_id, ordinal, key, role)
        columns = {**chunks.parameters, **mentions.parameters, **facts.parameters, **parts.parameters}
        rows = await self._call("save_extraction", code=self._code, **columns)
        return set(rows[0][0])

    async def fail_chunks(
        self, failures: Sequence[tuple[ClaimedChunk, str]], backoff_seconds: float, max_attempts: int | None = None
    ) -> set[int]:
        """Records why chunks failed; they are tried again later, up to `max_attempts` (the setting of that name)."""
        rows = await self._call(
            "fail_chunks", self._code, [c.id for c, _ in failures], [c.token for c, _ in failures],
            [error for _, error in failures], max_attempts or self._settings.max_attempts, backoff_seconds,
        )  # fmt: skip
        return set(rows[0][0])

    async def extend_leases(self, tokens: Sequence[UUID]) -> int:
        """Prolongs the leases with these tokens; returns how many chunks are still held."""
        return int((await self._call("extend_leases", list(tokens), self._settings.lease_seconds))[0][0])

    async def release_chunks(self, tokens: Sequence[UUID]) -> None:
        """Gives leases back, for an interrupted worker."""
        await self._call("release_chunks", list(tokens))

    async def retry_chunks(self) -> int:
        """Lets chunks that gave up be tried again; returns how many."""
        return int((await self._call("retry_chunks", self._code))[0][0])

    async def waiting_seconds(self, documents: Sequence[int] | None = None) -> float | None:
        """None when no chunk (of these documents, or of all) waits, else seconds until one can be claimed."""
        value = (await self._call("waiting_seconds", _list(documents)))[0][0]
        return None if value is None else float(value)

    async def progress(self, documents: Sequence[int] | None = None) -> Mapping[str, int]:
        """Counts for a progress line: of these documents and their chunks, or of all; the rest of the workspace."""
        return dict((await self._call("ingest_progress", _list(documents)))[0])

    async def failures(self, uris: Sequence[str] | None = None) -> list[Mapping[str, Any]]:
        """Chunks that failed, with the reason: all, or those of documents."""
        of_these = ("where uri = any ($1)", [list(uris)]) if uris is not None else ("", [])
        query = f"select * from {self._schema}.failures {of_these[0]} order by uri, ordinal"
        return [dict(row) for row in await self._fetch(query, *of_these[1])]

    # ------------------------------------------------------------ refresh

    async def claim_stale_entities(self, limit: int, token: UUID | None = None) -> list[StaleEntity]:
        """Leases stale entities and derives them anew. As with chunks: what is held with the token is claimed again."""
        rows = await self._call(
            "claim_stale_entities", self._code, limit, self._settings.lease_seconds, token or uuid4(),
            *self._description_limits(),
        )  # fmt: skip
        return [StaleEntity(**dict(row)) for row in rows]

    async def claim_stale_relations(self, limit: int, token: UUID | None = None) -> list[StaleRelation]:
        """Leases stale relations and derives them anew, as `claim_stale_entities`."""
        rows = await self._call(
            "claim_stale_relations", self._code, limit, self._settings.lease_seconds, token or uuid4(),
            *self._description_limits(),
        )  # fmt: skip
        return [StaleRelation(**{**dict(row), "keywords": tuple(row["keywords"])}) for row in rows]

    async def stale_fragments(self, kind: StaleKind, ids: Sequence[int]) -> list[Fragments]:
        """What a summary of each of these is made of, where there are new ones, and all may be enough for one."""
        s = self._settings
        limits = s.description_fragments, s.summary_fragments, s.summary_above_tokens
        rows = await self._call("stale_fragments", kind, list(ids), *limits)
        return [Fragments(**dict(row)) for row in rows]

    async def finish_stale(
        self,
        kind: StaleKind,
        stale: Sequence[StaleEntity] | Sequence[StaleRelation],
        tokens: Sequence[int],
        vectors: Vectors,
        summaries: Mapping[int, str] = EMPTY,
        noted: Sequence[int] = (),
    ) -> int:
        """Stores counts, vectors and summaries of what has not changed meanwhile; returns of how many.

        `summaries` are by entity or relation; `noted` are the ids of the mentions or facts that went into them.
        """
        texts = [summaries.get(s.id) for s in stale]
        rows = await self._call(
            "finish_stale", self._code, kind, [s.id for s in stale], [s.version for s in stale],
            [s.lease_token for s in stale], list(tokens), self._vectors(vectors), texts, list(noted),
        )  # fmt: skip
        return int(rows[0][0])

    @property
    def lease_seconds(self) -> float:
        """How long a lease holds unless it is extended."""
        return self._settings.lease_seconds

    async def extend_stale(self, tokens: Sequence[UUID]) -> int:
        """Prolongs the leases of a refresh; returns how many marks are still held."""
        return int((await self._call("extend_stale", list(tokens), self._settings.lease_seconds))[0][0])

    async def release_stale(self, tokens: Sequence[UUID]) -> None:
        """Gives leases back, for an interrupted refresh; the marks stay."""
        await self._call("release_stale", list(tokens))

    async def missing_vectors(self, kind: VectorKind, after: int, limit: int) -> list[tuple[int, str]]:
        """(id, text to embed) of chunks or facts after an id that have no vector."""
        return [(row["id"], row["text"]) for row in await self._call("missing_vectors", kind, after, limit)]

    async def put_vectors(self, kind: VectorKind, ids: Sequence[int], vectors: Vectors) -> int:
        """Stores vectors of chunks or facts that have none; returns how many."""
        rows = await self._call("put_vectors", self._code, kind, list(ids), self._vectors(vectors))
        return int(rows[0][0])

    # ------------------------------------------------------------ the models' responses

    async def get_cached(self, keys: Sequence[str]) -> dict[str, str]:
        """The cached responses that are there, by key."""
        return {row["key"]: row["response"] for row in await self._call("get_cached", list(keys))}

    async def put_cached(self, response: Response) -> None:
        """Commits a paid response with the chunks it was made from, unless these are gone or the state is another one
        by now, and counts it."""
        r = response
        await self._call(
            "put_cached", self._code, r.key, r.purpose, r.model, r.text, r.prompt_tokens, r.completion_tokens,
            r.cost, list(r.chunks), r.state,
        )  # fmt: skip

    async def corpus_state(self) -> str:
        """Changes whenever texts are added or removed."""
        return str((await self._call("corpus_state"))[0][0])

    async def count_usage(
        self, purpose: str, model: str, prompt_tokens: int, completion_tokens: int, cost: Decimal
    ) -> None:
        """Counts a call whose response is not kept."""
        await self._call("count_usage", self._code, purpose, model, prompt_tokens, completion_tokens, cost)

    async def usage(self) -> list[UsageRow]:
        """Calls, tokens and cost so far, by purpose and model."""
        rows = await self._fetch(f"select * from {self._schema}.usage order by purpose, model")
        return [UsageRow(**dict(row)) for row in rows]

    # ------------------------------------------------------------ search

    async def retrieve(self, **parameters: Any) -> list[asyncpg.Record]:
        """Rows of `retrieve()`; parameters by name without their `p_`. One request on a warm connection."""
        values = {name: self._parameter(value) for name, value in parameters.items()}
        return await self._search(self._statement("retrieve", named=values), *values.values())

    async def rank_facts(self, question: Vectors, chunks: Sequence[int], limit: int) -> list[tuple[int, str, float]]:
        """(chunk id, fact text, cosine) of the facts of `chunks` nearest to the question, best first."""
        query = f"select * from {self._schema}.rank_facts($1, $2, $3)"
        rows = await self._search(query, self._vectors(question[None])[0], list(chunks), limit)
        return [(row["chunk_id"], row["text"], row["score"]) for row in rows]

    async def draw_passages(self, kind: str, seed: str, limit: int) -> list[asyncpg.Record]:
        """The passages of at most `limit` draws for questions of a kind, the same for the same texts and seed.

        Rows of draw, subject, chunk_id, uri, ordinal, headings, body.
        """
        return await self._call("draw_passages", kind, seed, limit)

    async def stats(self) -> Stats:
        """Size and state of the workspace."""
        row = (await self._call("workspace_stats"))[0]
        return Stats(workspace=self._settings.workspace, **dict(row))

    # ------------------------------------------------------------ plumbing

    def _description_limits(self) -> tuple[int, int]:
        return self._settings.description_limits

    def _parameter(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self._vectors(value[None])[0]
        return _json(value) if isinstance(value, dict) else value

    def _vectors(self, vectors: Vectors) -> list[HalfVector]:
        """Rows to store. Raises DimensionError if they are not of the workspace's length, or not usable."""
        if len(vectors) == 0:
            return []
        if vectors.ndim != 2 or vectors.shape[1] != self._dimension:
            raise DimensionError(
                f"vectors of shape {vectors.shape} do not fit a workspace of {self._dimension} dimensions"
            )
        if not usable(vectors).all():
            raise DimensionError("the embedding model returned a zero or non-finite vector: nothing was stored")
        return [HalfVector(vector) for vector in vectors]

    async def _call(self, function: str, *arguments: Any, **named: Any) -> list[asyncpg.Record]:
        """Rows of a function; `named` are its parameters without their `p_`."""
        return await self._fetch(self._statement(function, len(arguments), named), *arguments, *named.values())

    def _statement(self, function: str, count: int = 0, named: Iterable[str] = ()) -> str:
        places = [f"${i}" for i in range(1, count + 1)]
        places += [f"p_{name} => ${i}" for i, name in enumerate(named, count + 1)]
        return f"select * from {self._schema}.{function}({', '.join(places)})"

    async def _search(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        return await self._fetch(query, *arguments, seconds=self._settings.statement_timeout)

    async def _fetch(self, query: str, *arguments: Any, seconds: float | None = None) -> list[asyncpg.Record]:
        cleaned = tuple(map(_cleaned, arguments))
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await fetch(self._pool, query, cleaned, seconds)
            except (asyncpg.PostgresError, *RETRIED, OSError) as error:
                if attempt == ATTEMPTS or not _passes(error):
                    raise translate(error, self._where) from error
                logger.info("repeating a statement after %s", type(error).__name__)
                await asyncio.sleep(0.05 * 2**attempt * (1 + random.random()))  # noqa: S311 - jitter
        raise AssertionError("unreachable")


def _passes(error: BaseException) -> bool:
    """Whether the same statement may yet succeed."""
    if isinstance(error, asyncpg.InternalServerError):  # a function or table was replaced meanwhile: `pgrag db upgrade`
        return str(error).startswith(("cache lookup failed", "could not open relation"))
    return isinstance(error, RETRIED) and not isinstance(error, ValueError)  # a value that the driver refuses


def _cleaned(value: Any) -> Any:
    """What is bound, without what PostgreSQL cannot store in a text."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list) and isinstance(next((item for item in value if item is not None), None), str):
        return [item if item is None else clean(item) for item in value]
    return value


def _list(values: Sequence[int] | None) -> list[int] | None:
    return None if values is None else list(values)


def _json(value: Any) -> str:
    """JSON text, as asyncpg wants it for jsonb, of what PostgreSQL can store; dates and other objects as their text."""
    return json.dumps(clean_json(value), ensure_ascii=False, default=lambda other: clean(str(other)))
