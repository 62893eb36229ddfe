"""Commands that change or list documents: init, delete, refresh, documents, status."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgrag.cli import ingest
from pgrag.cli.ingest import failure_line
from pgrag.cli.output import amount, dollars, emit, emit_json, fields, note, size, table
from pgrag.cli.session import Session, takes_session
from pgrag.errors import ExitCode, UsageError
from pgrag.text.masking import mask
from pgrag.types import UsageRow

if TYPE_CHECKING:
    from pgrag.config import Settings
    from pgrag.rag import PgRAG
    from pgrag.types import (
        DeleteReport,
        DocumentFailure,
        DocumentInfo,
        ReembedReport,
        RefreshReport,
        Stats,
    )

SHOWN_FAILURES = 20  # in `status`; `documents --status failed` lists them all


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    work, look = "Documents", "Look"
    app.command(rich_help_panel=work)(init)
    ingest.register(app, work)
    app.command(rich_help_panel=work, epilog=_DELETE_EPILOG)(delete)
    app.command(rich_help_panel=work)(refresh)
    app.command(rich_help_panel=work)(reembed)
    app.command(rich_help_panel=look)(status)
    app.command("documents", rich_help_panel=look)(list_documents)


_DELETE_EPILOG = """[bold]Examples[/bold]

pgrag delete docs/old.md

pgrag delete --yes https://example.com/page.html"""


@takes_session
def init(session: Session) -> None:
    """Create the workspace: its schema, tables and functions. Does nothing where it exists."""
    from pgrag.embedding.keyless import limit_blas_threads

    settings = session.settings()
    limit_blas_threads()  # before anything imports numpy
    from pgrag.factory import initialise_workspace

    created = asyncio.run(initialise_workspace(settings))
    if session.json:
        emit_json({"workspace": settings.workspace, "schema": settings.schema_name, "created": created})
    elif created:
        emit(f"created workspace {settings.workspace} (schema {settings.schema_name}); next: pgrag ingest PATH")
    else:
        emit(f"workspace {settings.workspace} (schema {settings.schema_name}) is there already; nothing changed")


@takes_session
def delete(
    session: Session,
    targets: Annotated[list[str], typer.Argument(metavar="URI_OR_PATH...", help="Documents, files or folders.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Delete documents and everything only they said: chunks, facts, entities, relations, cached model answers."""
    interactive = sys.stdin.isatty() and sys.stderr.isatty()
    if not yes and not interactive:
        raise UsageError("delete cannot ask here; add --yes to delete without asking")
    settings = session.settings()

    async def work(rag: PgRAG) -> DeleteReport | None:
        uris = _matching(targets, [document.uri for document in await rag.documents()])
        count = amount(len(uris), "document")
        if not yes and not typer.confirm(f"Delete {count} from workspace {settings.workspace}?", err=True):
            return None
        return await rag.delete(uris)

    report = session.with_rag(settings, work)
    if report is None:
        note("pgrag: nothing deleted")
        return ExitCode.SOME_FAILED
    if session.json:
        emit_json(report)
    else:
        emit(
            f"deleted {amount(report.documents, 'document')}, {amount(report.chunks, 'chunk')}, "
            f"{amount(report.entities, 'entity', 'entities')}, {amount(report.relations, 'relation')}, "
            f"{amount(report.facts, 'fact')}"
        )
        if report.missing:
            emit("\n".join(f"not in workspace {settings.workspace}: {uri}" for uri in report.missing))
    return ExitCode.SOME_FAILED if report.missing else ExitCode.OK


def _matching(targets: Sequence[str], stored: Sequence[str]) -> list[str]:
    """The stored uris that the targets name: a uri as it is, a path as the file's uri, a folder or a JSON lines file as
    all that came from it. A target that matches nothing stays, so that it is reported as missing."""
    known = set(stored)
    found: dict[str, None] = {}
    for target in targets:
        if target in known:
            found[target] = None
            continue
        uri = target if "://" in target else _file_uri(target)
        inside = [other for other in stored if other == uri or other.startswith((uri.rstrip("/") + "/", uri + "#"))]
        found.update(dict.fromkeys(inside or [target]))
    return list(found)


def _file_uri(path: str) -> str:
    try:
        return Path(path).resolve().as_uri()  # as pgrag.documents.loaders makes it
    except (OSError, RuntimeError):  # a loop of links: not a document then
        return path


@takes_session
def refresh(session: Session) -> None:
    """Recompute the descriptions and vectors of entities and relations that changed."""
    settings = session.settings()

    async def work(rag: PgRAG) -> RefreshReport:
        return await rag.refresh()

    report = session.with_rag(settings, work)
    if session.json:
        emit_json(report)
    else:
        emit(f"refreshed {amount(report.entities, 'entity', 'entities')}, {amount(report.relations, 'relation')}")


@takes_session
def reembed(session: Session) -> None:
    """Change to another embedding model: make all vectors again, without extracting anything again.

    Name the model by PGRAG_EMBEDDING_MODEL (none: the keyless one). Interrupted, run it again.
    """
    settings = session.settings()

    async def work(rag: PgRAG) -> ReembedReport:
        return await rag.reembed()

    report = session.with_rag(settings, work)
    if session.json:
        emit_json(report)
    else:
        emit(
            f"embedded {amount(report.chunks, 'chunk')}, {amount(report.facts, 'fact')}, "
            f"{amount(report.entities, 'entity', 'entities')}, {amount(report.relations, 'relation')}"
        )


@takes_session
def status(session: Session) -> None:
    """Show the size of the three layers, what is pending, what failed and why, the models, and the cost so far."""
    settings = session.settings()

    async def work(rag: PgRAG) -> tuple[Stats, list[DocumentFailure], list[UsageRow]]:
        return await rag.stats(), await rag.failures(), await rag.usage()

    stats, failures, usage = session.with_rag(settings, work)
    if session.json:
        emit_json({"stats": stats, "failures": failures, "llm_model": settings.llm_model, "usage": usage})
    else:
        _print_status(settings, stats, failures, usage)


def _print_status(
    settings: Settings, stats: Stats, failures: Sequence[DocumentFailure], usage: Sequence[UsageRow]
) -> None:
    dsn = f"embedded server in {settings.home}" if settings.dsn is None else mask(settings.dsn.get_secret_value())
    llm = settings.llm_model or "none: names and sentences; set PGRAG_LLM_MODEL for descriptions and typed relations"
    rows: list[tuple[str, object]] = [
        ("workspace", f"{stats.workspace} (schema {settings.schema_name}, {size(stats.bytes)})"),
        ("database", dsn),
        ("embeddings", f"{stats.embedding_model} ({stats.dimension} dimensions)"),
        ("LLM", llm),
        ("documents", f"{stats.documents:,} ({stats.documents_failed:,} failed, {stats.documents_empty:,} empty)"),
        ("chunks", f"{stats.chunks:,} ({stats.chunks_pending:,} pending, {stats.chunks_failed:,} failed)"),
        ("entities", f"{stats.entities:,} (from {amount(stats.mentions, 'mention')})"),
        ("relations", f"{stats.relations:,} (from {amount(stats.facts, 'fact')})"),
        ("stale", f"{stats.stale:,}" + (" (pgrag refresh recomputes them)" if stats.stale else "")),
    ]
    rows += [("cost", line) for line in _cost_lines(usage)]
    rows += [("failed", failure_line(failure)) for failure in failures[:SHOWN_FAILURES]]
    if len(failures) > SHOWN_FAILURES:
        rows.append(("failed", f"... and {len(failures) - SHOWN_FAILURES:,} more: pgrag --json status"))
    emit(fields(rows))


def _cost_lines(usage: Sequence[UsageRow]) -> list[str]:
    """The sum and, if there are several, its parts by purpose and model; none where no model was paid."""
    lines = [f"{row.purpose} by {row.model}: {_cost(row)}" for row in usage]
    if len(usage) < 2:
        return lines
    calls, prompt, completion, unpriced = (
        sum(getattr(row, name) for row in usage)
        for name in ("calls", "prompt_tokens", "completion_tokens", "calls_without_price")
    )
    cost = sum((row.cost for row in usage), Decimal(0))
    return [_cost(UsageRow("", "", calls, prompt, completion, cost, unpriced)), *lines]


def _cost(row: UsageRow) -> str:
    unpriced = f", {amount(row.calls_without_price, 'call')} without a known price" if row.calls_without_price else ""
    price = "cost not known" if row.calls_without_price == row.calls else dollars(row.cost) + unpriced
    return f"{price}, {amount(row.calls, 'call')}, {row.prompt_tokens:,} + {row.completion_tokens:,} tokens"


@takes_session
def list_documents(
    session: Session,
    only: Annotated[str | None, typer.Option("--status", metavar="STATUS", help="Only those in this state.")] = None,
) -> None:
    """List the documents of the workspace."""
    settings = session.settings()

    async def work(rag: PgRAG) -> list[DocumentInfo]:
        return await rag.documents(only)

    found = session.with_rag(settings, work)
    if session.json:
        emit_json({"documents": found})
    else:
        table(
            ("status", "chunks", "tokens", "title", "uri", "error"),
            [(d.status, d.chunks, d.tokens, d.title, d.uri, d.error) for d in found],
        )
