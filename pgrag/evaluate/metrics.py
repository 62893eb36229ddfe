"""Measures of what was found and answered, their means with bootstrap intervals, and the differences to a baseline."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pgrag.evaluate.matching import Matches
from pgrag.evaluate.results import Estimate, Kind, Outcome, Question, Row
from pgrag.search.answer import NOTHING_FOUND
from pgrag.text.scripts import HAN_KANA

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RESAMPLES = 10_000
NDCG_DEPTH = 10
_CELLS = 2_000_000  # drawn at a time

# ---------------------------------------------------------------- passages


def recall(matches: Matches, k: int) -> float:
    """Share of the gold found within the first k ranks."""
    return sum(rank is not None and rank <= k for rank in matches.ranks) / len(matches.ranks)


def all_gold(matches: Matches, k: int) -> float:
    """1 if all gold is found within the first k ranks, else 0."""
    return float(all(rank is not None and rank <= k for rank in matches.ranks))


def reciprocal_rank(matches: Matches) -> float:
    """1 / the rank of the first gold; 0 where none is found."""
    return 1 / min((rank for rank in matches.ranks if rank is not None), default=math.inf)


def ndcg(matches: Matches, k: int = NDCG_DEPTH) -> float:
    """Normalised discounted cumulative gain at k, gains 0 or 1: a rank gains where gold is found for the first time.

    The ideal is as many gains from rank 1 on as there is gold; gold found at one rank, in one passage, is one.
    """
    ranks = {rank for rank in matches.ranks if rank is not None}
    distinct = len(ranks) + sum(rank is None for rank in matches.ranks)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(distinct, k) + 1))
    return sum(1 / math.log2(rank + 1) for rank in sorted(ranks) if rank <= k) / ideal


def context_precision(matches: Matches) -> float:
    """Mean of the precisions at the ranks of relevant passages; 0 where none is."""
    found = [rank for rank, relevant in enumerate(matches.relevant, 1) if relevant]
    return sum(n / rank for n, rank in enumerate(found, 1)) / len(found) if found else 0.0


# ---------------------------------------------------------------- answers

_CITATION = re.compile(r"\[\d{1,4}\]")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_UNSPACED = re.compile(f"([{HAN_KANA}])")
_CLOSED = frozenset({"yes", "no", "noanswer"})  # HotpotQA: such answers share no words with others


def answer_tokens(text: str) -> list[str]:
    """The tokens that answers are compared by: case, width, punctuation, citations and English articles aside.

    After SQuAD (Rajpurkar et al. 2016) for words, and CMRC 2018 (Cui et al. 2019) for Chinese: a character is a token.
    """
    folded = unicodedata.normalize("NFKC", _CITATION.sub(" ", text)).casefold()
    bare = "".join(c for c in folded if unicodedata.category(c)[0] not in "PS")
    return _UNSPACED.sub(r" \1 ", _ARTICLES.sub(" ", bare)).split()


def exact_match(answer: str, answers: Sequence[str]) -> float:
    """1 if the answer has the tokens of one of the right answers, in order, else 0."""
    given = answer_tokens(answer)
    return float(any(given == answer_tokens(right) for right in answers))


def f1(answer: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of the answer's tokens, against the right answer for which it is highest.

    As for HotpotQA (Yang et al. 2018), yes and no have no part in other answers.
    """
    return max(_f1(answer_tokens(answer), answer_tokens(right)) for right in answers)


def _f1(given: list[str], right: list[str]) -> float:
    if given == right:
        return 1.0
    if {"".join(given), "".join(right)} & _CLOSED:
        return 0.0
    common = (Counter(given) & Counter(right)).total()
    return 2 * common / (len(given) + len(right))


_REFUSALS = re.compile(
    r"nothing (?:was|is|could be) found"
    r"|\b(?:do|does|did|could|can|is|are|was|were)(?: not|n't) (?:\w+ ){0,3}?(?:hold|contain|say|tell|mention|provide|"
    r"state|answer|include|specify|give|cover|address|indicate|describe|name|know|find|determine|found|mentioned|"
    r"stated|given|provided|specified|available|included|covered|described|known|answered|determined)\b"
    r"|\b(?:cannot|unable to) (?:\w+ ){0,2}?(?:answer|determine|find|say|tell|be (?:answered|determined|found))\b"
    r"|\bno (?:\w+ ){0,3}?(?:information|mention|answer|evidence|data|details?|sources?|record)\b"
    r"|\binsufficient (?:information|evidence|data|context)\b|\bnot enough (?:information|evidence|data|context)\b"
    r"|(?:没有|没|未|并未|未能|不)(?:能)?(?:[^。，,；;]{0,6}?)(?:提及|提到|提供|说明|包含|包括|找到|给出|记载|涉及|回答|知道|"
    r"答案|信息|资料|记录|内容|指出)"
    r"|无法(?:从[^。，,]{0,12})?(?:回答|确定|得知|判断|找到|知道|作答)|(?:信息|资料)不足|找不到|不知道|不清楚"
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|[\u3002\uff01\uff1f\n]")


def is_refusal(answer: str) -> bool:
    """Whether an answer says in its first sentence that the sources do not tell; in English and Chinese, by its words.

    An answer that comes first and then names what is missing is none.
    """
    text = _CITATION.sub("", answer).replace("\u2019", "'").strip()
    first = next((part for part in _SENTENCE_END.split(text) if part.strip()), "")
    return text == NOTHING_FOUND or _REFUSALS.search(first.casefold()) is not None


# ---------------------------------------------------------------- means and their intervals


def bootstrap(values: Sequence[float] | Floats, resamples: int = RESAMPLES, seed: int = 1) -> Estimate:
    """The mean and its 95 % percentile bootstrap interval (Efron 1979); of one value, the value itself.

    Of paired differences, `significant` tells whether the interval leaves out 0. Raises ValueError for no values.
    """
    return estimates([values], resamples, seed)[0]


def estimates(columns: Sequence[Sequence[float] | Floats], resamples: int = RESAMPLES, seed: int = 1) -> list[Estimate]:
    """`bootstrap` of each column; columns of one length share their resamples, which are drawn once."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for place, column in enumerate(columns):
        by_length[len(column)].append(place)
    found: dict[int, Estimate] = {}
    for n, places in by_length.items():
        if n == 0:
            raise ValueError("a mean of no values")
        table = np.stack([np.asarray(columns[place], np.float64) for place in places], axis=1)
        means = table.mean(axis=0)
        low, high = np.percentile(_resampled_means(table, resamples, seed), [2.5, 97.5], axis=0)
        for i, place in enumerate(places):
            found[place] = Estimate(float(means[i]), float(low[i]), float(high[i]), n)
    return [found[place] for place in range(len(columns))]


def _resampled_means(table: Floats, resamples: int, seed: int) -> Floats:
    """(resamples, columns) means of rows drawn with replacement."""
    n = len(table)
    if n == 1:
        return table
    random = np.random.default_rng(seed)
    block = max(1, min(resamples, _CELLS // n))
    means = []
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = random.integers(0, n, (size, n)) + np.arange(size)[:, None] * n
        times = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
        means.append(times @ table / n)
    return np.concatenate(means)


# ---------------------------------------------------------------- the table


def metrics_of(outcome: Outcome) -> dict[str, float]:
    """What is known of one outcome, by the names of the table; nothing of one with an error.

    `recall@k`, `all_gold@k`, `mrr`, `ndcg`, `precision`, `exact_match`, `f1`, `context_tokens`, `llm_tokens`, `cost`
    (US dollars), `seconds` in all, and by step `seconds_keywords`, `seconds_embedding`, `seconds_search`,
    `seconds_answer`.
    """
    if outcome.error:
        return {}
    known: dict[str, float | None] = {
        **{f"recall@{k}": value for k, value in (outcome.recall or {}).items()},
        **{f"all_gold@{k}": value for k, value in (outcome.all_gold or {}).items()},
        "mrr": outcome.mrr,
        "ndcg": outcome.ndcg,
        "precision": outcome.precision,
        "exact_match": outcome.exact_match,
        "f1": outcome.f1,
        "context_tokens": float(outcome.context_tokens),
        "llm_tokens": float(outcome.llm_tokens),
        "cost": None if outcome.cost is None else float(outcome.cost),
        "seconds": sum(outcome.seconds.values()) if outcome.seconds else None,
        **{f"seconds_{step}": value for step, value in outcome.seconds.items()},
    }
    return {name: value for name, value in known.items() if value is not None}


def summarise(
    outcomes: Sequence[Outcome],
    questions: Sequence[Question],
    baseline: str,
    ks: Sequence[int] = (2, 5, 10),
    resamples: int = RESAMPLES,
) -> tuple[Row, ...]:
    """A row for each variant over all questions (kind ""), then for each kind, in the order the variants came in.

    A metric is the mean over the questions where it is known, a gain the mean of the differences to the `baseline`'s
    label over the questions where both know it, two at least. Of the recalls, those of `ks` are in the table.
    """
    kind_of = {question.id: question.kind for question in questions}
    variants = list(dict.fromkeys(outcome.variant for outcome in outcomes))
    by_variant: dict[str, dict[str, Outcome]] = {variant: {} for variant in variants}
    for outcome in outcomes:
        by_variant[outcome.variant][outcome.question] = outcome
    values = {v: {q: _within(metrics_of(o), ks) for q, o in found.items()} for v, found in by_variant.items()}
    base = values.get(baseline, {})
    parts: list[tuple[str, str, list[Outcome], list[str], list[str]]] = []
    columns: list[list[float]] = []
    for kind in ["", *kinds_of(questions)]:
        for variant in variants:
            asked = [q for q in by_variant[variant] if not kind or kind_of.get(q) == kind]
            if not asked:
                continue
            own = {q: values[variant][q] for q in asked}
            plain = _columns(own)
            paired = {} if variant == baseline else _differences(own, base)
            columns += [*plain.values(), *paired.values()]
            parts.append((variant, kind, [by_variant[variant][q] for q in asked], list(plain), list(paired)))
    found = iter(estimates(columns, resamples))
    return tuple(
        Row(
            variant,
            kind,
            len(asked_outcomes),
            sum(bool(outcome.error) for outcome in asked_outcomes),
            {name: next(found) for name in plain_names},
            {name: next(found) for name in paired_names},
        )
        for variant, kind, asked_outcomes, plain_names, paired_names in parts
    )


def kinds_of(questions: Sequence[Question]) -> list[str]:
    """The kinds that occur, pgrag's own first, then the set's by name."""
    there = {question.kind for question in questions} - {""}
    return [kind.value for kind in Kind if kind.value in there] + sorted(there - {kind.value for kind in Kind})


def _within(known: Mapping[str, float], ks: Sequence[int]) -> dict[str, float]:
    wanted = {str(k) for k in ks}
    return {name: value for name, value in known.items() if "@" not in name or name.rpartition("@")[2] in wanted}


def _columns(own: Mapping[str, Mapping[str, float]]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = defaultdict(list)
    for known in own.values():
        for name, value in known.items():
            columns[name].append(value)
    return dict(columns)


def _differences(
    own: Mapping[str, Mapping[str, float]], base: Mapping[str, Mapping[str, float]]
) -> dict[str, list[float]]:
    paired = {
        q: {name: value - base[q][name] for name, value in known.items() if name in base[q]}
        for q, known in own.items()
        if q in base
    }
    return {name: column for name, column in _columns(paired).items() if len(column) > 1}
