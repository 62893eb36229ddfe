"""A question: keywords, one round trip of search, a context within the budget, an answer with numbered references."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pgrag.config import Settings
from pgrag.database.store import Store
from pgrag.embedding.check import embed_checked
from pgrag.errors import UsageError
from pgrag.llm.prompts import as_text, prompt_tokens
from pgrag.search.answer import DEFAULT_ANSWER_OPTIONS, Answerer, AnswerOptions, PreparedQuestion
from pgrag.search.context import LAYER_TOKENS, fitting_chunks, references, render
from pgrag.search.options import QueryOptions, retrieve_parameters
from pgrag.search.terms import SearchTerms, search_terms
from pgrag.text.folding import clean
from pgrag.text.lines import entity_line, relation_line
from pgrag.text.tokens import Tokenizer
from pgrag.types import (
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

MAX_QUESTION = 32_000
ROUND_CHUNKS, ROUND_FACTS = 3, 3  # of the first round, which the second searches with
FUSION_RANKS = 10  # added to a rank before the two rounds are fused


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
        """The three layers for a question. Raises UsageError (empty, too long), ModelError, DatabaseError."""
        if options.mode is Mode.BYPASS:
            raise UsageError("mode bypass searches nothing: use it for answers only")
        return (await self._prepare(question, options, keywords, AnswerOptions(), answered=False)).retrieval

    async def query(
        self,
        question: str,
        options: QueryOptions,
        keywords: Keywords | None = None,
        answer_options: AnswerOptions = DEFAULT_ANSWER_OPTIONS,
        *,
        only_context: bool = False,
        only_prompt: bool = False,
    ) -> QueryResult:
        """The answer with its references; empty, and without a call, for `only_context` and `only_prompt`."""
        answered = not (only_context or only_prompt)
        prepared = await self._prepare(question, options, keywords, answer_options, answered=answered)
        if not answered:
            return _result(prepared, "", {}, "")
        started = time.perf_counter()
        answer = await self._answerer.answer(prepared)
        return _result(prepared, answer, {"answer": time.perf_counter() - started}, self._answerer.label)

    async def stream(
        self,
        question: str,
        options: QueryOptions,
        keywords: Keywords | None = None,
        answer_options: AnswerOptions = DEFAULT_ANSWER_OPTIONS,
    ) -> AnswerStream:
        """The same in pieces: what was found at once, the answer as it is written."""
        return AnswerStream(
            await self._prepare(question, options, keywords, answer_options, answered=True), self._answerer
        )

    async def _prepare(
        self,
        question: str,
        options: QueryOptions,
        keywords: Keywords | None,
        answer_options: AnswerOptions,
        *,
        answered: bool,
    ) -> PreparedQuestion:
        """Everything up to the answer, if there is to be one."""
        question = clean(question).strip()
        if not question:
            raise UsageError("the question is empty")
        if len(question) > MAX_QUESTION:
            raise UsageError(f"the question has {len(question)} characters; {MAX_QUESTION} at most")
        state = await self._answerer.state() if answered else None
        if options.mode is Mode.BYPASS:
            nothing = Retrieval(question, options.mode, Keywords(), (), (), ())
            prompt = self._answerer.prompt(question, None, answer_options)
            if prompt_tokens(prompt, self._tokenizer) > options.max_total_tokens:
                raise _no_room(options)
            return PreparedQuestion(question, None, nothing, None, answer_options, prompt, state)
        retrieval, vector = await self._retrieve(question, options, keywords, answer_options)
        context = render(retrieval)
        prompt = self._answerer.prompt(question, context, answer_options)
        return PreparedQuestion(question, vector, retrieval, context, answer_options, prompt, state)

    async def _retrieve(
        self, question: str, options: QueryOptions, keywords: Keywords | None, answer_options: AnswerOptions
    ) -> tuple[Retrieval, Vectors]:
        room = options.max_total_tokens - self._answerer.overhead(question, answer_options) - LAYER_TOKENS
        if room <= 0:
            raise _no_room(options)
        clock = _Clock()
        if keywords is None:
            naive = options.mode is Mode.NAIVE
            keywords = Keywords() if naive else await self._keyword_extractor.keywords(question, answer_options.history)
        clock.lap("keywords")
        terms = search_terms(question, keywords, options.mode)
        low, high, vector = await self._embed(question, terms)
        clock.lap("embedding")
        search = partial(self._search, question, options, keywords, terms, low, high, room)
        found = await search(vector)
        if options.rounds > 1 and options.mode is not Mode.NAIVE:
            found = await self._search_again(found, vector, search)
        found = replace(found, chunks=fitting_chunks(found, room, self._tokenizer))
        clock.lap("search")
        return replace(found, timings=clock.laps), vector

    async def _search(
        self,
        question: str,
        options: QueryOptions,
        keywords: Keywords,
        terms: SearchTerms,
        low: Vectors | None,
        high: Vectors | None,
        room: int,
        vector: Vectors,
    ) -> Retrieval:
        """One round trip."""
        conditions = options.filter.conditions() if options.filter is not None else {}
        share = min(1.0, room / 2 / max(1, options.max_entity_tokens + options.max_relation_tokens))
        threshold = self._settings.cosine_threshold
        asked = retrieve_parameters(options) | {
            "entity_tokens": int(share * options.max_entity_tokens),
            "relation_tokens": int(share * options.max_relation_tokens),
            "total_tokens": room,
        }
        rows = await self._store.retrieve(
            question=vector,
            low=low,
            high=high,
            words=list(terms.words),
            parts=list(terms.parts),
            keys=list(terms.keys),
            similar=list(terms.similar),
            mode=options.mode.value,
            threshold=self._embedder.cosine_threshold if threshold is None else threshold,
            **asked,
            **({"filter": conditions} if conditions else {}),
        )
        found = _retrieval(question, options.mode, keywords, rows)
        return self._counted(found) if conditions else found

    async def _search_again(
        self, found: Retrieval, vector: Vectors, search: Callable[[Vectors], Awaitable[Retrieval]]
    ) -> Retrieval:
        """`found` with the passages of a second search: by the question and the best facts of its first passages.

        Both lists are fused by reciprocal ranks (Cormack et al. 2009).
        """
        facts = await self._store.rank_facts(vector, [chunk.id for chunk in found.chunks[:ROUND_CHUNKS]], ROUND_FACTS)
        if not facts:
            return found
        text = " ".join([found.question, *(fact for _, fact, _ in facts)])
        (with_facts,) = await embed_checked(self._embedder, [text], "query")
        again = await search(vector + with_facts)
        fused: dict[int, float] = {}
        for chunk in (*found.chunks, *again.chunks):
            fused[chunk.id] = fused.get(chunk.id, 0) + 1 / (FUSION_RANKS + chunk.rank)
        chunks = {chunk.id: chunk for chunk in (*again.chunks, *found.chunks)}
        best = sorted(fused, key=lambda i: (-fused[i], chunks[i].rank))[: max(len(found.chunks), len(again.chunks))]
        ranked = [replace(chunks[i], rank=n, score=fused[i]) for n, i in enumerate(best, 1)]
        return replace(found, chunks=tuple(ranked))

    def _counted(self, found: Retrieval) -> Retrieval:
        """`found` with the tokens of lines that were composed for this search: SQL has bounds of them."""
        entities = self._tokenizer.count_many([entity_line(e.name, e.type, e.description) for e in found.entities])
        relations = self._tokenizer.count_many(
            [relation_line(r.source, r.target, r.description) for r in found.relations]
        )
        return replace(
            found,
            entities=tuple(replace(e, tokens=n) for e, n in zip(found.entities, entities, strict=True)),
            relations=tuple(replace(r, tokens=n) for r, n in zip(found.relations, relations, strict=True)),
        )

    async def _embed(self, question: str, terms: SearchTerms) -> tuple[Vectors | None, Vectors | None, Vectors]:
        """Vectors of both keyword texts and the question, in one request; equal texts once."""
        texts = list(dict.fromkeys(t for t in (question, terms.low, terms.high) if t is not None))
        vectors = await embed_checked(self._embedder, texts, "query")
        by_text = dict(zip(texts, vectors, strict=True))
        low = None if terms.low is None else by_text[terms.low]
        high = None if terms.high is None else by_text[terms.high]
        return low, high, by_text[question]


class AnswerStream:
    """An answer in pieces: iterate over it, once. What was found is there at once, `result` after the last piece.

    Close it (`contextlib.aclosing`) when you stop earlier: the request to the model then ends.
    """

    def __init__(self, prepared: PreparedQuestion, answerer: Answerer) -> None:
        self._prepared = prepared
        self._answerer = answerer
        self.retrieval = prepared.retrieval
        self.references = references(prepared.retrieval.chunks)
        self.result: QueryResult | None = None
        self._pieces = self._read()

    def __aiter__(self) -> AsyncIterator[str]:
        return self._pieces

    async def aclose(self) -> None:
        """Ends the answer."""
        await self._pieces.aclose()

    async def _read(self) -> AsyncGenerator[str, None]:
        started = time.perf_counter()
        pieces: list[str] = []
        async with aclosing(self._answerer.stream(self._prepared)) as stream:
            async for piece in stream:
                pieces.append(piece)
                yield piece
        timings = {"answer": time.perf_counter() - started}
        self.result = _result(self._prepared, "".join(pieces), timings, self._answerer.label)


def _no_room(options: QueryOptions) -> UsageError:
    return UsageError(
        f"question, history and instructions alone take max_total_tokens ({options.max_total_tokens}): "
        "shorten them, or raise it"
    )


def _result(prepared: PreparedQuestion, answer: str, timings: Mapping[str, float], notice: str) -> QueryResult:
    return QueryResult(
        prepared.question,
        answer,
        references(prepared.retrieval.chunks),
        prepared.context or "",
        prepared.retrieval,
        {**prepared.retrieval.timings, **timings},
        notice,
        as_text(prepared.prompt),
    )


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
