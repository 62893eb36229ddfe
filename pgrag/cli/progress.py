"""Shows an ingest on standard error while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pgrag.cli.output import amount, note

if TYPE_CHECKING:
    from pgrag.types import IngestProgress

SECONDS_BETWEEN_LINES = 2.0


def _summary(state: IngestProgress) -> str:
    parts = [
        amount(state.entities, "entity", "entities"),
        amount(state.relations, "relation"),
        amount(state.facts, "fact"),
    ]
    if state.chunks_failed:
        parts.append(f"{state.chunks_failed:,} failed")
    if state.stale:
        parts.append(f"{state.stale:,} profiles to refresh")
    return ", ".join(parts)


@contextmanager
def ingest_progress(wanted: bool | None, *, verbose: int) -> Iterator[Callable[[IngestProgress], None] | None]:
    """The callback to hand to `PgRAG.ingest`, or None.

    `wanted` None: a bar, if standard error is a terminal that no log is written to. True without a terminal:
    a line every two seconds.
    """
    terminal = sys.stderr.isatty()
    if wanted is False or (wanted is None and (not terminal or verbose)):
        yield None
    elif terminal and not verbose:
        with _bar() as show:
            yield show
    else:
        yield _lines()


@contextmanager
def _bar() -> Iterator[Callable[[IngestProgress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("chunks"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[summary]}"),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("reading", total=None, summary="")

        def show(state: IngestProgress) -> None:
            progress.update(
                task,
                description=amount(state.documents, "document"),
                total=state.chunks_total or None,
                completed=state.chunks_done + state.chunks_failed,
                summary=_summary(state),
            )

        yield show


def _lines() -> Callable[[IngestProgress], None]:
    next_line = time.monotonic()

    def show(state: IngestProgress) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            done = state.chunks_done + state.chunks_failed
            note(f"{amount(state.documents, 'document')}, {done:,}/{state.chunks_total:,} chunks, {_summary(state)}")

    return show
