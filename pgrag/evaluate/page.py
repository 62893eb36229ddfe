"""The report as one HTML file: plots, tables, every question. It holds no script and loads nothing.

Questions, passages and answers are text of documents that anybody may have written: all of it goes through `escaped`.
The page is XML as well, and its policy keeps a browser from running a script even if one slipped in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from pgrag.evaluate.conclusions import in_words
from pgrag.evaluate.matching import by_document
from pgrag.evaluate.plots import Interval, Series, curves, escaped, forest, scatter
from pgrag.evaluate.presentation import (
    Metric,
    count,
    dollars,
    gained,
    gold_text,
    headline_k,
    kind_title,
    kinds,
    metrics_of,
    milliseconds,
    rows_of,
    share,
    variants,
)
from pgrag.evaluate.results import EvaluationReport, Outcome, Question, Row

SHOWN_QUESTIONS = 1000
"""Questions in the page; the JSON report holds them all."""
SHOWN_CHARACTERS = 1500
"""Of a passage, an answer or an error."""
SHOWN_FOUND = 20
"""Passages found, of one variant for one question."""

_HEAD = """<!DOCTYPE html>
<html lang="en" xmlns="http://www.w3.org/1999/xhtml">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="generator" content="pgrag eval"/>
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
"""


def to_html(report: EvaluationReport) -> str:
    """The page, to be stored as UTF-8."""
    style = files("pgrag.evaluate").joinpath("page.css").read_text("utf-8")
    parts = [
        _HEAD.format(title=escaped(f"{report.name} — pgrag evaluation"), style=style),
        _top(report),
        f'<h2>Plots</h2>\n<div class="plots">\n{"".join(_plots(report))}</div>\n',
        _tables(report),
        _verdicts(report),
        _questions(report),
        _settings(report),
        "</body>\n</html>\n",
    ]
    return "".join(parts)


def _top(report: EvaluationReport) -> str:
    made = f"{len(report.questions):,} questions, {len(variants(report))} variants, {report.created_at}"
    parts = [f"<h1>{_given(report.name)}</h1>\n<p>{escaped(made)}</p>\n"]
    if lines := in_words(report):
        parts.append(f'<div class="best">{"".join(f"<p>{_given(line)}</p>" for line in lines)}</div>\n')
    if report.warnings:
        items = "".join(f"<li>{_given(warning)}</li>" for warning in report.warnings)
        parts.append(f'<div class="warnings"><ul>{items}</ul></div>\n')
    return "".join(parts)


# ---------------------------------------------------------------- plots


def _plots(report: EvaluationReport) -> Iterable[str]:
    """The figures that the report has values for."""
    styles = {label: number for number, label in enumerate(variants(report))}
    groups = [(kind_title(kind), rows_of(report, kind)) for kind in kinds(report)]
    if not groups:
        return
    main, overall = f"recall@{headline_k(report)}", groups[-1][1]
    lines = [Series(row.variant, styles[row.variant], _by_k(report, row)) for row in overall]
    if any(line.points for line in lines):
        title = "Recall at k"
        yield _figure(
            title,
            f"Share of the needed passages among the first k, {groups[-1][0]}",
            curves(title, "k", "recall", [line for line in lines if line.points], x_ticks=report.ks),
        )
    if shown := _intervals(groups, main, styles):
        title = f"{main} by kind of question"
        yield _figure(title, "Mean and 95 % interval", forest(title, main, shown, text=share, ends=(0.0, 1.0)))
    if shown := _intervals(groups, main, styles, gains=True):
        title = f"Gain over {report.baseline} in {main}"
        caption = "Paired difference on the same questions and its 95 % interval; * leaves out 0"
        yield _figure(title, caption, forest(title, f"difference in {main}", shown, text=_signed, zero=True))
    points = [
        Series(row.variant, styles[row.variant], [(row.metrics["seconds"].mean, row.metrics[main].mean)])
        for row in overall
        if "seconds" in row.metrics and main in row.metrics
    ]
    if points:
        title = "Time against recall"
        yield _figure(
            title,
            "Upper left is better",
            scatter(title, "milliseconds a question", main, points, x_text=milliseconds),
        )
    for name, title, label, text in (
        ("cost", "Cost a question", "US dollars", dollars),
        ("context_tokens", "Context a question", "tokens", count),
    ):
        shown = _intervals(groups[-1:], name, styles)
        if any(interval.mean for _, group in shown for interval in group):
            yield _figure(title, "Mean and 95 % interval", forest(title, label, shown, text=text, ends=(0.0, 0.0)))


def _figure(title: str, caption: str, plot: str) -> str:
    return f"<figure><figcaption>{escaped(title)}<small>{escaped(caption)}</small></figcaption>{plot}</figure>\n"


def _by_k(report: EvaluationReport, row: Row) -> list[tuple[float, float]]:
    return [(k, row.metrics[f"recall@{k}"].mean) for k in report.ks if f"recall@{k}" in row.metrics]


def _intervals(
    groups: Sequence[tuple[str, Sequence[Row]]], name: str, styles: Mapping[str, int], *, gains: bool = False
) -> list[tuple[str, list[Interval]]]:
    shown = []
    for title, rows in groups:
        intervals = []
        for row in rows:
            found = (row.gains if gains else row.metrics).get(name)
            if found is not None:
                mark = "*" if gains and found.significant else ""
                style = styles[row.variant]
                intervals.append(Interval(row.variant, style, found.low, found.mean, found.high, mark))
        if intervals:
            shown.append((title, intervals))
    return shown


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + share(value)


# ---------------------------------------------------------------- tables


def _tables(report: EvaluationReport) -> str:
    parts = ["<h2>Numbers</h2>\n<p>± is half the width of the 95 % interval.</p>\n"]
    for kind in kinds(report):
        rows = rows_of(report, kind)
        metrics = metrics_of(report, rows)
        parts.append(f"<h3>{_given(kind_title(kind))}</h3>\n")
        parts.append(_table("", ["variant", "questions", "failed"], metrics, [_values(row, metrics) for row in rows]))
        better = [row for row in rows if row.gains]
        if better:
            caption = f"Gain over {report.baseline}; * its interval leaves out 0"
            shown = gained(metrics)
            parts.append(_table(caption, ["variant"], shown, [_gains(row, shown) for row in better]))
    return "".join(parts)


def _values(row: Row, metrics: Sequence[Metric]) -> list[str]:
    cells = [_given(row.variant), f"{row.questions:,}", f"{row.errors:,}"]
    return [
        f"<td>{cell}</td>" for cell in [*cells, *(metric.estimate(row.metrics.get(metric.name)) for metric in metrics)]
    ]


def _gains(row: Row, metrics: Sequence[Metric]) -> list[str]:
    cells = [f"<td>{_given(row.variant)}</td>"]
    for metric in metrics:
        found = row.gains.get(metric.name)
        text = metric.gain(found)
        side = "" if found is None or not text.endswith("*") else "up" if found.mean > 0 else "down"
        cells.append(f'<td class="{side}">{text}</td>' if side else f"<td>{text}</td>")
    return cells


def _table(caption: str, first: Sequence[str], metrics: Sequence[Metric], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escaped(head)}</th>" for head in [*first, *(metric.title for metric in metrics)])
    body = "".join(f"<tr>{''.join(cells)}</tr>\n" for cells in rows)
    above = f"<caption>{escaped(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{above}<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n'


def _verdicts(report: EvaluationReport) -> str:
    if not report.verdicts:
        return ""
    rows = "".join(
        f"<tr><td>{_given(verdict.criterion)}</td><td>{_given(kind_title(verdict.kind))}</td>"
        f"<td>{verdict.questions:,}</td><td>{_given(verdict.first)} {share(verdict.first_wins)}</td>"
        f"<td>{_given(verdict.second)} {share(verdict.second_wins)}</td><td>{share(verdict.ties)}</td></tr>\n"
        for verdict in report.verdicts
    )
    heads = "".join(f"<th>{head}</th>" for head in ("criterion", "kind", "questions", "prefers", "or", "tie"))
    return (
        "<h2>Answers compared by a model</h2>\n<p>Shares of the questions; both orders of the answers asked.</p>\n"
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n'
    )


# ---------------------------------------------------------------- every question


def _questions(report: EvaluationReport) -> str:
    k = headline_k(report)
    outcomes: dict[str, list[Outcome]] = {}
    for outcome in report.outcomes:
        outcomes.setdefault(outcome.question, []).append(outcome)
    scored = sorted(
        ((_score(outcomes.get(question.id, ()), k), question) for question in report.questions),
        key=lambda pair: (pair[0] is None, pair[0] or 0.0),
    )
    parts = [
        f"<h2>Questions</h2>\n<p>The worst first, by the mean of recall@{k} over the "
        "variants. Passages that were needed are bold. Where a question names documents only, ranks are "
        "those of documents, else of passages.</p>\n"
    ]
    if len(scored) > SHOWN_QUESTIONS:
        parts.append(f"<p>{SHOWN_QUESTIONS:,} of {len(scored):,}; the JSON report holds them all.</p>\n")
    parts += [
        _question(question, score, outcomes.get(question.id, ()), k) for score, question in scored[:SHOWN_QUESTIONS]
    ]
    return "".join(parts)


def _score(outcomes: Sequence[Outcome], k: int) -> float | None:
    """Mean over the variants; a failed search counts 0. None where nothing could be right or wrong."""
    values = [0.0 if outcome.error else _value(outcome, k) for outcome in outcomes]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _value(outcome: Outcome, k: int) -> float | None:
    return outcome.exact_match if outcome.recall is None else outcome.recall.get(k)


def _question(question: Question, score: float | None, outcomes: Sequence[Outcome], k: int) -> str:
    shown = "–" if score is None else share(score)
    kind = f' <span class="tag">{escaped(kind_title(question.kind))}</span>' if question.kind else ""
    parts = [
        f'<details><summary><span class="score">{shown}</span>{_given(question.text)}{kind} '
        f'<span class="tag">{escaped(_cut(question.id, 80))}</span></summary>\n'
    ]
    parts.append(_needed(question, outcomes))
    if answers := "".join(f"<li>{_given(text)}</li>" for text in question.answers):
        parts.append(f"<p>Right answers</p><ul>{answers}</ul>\n")
    heads = "".join(f"<th>{head}</th>" for head in ("variant", f"recall@{k}", "found", "answer"))
    rows = "".join(_outcome(question, outcome, k) for outcome in outcomes)
    parts.append(
        f'<div class="scroll"><table class="words"><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table>'
        "</div></details>\n"
    )
    return "".join(parts)


def _needed(question: Question, outcomes: Sequence[Outcome]) -> str:
    """The passages needed, and the rank at which each variant found each."""
    if not question.gold:
        return ""
    ranked = [outcome for outcome in outcomes if outcome.ranks]
    heads = "".join(f"<th>{_given(outcome.variant)}</th>" for outcome in ranked)
    rows = "".join(
        f"<tr><td>{_given(gold_text(gold))}</td>{''.join(_rank(outcome.ranks[i]) for outcome in ranked)}</tr>\n"
        for i, gold in enumerate(question.gold)
    )
    return (
        f'<div class="scroll"><table class="words"><thead><tr><th>needed, found at rank</th>{heads}</tr></thead>\n'
        f"<tbody>\n{rows}</tbody></table></div>\n"
    )


def _rank(rank: int | None) -> str:
    return '<td class="down">not found</td>' if rank is None else f"<td>{rank}</td>"


def _outcome(question: Question, outcome: Outcome, k: int) -> str:
    if outcome.error:
        return (
            f'<tr><td>{_given(outcome.variant)}</td><td colspan="3" class="error">{_given(outcome.error)}</td></tr>\n'
        )
    recall = "" if outcome.recall is None else share(outcome.recall.get(k, 0.0))
    scores = ", ".join(
        f"{name} {share(value)}"
        for name, value in (("EM", outcome.exact_match), ("F1", outcome.f1))
        if value is not None
    )
    answer = "" if outcome.answer is None else _given(outcome.answer) + (f" ({scores})" if scores else "")
    return (
        f"<tr><td>{_given(outcome.variant)}</td><td>{recall}</td>"
        f"<td>{_found(question, outcome)}</td><td>{answer}</td></tr>\n"
    )


def _found(question: Question, outcome: Outcome) -> str:
    """The passages found, `uri:ordinal`, with those at the ranks of what was needed in bold."""
    ranked = [place.rpartition(":")[0] if by_document(question.gold) else place for place in outcome.found]
    distinct = list(dict.fromkeys(ranked))
    needed = {distinct[rank - 1] for rank in outcome.ranks if rank is not None and rank <= len(distinct)}
    items = (
        f"<li><strong>{_given(place)}</strong></li>" if key in needed else f"<li>{_given(place)}</li>"
        for place, key in list(zip(outcome.found, ranked, strict=True))[:SHOWN_FOUND]
    )
    return f"<ol>{''.join(items)}</ol>" if outcome.found else ""


def _settings(report: EvaluationReport) -> str:
    rows = "".join(
        f"<tr><td>{escaped(name)}</td><td>{_given(value)}</td></tr>\n" for name, value in _flat(report.settings)
    )
    return f'<h2>Settings</h2>\n<table class="words"><tbody>\n{rows}</tbody></table>\n' if rows else ""


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, list | tuple):
            yield f"{before}{name}", ", ".join(map(str, value))
        else:
            yield f"{before}{name}", "" if value is None else str(value)


def _given(text: str) -> str:
    """Text of somebody else: cut, escaped, kept from turning the writing direction of what follows."""
    return f'<span class="given">{escaped(_cut(text, SHOWN_CHARACTERS))}</span>'


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
