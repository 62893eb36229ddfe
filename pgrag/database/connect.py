"""Synchronous connections for migrations, whose errors become pgrag's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from pgrag.config import Settings
from pgrag.database.errors import one_line, translate
from pgrag.errors import ConfigError, DatabaseError, WorkspaceError

if TYPE_CHECKING:
    from sqlalchemy import Connection

MINIMUM_SERVER = 150000
CONNECT_SECONDS = 10


@contextmanager
def transaction(settings: Settings) -> Iterator[Connection]:
    """A connection in a transaction: committed at the end, rolled back on an error.

    Raises ConfigError for a DSN that cannot be read, DatabaseError if the server cannot be reached or refuses a
    statement (never with the password), WorkspaceError for a server or an encoding that pgrag cannot work with.
    """
    from sqlalchemy import NullPool, create_engine  # here: a query needs `describe` alone, and no SQLAlchemy

    dsn = _dsn(settings)
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: _connect(dsn),
        poolclass=NullPool,
        use_native_hstore=False,
    )
    with pgrag_errors():
        try:
            with engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()


@contextmanager
def pgrag_errors(place: str = "") -> Iterator[None]:
    """Turns errors of the driver into pgrag's; `place` says in the message what was running."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise translate(error.orig, place, error.statement or "") from error
        raise DatabaseError(one_line(error)) from error
    except psycopg.Error as error:
        raise translate(error, place) from error


def describe(dsn: str) -> str:
    """Host, port, database and user of a DSN, for messages; never the password."""
    values = {
        option.keyword.decode(): option.val.decode() for option in pq.Conninfo.get_defaults() if option.val is not None
    }
    values.update({key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None})
    user = values.get("user", "")
    host = values.get("host") or values.get("hostaddr") or "the local socket"
    return f"database {values.get('dbname') or user} on {host} port {values.get('port', '5432')} as user {user}"


def _dsn(settings: Settings) -> str:
    if settings.dsn is None:
        raise ConfigError("no database given: set dsn (PGRAG_DSN) to postgresql://user@host:port/database")
    dsn = settings.dsn.get_secret_value()
    try:
        if "\0" in dsn:
            raise ValueError("a NUL, where libpq would stop reading")
        conninfo_to_dict(dsn)
    except (psycopg.ProgrammingError, ValueError):
        # The driver's own message repeats parts of the DSN, the password among them.
        raise ConfigError(
            "the dsn (PGRAG_DSN) is not a PostgreSQL connection string: write postgresql://user@host:port/database"
        ) from None
    return dsn


def _connect(dsn: str) -> psycopg.Connection[tuple[Any, ...]]:
    options: dict[str, Any] = {} if "connect_timeout" in conninfo_to_dict(dsn) else {"connect_timeout": CONNECT_SECONDS}
    try:
        connection = psycopg.connect(
            dsn, client_encoding="utf8", fallback_application_name="pgrag", prepare_threshold=None, **options
        )
    except psycopg.Error as error:
        raise DatabaseError(f"cannot connect to {describe(dsn)}: {one_line(error)}") from None
    try:
        _check_server(connection, dsn)
    except BaseException:
        connection.close()
        raise
    # Statements after a lock must see what the lock's last holder committed, whatever the role's default is.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return connection


def _check_server(connection: psycopg.Connection[tuple[Any, ...]], dsn: str) -> None:
    version = connection.info.server_version
    if version < MINIMUM_SERVER:
        raise WorkspaceError(
            f"{describe(dsn)} runs PostgreSQL {version // 10000}: pgrag needs {MINIMUM_SERVER // 10000} or newer"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise WorkspaceError(
            f"{describe(dsn)} is encoded in {encoding}: pgrag needs UTF8; "
            "create one with: create database … encoding 'UTF8' template template0"
        )
