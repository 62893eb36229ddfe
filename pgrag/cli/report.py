"""Shows an evaluation: while it runs on standard error, then its tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pgrag.cli.output import amount, emit, note, table
from pgrag.cli.progress import SECONDS_BETWEEN_LINES

if TYPE_CHECKING:
    from pgrag.evaluate.results import EvaluationReport


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
    from pgrag.evaluate.report import best_line, gained, kind_title, kinds, metrics_of, rows_of

    for kind in kinds(report):
        rows = rows_of(report, kind)
        metrics = metrics_of(report, rows)
        failed = any(row.errors for row in rows)
        title = kind_title(kind) if kind else "all"
        emit(f"{title}: {amount(rows[0].questions, 'question')} (± half of the 95 % interval)")
        table(
            ["variant", *["failed"] * failed, *(metric.title for metric in metrics)],
            (
                [row.variant, *[row.errors] * failed]
                + [metric.estimate(row.metrics.get(metric.name)) for metric in metrics]
                for row in rows
            ),
        )
        if better := [row for row in rows if row.gains]:
            shown = gained(metrics)
            emit(f"gain over {report.baseline} [95 % interval] (* leaves out 0)")
            table(
                ["variant", *(metric.title for metric in shown)],
                ([row.variant, *(metric.gain(row.gains.get(metric.name)) for metric in shown)] for row in better),
            )
        emit("")
    if report.verdicts:
        _print_verdicts(report)
    if best := best_line(report):
        emit(best)
    for warning in report.warnings:
        emit(f"warning: {' '.join(warning.split())}")


def _print_verdicts(report: EvaluationReport) -> None:
    from pgrag.evaluate.report import kind_title, share

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
