"""Rows on their way into and out of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pgrag.types import Chunk

if TYPE_CHECKING:
    from pgrag.types import Vectors


@dataclass(frozen=True, slots=True)
class DocumentState:
    """What the skip rule compares."""

    sha256: str
    settings_digest: str
    status: str


@dataclass(frozen=True, slots=True)
class NewChunk:
    """A chunk to store: its text's hash and its folded words with their counts."""

    chunk: Chunk
    sha256: str
    words: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NewDocument:
    """A document to store with all its chunks."""

    uri: str
    title: str
    mime: str
    sha256: str
    metadata: Mapping[str, Any]
    labels: Sequence[str]
    body: str
    published_at: Any
    chunks: Sequence[NewChunk]


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """What became of a document put into the store."""

    uri: str
    id: int
    added: bool
    chunks: int
    reused: int


@dataclass(frozen=True, slots=True)
class ClaimedChunk:
    """A chunk leased to this worker."""

    id: int
    token: UUID
    document_id: int
    uri: str
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class MentionRecord:
    """A mention with its key and the tokens of its description."""

    key: str
    name: str
    type: str
    description: str
    tokens: int


@dataclass(frozen=True, slots=True)
class FactRecord:
    """A fact; `entities` are (key, role), `context` goes before the text when it is embedded."""

    text: str
    keywords: Sequence[str]
    strength: float
    tokens: int
    entities: Sequence[tuple[str, str]]
    context: str = ""

    @property
    def model_text(self) -> str:
        """What is embedded."""
        return f"{self.context}: {self.text}" if self.context else self.text


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What a worker found in a claimed chunk, with the chunk's vector and one vector a fact."""

    claimed: ClaimedChunk
    keywords: Sequence[str]
    mentions: Sequence[MentionRecord]
    facts: Sequence[FactRecord]
    vector: Vectors
    fact_vectors: Vectors


@dataclass(frozen=True, slots=True)
class StaleEntity:
    """An entity leased for refresh, as derived from its mentions."""

    id: int
    version: int
    lease_token: UUID
    name: str
    type: str
    description: str


@dataclass(frozen=True, slots=True)
class StaleRelation:
    """A relation leased for refresh, as derived from its facts."""

    id: int
    version: int
    lease_token: UUID
    source: str
    target: str
    keywords: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True)
class Fragments:
    """What a summary is made of: the last one, new fragments from old to new, and the ids behind them all."""

    id: int
    summary: str | None
    fragments: Sequence[str]
    source_ids: Sequence[int]
    chunk_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Response:
    """A paid response to keep: JSON text, what it cost (US dollars), and the ids of the chunks it was made from.

    With a `state` it is kept only while the texts are those of that state.
    """

    key: str
    purpose: str
    model: str
    text: str
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal
    chunks: Sequence[int] = ()
    state: str | None = None


@dataclass(slots=True)
class Columns:
    """Parallel arrays under construction: one list a column, named as the parameter of a function that takes it."""

    names: tuple[str, ...]
    lists: list[list[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.lists = [[] for _ in self.names]

    def add(self, *values: Any) -> None:
        """Appends one row."""
        for column, value in zip(self.lists, values, strict=True):
            column.append(value)

    @property
    def parameters(self) -> dict[str, list[Any]]:
        """The lists by name."""
        return dict(zip(self.names, self.lists, strict=True))
