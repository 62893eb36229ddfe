"""The extensions a workspace needs: found where an administrator put them, created where the role may."""

from __future__ import annotations

import re

import psycopg
from psycopg.sql import SQL, Identifier
from sqlalchemy import Connection, text

from pgrag.database.codetree import execute_raw
from pgrag.errors import MissingExtensionError, MissingRightError

MINIMUM_VERSIONS = {"vector": (0, 8), "pg_trgm": (1, 0)}
FALLBACK_SCHEMA = "extensions"
INSUFFICIENT_PRIVILEGE = "42501"
CREATED_MEANWHILE = ("23505", "42710")  # another transaction created it while this one tried


def ensure_extensions(connection: Connection) -> None:
    """Creates what is missing. Raises MissingExtensionError or MissingRightError with the statement to run."""
    for name in MINIMUM_VERSIONS:
        if _installed(connection, name) is None:
            _create(connection, name)
    problems = extension_problems(connection)
    if problems:
        raise MissingExtensionError("; ".join(problems))
    for name in MINIMUM_VERSIONS:
        _check_usage(connection, name)


def extension_problems(connection: Connection) -> list[str]:
    """One line for each extension that is missing or too old."""
    problems = []
    for name, minimum in MINIMUM_VERSIONS.items():
        version = _installed(connection, name)
        wanted = ".".join(map(str, minimum))
        if version is None:
            problems.append(f"extension {name} is missing: an administrator must run: create extension {name}")
        elif _numbers(version) < minimum:
            problems.append(
                f"extension {name} is of version {version}, pgrag needs {wanted}: an administrator must install it and "
                f"run: alter extension {name} update"
            )
    return problems


def _installed(connection: Connection, name: str) -> str | None:
    version: str | None = connection.scalar(
        text("select extversion from pg_extension where extname = :name"), {"name": name}
    )
    return version


def _create(connection: Connection, name: str) -> None:
    available = connection.scalar(
        text("select count(*) from pg_available_extensions where name = :name"), {"name": name}
    )
    if not available:
        raise MissingExtensionError(
            f"the server has no extension {name} to offer: install its package there "
            f"({'pgvector' if name == 'vector' else 'postgresql-contrib'})"
        )
    try:
        with connection.begin_nested():
            # Never into a workspace: dropping that one would take the vectors of all others along.
            schema = "public"
            if connection.scalar(text("select to_regnamespace('public')")) is None:
                schema = FALLBACK_SCHEMA
                execute_raw(connection, SQL("create schema if not exists {}").format(Identifier(schema)))
                execute_raw(connection, SQL("grant usage on schema {} to public").format(Identifier(schema)))
            execute_raw(connection, SQL("create extension {} schema {}").format(Identifier(name), Identifier(schema)))
    except psycopg.Error as error:
        if error.sqlstate == INSUFFICIENT_PRIVILEGE:
            database = connection.scalar(text("select current_database()"))
            role = connection.scalar(text("select current_user"))
            raise MissingExtensionError(
                f"role {role} may not create extension {name}: an administrator must run, in database {database}: "
                f"create extension {name}"
            ) from error
        if error.sqlstate not in CREATED_MEANWHILE:
            raise


def _check_usage(connection: Connection, name: str) -> None:
    statement = text(
        "select nspname, current_user as role, has_schema_privilege(n.oid, 'usage') as usable "
        "from pg_extension e join pg_namespace n on n.oid = e.extnamespace where e.extname = :name"
    )
    row = connection.execute(statement, {"name": name}).one()
    if not row.usable:
        raise MissingRightError(
            f"role {row.role} may not use schema {row.nspname}, which holds extension {name}: "
            f'an administrator must run: grant usage on schema "{row.nspname}" to "{row.role}"'
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
