"""The values that travel between the layers. All frozen; none knows the database or a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pgrag.errors import PgragError

    Vectors = NDArray[np.float32]


class Mode(StrEnum):
    """How a question searches the graph (LightRAG's modes); bypass searches nothing and asks the model alone."""

    LOCAL = "local"
    GLOBAL = "global"
    HYBRID = "hybrid"
    MIX = "mix"
    NAIVE = "naive"
    BYPASS = "bypass"


class ChunkRanking(StrEnum):
    """How the passages behind the graph are ordered."""

    VECTOR = "vector"
    WEIGHT = "weight"
    PAGERANK = "pagerank"


# ---------------------------------------------------------------- documents in


@dataclass(frozen=True, slots=True)
class Document:
    """A text to ingest. `uri` is its key; `page_starts` are the character offsets at which pages 1, 2, ... begin."""

    uri: str
    body: str
    title: str = ""
    mime: str = "text/plain"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    published_at: datetime | None = None
    page_starts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document: `body == document.body[start:end]`, and the spans of all chunks cover the whole text.

    `id` is its key in the database, once it is stored.
    """

    ordinal: int
    body: str
    start: int
    end: int
    tokens: int
    headings: tuple[str, ...] = ()
    page: int | None = None
    id: int | None = field(default=None, compare=False)

    @property
    def model_text(self) -> str:
        """What models read: the headings above the chunk, then its text."""
        return "\n".join((*self.headings, self.body))


class DocumentChunker(Protocol):
    """Cuts documents into chunks."""

    @property
    def digest(self) -> str:
        """Changes whenever the same document could be cut another way."""

    def chunk(self, document: Document) -> list[Chunk]:
        """The chunks, none for a text of white space. Raises DocumentError for a document it cannot cut."""


ChunkerFunction = Callable[[Document], "Iterable[Chunk | str]"]
"""A caller's own chunker: chunks, or their texts, of a document."""


# ---------------------------------------------------------------- extraction


class Role(StrEnum):
    """The part an entity plays in a fact. A fact with a source and a target makes a relation."""

    SOURCE = "source"
    TARGET = "target"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ExtractedMention:
    """An entity as one chunk shows it; `name` is as written, the store folds it to its key."""

    name: str
    type: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class FactEntity:
    """An entity's part in a fact."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class ExtractedFact:
    """One statement of a chunk: a triple, or a sentence with the entities it names.

    `context` goes before the text when it is embedded: a bare sentence may not say what it is about.
    """

    text: str
    entities: tuple[FactEntity, ...]
    keywords: tuple[str, ...] = ()
    strength: float = 1.0
    context: str = ""


@dataclass(frozen=True, slots=True)
class Extraction:
    """What one chunk yields. `dropped` counts what was left out, by reason."""

    mentions: tuple[ExtractedMention, ...] = ()
    facts: tuple[ExtractedFact, ...] = ()
    keywords: tuple[str, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Keywords:
    """A question's keywords: concrete things (match entities) and themes (match relations)."""

    low: tuple[str, ...] = ()
    high: tuple[str, ...] = ()


# ---------------------------------------------------------------- the models' interfaces


class Embedder(Protocol):
    """Turns texts into unit vectors."""

    @property
    def model(self) -> str:
        """Name stored in the workspace; another model needs another workspace or a re-embedding."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def prefixes(self) -> tuple[str, str]:
        """(query prefix, passage prefix) that `embed` puts before a text; stored in the workspace."""

    @property
    def cosine_threshold(self) -> float:
        """Below this cosine a match is noise for this model."""

    async def embed(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> Vectors:
        """(len(texts), dimension) float32 unit vectors. Raises ModelError."""


class Extractor(Protocol):
    """Finds the entities and facts of chunks."""

    @property
    def label(self) -> str:
        """One line for people: what extracts, and how good it is."""

    @property
    def digest(self) -> str:
        """Changes whenever the same chunk could give another extraction (model, prompt, options)."""

    async def extract(self, chunks: Sequence[Chunk]) -> list[Extraction | PgragError]:
        """One result a chunk, in order: a chunk that fails is an error in the list and does not fail the others."""


class KeywordExtractor(Protocol):
    """Splits a question into its two levels of keywords."""

    async def keywords(self, question: str, history: Sequence[Mapping[str, str]] = ()) -> Keywords:
        """Empty lists are allowed: the question then serves both levels. `history`: {"role", "content"} a turn."""


# ---------------------------------------------------------------- retrieval and answers


@dataclass(frozen=True, slots=True)
class RetrievedEntity:
    """A row of the entity layer. `why` says which channel brought it: vector, name, alias, trigram, relation, hop."""

    id: int
    rank: int
    name: str
    type: str
    description: str
    tokens: int
    score: float | None
    why: str


@dataclass(frozen=True, slots=True)
class RetrievedRelation:
    """A row of the relation layer: an undirected pair of entities."""

    id: int
    rank: int
    source: str
    target: str
    keywords: tuple[str, ...]
    description: str
    weight: float
    tokens: int
    score: float | None
    why: str


@dataclass(frozen=True, slots=True)
class RetrievedChunk:
    """A row of the text layer, with the place it comes from (`start`, `end` in characters of the document)."""

    id: int
    rank: int
    document_id: int
    uri: str
    title: str
    ordinal: int
    headings: tuple[str, ...]
    page: int | None
    start: int
    end: int
    body: str
    tokens: int
    score: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The three layers found for a question, best first."""

    question: str
    mode: Mode
    keywords: Keywords
    entities: tuple[RetrievedEntity, ...]
    relations: tuple[RetrievedRelation, ...]
    chunks: tuple[RetrievedChunk, ...]
    timings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a numbered source of the answer stands; `start` and `end` are characters of the document."""

    number: int
    document_id: int
    uri: str
    title: str
    chunk_id: int
    ordinal: int
    headings: tuple[str, ...]
    page: int | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class QueryResult:
    """An answer with everything it rests on. `timings` are seconds by step; `notice` says if it was made plainly."""

    question: str
    answer: str
    references: tuple[Reference, ...]
    context: str
    retrieval: Retrieval
    timings: Mapping[str, float]
    notice: str = ""
    prompt: str = ""


# ---------------------------------------------------------------- ingest and management


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
