"""Commands that change or list documents: init, ingest, delete, refresh, documents, status."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgrag.cli.mask import mask
from pgrag.cli.output import amount, emit, emit_json, fields, note, size, table
from pgrag.cli.progress import ingest_progress
from pgrag.cli.session import Session, takes_session
from pgrag.errors import DocumentError, ExitCode, UsageError

if TYPE_CHECKING:
    from pgrag.config import Settings
    from pgrag.rag import PgRAG
    from pgrag.types import (
        DeleteReport,
        Document,
        DocumentFailure,
        DocumentInfo,
        IngestReport,
        ReembedReport,
        RefreshReport,
        Stats,
    )

STDIN = "-"
SHOWN_FAILURES = 20  # in `status`; `documents --status failed` lists them all


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    work, look = "Documents", "Look"
    app.command(rich_help_panel=work)(init)
    app.command(rich_help_panel=work, epilog=_INGEST_EPILOG)(ingest)
    app.command(rich_help_panel=work, epilog=_DELETE_EPILOG)(delete)
    app.command(rich_help_panel=work)(refresh)
    app.command(rich_help_panel=work)(reembed)
    app.command(rich_help_panel=look)(status)
    app.command("documents", rich_help_panel=look)(list_documents)


_INGEST_EPILOG = """[bold]Examples[/bold]

pgrag ingest docs/ report.html

pgrag ingest docs/ --label handbook --chunk-tokens 600

pgrag ingest - --uri note:2024-05-01 < note.txt

Text, Markdown, HTML and JSON lines are read. Unchanged documents are skipped. Safe to stop and to run again."""

_DELETE_EPILOG = """[bold]Examples[/bold]

pgrag delete docs/old.md

pgrag delete --yes https://example.com/page.html"""


@takes_session
def init(session: Session) -> None:
    """Create the workspace: its schema, tables and functions. Does nothing where it exists."""
    from pgrag.llm.keyless import limit_blas_threads

    settings = session.settings()
    limit_blas_threads()  # before anything imports numpy
    from pgrag.rag import initialise

    created = asyncio.run(initialise(settings))
    if session.json:
        emit_json({"workspace": settings.workspace, "schema": settings.schema_name, "created": created})
    elif created:
        emit(f"created workspace {settings.workspace} (schema {settings.schema_name}); next: pgrag ingest PATH")
    else:
        emit(f"workspace {settings.workspace} (schema {settings.schema_name}) is there already; nothing changed")


@takes_session
def ingest(
    session: Session,
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files and folders; - is standard input.")],
    uri: Annotated[
        str | None, typer.Option(metavar="URI", help="What the document on standard input is called.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="LABEL", help="Label the documents; repeatable.")] = None,
    chunk_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of a chunk at most (default 1200).")
    ] = None,
    chunk_overlap: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens a chunk repeats from the one before (default 100).")
    ] = None,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Show progress (default on a terminal).")
    ] = None,
) -> int:
    """Read documents, find their entities, relations and facts, and store them. Creates the workspace if need be."""
    if paths.count(STDIN) > 1 or (uri is not None) != (STDIN in paths):
        raise UsageError("standard input is one document: give one - and its name with --uri, or neither")
    settings = session.settings(chunk_tokens=chunk_tokens, chunk_overlap=chunk_overlap)
    sources: list[Path | Document] = []
    for path in paths:
        sources.append(_read_stdin(uri) if path == STDIN and uri is not None else Path(path))

    async def work(rag: PgRAG) -> IngestReport:
        with ingest_progress(progress, verbose=session.verbose) as show:
            return await rag.ingest(sources, labels=tuple(label or ()), progress=show)

    report = session.with_rag(settings, work)
    if session.json:
        emit_json(report)
    else:
        _print_ingest(report)
    return ExitCode.SOME_FAILED if report.failures else ExitCode.OK


def _read_stdin(uri: str) -> Document:
    from pgrag.loaders import load_stdin
    from pgrag.types import DocumentFailure

    [loaded] = load_stdin(sys.stdin.buffer, uri)
    if isinstance(loaded, DocumentFailure):
        raise DocumentError(f"standard input ({uri}) {loaded.error}")
    return loaded


def _print_ingest(report: IngestReport) -> None:
    failed = len({failure.uri for failure in report.failures})
    lines = [
        f"added {report.added}, updated {report.updated}, skipped {report.skipped}, failed {failed} documents: "
        f"{amount(report.chunks, 'chunk')} ({report.chunks_reused:,} reused) in {report.seconds:.1f} s"
    ]
    lines += [f"failed: {_failure(failure)}" for failure in report.failures]
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


def _failure(failure: DocumentFailure) -> str:
    place = failure.uri if failure.ordinal is None else f"{failure.uri} (chunk {failure.ordinal})"
    return f"{place}: {failure.error}"


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
        return Path(path).resolve().as_uri()  # as pgrag.loaders makes it
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
    """Show the size of the three layers, what is pending, what failed and why, and the models."""
    settings = session.settings()

    async def work(rag: PgRAG) -> tuple[Stats, list[DocumentFailure]]:
        return await rag.stats(), await rag.failures()

    stats, failures = session.with_rag(settings, work)
    if session.json:
        emit_json({"stats": stats, "failures": failures, "llm_model": settings.llm_model})
    else:
        _print_status(settings, stats, failures)


def _print_status(settings: Settings, stats: Stats, failures: Sequence[DocumentFailure]) -> None:
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
    rows += [("failed", _failure(failure)) for failure in failures[:SHOWN_FAILURES]]
    if len(failures) > SHOWN_FAILURES:
        rows.append(("failed", f"... and {len(failures) - SHOWN_FAILURES:,} more: pgrag --json status"))
    emit(fields(rows))


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
