"""The command that asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pgrag.cli.output import emit, emit_json, note, one_line
from pgrag.cli.session import Session, takes_session
from pgrag.types import ChunkRanking, Keywords, Mode

if TYPE_CHECKING:
    from pgrag.rag import PgRAG
    from pgrag.types import QueryResult, Reference

SEARCH, BUDGET, KEYWORDS = "Search", "Context", "Keywords"

_EPILOG = """[bold]Examples[/bold]

pgrag query "Which incident made us move the ledger?"

pgrag query "What changed in billing?" --mode global --hops 2

pgrag query "ORA-01555" --low ORA-01555 --only-context

pgrag --json query "Who owns search?" | jq .references"""


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command(rich_help_panel="Look", epilog=_EPILOG)(query)


def _number(text: str, panel: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(metavar="N", help=text, rich_help_panel=panel)
    return option


@takes_session
def query(
    session: Session,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question, in quotes.")],
    mode: Annotated[Mode, typer.Option(help="Where to search.", rich_help_panel=SEARCH)] = Mode.MIX,
    top_k: Annotated[int | None, _number("Entities and relations a channel (default 40).", SEARCH)] = None,
    chunk_top_k: Annotated[int | None, _number("Passages in the context at most (default 20).", SEARCH)] = None,
    chunk_ranking: Annotated[
        ChunkRanking | None, typer.Option(help="Order of the passages (default pagerank).", rich_help_panel=SEARCH)
    ] = None,
    degree_cap: Annotated[int | None, _number("Edges followed from an entity at most (default 32).", SEARCH)] = None,
    hops: Annotated[int | None, _number("Steps to walk from the entities found, 1 to 3 (default 1).", SEARCH)] = None,
    low: Annotated[
        list[str] | None,
        typer.Option(metavar="KEYWORD", help="A thing to look for; repeatable.", rich_help_panel=KEYWORDS),
    ] = None,
    high: Annotated[
        list[str] | None,
        typer.Option(metavar="KEYWORD", help="A theme to look for; repeatable.", rich_help_panel=KEYWORDS),
    ] = None,
    max_entity_tokens: Annotated[int | None, _number("Tokens for entities (default 6000).", BUDGET)] = None,
    max_relation_tokens: Annotated[int | None, _number("Tokens for relations (default 8000).", BUDGET)] = None,
    max_total_tokens: Annotated[int | None, _number("Tokens of the whole prompt (default 30000).", BUDGET)] = None,
    only_context: Annotated[
        bool, typer.Option("--only-context", help="Print what was found; do not answer.", rich_help_panel=BUDGET)
    ] = False,
) -> None:
    """Answer a question from the documents, with numbered references. --low and --high replace the keywords found."""
    settings = session.settings()
    keywords = Keywords(low=tuple(low or ()), high=tuple(high or ())) if low or high else None

    async def work(rag: PgRAG) -> QueryResult:
        return await rag.query(
            question,
            mode=mode,
            top_k=top_k,
            chunk_top_k=chunk_top_k,
            chunk_ranking=chunk_ranking,
            degree_cap=degree_cap,
            hops=hops,
            max_entity_tokens=max_entity_tokens,
            max_relation_tokens=max_relation_tokens,
            max_total_tokens=max_total_tokens,
            keywords=keywords,
            only_context=only_context,
        )

    result = session.with_rag(settings, work)
    if session.json:
        emit_json(result)
    else:
        _print(result, only_context)
    if session.verbose:
        note("timings: " + ", ".join(f"{step} {seconds:.3f} s" for step, seconds in result.timings.items()))


def _print(result: QueryResult, only_context: bool) -> None:
    parts = [result.context if only_context else result.answer]
    if result.references:
        parts.append("\n".join(_reference(reference) for reference in result.references))
    if result.notice:
        parts.append(result.notice)
    emit("\n\n".join(part.strip() for part in parts))


def _reference(reference: Reference) -> str:
    source = f"{reference.title} — {reference.uri}" if reference.title else reference.uri
    page = "" if reference.page is None else f"page {reference.page}, "
    return one_line(
        f"[{reference.number}] {source}, chunk {reference.ordinal}, {page}characters {reference.start}–{reference.end}"
    )
