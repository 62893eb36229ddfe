"""Every error pgrag raises on purpose. A message says what happened, to what, and what to do about it."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the `pgrag` command returns to the shell."""

    OK = 0
    SOME_FAILED = 1
    USAGE = 2
    DATABASE = 3
    BUDGET = 4
    INTERRUPTED = 130


class PgragError(Exception):
    """Base of all errors raised by pgrag; `exit_code` is what the command line returns for it."""

    exit_code = ExitCode.SOME_FAILED


class UsageError(PgragError):
    """The caller asked for something that cannot be: a wrong option, value or name."""

    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """A setting is missing, malformed or contradicts another."""


class MissingExtraError(UsageError):
    """An optional part of pgrag is needed and not installed."""


class DocumentError(PgragError):
    """One document cannot be read or used; the others go on."""


class ExtractionError(PgragError):
    """One chunk could not be extracted; it is recorded, shown and can be retried."""


class UnreadableAnswerError(ExtractionError):
    """A model answered, and its answer holds nothing that can be used; asking again is paid for again."""


class ModelError(PgragError):
    """A model or model server failed, or returned something that cannot be used."""


class ModelAccessError(ModelError):
    """The model server refuses key, model or account: no request will succeed before that is put right."""


class BudgetError(PgragError):
    """The setting max_cost is reached: what is done is kept, and the same command goes on with a higher limit."""

    exit_code = ExitCode.BUDGET


class RefusedValueError(PgragError):
    """The database cannot store a value of one document or chunk; the others go on."""


class DatabaseError(PgragError):
    """The database cannot be reached or refused a statement."""

    exit_code = ExitCode.DATABASE


class StatementCancelledError(DatabaseError):
    """A statement was ended before it was done: by the setting statement_timeout, by the server or a person."""


class MissingExtensionError(DatabaseError):
    """The server has no pgvector (or another extension pgrag needs), or this role may not create it."""


class MissingRightError(DatabaseError):
    """The role lacks a right; the message names the statement an administrator must run."""


class WorkspaceError(DatabaseError):
    """The workspace does not exist, is of another version, or was made with other settings."""


class DimensionError(WorkspaceError):
    """The embedding model does not fit the workspace, or its vectors do not fit the store."""

    exit_code = ExitCode.USAGE


class CodeTreeError(WorkspaceError):
    """The SQL code in the database is not the code of this release: restart, or run `pgrag db upgrade`."""


class DependentObjectsError(DatabaseError):
    """Objects that pgrag does not own depend on its SQL code and would be lost."""


class ServerError(DatabaseError):
    """The embedded PostgreSQL could not be set up, started or stopped."""
