"""The values of an evaluation: questions with what they need, ways to search, what each found. All frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from pgrag.types import Mode

FEWEST_TO_TELL = 6
"""Differences, at least, for one to be more than chance: five on one side come by chance 1 time in 16, six in 32."""


class Kind(StrEnum):
    """Kinds of questions that are evaluated apart; a set may have kinds of its own."""

    SINGLE_FACT = "single_fact"
    AGGREGATION = "aggregation"
    MULTI_HOP = "multi_hop"
    THEMATIC = "thematic"
    NULL = "null"
    """The documents do not answer it: nothing is to be found, and the answer is to say so."""


@dataclass(frozen=True, slots=True)
class Gold:
    """One passage that a question needs. At least one of `document` and `text` is given.

    `document` is a uri, or the end of one from a "/" on. `ordinal` is a chunk of it, from 0. `text` is evidence: the
    passage is found with a chunk that contains it, white space, case and width aside; text that lies across chunks is
    found when they hold it together.
    """

    document: str = ""
    ordinal: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the passages it needs and the answers that are right. `kind` is a `Kind` or the set's own word."""

    id: str
    text: str
    gold: tuple[Gold, ...] = ()
    answers: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to search: a mode, and query options by name as `PgRAG.query` takes them."""

    mode: Mode
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """`mix`, or `mix chunk_ranking=vector top_k=10`."""
        return " ".join([self.mode.value, *(f"{name}={value}" for name, value in self.options.items())])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one variant found for one question, or the `error` that kept it from doing so.

    `ranks`, from 1, at which it found each gold of the question, in their order, None where it did not; of documents
    where all gold names documents only, else of chunks.
    `recall` and `all_gold` are by k; they, `mrr`, `ndcg` (at 10) and `precision` (context precision: mean of the
    precisions at the ranks of the passages needed) are None without gold; `exact_match` and `f1` are None without
    right answers or when no answer was made. For a question of kind null, `exact_match` is 1 if the answer says that
    nothing was found. Seconds of retrieval (keywords, embedding, search) and of the answer; tokens as the context
    counts them and as the models report them; `cost` in US dollars, None where a price is not known.
    """

    question: str
    variant: str
    found: tuple[str, ...] = ()
    ranks: tuple[int | None, ...] = ()
    recall: Mapping[int, float] | None = None
    all_gold: Mapping[int, float] | None = None
    mrr: float | None = None
    ndcg: float | None = None
    precision: float | None = None
    answer: str | None = None
    exact_match: float | None = None
    f1: float | None = None
    context_tokens: int = 0
    llm_tokens: int = 0
    cost: Decimal | None = Decimal(0)
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` questions and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def significant(self) -> bool:
        """Of a difference: the interval leaves out 0, and is of enough questions to say so."""
        return self.n >= FEWEST_TO_TELL and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class Row:
    """One variant over the questions of one kind ("" : all). Metrics by name (`recall@5`, `mrr`, `f1`, `cost`, ...).

    `gains` are the paired differences to the baseline on the questions that both answered, by the same names.
    """

    variant: str
    kind: str
    questions: int
    errors: int
    metrics: Mapping[str, Estimate]
    gains: Mapping[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge LLM preferred by one criterion, over both orders of the two answers: shares that sum to 1."""

    first: str
    second: str
    criterion: str
    kind: str
    questions: int
    first_wins: float
    second_wins: float
    ties: float


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Everything an evaluation found; `settings` say with what it was made, `warnings` what was left out and why."""

    name: str
    created_at: str
    settings: Mapping[str, Any]
    questions: tuple[Question, ...]
    baseline: str
    ks: tuple[int, ...]
    rows: tuple[Row, ...]
    outcomes: tuple[Outcome, ...]
    verdicts: tuple[Verdict, ...] = ()
    warnings: tuple[str, ...] = ()
