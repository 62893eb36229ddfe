"""The values that travel between the layers. All frozen; none knows the database or a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pgrag.types.reports import (  # isort: skip - their public home is here
    DeleteReport as DeleteReport,
    DocumentFailure as DocumentFailure,
    DocumentInfo as DocumentInfo,
    IngestEstimate as IngestEstimate,
    IngestProgress as IngestProgress,
    IngestReport as IngestReport,
    ReembedReport as ReembedReport,
    RefreshReport as RefreshReport,
    Stats as Stats,
    UsageRow as UsageRow,
)

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


class EmbedderIdentity(Protocol):
    """The part of an Embedder that a workspace remembers."""

    @property
    def model(self) -> str:
        """Name stored in the workspace; another model needs another workspace or a re-embedding."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def prefixes(self) -> tuple[str, str]:
        """(query prefix, passage prefix) that `embed` puts before a text; stored in the workspace."""


class Embedder(EmbedderIdentity, Protocol):
    """Turns texts into unit vectors."""

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
