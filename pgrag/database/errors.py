"""What PostgreSQL's error states mean to pgrag: one table for the drivers of the run-time and of the migrations."""

from __future__ import annotations

import asyncpg
import psycopg

from pgrag.errors import (
    CodeTreeError,
    DatabaseError,
    DependentObjectsError,
    MissingRightError,
    PgragError,
    RefusedValueError,
    StatementCancelledError,
    UsageError,
    WorkspaceError,
)

# The class, and what to do about it: read after the server's own message. PGR01 and PGR02 are raised in sql/.
_STATES: dict[str, tuple[type[PgragError], str]] = {
    "PGR01": (CodeTreeError, ": restart this process, or run `pgrag db upgrade`"),
    "PGR02": (UsageError, ""),
    "42501": (MissingRightError, ": an administrator must grant it to this role"),
    "2BP01": (DependentObjectsError, ""),
    **dict.fromkeys(
        ("3F000", "42P01", "42883"),
        (WorkspaceError, ": the workspace is missing or incomplete: run `pgrag init` or `pgrag db upgrade`"),
    ),
    "57014": (
        StatementCancelledError,
        ": the server cancelled the statement: if a statement_timeout of the role or the database did, have an "
        "administrator raise it; else try again",
    ),
    "22012": (DatabaseError, ""),
    "55P03": (
        StatementCancelledError,
        ": a lock of another session was in the way: try again, or have an administrator raise the lock_timeout of "
        "the role or the database",
    ),
}

_VALUES = ("22", "54000")  # a value that its type, or an index, does not take


def translate(error: BaseException, place: str = "", statement: str = "") -> PgragError:
    """The pgrag error for an error of a driver; `place` says what was running, and where.

    Of the `statement` no more than the beginning is shown, and only where the role lacks a right.
    """
    start = f"{place}: " if place else ""
    if isinstance(error, psycopg.Error):
        message = error.diag.message_primary or one_line(error)
        detail, hint = error.diag.message_detail, error.diag.message_hint
    elif isinstance(error, asyncpg.PostgresError):
        message = str(error).partition("\n")[0]
        detail, hint = getattr(error, "detail", None), getattr(error, "hint", None)
    elif isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):  # refused by the driver
        return RefusedValueError(f"{start}{one_line(error)}")
    else:
        return DatabaseError(f"the connection to the database was lost ({error or type(error).__name__}): try again")
    state = error.sqlstate or ""
    kind, advice = _STATES.get(state, (RefusedValueError if state.startswith(_VALUES) else DatabaseError, ""))
    if kind is UsageError:  # the caller's own words: where it happened is of no help
        return UsageError(f"{message}.{_after(hint)}")
    if kind is MissingRightError and statement:
        advice += f"; the statement was: {one_line(statement)[:200]}"
    if advice:
        return kind(f"{start}{message}{advice}")
    more = f" ({detail.replace(chr(10), '; ')})" if detail else ""
    return kind(f"{start}{message}{more}{_after(hint)}")


def one_line(error: object) -> str:
    """Its text with every run of white space as one space."""
    return " ".join(str(error).split())


def _after(hint: str | None) -> str:
    return f" {one_line(hint)}" if hint else ""
