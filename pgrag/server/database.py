"""The server's database as its owner and its administrator see it: is it there, is it complete, complete it."""

from __future__ import annotations

from typing import LiteralString
from urllib.parse import quote

import psycopg

from pgrag.errors import MissingExtensionError, ServerError
from pgrag.server.configuration import ADMINISTRATOR, DATABASE, PORT, ROLE
from pgrag.server.directories import Site, check_sockets

EXTENSIONS = ("vector", "pg_trgm")


def dsn_of(site: Site, role: str = ROLE, database: str = DATABASE) -> str:
    """How to connect: a libpq URI that asyncpg and SQLAlchemy read as well."""
    # The port is part of the socket's name: said here, PGPORT in the environment cannot change it.
    return f"postgresql://{role}@/{database}?host={quote(str(site.sockets))}&port={PORT}"


def _query(site: Site, statement: LiteralString) -> list[tuple[str]] | None:
    """Rows of a one-column query, or None if the server does not let us in (not running, not ready, not prepared)."""
    try:
        check_sockets(site)
        with psycopg.connect(dsn_of(site), autocommit=True, connect_timeout=10) as connection:
            return connection.execute(statement).fetchall()
    except (FileNotFoundError, psycopg.OperationalError):
        return None


def is_prepared(site: Site) -> bool:
    """Whether the server runs and role, database and extensions are there."""
    rows = _query(site, "select extname from pg_extension")
    return rows is not None and {name for (name,) in rows}.issuperset(EXTENSIONS)


def answers(site: Site) -> bool:
    """Whether the server accepts the administrator."""
    return refusal(site) is None


def refusal(site: Site) -> str | None:
    """Why the server does not let the administrator in, in its own words; None if it does."""
    try:
        check_sockets(site)
        psycopg.connect(dsn_of(site, ADMINISTRATOR, "postgres"), connect_timeout=10).close()
    except (FileNotFoundError, psycopg.OperationalError) as error:
        return " ".join(str(error).split())
    return None


def server_version(site: Site) -> str | None:
    """Version of the running server, as in `18.6`; None if it does not answer."""
    rows = _query(site, "show server_version")
    return rows[0][0].split()[0] if rows else None


def prepare(site: Site) -> None:
    """Role, database and extensions, each made if missing. Raises MissingExtensionError, ServerError."""
    try:
        with psycopg.connect(dsn_of(site, ADMINISTRATOR, "postgres"), autocommit=True) as connection:
            if not connection.execute("select 1 from pg_roles where rolname = %s", [ROLE]).fetchone():
                connection.execute(f"create role {ROLE} login")
            if not connection.execute("select 1 from pg_database where datname = %s", [DATABASE]).fetchone():
                connection.execute(f"create database {DATABASE} owner {ROLE}")
        with psycopg.connect(dsn_of(site, ADMINISTRATOR), autocommit=True) as connection:
            for extension in EXTENSIONS:
                connection.execute(f"create extension if not exists {extension} schema public")
                connection.execute(f"alter extension {extension} update")
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile) as error:
        raise MissingExtensionError(
            f"the PostgreSQL in use has not the extensions {' and '.join(EXTENSIONS)} ({error.diag.message_primary}): "
            "install them there, or unset PGRAG_PG_BIN"
        ) from None
    except psycopg.Error as error:
        detail = " ".join(str(error).split())
        raise ServerError(f"cannot prepare the database in {site.data}: {detail}; see {site.log}") from None
