"""Shows an evaluation: while it runs on standard error, then its tables."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pgrag.cli.output import amount, emit, note, one_line, table
from pgrag.cli.progress import SECONDS_BETWEEN_LINES

if TYPE_CHECKING:
    from pgrag.evaluate.presentation import Metric
    from pgrag.evaluate.results import EvaluationReport, Row

LEAST_NEEDED = ("precision", "nDCG", "recall@2", "recall@10", "MRR")
"""Columns that a terminal does without where a table is too wide, in this order; report files have everything."""


@contextmanager
def searches_progress(wanted: bool | None, *, verbose: int) -> Iterator[Callable[[int, int], None] | None]:
    """The callback to hand to `PgRAG.evaluate`, or None: a bar on a terminal that no log is written to, with `wanted`
    elsewhere a line now and then."""
    terminal = sys.stderr.isatty()
    if wanted is False or (wanted is None and (not terminal or verbose)):
        yield None
    elif terminal and not verbose:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("questions asked"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield _lines()


def _lines() -> Callable[[int, int], None]:
    next_line = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            note(f"{done:,}/{total:,} questions asked")

    return show


def print_report(report: EvaluationReport) -> None:
    """The tables of each kind of question, then what they let one conclude."""
    from pgrag.evaluate.conclusions import in_words
    from pgrag.evaluate.presentation import gained, kind_title, kinds, metrics_of, rows_of

    for kind in kinds(report):
        rows = rows_of(report, kind)
        metrics = metrics_of(report, rows)
        title = f"{kind_title(kind) if kind else 'all'}: {amount(rows[0].questions, 'question')}"
        shown = _values(rows, metrics)
        if _fits(shown):
            emit(f"{title} (± half of the 95 % interval)")
        else:
            emit(title)
            shown = _values(rows, metrics, spread=False)
        _table(shown)
        if better := [row for row in rows if row.gains]:
            emit(f"gain over {report.baseline} [95 % interval] (* leaves out 0)")
            _table(_gains(better, gained(metrics)))
        emit("")
    if report.verdicts:
        _print_verdicts(report)
    for line in [*in_words(report), *(f"warning: {' '.join(warning.split())}" for warning in report.warnings)]:
        emit(_wrapped(line))


def _wrapped(line: str) -> str:
    """On a terminal, broken between words."""
    if not sys.stdout.isatty():
        return line
    from rich.console import Console

    begins = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(line.lstrip(), Console().width, initial_indent=begins, subsequent_indent=begins + "  ")


def _values(rows: Sequence[Row], metrics: Sequence[Metric], *, spread: bool = True) -> list[list[str]]:
    failed = any(row.errors for row in rows)
    return [
        ["variant", *["failed"] * failed, *(metric.title for metric in metrics)],
        *(
            [row.variant, *[str(row.errors)] * failed]
            + [metric.estimate(row.metrics.get(metric.name), spread=spread) for metric in metrics]
            for row in rows
        ),
    ]


def _gains(rows: Sequence[Row], metrics: Sequence[Metric]) -> list[list[str]]:
    return [
        ["variant", *(metric.title for metric in metrics)],
        *([row.variant, *(metric.gain(row.gains.get(metric.name)) for metric in metrics)] for row in rows),
    ]


def _table(shown: list[list[str]]) -> None:
    """The table; without some columns where a terminal is too narrow for it."""
    left_out = []
    for title in LEAST_NEEDED:
        if _fits(shown):
            break
        if title in shown[0]:
            place = shown[0].index(title)
            shown = [row[:place] + row[place + 1 :] for row in shown]
            left_out.append(title)
    table(shown[0], shown[1:])
    if left_out:
        emit(f"(left out, for a wider terminal: {', '.join(left_out)})")


def _fits(shown: Sequence[Sequence[str]]) -> bool:
    """Whether a table is no wider than the terminal; a label may be broken at its spaces."""
    if not sys.stdout.isatty():
        return True
    from rich.console import Console

    labels = [part for row in shown for part in one_line(row[0]).split()]
    widths = [max(map(len, labels)), *(max(map(len, column)) for column in list(zip(*shown, strict=True))[1:])]
    return sum(widths) + 2 * (len(widths) - 1) <= Console().width


def _print_verdicts(report: EvaluationReport) -> None:
    from pgrag.evaluate.presentation import kind_title, share

    emit("judged by a model, share of the questions")
    table(
        ["criterion", "kind", "questions", "first", "wins", "second", "wins", "tie"],
        (
            [
                verdict.criterion, kind_title(verdict.kind), verdict.questions, verdict.first,
                share(verdict.first_wins), verdict.second, share(verdict.second_wins), share(verdict.ties),
            ]
            for verdict in report.verdicts
        ),
    )  # fmt: skip
    emit("")
