"""What a report says to people: its metrics in reading order as they are written, its variants and kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pgrag.evaluate.results import Estimate, EvaluationReport, Gold, Kind, Row

OVERALL = ""
"""The kind of a row over all questions."""


# ---------------------------------------------------------------- metrics for people


def share(value: float) -> str:
    """A share to three places: `.812`, `1.000`, `-.020`."""
    text = f"{round(value, 3) + 0.0:.3f}"  # no minus before a zero
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def count(value: float) -> str:
    """A number of tokens: `1,234`."""
    return f"{value:,.0f}"


def dollars(value: float) -> str:
    """US dollars with as many places as small prices need: `$12.34`, `$0.0123`, `$0.000123`."""
    size = abs(value)
    places = 2 if size >= 1 or not size else 4 if size >= 0.01 else 6
    return f"{'-' if value < 0 else ''}${size:,.{places}f}"


def milliseconds(value: float) -> str:
    """Seconds as milliseconds: `12`, `3.4`."""
    return f"{value * 1000:.0f}" if abs(value) >= 0.01 or not value else f"{value * 1000:.1f}"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by its name in a row, with its title in a table and the way its values are written."""

    name: str
    title: str
    text: Callable[[float], str] = share

    def estimate(self, found: Estimate | None, *, spread: bool = True) -> str:
        """`.812 ±.031`, with `spread` half the width of the interval. Empty for None."""
        if found is None:
            return ""
        if not spread or found.n < 2 or found.low == found.high:  # an interval of one value says nothing
            return self.text(found.mean)
        return f"{self.text(found.mean)} ±{self.text(_half(found))}"

    def gain(self, found: Estimate | None) -> str:
        """`+.041 [.021, .061]*`, with the star where the interval leaves out 0. Empty for None."""
        if found is None:
            return ""
        sign = "+" if found.mean > 0 and self.text(found.mean) != self.text(0) else ""
        spread = f" [{self.text(found.low)}, {self.text(found.high)}]" if found.low != found.high else ""
        return f"{sign}{self.text(found.mean)}{spread}{'*' if found.significant else ''}"


def _half(found: Estimate) -> float:
    return (found.high - found.low) / 2


_AFTER_RECALL = (
    Metric("mrr", "MRR"), Metric("ndcg", "nDCG"), Metric("precision", "precision"), Metric("exact_match", "EM"),
    Metric("f1", "F1"), Metric("context_tokens", "tokens", count), Metric("llm_tokens", "LLM tokens", count),
    Metric("cost", "cost", dollars), Metric("seconds", "ms", milliseconds),
)  # fmt: skip

_PAID = ("llm_tokens", "cost")
_LEFT_OUT = ("all_gold@", "seconds_")
"""Of tables: they would be too wide. The JSON form has everything."""


def metrics_of(report: EvaluationReport, rows: Sequence[Row]) -> list[Metric]:
    """The metrics that one of the rows has, in reading order; those with a name of their own come last.

    LLM tokens and cost are left out where nothing was paid for.
    """
    k_at_all = headline_k(report)
    known = [Metric(f"recall@{k}", f"recall@{k}") for k in report.ks]
    known += [Metric(f"all_gold@{k}", f"all@{k}") for k in report.ks if k == k_at_all]
    known += _AFTER_RECALL
    there = dict.fromkeys(
        name for row in rows for name, found in row.metrics.items() if found.mean or name not in _PAID
    )
    names = {metric.name for metric in known} | set(_PAID)
    own = [name for name in there if name not in names and not name.startswith(_LEFT_OUT)]
    return [metric for metric in known if metric.name in there] + [Metric(name, name) for name in own]


def headline_k(report: EvaluationReport) -> int:
    """The k by which variants are compared: 5, else the nearest one evaluated."""
    return min(report.ks, key=lambda k: (abs(k - 5), k), default=5)


# ---------------------------------------------------------------- what is in it


def variants(report: EvaluationReport) -> list[str]:
    """Labels of the variants in the order of the rows."""
    return list(dict.fromkeys(row.variant for row in report.rows))


def kinds(report: EvaluationReport) -> list[str]:
    """Kinds with rows of their own: pgrag's in their order, then the set's own, the overall one ("") last.

    Where all questions are of one kind, its rows and the overall ones say the same: the overall ones are left out.
    """
    there = list(dict.fromkeys(row.kind for row in report.rows))
    ours = [kind.value for kind in Kind if kind.value in there]
    named = ours + [kind for kind in there if kind not in ours and kind != OVERALL]
    return named if len(named) == 1 and covers_all(report, named[0]) else named + [OVERALL] * (OVERALL in there)


def covers_all(report: EvaluationReport, kind: str) -> bool:
    """Whether every question is of that kind."""
    return all(question.kind == kind for question in report.questions)


def rows_of(report: EvaluationReport, kind: str) -> list[Row]:
    """The rows of one kind of questions, in their order."""
    return [row for row in report.rows if row.kind == kind]


def kind_title(kind: str) -> str:
    """`multi hop`, `all questions`."""
    return kind.replace("_", " ") if kind else "all questions"


def gained(metrics: Sequence[Metric]) -> list[Metric]:
    """Those of the metrics that a table of gains shows: the main ones in which more is better."""
    return [metric for metric in metrics if metric.text is share and metric.name not in ("ndcg", "precision")]


def gold_text(gold: Gold) -> str:
    """A passage needed, as people read it: `notes.md, chunk 3: "the evidence"`."""
    place = gold.document + ("" if gold.ordinal is None else f", chunk {gold.ordinal}")
    quoted = f"“{gold.text}”" if gold.text else ""
    return ": ".join(part for part in (place, quoted) if part)
