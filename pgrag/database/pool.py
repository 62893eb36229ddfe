"""Connections of the run-time: the pool, and the check of a workspace at opening."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import fields
from typing import Any

import asyncpg
from anyio import move_on_after
from pgvector.asyncpg import register_vector
from psycopg import ProgrammingError, sql
from psycopg.conninfo import conninfo_to_dict

from pgrag.config import Settings
from pgrag.database.connect import describe
from pgrag.database.errors import translate
from pgrag.database.trees import code_digest
from pgrag.database.workspace import WorkspaceMeta
from pgrag.errors import (
    CodeTreeError,
    ConfigError,
    DatabaseError,
    PgragError,
    StatementCancelledError,
    WorkspaceError,
)

UNREACHABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.InvalidAuthorizationSpecificationError,
)
CANCEL_SECONDS = 3.0  # a server may take to confirm that a statement is cancelled, before its connection is given up
CLOSE_SECONDS = 5.0  # until connections that do not end by themselves are cut off


def quoted(identifier: str) -> str:
    """The identifier as the driver quotes it."""
    return sql.Identifier(identifier).as_string(None)


def connection_arguments(settings: Settings) -> dict[str, Any]:
    """Arguments of `asyncpg.connect` for the DSN of the settings; libpq's URIs and keyword strings both work."""
    assert settings.dsn is not None  # noqa: S101 - the caller resolves the embedded server first
    dsn = settings.dsn.get_secret_value()
    try:
        if "\0" in dsn:
            raise ValueError("a NUL, where libpq would stop reading")
        values = {k: str(v) for k, v in conninfo_to_dict(dsn).items() if v is not None}
    except (ProgrammingError, ValueError):  # its text repeats the password
        raise ConfigError(
            "the dsn is not a PostgreSQL connection string: write postgresql://user@host:port/database"
        ) from None
    arguments: dict[str, Any] = {"server_settings": {"application_name": values.pop("application_name", "pgrag")}}
    renamed = {"dbname": "database", "sslmode": "ssl", "target_session_attrs": "target_session_attrs"}
    for name in ("host", "port", "user", "password", "passfile", *renamed):
        if name in values:
            arguments[renamed.get(name, name)] = values.pop(name)
    try:
        if "port" in arguments:
            ports = [int(port) for port in arguments["port"].split(",")]
            arguments["port"] = ports if len(ports) > 1 else ports[0]
        arguments["timeout"] = float(values.pop("connect_timeout", 10)) or None
    except ValueError:
        raise ConfigError("the dsn has a port or a connect_timeout that is no number") from None
    if "," in arguments.get("host", ""):
        arguments["host"] = arguments["host"].split(",")
    if "options" in values:
        arguments["server_settings"]["options"] = values.pop("options")
    if values:
        raise ConfigError(f"the dsn has options that are not supported: {', '.join(sorted(values))}")
    return arguments


# Whether the functions of a schema read its own tables: they keep the name that it had when they were made.
AT_HOME = """
    select starts_with(setting, 'search_path=' || quote_ident(n.nspname) || ',')
    from pg_namespace n join pg_proc p on p.pronamespace = n.oid cross join unnest(p.proconfig) as setting
    where n.nspname = $1 and p.proname = 'retrieve' and starts_with(setting, 'search_path=')
"""


@asynccontextmanager
async def open_pool(settings: Settings) -> AsyncIterator[asyncpg.Pool]:
    """A pool for `settings.dsn`. No session state is ever set, so nothing is reset when a connection goes back."""
    arguments = connection_arguments(settings)
    try:
        pool = await asyncpg.create_pool(
            min_size=0,
            max_size=settings.pool_size,
            statement_cache_size=100 if settings.prepared_statements else 0,
            init=prepare_connection,
            reset=_leave_as_it_is,
            **arguments,
        )
        try:
            yield pool
        finally:
            with move_on_after(CLOSE_SECONDS, shield=True):  # else what is being cancelled would run on in the server
                await pool.close()
    except (asyncpg.PostgresError, OSError) as error:
        raise _cannot_connect(error, settings) from error


async def fetch(
    pool: asyncpg.Pool, query: str, arguments: Sequence[Any] = (), seconds: float | None = None
) -> list[asyncpg.Record]:
    """Rows of one statement. When it is cancelled here, or takes longer than `seconds`, the server is told to stop it.

    Its connection goes back to the pool when that is done, and is closed when the server does not answer.
    Raises StatementCancelledError after `seconds` (without: the pool's own limit, if any), else the driver's errors.
    """
    connection = await pool.acquire()
    try:
        return list(await connection.fetch(query, *arguments, timeout=seconds))
    except TimeoutError as error:
        if seconds is None:
            raise StatementCancelledError(
                "a statement took longer than the command_timeout of the pool that was given: raise that"
            ) from error
        raise StatementCancelledError(
            f"a search took longer than {seconds:g} s and was cancelled: raise the setting statement_timeout "
            "(PGRAG_STATEMENT_TIMEOUT, or in pgrag.toml)"
        ) from error
    finally:
        with suppress(TimeoutError):  # the pool has closed it
            await pool.release(connection, timeout=CANCEL_SECONDS)


async def _leave_as_it_is(_: asyncpg.Connection) -> None:
    """In place of asyncpg's reset, which costs a round trip."""


async def prepare_connection(connection: asyncpg.Connection) -> None:
    """Teaches a connection the vector types of pgvector, in whatever schema they are."""
    schema = await connection.fetchval(
        "select n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace where e.extname = 'vector'"
    )
    if schema is not None:
        await register_vector(connection, schema=schema)


async def stored_dimension(pool: asyncpg.Pool, settings: Settings) -> int | None:
    """The length of the workspace's vectors; None if there is no workspace yet. Raises DatabaseError."""
    try:
        rows = await fetch(pool, f"select dimension from {quoted(settings.schema_name)}.meta")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return None
    except (asyncpg.PostgresError, OSError) as error:
        raise _cannot_connect(error, settings) from error
    return int(rows[0]["dimension"]) if rows else None


async def read_workspace(pool: asyncpg.Pool, settings: Settings) -> WorkspaceMeta:
    """What the workspace was made for; it runs this release's SQL code.

    Raises WorkspaceError if there is none, CodeTreeError for another release's, or DatabaseError.
    """
    schema = quoted(settings.schema_name)
    columns = ", ".join(f"m.{field.name}" for field in fields(WorkspaceMeta))
    try:
        rows = await fetch(
            pool,
            f"select {columns}, {schema}.code_digest() as code, ({AT_HOME}) as at_home from {schema}.meta m",
            [settings.schema_name],
        )
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.UndefinedFunctionError) as error:
        raise WorkspaceError(
            f"there is no workspace {settings.workspace} in this database: run `pgrag init` or `pgrag ingest`"
        ) from error
    except (asyncpg.PostgresError, OSError) as error:
        raise _cannot_connect(error, settings) from error
    if not rows:
        raise WorkspaceError(f"workspace {settings.workspace} is incomplete: run `pgrag init`")
    values = dict(rows[0])
    code, at_home = values.pop("code"), values.pop("at_home")
    if code != code_digest():
        raise CodeTreeError(
            f"workspace {settings.workspace} runs the SQL code of another release of pgrag: run `pgrag db upgrade`"
        )
    if at_home is False:
        raise CodeTreeError(
            f"schema {settings.schema_name} was renamed and its functions read another one: run `pgrag db upgrade`"
        )
    return WorkspaceMeta(**values)


def _cannot_connect(error: BaseException, settings: Settings) -> PgragError:
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, UNREACHABLE):
        return translate(error, f"workspace {settings.workspace}")
    where = describe(settings.dsn.get_secret_value()) if settings.dsn else "the database"
    reason = " ".join(str(error).split()) or type(error).__name__
    return DatabaseError(f"cannot connect to {where}: {reason}")
