"""The command that asks."""

from __future__ import annotations

import json
import re
import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgrag.cli import filters
from pgrag.cli.output import amount, emit, emit_json, emit_part, note, one_line
from pgrag.cli.search_options import takes_search_options
from pgrag.cli.session import Session, takes_session
from pgrag.config import BUDGET, SEARCH
from pgrag.errors import UsageError
from pgrag.types import Keywords, Mode

if TYPE_CHECKING:
    from pgrag.rag import PgRAG
    from pgrag.search.searcher import AnswerStream
    from pgrag.types import QueryResult, Reference

KEYWORDS, ANSWER = "Keywords", "Answer"
_CITATION = re.compile(r"[\[【](\d[\d,;，、\s–-]*)[\]】]")

_EPILOG = """[bold]Examples[/bold]

pgrag query "Which incident made us move the ledger?"

pgrag query "What changed in billing?" --mode global --hops 2

pgrag query "ORA-01555" --low ORA-01555 --only-context

pgrag query "What did we promise?" --uri "contracts/*" --label signed --since 2024-01-01

pgrag query "Why did it fail?" --llm-model openai/gpt-4o-mini --response-type "one sentence"

pgrag --json query "Who owns search?" | jq .references"""


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command(rich_help_panel="Look", epilog=_EPILOG)(query)


@takes_session
@takes_search_options
def query(
    session: Session,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question, in quotes.")],
    mode: Annotated[Mode, typer.Option(help="Where to search.", rich_help_panel=SEARCH)] = Mode.MIX,
    low: Annotated[
        list[str] | None,
        typer.Option(metavar="KEYWORD", help="A thing to look for; repeatable.", rich_help_panel=KEYWORDS),
    ] = None,
    high: Annotated[
        list[str] | None,
        typer.Option(metavar="KEYWORD", help="A theme to look for; repeatable.", rich_help_panel=KEYWORDS),
    ] = None,
    metadata: filters.Metadata = None,
    label: filters.Labels = None,
    any_label: filters.AnyLabel = None,
    uri: filters.Uri = None,
    document: filters.OnlyDocument = None,
    since: filters.Since = None,
    until: filters.Until = None,
    only_context: Annotated[
        bool, typer.Option("--only-context", help="Print what was found; do not answer.", rich_help_panel=BUDGET)
    ] = False,
    only_prompt: Annotated[
        bool, typer.Option("--only-prompt", help="Print what the LLM would be sent.", rich_help_panel=BUDGET)
    ] = False,
    llm_model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="LiteLLM model that answers (PGRAG_LLM_MODEL).", rich_help_panel=ANSWER),
    ] = None,
    response_type: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help='Form of the answer (default "Multiple Paragraphs").', rich_help_panel=ANSWER
        ),
    ] = None,
    user_prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="More instructions for the answer.", rich_help_panel=ANSWER)
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Turns before, a JSON list of {"role", "content"}.', rich_help_panel=ANSWER),
    ] = None,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Print the answer as it is written (default on a terminal, with an LLM).",
            rich_help_panel=ANSWER,
        ),
    ] = None,
    **search: Any,
) -> None:
    """Answer a question from the documents, with numbered references. --low and --high replace the keywords found."""
    if stream and (session.json or only_context or only_prompt):
        raise UsageError(
            "--stream prints an answer as it is written: leave out --json, --only-context and --only-prompt"
        )
    if only_context and only_prompt:
        raise UsageError("give --only-context or --only-prompt, not both")
    settings = session.settings(llm_model=llm_model)
    answering = settings.answer_model or settings.llm_model
    if only_prompt and answering is None:
        raise UsageError("--only-prompt: no LLM is named that could be sent one; set --llm-model or PGRAG_LLM_MODEL")
    if stream is None:
        stream = answering is not None and sys.stdout.isatty() and not (session.json or only_context or only_prompt)
    options: dict[str, Any] = {
        "mode": mode,
        **search,
        "filter": filters.filter_of(metadata, label, any_label, uri, document, since, until),
        "keywords": Keywords(low=tuple(low or ()), high=tuple(high or ())) if low or high else None,
        "conversation_history": [] if history is None else _read_history(history),
        **{k: v for k, v in (("response_type", response_type), ("user_prompt", user_prompt)) if v is not None},
    }

    async def work(rag: PgRAG) -> QueryResult:
        if not stream:
            return await rag.query(question, only_context=only_context, only_prompt=only_prompt, **options)
        return await _streamed(await rag.stream(question, **options))

    result = session.with_rag(settings, work)
    if session.json:
        emit_json(result)
    elif only_context or only_prompt:
        emit((result.prompt if only_prompt else result.context).strip())
    else:
        emit("\n\n".join(([] if stream else [result.answer.strip()]) + _below(result)))
    if session.verbose:
        note("timings: " + ", ".join(f"{step} {seconds:.3f} s" for step, seconds in result.timings.items()))


async def _streamed(answer: AnswerStream) -> QueryResult:
    """Prints the pieces as they come, and an empty line after the last."""
    begun = False
    try:
        async with aclosing(answer) as pieces:
            async for piece in pieces:
                emit_part(piece if begun else piece.lstrip())
                begun = begun or bool(piece.strip())
    finally:
        if begun:
            emit("")  # whatever comes next, an error too, gets a line of its own
    emit("")
    assert answer.result is not None  # noqa: S101 - it is there after the last piece
    return answer.result


def _read_history(file: Path) -> list[Any]:
    try:
        turns = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read --history {file}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--history {file} is not JSON: {error}") from None
    if not isinstance(turns, list):
        raise UsageError(f'--history {file}: not a list of {{"role", "content"}}')
    return turns


def _below(result: QueryResult) -> list[str]:
    """What stands below an answer: the references that it cites, how many more there are, how it was made."""
    cited = _cited(result.answer)
    shown = [_reference(reference) for reference in result.references if reference.number in cited]
    more = len(result.references) - len(shown)
    if more:
        passages = f"{more:,} more passage{'s' if more > 1 else ''}" if shown else amount(more, "passage")
        shown.append(f"and {passages} in the context (--json shows them)" if shown else _uncited(passages))
    return [part for part in ("\n".join(shown), result.notice) if part]


def _uncited(passages: str) -> str:
    return f"no citation; {passages} in the context (--json shows them)"


def _cited(answer: str) -> set[int]:
    """The numbers in the answer's citations: [1], [2, 3], [4-6]."""
    cited: set[int] = set()
    for numbers in _CITATION.findall(answer):
        for part in re.split(r"[,;，、\s]+", numbers):
            first, _, last = part.replace("–", "-").partition("-")
            if first.isdigit():
                cited.update(
                    range(int(first), min(int(last), int(first) + 1000) + 1) if last.isdigit() else [int(first)]
                )
    return cited


def _reference(reference: Reference) -> str:
    source = f"{reference.title} — {reference.uri}" if reference.title else reference.uri
    page = "" if reference.page is None else f"page {reference.page}, "
    return one_line(
        f"[{reference.number}] {source}, chunk {reference.ordinal}, {page}characters {reference.start}–{reference.end}"
    )
