"""The commands put together, and the one place that turns an exception into a message and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

from pgrag.cli import documents, evaluate, manage, query
from pgrag.cli.output import OutputClosedError, emit, emit_json, note, one_line
from pgrag.cli.secrets import secrets_of
from pgrag.cli.session import Session, takes_session
from pgrag.errors import ExitCode, PgragError
from pgrag.text.masking import mask
from pgrag.version import __version__

CLOSED_PIPE = 141  # what a shell reports for a program that SIGPIPE ended

EPILOG = """[bold]Examples[/bold]

pgrag ingest docs/ notes.md

pgrag query "Who runs the billing service?"

pdftotext report.pdf - | pgrag ingest - --uri file:report.pdf

pgrag -w acme --json status

[bold]Settings[/bold] come from options, else PGRAG_* variables, else pgrag.toml. \
[bold]Exit codes[/bold]: 0 done, 1 something failed, 2 wrong use, 3 database, 4 stopped at --max-cost, \
130 interrupted."""


def _show_version(wanted: bool) -> None:
    if wanted:
        emit(f"pgrag {__version__}")
        raise typer.Exit


@takes_session
def _root(
    session: Session,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Graph RAG in one PostgreSQL database: documents in, cited answers out."""


def build_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name="pgrag",
        epilog=EPILOG,
        rich_markup_mode="rich",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    documents.register(app)
    query.register(app)
    evaluate.register(app)
    manage.register(app)
    return app


def run(args: Sequence[str]) -> int:
    """Run one command line; return its exit code. Every error is one line on standard error."""
    session = Session()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a file name may hold what the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # warnings of libraries are for developers: python -W shows them
    try:
        result = build_app()(list(args) or ["--help"], prog_name="pgrag", standalone_mode=False, obj=session)
        if result == ExitCode.INTERRUPTED:  # what typer makes of Ctrl-C, without a word
            raise KeyboardInterrupt
        return int(result or ExitCode.OK) if args else ExitCode.USAGE
    except OutputClosedError:
        _silence_stdout()
        return CLOSED_PIPE
    except (KeyboardInterrupt, typer.Abort):
        _report(session, args, "Interrupted", "interrupted; run the same command again to go on", prefix="pgrag: ")
        return ExitCode.INTERRUPTED
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        return _fail(session, args, _single_cause(error))


def _single_cause(error: BaseException) -> BaseException:
    """The error itself, taken out of the groups that task groups wrap around it."""
    while isinstance(error, BaseExceptionGroup):
        ours = error.subgroup(PgragError)
        error = (ours or error).exceptions[0]
    return error


def _fail(session: Session, args: Sequence[str], error: BaseException) -> int:
    kind, message = type(error).__name__, str(error)
    code: int = ExitCode.SOME_FAILED
    traceback_from = 1  # how many -v it takes
    if isinstance(error, PgragError):
        code, traceback_from = error.exit_code, 2
    elif isinstance(error, typer.TyperException):  # wrong words on the command line
        code, traceback_from = error.exit_code, 3
        kind, message = "UsageError", error.format_message()
        if (context := getattr(error, "ctx", None)) is not None:
            message = f"{message.rstrip('.')} (see: {context.command_path} --help)"
    elif isinstance(error, OSError):
        message = message or kind
    else:
        more = "" if session.verbose else "; run the same command again with -v for the details"
        message = f"{kind}: {message} (this is a bug in pgrag, please report it{more})"
    if session.verbose >= traceback_from:
        sys.stderr.write(mask("".join(traceback.format_exception(error)), session.secrets or secrets_of(session.dsn)))
    _report(session, args, kind, message)
    return code


def _report(session: Session, args: Sequence[str], kind: str, message: str, prefix: str = "pgrag: error: ") -> None:
    text = one_line(mask(message, session.secrets or secrets_of(session.dsn)))
    note(prefix + text)
    options = list(args)[: list(args).index("--")] if "--" in args else list(args)
    if session.json or "--json" in options:  # the words may be wrong before --json was understood
        try:
            emit_json({"error": {"type": kind, "message": text}})
        except OutputClosedError:
            _silence_stdout()


def _silence_stdout() -> None:
    """Keep the interpreter from complaining about the closed pipe once more at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
