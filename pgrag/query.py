"""A question: keywords, one round trip of search, a context within the budget, an answer with numbered references."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ValidationError

from pgrag.config import Settings, problems
from pgrag.context import passage_block, references, render
from pgrag.embedding import embed_checked
from pgrag.errors import UsageError
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
    Retrieval,
    RetrievedChunk,
    RetrievedEntity,
    RetrievedRelation,
)

if TYPE_CHECKING:
    from pgrag.types import Vectors

LAYER_TOKENS = 32  # of the titles of the layers
PASSAGE_TOKENS = 4  # of the line ends around a passage, which can take a token more than they took alone
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
    known = sorted(set(QueryOptions.__dataclass_fields__) - {"mode"})
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UsageError(f"unknown query option {', '.join(unknown)}: use {', '.join(known)}")
    values = {k: v for k, v in given.items() if v is not None}
    try:
        checked = Settings.model_validate({**settings.model_dump(), **values}) if values else settings
    except ValidationError as error:
        raise UsageError("; ".join(f"query option {name}: {problem}" for name, problem in problems(error))) from None
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
        """The best sentence of each of the first passages and the best of all, in the order of the passages."""
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
        return "\n".join(f"{_quotable(text)} [{n}]" for text, n in sorted(quoted.items(), key=lambda item: item[1]))


def _shortened(chunk: RetrievedChunk, limit: int = 300) -> str:
    text = _quotable(chunk.body)
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0] + " …"


def _quotable(text: str) -> str:
    """The text on one line, without what would read as a citation of ours: footnotes such as [12]."""
    return re.sub(r"\[(\d+)\]", r"(\1)", " ".join(text.split()))


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
        """The three layers for a question. Raises UsageError for one that is empty or too long, ModelError, DatabaseError."""
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
        room = options.max_total_tokens - self._tokenizer.count(question) - LAYER_TOKENS
        if room <= 0:
            raise UsageError(
                f"the question alone takes max_total_tokens ({options.max_total_tokens}): shorten it, or raise them"
            )
        share = min(1.0, room / 2 / max(1, options.max_entity_tokens + options.max_relation_tokens))
        threshold = self._settings.cosine_threshold
        rows = await self._store.retrieve(
            question=vector, low=low, high=high, words=list(terms.words), terms=list(terms.terms),
            keys=list(terms.keys), similar=list(terms.similar), mode=options.mode.value, top_k=options.top_k,
            chunk_top_k=options.chunk_top_k, ranking=options.chunk_ranking.value,
            threshold=self._embedder.cosine_threshold if threshold is None else threshold,
            degree_cap=options.degree_cap, hops=options.hops, lexical=self._settings.lexical,
            entity_tokens=int(share * options.max_entity_tokens),
            relation_tokens=int(share * options.max_relation_tokens), total_tokens=room,
        )  # fmt: skip
        found = _retrieval(question, options.mode, keywords, rows)
        found = replace(found, chunks=self._fitting(found, room))
        clock.lap("search")
        return replace(found, timings=clock.laps), vector

    def _fitting(self, found: Retrieval, room: int) -> tuple[RetrievedChunk, ...]:
        """The first passages that fit with their numbers and places: what SQL counts is their text alone."""
        room -= sum(e.tokens for e in found.entities) + sum(r.tokens for r in found.relations)
        for n, chunk in enumerate(found.chunks, 1):
            place = passage_block(n, replace(chunk, headings=(), body=""))
            room -= chunk.tokens + self._tokenizer.count(place) + PASSAGE_TOKENS
            if room < 0:
                return found.chunks[: n - 1]
        return found.chunks

    async def _embed(self, question: str, terms: SearchTerms) -> tuple[Vectors | None, Vectors | None, Vectors]:
        """Vectors of both keyword texts and the question, in one request; equal texts once."""
        texts = list(dict.fromkeys(t for t in (question, terms.low, terms.high) if t is not None))
        vectors = await embed_checked(self._embedder, texts, "query")
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


def _retrieval(question: str, mode: Mode, keywords: Keywords, rows: Sequence[Any]) -> Retrieval:
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
    return Retrieval(question, mode, keywords, entities, relations, chunks)
