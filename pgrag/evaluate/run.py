"""An evaluation: every question by every variant, what it found, what it took, and the table of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

from pgrag.config import Settings
from pgrag.database.store import Store
from pgrag.embedding.keyless import KeylessEmbedder
from pgrag.errors import BudgetError, ModelAccessError, PgragError, UsageError, WorkspaceError
from pgrag.evaluate import metrics
from pgrag.evaluate.matching import match, missing_documents
from pgrag.evaluate.memory import QuestionMemory
from pgrag.evaluate.questions import amount
from pgrag.evaluate.results import EvaluationReport, Kind, Outcome, Question, Variant
from pgrag.evaluate.variants import with_baseline
from pgrag.extraction.keyless.extractor import KeylessKeywords
from pgrag.llm import litellm_models
from pgrag.llm.lanes import in_lanes
from pgrag.llm.spending import Bills
from pgrag.search.answer import DEFAULT_ANSWER_OPTIONS, Answerer, AnswerOptions, LLMAnswerer
from pgrag.search.filters import Filter
from pgrag.search.keywords import LLMKeywords
from pgrag.search.options import NAMES, QueryOptions, query_options
from pgrag.search.searcher import Searcher
from pgrag.search.terms import search_terms
from pgrag.text.folding import clean
from pgrag.text.tokens import Tokenizer
from pgrag.types import Embedder, KeywordExtractor, Keywords, Mode, Retrieval

KS = (2, 5, 10)
FATAL = (BudgetError, ModelAccessError, WorkspaceError)  # no other question would fare better
DESCRIBED = (
    "workspace", "embedding_model", "llm_model", "extraction_model", "keyword_model", "answer_model",
    "cosine_threshold", "lexical", *(name for name in NAMES if name != "lexical"),
)  # fmt: skip
"""The settings that a report names."""

Progress = Callable[[int, int], None]
"""Told how many of how many questions are done."""


Tally = Callable[[], AbstractContextManager[Bills]]
"""Opens a record of the requests that this task, and the tasks that it starts, make until it is closed."""


@dataclass(frozen=True, slots=True)
class _Spent:
    """LLM tokens and US dollars; None where a price is not known."""

    tokens: int = 0
    cost: Decimal | None = Decimal(0)

    @classmethod
    def of(cls, bills: Bills) -> _Spent:
        spent = cls()
        for bill in bills.bills:
            spent += cls(bill.prompt_tokens + bill.completion_tokens, bill.cost)
        return spent

    def __add__(self, other: _Spent) -> _Spent:
        known = self.cost is not None and other.cost is not None
        return _Spent(self.tokens + other.tokens, (self.cost or 0) + (other.cost or Decimal(0)) if known else None)


@dataclass(slots=True)
class _Ready:
    """What is made once for the variants of one question, and what it took."""

    keywords: Keywords = field(default_factory=Keywords)
    texts: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    spent: _Spent = field(default_factory=_Spent)
    error: str = ""


@dataclass(slots=True)
class _Job:
    """A run under way; `outcomes` by the place of the question."""

    variants: Sequence[Variant]
    options: Mapping[str, QueryOptions]
    ks: tuple[int, ...]
    answers: bool
    answer_options: AnswerOptions
    progress: Progress | None
    waiting: Iterator[tuple[int, Question]]
    total: int
    outcomes: dict[int, list[Outcome]] = field(default_factory=dict)
    stopped: PgragError | None = None
    cached: int = 0


class Evaluator:
    """Asks questions in several ways and measures what each finds.

    `tally` opens the record that costs and tokens are taken from; without one no model is paid.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        embedder: Embedder,
        keyword_extractor: KeywordExtractor,
        answerer: Answerer,
        tokenizer: Tokenizer,
        tally: Tally | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._embedder = embedder
        self._memory = QuestionMemory(embedder)
        self._keyword_extractor = keyword_extractor
        self._answerer = answerer
        self._searcher = Searcher(store, settings, self._memory, keyword_extractor, answerer, tokenizer)
        self._tally = tally or (lambda: nullcontext(Bills()))

    async def run(
        self,
        questions: Sequence[Question],
        variants: Sequence[Variant],
        *,
        name: str,
        ks: Sequence[int] = KS,
        answers: bool = False,
        answer_options: AnswerOptions = DEFAULT_ANSWER_OPTIONS,
        baseline: str = "",
        filter: Filter | None = None,
        concurrency: int = 4,
        progress: Progress | None = None,
    ) -> EvaluationReport:
        """Every question by every variant, `concurrency` questions at a time.

        Keywords and embeddings are made once a question; each variant counts the seconds, tokens and cost of those it
        needs, as if it were alone. Seconds are those under the load of this `concurrency`. Without `answers` nothing is
        asked of the answer model. A question that fails is an outcome with an error. At the setting max_cost, or when a
        model refuses access, the run stops: the report then holds the questions done by all variants, says so in its
        warnings, and has the error as setting `stopped`. `found` of an outcome are chunks, `uri:ordinal`, best first.
        Raises UsageError for wrong variants and numbers, WorkspaceError, and BudgetError or ModelAccessError if no
        question was done.
        """
        variants, baseline = with_baseline(self._settings, variants, baseline)
        options = {
            v.label: query_options(self._settings, v.mode, v.options, None if v.mode is Mode.BYPASS else filter)
            for v in variants
        }
        _check(questions, variants, ks, answers, concurrency)
        ks = tuple(sorted(set(ks)))
        lacking = missing_documents(
            [gold for question in questions for gold in question.gold],
            (document.uri for document in await self._store.documents()),
        )
        await self._load_models(questions[0].text, answers)
        waiting = iter(enumerate(questions))
        job = _Job(variants, options, ks, answers, answer_options, progress, waiting, len(questions))
        await in_lanes(min(concurrency, len(questions)), partial(self._work, job))
        if job.stopped is not None and not job.outcomes:
            raise job.stopped
        done = tuple(questions[place] for place in sorted(job.outcomes))
        outcomes = tuple(outcome for place in sorted(job.outcomes) for outcome in job.outcomes[place])
        rows = await asyncio.to_thread(metrics.summarise, outcomes, done, baseline, ks)
        return EvaluationReport(
            name=name,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            settings={
                **{setting: getattr(self._settings, setting) for setting in DESCRIBED},
                "embedding_model": self._memory.model,
                "answers": self._answerer.label if answers else None,
                "concurrency": concurrency,
                **({"filter": filter.conditions()} if filter is not None else {}),
                **({"stopped": str(job.stopped)} if job.stopped else {}),
            },
            questions=done,
            baseline=baseline,
            ks=ks,
            rows=rows,
            outcomes=outcomes,
            warnings=(*_lacking(lacking), *_warnings(job, done, outcomes)),
        )

    async def _load_models(self, text: str, answers: bool) -> None:
        """So that no question's seconds are those of loading a model, or LiteLLM, into this process."""
        if isinstance(self._embedder, KeylessEmbedder):
            await self._embedder.embed([text], "query")
        if isinstance(self._keyword_extractor, KeylessKeywords):
            await self._keyword_extractor.keywords(text)
        if isinstance(self._keyword_extractor, LLMKeywords) or (answers and isinstance(self._answerer, LLMAnswerer)):
            await litellm_models.load()

    async def _work(self, job: _Job, failed: asyncio.Event) -> None:
        """Takes questions until there are none, or the run stops."""
        for place, question in job.waiting:
            # Turned from question to question, so that no variant always meets a cold cache.
            turn = place % len(job.variants)
            try:
                found = await self._ask(question, [*job.variants[turn:], *job.variants[:turn]], job)
            except (BudgetError, ModelAccessError) as error:
                job.stopped = job.stopped or error
                return
            job.outcomes[place] = [found[variant.label] for variant in job.variants]
            if job.progress is not None:
                job.progress(len(job.outcomes), job.total)
            if job.stopped is not None or failed.is_set():
                return

    async def _ask(self, question: Question, variants: Sequence[Variant], job: _Job) -> dict[str, Outcome]:
        """The outcomes of one question by label."""
        text = clean(question.text).strip()
        ready: dict[bool, _Ready] = {}
        found = {}
        try:
            for variant in variants:
                if variant.mode is Mode.BYPASS:
                    made = _Ready()
                else:
                    made = await self._made(text, variant.mode is not Mode.NAIVE, ready, job)
                found[variant.label] = await self._outcome(question, text, variant, made, job)
        finally:
            self._memory.forget([text, *(t for made in ready.values() for t in made.texts)])
        return found

    async def _made(self, text: str, graph: bool, ready: dict[bool, _Ready], job: _Job) -> _Ready:
        """The question's vector and, for a graph, its keywords and their vectors; what it took is that of both."""
        if graph not in ready:
            made = replace(await self._made(text, False, ready, job)) if graph else _Ready(seconds={"keywords": 0.0})
            ready[graph] = made if made.error else await self._make(text, graph, made, job)
        return ready[graph]

    async def _make(self, text: str, graph: bool, made: _Ready, job: _Job) -> _Ready:
        with self._tally() as bills:
            try:
                started = time.perf_counter()
                keywords = await self._keyword_extractor.keywords(text) if graph else Keywords()
                between = time.perf_counter()
                terms = search_terms(text, keywords, Mode.MIX if graph else Mode.NAIVE)
                texts = tuple(dict.fromkeys(t for t in (text, terms.low, terms.high) if t is not None))
                if text:  # the searcher refuses an empty question
                    await self._memory.embed(texts, "query")
            except FATAL:
                raise
            except PgragError as error:
                return replace(made, error=str(error), spent=made.spent + _Spent.of(bills))
        job.cached += bills.cached
        seconds = {
            "keywords": between - started if graph else 0.0,
            "embedding": made.seconds.get("embedding", 0.0) + time.perf_counter() - between,
        }
        return _Ready(keywords, texts, seconds, made.spent + _Spent.of(bills))

    async def _outcome(self, question: Question, text: str, variant: Variant, made: _Ready, job: _Job) -> Outcome:
        if made.error:
            return Outcome(
                question.id, variant.label, llm_tokens=made.spent.tokens, cost=made.spent.cost, error=made.error
            )
        options, answer, seconds = job.options[variant.label], None, dict(made.seconds)
        with self._tally() as bills:
            try:
                if job.answers:
                    result = await self._searcher.query(text, options, made.keywords, job.answer_options)
                    retrieval, answer, seconds["answer"] = result.retrieval, result.answer, result.timings["answer"]
                else:
                    retrieval = await self._searcher.retrieve(text, options, made.keywords)
            except FATAL:
                raise
            except PgragError as error:
                spent = made.spent + _Spent.of(bills)
                return Outcome(question.id, variant.label, llm_tokens=spent.tokens, cost=spent.cost, error=str(error))
        job.cached += bills.cached
        if "search" in retrieval.timings:
            seconds["search"] = retrieval.timings["search"]
        spent = made.spent + _Spent.of(bills)
        outcome = Outcome(
            question.id, variant.label, found=tuple(f"{c.uri}:{c.ordinal}" for c in retrieval.chunks), answer=answer,
            context_tokens=_tokens(retrieval), llm_tokens=spent.tokens, cost=spent.cost, seconds=seconds,
        )  # fmt: skip
        return _measured(outcome, question, retrieval, variant.mode, job.ks)


def _measured(outcome: Outcome, question: Question, retrieval: Retrieval, mode: Mode, ks: Sequence[int]) -> Outcome:
    """The outcome with its metrics."""
    if question.gold and mode is not Mode.BYPASS:
        matches = match(question.gold, retrieval.chunks)
        outcome = replace(
            outcome,
            ranks=matches.ranks,
            recall={k: metrics.recall(matches, k) for k in ks},
            all_gold={k: metrics.all_gold(matches, k) for k in ks},
            mrr=metrics.reciprocal_rank(matches),
            ndcg=metrics.ndcg(matches),
            precision=metrics.context_precision(matches),
        )
    if outcome.answer is None:
        return outcome
    if question.kind == Kind.NULL:
        return replace(outcome, exact_match=float(metrics.is_refusal(outcome.answer)))
    if not question.answers:
        return outcome
    return replace(
        outcome,
        exact_match=metrics.exact_match(outcome.answer, question.answers),
        f1=metrics.f1(outcome.answer, question.answers),
    )


def _tokens(retrieval: Retrieval) -> int:
    return sum(row.tokens for layer in (retrieval.entities, retrieval.relations, retrieval.chunks) for row in layer)


def _check(
    questions: Sequence[Question], variants: Sequence[Variant], ks: Sequence[int], answers: bool, concurrency: int
) -> None:
    if not questions:
        raise UsageError("there is no question to ask")
    ids: set[str] = set()
    for question in questions:
        if question.id in ids:
            raise UsageError(f"two questions have the id {question.id!r}")
        ids.add(question.id)
    if not ks or any(k < 1 for k in ks):
        raise UsageError(f"ks are ranks from 1 on, not {list(ks)}")
    if concurrency < 1:
        raise UsageError(f"concurrency is 1 or more, not {concurrency}")
    if not answers and any(variant.mode is Mode.BYPASS for variant in variants):
        raise UsageError("mode bypass searches nothing: it can be evaluated with answers only")


def _lacking(documents: Sequence[str]) -> Iterator[str]:
    if documents:
        shown = ", ".join(documents[:3]) + (", ..." if len(documents) > 3 else "")
        yield f"gold names {amount(len(documents), 'document')} that the workspace does not have: {shown}"


def _warnings(job: _Job, questions: Sequence[Question], outcomes: Sequence[Outcome]) -> Iterator[str]:
    short = [
        v.label for v in job.variants if v.mode is not Mode.BYPASS and job.options[v.label].chunk_top_k < job.ks[-1]
    ]
    if short:
        yield f"recall@{job.ks[-1]} cannot be reached with a smaller chunk_top_k: {', '.join(short)}"
    if not job.answers and (null := sum(question.kind == Kind.NULL for question in questions)):
        yield f"{amount(null, 'question')} of kind null measured in answers only, and none were asked for"
    if job.cached:
        yield f"{amount(job.cached, 'answer')} of models came from the cache: no tokens and no cost of them are counted"
    if unpriced := sum(outcome.cost is None for outcome in outcomes):
        yield f"the cost of {amount(unpriced, 'outcome')} is not known: there is no price for the model"
    if failed := [outcome for outcome in outcomes if outcome.error]:
        first = f"{failed[0].question}, {failed[0].variant}: {failed[0].error}"
        yield f"{amount(len(failed), 'outcome')} failed and are in no mean, the first: {first}"
    if job.stopped is not None:
        yield f"stopped after {len(job.outcomes)} of {amount(job.total, 'question')}: {job.stopped}"
