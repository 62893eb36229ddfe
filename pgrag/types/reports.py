"""What ingest and management give back: progress, reports, lists and counts. All import them from `pgrag.types`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any


@dataclass(frozen=True, slots=True)
class DocumentFailure:
    """A document, or one of its chunks (`ordinal`), that could not be ingested."""

    uri: str
    error: str
    ordinal: int | None = None


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """Where an ingest stands; handed to the `progress` callback."""

    documents: int = 0
    chunks_total: int = 0
    chunks_done: int = 0
    chunks_failed: int = 0
    entities: int = 0
    relations: int = 0
    facts: int = 0
    stale: int = 0


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingest did. `changed_settings` are documents skipped although made with other settings.

    `skipped_files` are files of a folder that hold no text pgrag reads: (path, reason).
    """

    added: int = 0
    updated: int = 0
    skipped: int = 0
    changed_settings: tuple[str, ...] = ()
    failures: tuple[DocumentFailure, ...] = ()
    empty: tuple[str, ...] = ()
    chunks: int = 0
    chunks_reused: int = 0
    skipped_files: tuple[tuple[str, str], ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    notice: str = ""


@dataclass(frozen=True, slots=True)
class IngestEstimate:
    """What an ingest would do and cost, without doing it. Tokens, calls and cost are estimates: see `assumptions`.

    `chunks` are those of new and changed documents, `chunks_to_extract` the distinct texts among them that no chunk
    has an extraction of. `cost` is in US dollars, None where a model's price is not known; 0 for keyless models.
    """

    documents_new: int = 0
    documents_changed: int = 0
    documents_skipped: int = 0
    failures: tuple[DocumentFailure, ...] = ()
    skipped_files: tuple[tuple[str, str], ...] = ()
    chunks: int = 0
    chunks_to_extract: int = 0
    llm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    embedding_tokens: int = 0
    cost: Decimal | None = Decimal(0)
    extraction_model: str | None = None
    embedding_model: str | None = None
    assumptions: str = ""


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """What a delete removed, and which uris were not there."""

    documents: int = 0
    chunks: int = 0
    entities: int = 0
    relations: int = 0
    facts: int = 0
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """How many entities and relations were recomputed."""

    entities: int = 0
    relations: int = 0


@dataclass(frozen=True, slots=True)
class ReembedReport:
    """How many vectors were made again."""

    chunks: int = 0
    facts: int = 0
    entities: int = 0
    relations: int = 0


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """A document as listed: no text."""

    id: int
    uri: str
    title: str
    mime: str
    status: str
    error: str | None
    characters: int
    tokens: int
    chunks: int
    chunks_done: int
    chunks_failed: int
    labels: tuple[str, ...]
    metadata: Mapping[str, Any]
    published_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Model calls, tokens and US dollars so far, of one purpose and model; calls without a known price cost 0."""

    purpose: str
    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal
    calls_without_price: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The size and the state of a workspace."""

    workspace: str
    embedding_model: str
    dimension: int
    documents: int
    documents_failed: int
    documents_empty: int
    chunks: int
    chunks_pending: int
    chunks_failed: int
    entities: int
    relations: int
    facts: int
    mentions: int
    stale: int
    bytes: int
