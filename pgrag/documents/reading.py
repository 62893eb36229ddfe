"""What comes in: files, folders and documents become batches of cleaned documents, each uri once, with digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pgrag.database.rows import DocumentState
from pgrag.documents.loaders import SkippedFile, load
from pgrag.documents.loaders.fields import in_utc
from pgrag.errors import UsageError
from pgrag.text.folding import clean, clean_json
from pgrag.types import Document, DocumentFailure

BATCH_DOCUMENTS = 64
BATCH_CHARACTERS = 2_000_000
MAX_URI_BYTES = 2000  # what fits into an index entry
MAX_LABEL_BYTES = 1000

Source = str | Path | Document


@dataclass(frozen=True, slots=True)
class DocumentDefaults:
    """What every document of one call gets: `labels` besides its own, the others where it says nothing itself."""

    labels: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    published_at: datetime | None = None


@dataclass(slots=True)
class Batch:
    """Documents with the hex digest of all that makes them what they are, and what could not be read."""

    documents: list[tuple[Document, str]] = field(default_factory=list)
    failures: list[DocumentFailure] = field(default_factory=list)
    skipped_files: list[SkippedFile] = field(default_factory=list)

    @property
    def uris(self) -> list[str]:
        """The uris of the documents."""
        return [document.uri for document, _ in self.documents]


def read(sources: Iterable[Source], defaults: DocumentDefaults) -> Iterator[Batch]:
    """Batches of bounded size: the next is read when it is asked for (blocking: reads files)."""
    seen: set[str] = set()
    batch = Batch()
    items = characters = 0
    for item in _items(sources):
        if isinstance(item, Document):
            characters += len(item.body)
            _add(batch, item, defaults, seen)
        elif isinstance(item, DocumentFailure):
            batch.failures.append(replace(item, uri=clean(item.uri)))
        else:
            batch.skipped_files.append(item)
        items += 1
        if items >= BATCH_DOCUMENTS or characters >= BATCH_CHARACTERS:
            yield batch
            batch = Batch()
            items = characters = 0
    if items:
        yield batch


def is_unchanged(state: DocumentState | None, digest: str) -> bool:
    """Whether a stored document is complete and made from the same: it is skipped then."""
    return state is not None and state.sha256 == digest and state.status in ("complete", "empty")


def _add(batch: Batch, given: Document, defaults: DocumentDefaults, seen: set[str]) -> None:
    uri = clean(given.uri)
    problem = ""
    if not 0 < len(uri.encode()) <= MAX_URI_BYTES:
        uri, problem = uri if len(uri) <= 200 else uri[:200] + "…", f"its uri must have 1 to {MAX_URI_BYTES} bytes"
    elif uri in seen:
        problem = "the same uri twice in one call; only the first was taken"
    else:
        seen.add(uri)
        try:
            document = _cleaned(given, defaults)
            batch.documents.append((document, _digest(document)))
        except UsageError as error:
            problem = str(error)
        except (ValueError, TypeError, OverflowError) as error:  # of what the caller put into a field
            problem = f"a field holds what cannot be stored: {error}"
    if problem:
        batch.failures.append(DocumentFailure(uri, problem))


def _digest(document: Document) -> str:
    """Hex digest of everything that makes a document what it is: a change of any part is a change."""
    parts = [
        document.body, document.title, list(document.labels), clean_json(dict(document.metadata)),
        document.published_at.isoformat() if document.published_at else None, list(document.page_starts),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False, sort_keys=True, default=str).encode()).hexdigest()


def _items(sources: Iterable[Source]) -> Iterator[Document | DocumentFailure | SkippedFile]:
    for source in sources:
        if isinstance(source, Document):
            yield source
        else:
            yield from load(source)


def _cleaned(document: Document, defaults: DocumentDefaults) -> Document:
    """Without what PostgreSQL cannot store, before spans are counted. Raises UsageError for a field it cannot store."""
    labels = tuple(dict.fromkeys(map(clean, (*document.labels, *defaults.labels))))
    if any(len(label.encode()) > MAX_LABEL_BYTES for label in labels):
        raise UsageError(f"a label may have {MAX_LABEL_BYTES} bytes: {labels[0][:40]}…")
    if not all(isinstance(start, int) for start in document.page_starts):
        raise UsageError("page_starts: give the characters at which pages start, as numbers")
    return replace(
        document,
        uri=clean(document.uri),
        body=clean(document.body),
        title=clean(document.title),
        mime=clean(document.mime),
        metadata={**defaults.metadata, **document.metadata},
        labels=labels,
        published_at=in_utc(document.published_at or defaults.published_at),
    )
