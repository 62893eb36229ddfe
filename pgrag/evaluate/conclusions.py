"""What a report lets one conclude, in words: which variant is best for which kind of question, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

from pgrag.evaluate import metrics
from pgrag.evaluate.presentation import OVERALL, count, headline_k, kind_title, kinds, milliseconds, rows_of, share
from pgrag.evaluate.results import FEWEST_TO_TELL, Estimate, EvaluationReport, Row, Verdict

MANY = 10
"""Comparisons from which on a reader is told that some look like more than chance by chance."""
ROOM = 60
"""Characters for the names of variants in a sentence, unless the first is longer."""
MOST_NEEDED = 10_000
_POWER = (1.96 + 0.84) ** 2  # to find a difference with an interval of 95 % 8 times in 10 (Cohen 1988, 2.4)
_OF_ANSWERS = ("f1", "exact_match")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The best variant against another on the same questions: on so many it is `better`, on others `worse`.

    `deviation` is the standard deviation of the differences; None of one question's.
    """

    variant: str
    mean: float
    difference: Estimate
    deviation: float | None
    better: int
    worse: int

    @property
    def told(self) -> bool:
        """The best one is better by more than chance; enough questions differ to say so."""
        return self.difference.significant and self.difference.mean > 0 and self.better + self.worse >= FEWEST_TO_TELL

    @property
    def needed(self) -> int | None:
        """About how many questions like these would tell a difference of this size from chance, 8 times in 10.

        None where it is told already, and where there is none or just one question to judge by.
        """
        if self.told or self.deviation is None or not self.difference.mean:
            return None
        size = self.difference.mean / self.deviation if self.deviation else math.inf
        return max(math.ceil(_POWER / size**2), self.difference.n + 1, FEWEST_TO_TELL)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The variant with the highest mean of a metric on the questions of a kind ("": all), against each other one."""

    kind: str
    metric: str
    questions: int
    best: str
    mean: float
    others: tuple[Comparison, ...]


def conclusions(report: EvaluationReport) -> list[Conclusion]:
    """By kind, first by recall at the headline k, then by F1 of the answers (of null ones exact match).

    Of variants with equal means the baseline is named as best, else the one with the highest nDCG, else the first.
    """
    found = []
    for candidates in ((f"recall@{headline_k(report)}",), _OF_ANSWERS):
        for kind in kinds(report):
            rows = rows_of(report, kind)
            metric = next((name for name in candidates if any(name in row.metrics for row in rows)), None)
            if metric is not None:
                found.append(_conclusion(report, kind, metric, [row for row in rows if metric in row.metrics]))
    return found


def _conclusion(report: EvaluationReport, kind: str, metric: str, rows: Sequence[Row]) -> Conclusion:
    best = max(rows, key=lambda row: (row.metrics[metric].mean, row.variant == report.baseline, _ndcg(row)))
    values = _values(report, kind, metric)
    own = values.get(best.variant, {})
    compared = []
    for row in rows:
        theirs = values.get(row.variant, {})
        column = [value - theirs[question] for question, value in own.items() if question in theirs]
        if row is not best and column:
            difference = _stored(best, row, metric, report.baseline) or metrics.bootstrap(column)
            better, worse = sum(d > 0 for d in column), sum(d < 0 for d in column)
            deviation = stdev(column) if len(column) > 1 else None
            compared.append(Comparison(row.variant, row.metrics[metric].mean, difference, deviation, better, worse))
    compared.sort(key=lambda other: (other.variant != report.baseline, -other.mean))
    mean = best.metrics[metric]
    return Conclusion(kind, metric, mean.n, best.variant, mean.mean, tuple(compared))


def _ndcg(row: Row) -> float:
    return row.metrics["ndcg"].mean if "ndcg" in row.metrics else 0.0


def _stored(best: Row, other: Row, metric: str, baseline: str) -> Estimate | None:
    """The difference as the table of gains has it, so that both say the same."""
    if other.variant == baseline:
        return best.gains.get(metric)
    if best.variant == baseline and (gain := other.gains.get(metric)) is not None:
        return Estimate(-gain.mean, -gain.high, -gain.low, gain.n)
    return None


def _values(report: EvaluationReport, kind: str, metric: str) -> dict[str, dict[str, float]]:
    """The metric by variant and question."""
    asked = {question.id for question in report.questions if kind in (OVERALL, question.kind)}
    found: dict[str, dict[str, float]] = {}
    for outcome in report.outcomes:
        if outcome.question in asked and (value := metrics.metrics_of(outcome).get(metric)) is not None:
            found.setdefault(outcome.variant, {})[outcome.question] = value
    return found


# ---------------------------------------------------------------- in words


def in_words(report: EvaluationReport) -> list[str]:
    """The conclusions as lines; those that begin with a space belong to the title above them."""
    found = conclusions(report)
    lines: list[str] = []
    k = headline_k(report)
    for answers, title in (
        (False, f"best by recall@{k} (share of the needed passages among the first {k}):"),
        (True, "best by F1 of the answers (words shared with a right one):"),
    ):
        said = [f"  {sentence(one)}" for one in found if (one.metric in _OF_ANSWERS) is answers]
        lines += [title, *said] if said else []
    lines += [_judged(one) for one in report.verdicts if one.kind == OVERALL and one.criterion == "overall"]
    if found and (price := _price(report, found)):
        lines.append(price)
    if (number := sum(len(conclusion.others) for conclusion in found)) >= MANY:
        lines.append(f"{number} comparisons were made: of those without a difference, 1 in 20 is told apart by chance")
    return lines


def sentence(found: Conclusion) -> str:
    """`multi hop: mix .812 is better than naive .771 (+.041 [.021, .061]; more on 30 of 200 questions, less on 12)`."""
    asked = f"{found.questions:,} question{'' if found.questions == 1 else 's'}"
    about = kind_title(found.kind) + (" (answers that say so)" if found.metric == "exact_match" else "")
    if not found.others:
        return f"{about}: {found.best} {share(found.mean)} on {asked}"
    parts = []
    if beaten := [other for other in found.others if other.told]:
        gain = beaten[0].difference
        interval = f"+{share(gain.mean)} [{share(gain.low)}, {share(gain.high)}]; "
        parts.append(f"is better than {_named(beaten)} ({_first(beaten, asked, interval)})")
    if level := [other for other in found.others if not other.told and other.better + other.worse]:
        enough = level[0].needed
        more = "" if enough is None else f"; {_about(enough)} questions would tell"
        parts.append(f"is not told apart from {_named(level)} ({_first(level, asked)}{more})")
    if same := [other for other in found.others if not other.better + other.worse]:
        counted = "" if parts else f" ({asked})"
        parts.append(f"is the same on every question as {_named(same, means=False)}{counted}")
    return f"{about}: {found.best} {share(found.mean)} {'; it '.join(parts)}"


def _judged(verdict: Verdict) -> str:
    """Whose answers the judge prefers; by a sign test, in which a preference in one of both orders counts half."""
    sides = sorted(((verdict.first_wins, verdict.first), (verdict.second_wins, verdict.second)), reverse=True)
    (more, winner), (less, loser) = sides
    if more == less:
        return f"the judge prefers neither {verdict.first} nor {verdict.second} ({verdict.questions:,} answers)"
    decided, gap = more + less, more - less
    deviation = math.sqrt(max(decided - gap**2, 0) / verdict.questions)
    told = verdict.questions * decided >= FEWEST_TO_TELL and gap > 1.96 * deviation
    return (
        f"the judge prefers {winner} on {share(more)} of {verdict.questions:,} answers, {loser} on {share(less)}: "
        f"{'more' if told else 'no more'} than chance"
    )


def _first(others: Sequence[Comparison], asked: str, interval: str = "") -> str:
    """The first of the comparisons in numbers."""
    first = others[0]
    name = "" if len(others) == 1 else f"{first.variant}: "
    return f"{name}{interval}more on {first.better:,} of {asked}, less on {first.worse:,}"


def _named(others: Sequence[Comparison], *, means: bool = True) -> str:
    """As many as a line has room for, the first at least."""
    named: list[str] = []
    for other in others:
        name = f"{other.variant} {share(other.mean)}" if means else other.variant
        if named and len(", ".join([*named, name])) > ROOM:
            return f"{', '.join(named)} and {len(others) - len(named)} more"
        named.append(name)
    return ", ".join(named)


def _about(number: int) -> str:
    """To two places, upwards: `about 140`."""
    if number > MOST_NEEDED:
        return f"more than {MOST_NEEDED:,}"
    step = 10 ** max(0, len(str(number)) - 2)
    return f"about {math.ceil(number / step) * step:,}"


def _price(report: EvaluationReport, found: Sequence[Conclusion]) -> str:
    """What the best variant over all questions takes, next to the baseline."""
    last = next(conclusion for conclusion in reversed(found) if conclusion.metric == found[0].metric)
    rows = {row.variant: row for row in rows_of(report, last.kind)}
    if last.best == report.baseline or report.baseline not in rows:
        return ""
    said = []
    for variant in (last.best, report.baseline):
        taken = rows[variant].metrics
        if "context_tokens" not in taken or "seconds" not in taken:
            return ""
        tokens, seconds = count(taken["context_tokens"].mean), milliseconds(taken["seconds"].mean)
        said.append(f"{variant} {tokens} tokens and {seconds} ms")
    return f"a question takes {said[0]}, {said[1]}"
