"""Commands that read documents and pay for it: ingest, retry."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pgrag.cli.output import amount, dollars, emit, emit_json
from pgrag.cli.progress import ingest_progress
from pgrag.cli.session import Session, takes_session
from pgrag.errors import BudgetError, DocumentError, ExitCode, UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from pgrag.config import Settings
    from pgrag.rag import PgRAG
    from pgrag.types import Document, DocumentFailure, IngestEstimate, IngestReport

T = TypeVar("T")

STDIN = "-"
CUT, MODELS = "Chunks", "Models and cost"

_EPILOG = """[bold]Examples[/bold]

pgrag ingest docs/ report.html

pgrag ingest docs/ --label handbook --metadata team=search --chunk-tokens 600

pgrag ingest docs/ --llm-model openai/gpt-4o-mini --dry-run

pgrag ingest docs/ --llm-model openai/gpt-4o-mini --max-cost 2.50

pgrag ingest - --uri note:2024-05-01 --published-at 2024-05-01 < note.txt

Text, Markdown, HTML and JSON lines are read. Unchanged documents are skipped. Safe to stop and to run again."""

Progress = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show progress (default on a terminal).")
]
LLMModel = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL", help="LiteLLM model, e.g. openai/gpt-4o-mini (PGRAG_LLM_MODEL).", rich_help_panel=MODELS
    ),
]
MaxCost = Annotated[
    float | None,
    typer.Option(metavar="DOLLARS", help="Stop before this run spends more; exit code 4.", rich_help_panel=MODELS),
]


def register(app: typer.Typer, panel: str) -> None:
    """Add this module's commands."""
    app.command(rich_help_panel=panel, epilog=_EPILOG)(ingest)
    app.command(rich_help_panel=panel)(retry)


@takes_session
def ingest(
    session: Session,
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files and folders; - is standard input.")],
    uri: Annotated[
        str | None, typer.Option(metavar="URI", help="What the document on standard input is called.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="LABEL", help="Label the documents; repeatable.")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Metadata of documents that do not say it themselves; repeatable."),
    ] = None,
    published_at: Annotated[
        str | None, typer.Option(metavar="DATE", help="Date of documents that have none, as 2024-05-31.")
    ] = None,
    chunk_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of a chunk at most (default 1200).", rich_help_panel=CUT)
    ] = None,
    chunk_overlap: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Tokens a chunk repeats from the one before (default 100).", rich_help_panel=CUT
        ),
    ] = None,
    split_by: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Also end a chunk after each TEXT; \\n is a line end.", rich_help_panel=CUT),
    ] = None,
    split_only: Annotated[
        bool,
        typer.Option("--split-only", help="End chunks nowhere else; longer parts are errors.", rich_help_panel=CUT),
    ] = False,
    llm_model: LLMModel = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Estimate calls, tokens and cost; ask no model.", rich_help_panel=MODELS),
    ] = False,
    max_cost: MaxCost = None,
    progress: Progress = None,
) -> int:
    """Read documents, find their entities, relations and facts, and store them. Creates the workspace if need be."""
    if paths.count(STDIN) > 1 or (uri is not None) != (STDIN in paths):
        raise UsageError("standard input is one document: give one - and its name with --uri, or neither")
    settings = session.settings(
        chunk_tokens=chunk_tokens,
        chunk_overlap=chunk_overlap,
        split_by_character=None if split_by is None else _unescaped(split_by),
        split_by_character_only=split_only or None,
        llm_model=llm_model,
        max_cost=max_cost,
    )
    labels, pairs, date = tuple(label or ()), _pairs(metadata or ()), _date(published_at)
    sources: list[Path | Document] = []
    for path in paths:
        sources.append(_read_stdin(uri) if path == STDIN and uri is not None else Path(path))

    async def estimate(rag: PgRAG) -> IngestEstimate:
        return await rag.estimate(sources, labels=labels, metadata=pairs, published_at=date)

    async def work(rag: PgRAG) -> IngestReport:
        with ingest_progress(progress, verbose=session.verbose) as show:
            return await rag.ingest(sources, labels=labels, metadata=pairs, published_at=date, progress=show)

    if dry_run:
        estimated = session.with_rag(settings, estimate)
        if session.json:
            emit_json(estimated)
        else:
            _print_estimate(estimated)
        return ExitCode.SOME_FAILED if estimated.failures else ExitCode.OK
    return _finish(session, within_budget(session, settings, work))


@takes_session
def retry(session: Session, llm_model: LLMModel = None, max_cost: MaxCost = None, progress: Progress = None) -> int:
    """Try the chunks that failed again, and finish those that still wait."""
    settings = session.settings(llm_model=llm_model, max_cost=max_cost)

    async def work(rag: PgRAG) -> IngestReport:
        with ingest_progress(progress, verbose=session.verbose) as show:
            return await rag.retry(progress=show)

    report = within_budget(session, settings, work)
    return _finish(session, report, f"tried {amount(report.chunks, 'chunk')} again in {report.seconds:.1f} s")


def within_budget(session: Session, settings: Settings, work: Callable[[PgRAG], Awaitable[T]]) -> T:
    """`Session.with_rag`; the error at the end of the money names the option."""
    try:
        return session.with_rag(settings, work)
    except BudgetError as error:
        raise BudgetError(f"{error} (--max-cost DOLLARS; each run may spend so much)") from error


def _finish(session: Session, report: IngestReport, first: str = "") -> int:
    if session.json:
        emit_json(report)
    else:
        _print_report(report, first)
    return ExitCode.SOME_FAILED if report.failures else ExitCode.OK


# ---------------------------------------------------------------- what is given


def _unescaped(text: str) -> str:
    r"""With \n, \t and \\ as Python means them: most shells cannot write a line end."""
    return re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t", "\\": "\\"}[match[1]], text)


def _pairs(given: Sequence[str]) -> Mapping[str, str]:
    pairs: dict[str, str] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"--metadata {pair!r}: write KEY=VALUE")
        pairs[key] = value
    return pairs


def _date(given: str | None) -> datetime | None:
    from pgrag.documents.loaders.fields import moment_of

    try:
        return moment_of(given)
    except UsageError:
        raise UsageError(f"--published-at {given!r} is no ISO 8601 date such as 2024-05-31") from None


def _read_stdin(uri: str) -> Document:
    from pgrag.documents.loaders import load_stdin
    from pgrag.types import DocumentFailure

    [loaded] = load_stdin(sys.stdin.buffer, uri)
    if isinstance(loaded, DocumentFailure):
        raise DocumentError(f"standard input ({uri}) {loaded.error}")
    return loaded


# ---------------------------------------------------------------- what is printed


def failure_line(failure: DocumentFailure) -> str:
    """What failed and why."""
    place = failure.uri if failure.ordinal is None else f"{failure.uri} (chunk {failure.ordinal})"
    return f"{place}: {failure.error}"


def _print_estimate(estimate: IngestEstimate) -> None:
    failed = len({failure.uri for failure in estimate.failures})
    lines = [
        f"would add {estimate.documents_new:,}, update {estimate.documents_changed:,}, "
        f"skip {estimate.documents_skipped:,}, fail {failed:,} documents: "
        f"{amount(estimate.chunks, 'chunk')}, {estimate.chunks_to_extract:,} to extract"
    ]
    if estimate.extraction_model is not None:
        lines.append(
            f"{estimate.extraction_model}: {amount(estimate.llm_calls, 'call')} at most, about "
            f"{estimate.prompt_tokens:,} prompt and {estimate.completion_tokens:,} completion tokens"
        )
    lines.append(f"{estimate.embedding_model}: about {estimate.embedding_tokens:,} tokens to embed")
    if estimate.cost is None:
        lines.append("cost: not known, a model has no price in LiteLLM's map")
    else:
        lines.append(f"cost: about {dollars(estimate.cost)}" if estimate.cost else "cost: none")
    lines += [f"failed: {failure_line(failure)}" for failure in estimate.failures]
    lines.append(estimate.assumptions)
    emit("\n".join(" ".join(line.split()) for line in lines))


def _print_report(report: IngestReport, first: str) -> None:
    failed = len({failure.uri for failure in report.failures})
    lines = [
        first
        or f"added {report.added}, updated {report.updated}, skipped {report.skipped}, failed {failed} documents: "
        f"{amount(report.chunks, 'chunk')} ({report.chunks_reused:,} reused) in {report.seconds:.1f} s"
    ]
    lines += [f"failed: {failure_line(failure)}" for failure in report.failures]
    lines += [f"nothing found in: {uri}" for uri in report.empty]
    if report.changed_settings:
        lines.append(
            f"made with other settings and left as they are: {len(report.changed_settings):,} "
            f"({', '.join(report.changed_settings[:3])}{' ...' if len(report.changed_settings) > 3 else ''}); "
            "delete and ingest them again to change them"
        )
    if report.dropped:
        lines.append("left out: " + ", ".join(f"{count:,} {why}" for why, count in sorted(report.dropped.items())))
    if report.notice:
        lines.append(report.notice)
    emit("\n".join(" ".join(line.split()) for line in lines))
