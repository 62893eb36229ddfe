"""A question: keywords, one round trip of search, a context within the budget, an answer with numbered references."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pgrag.config import Settings
from pgrag.context import references, render
from pgrag.errors import ModelError, UsageError
from pgrag.folding import clean
from pgrag.keywords import SearchTerms, search_terms
from pgrag.store import Store
from pgrag.tokens import Tokenizer
from pgrag.types import (
    ChunkRanking,
    Embedder,
    KeywordExtractor,
    Keywords,
    Mode,
    QueryResult,
    RetrievedChunk,
    RetrievedEntity,
    RetrievedRelation,
    Retrieval,
)

if TYPE_CHECKING:
    from pgrag.types import Vectors

# Tokens of the layers' titles, and of a passage's number and place: "[12] uri, page 3, characters 0-1200".
LAYER_TOKENS = 32
PASSAGE_TOKENS = 64
MAX_QUESTION = 32_000


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """How to search; `None` in a call means the setting of the same name."""

    mode: Mode
    top_k: int
    chunk_top_k: int
    chunk_ranking: ChunkRanking
    degree_cap: int
    hops: int
    max_entity_tokens: int
    max_relation_tokens: int
    max_total_tokens: int


def query_options(settings: Settings, mode: Mode | str, given: Mapping[str, Any]) -> QueryOptions:
    """The options of a call over the settings. Raises UsageError naming what is wrong and what is allowed."""
    try:
        chosen = Mode(mode)
    except ValueError:
        raise UsageError(f"unknown mode {str(mode)!r}: use {', '.join(Mode)}") from None
    unknown = sorted(set(given) - set(QueryOptions.__dataclass_fields__))
    if unknown:
        raise UsageError(f"unknown query option {', '.join(unknown)}")
    values = {k: v for k, v in given.items() if v is not None}
    checked = Settings.model_validate({**settings.model_dump(), **values}) if values else settings
    return QueryOptions(
        chosen, checked.top_k, checked.chunk_top_k, ChunkRanking(checked.chunk_ranking), checked.degree_cap,
        checked.hops, checked.max_entity_tokens, checked.max_relation_tokens, checked.max_total_tokens,
    )  # fmt: skip


class Answerer(Protocol):
    """Makes an answer from what was found."""

    @property
    def label(self) -> str:
        """One line for people: how answers are made."""

    async def answer(self, question: str, vector: Vectors, retrieval: Retrieval, context: str) -> str:
        """The answer; `[n]` cites the n-th passage."""


class QuotingAnswerer:
    """The answer without an LLM: the sentences nearest to the question, quoted, each with its citation."""

    label = "no LLM: sentences quoted from the passages"
    passages = 4
    sentences = 6

    def __init__(self, store: Store) -> None:
        self._store = store

    async def answer(self, question: str, vector: Vectors, retrieval: Retrieval, context: str) -> str:
        """The best sentence of each of the first passages, and the best sentences of all, in the order of the passages."""
        number = {c.id: n for n, c in enumerate(retrieval.chunks, 1)}
        if not number:
            return "Nothing was found."
        facts = await self._store.rank_facts(vector, list(number), 200)
        best: dict[int, str] = {}
        for chunk_id, text, _ in facts:
            best.setdefault(number[chunk_id], text)
        quoted = {text: n for n, text in sorted(best.items())[: self.passages]}
        for chunk_id, text, _ in facts:
            if len(quoted) >= self.sentences:
                break
            quoted.setdefault(text, number[chunk_id])
        if not quoted:
            return "\n".join(f"{_shortened(c)} [{n}]" for n, c in enumerate(retrieval.chunks[:3], 1))
        return "\n".join(f"{text} [{n}]" for text, n in sorted(quoted.items(), key=lambda item: item[1]))


def _shortened(chunk: RetrievedChunk, limit: int = 300) -> str:
    text = " ".join(chunk.body.split())
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0] + " …"


class Searcher:
    """Answers questions from a workspace."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        embedder: Embedder,
        keyword_extractor: KeywordExtractor,
        answerer: Answerer,
        tokenizer: Tokenizer,
    ) -> None:
        self._store = store
        self._settings = settings
        self._embedder = embedder
        self._keyword_extractor = keyword_extractor
        self._answerer = answerer
        self._tokenizer = tokenizer

    async def retrieve(self, question: str, options: QueryOptions, keywords: Keywords | None = None) -> Retrieval:
        """The three layers for a question. Raises UsageError for an empty or far too long question, ModelError, DatabaseError."""
        retrieval, _ = await self._retrieve(question, options, keywords)
        return retrieval

    async def query(
        self, question: str, options: QueryOptions, keywords: Keywords | None = None, *, only_context: bool = False
    ) -> QueryResult:
        """The answer with its references; with `only_context` the answer is empty and no answer call is made."""
        retrieval, vector = await self._retrieve(question, options, keywords)
        started = time.perf_counter()
        context = render(retrieval)
        answer = ""
        if not only_context:
            answer = await self._answerer.answer(retrieval.question, vector, retrieval, context)
        timings = {**retrieval.timings, "answer": time.perf_counter() - started}
        notice = "" if only_context else self._answerer.label
        return QueryResult(
            retrieval.question, answer, references(retrieval.chunks), context, retrieval, timings, notice
        )

    async def _retrieve(
        self, question: str, options: QueryOptions, keywords: Keywords | None
    ) -> tuple[Retrieval, Vectors]:
        question = clean(question).strip()
        if not question:
            raise UsageError("the question is empty")
        if len(question) > MAX_QUESTION:
            raise UsageError(f"the question has {len(question)} characters; {MAX_QUESTION} at most")
        clock = _Clock()
        if keywords is None:
            naive = options.mode is Mode.NAIVE
            keywords = Keywords() if naive else await self._keyword_extractor.keywords(question)
        clock.lap("keywords")
        terms = search_terms(question, keywords, options.mode)
        low, high, vector = await self._embed(question, terms)
        clock.lap("embedding")
        overhead = self._tokenizer.count(question) + LAYER_TOKENS + PASSAGE_TOKENS * options.chunk_top_k
        threshold = self._settings.cosine_threshold
        rows = await self._store.retrieve(
            question=vector, low=low, high=high, words=list(terms.words), terms=list(terms.terms),
            keys=list(terms.keys), similar=list(terms.similar), mode=options.mode.value, top_k=options.top_k,
            chunk_top_k=options.chunk_top_k, ranking=options.chunk_ranking.value,
            threshold=self._embedder.cosine_threshold if threshold is None else threshold,
            degree_cap=options.degree_cap, hops=options.hops, lexical=self._settings.lexical,
            entity_tokens=options.max_entity_tokens, relation_tokens=options.max_relation_tokens,
            total_tokens=max(0, options.max_total_tokens - overhead),
        )  # fmt: skip
        clock.lap("search")
        return _retrieval(question, options.mode, keywords, rows, clock.laps), vector

    async def _embed(self, question: str, terms: SearchTerms) -> tuple[Vectors | None, Vectors | None, Vectors]:
        """Vectors of both keyword texts and the question, in one request; equal texts once."""
        texts = list(dict.fromkeys(t for t in (question, terms.low, terms.high) if t is not None))
        vectors = await self._embedder.embed(texts, "query")
        if vectors.shape != (len(texts), self._embedder.dimension):
            raise ModelError(f"{self._embedder.model} returned vectors of shape {vectors.shape} for {len(texts)} texts")
        by_text = dict(zip(texts, vectors, strict=True))
        low = None if terms.low is None else by_text[terms.low]
        high = None if terms.high is None else by_text[terms.high]
        return low, high, by_text[question]


class _Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now


def _retrieval(
    question: str, mode: Mode, keywords: Keywords, rows: Sequence[Any], timings: Mapping[str, float]
) -> Retrieval:
    entities = tuple(
        RetrievedEntity(r["id"], r["rank"], r["name"], r["type"], r["body"], r["tokens"], r["score"], r["why"])
        for r in rows
        if r["layer"] == "entity"
    )
    relations = tuple(
        RetrievedRelation(
            r["id"], r["rank"], r["name"], r["target"], tuple(r["keywords"]), r["body"], r["weight"], r["tokens"],
            r["score"], r["why"],
        )
        for r in rows
        if r["layer"] == "relation"
    )  # fmt: skip
    chunks = tuple(
        RetrievedChunk(
            r["id"], r["rank"], r["document_id"], r["uri"], r["title"], r["ordinal"], tuple(r["headings"]), r["page"],
            r["start_char"], r["end_char"], r["body"], r["tokens"], r["score"], r["why"],
        )
        for r in rows
        if r["layer"] == "chunk"
    )  # fmt: skip
    return Retrieval(question, mode, keywords, entities, relations, chunks, dict(timings))
