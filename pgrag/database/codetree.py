"""The code tree `sql/` in a workspace: dropping it without touching what users built, and creating it again.

Which functions, views and types are pgrag's is what creating the tree added to the schema; the list is kept in the
generated function `code_objects()`, which travels with the schema through dump, restore and rename.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL, Composed, Identifier, Literal
from sqlalchemy import Connection, func, select, text

from pgrag.database.errors import translate
from pgrag.database.trees import catalog_query, code_digest, code_files, code_names
from pgrag.errors import DependentObjectsError, WorkspaceError
from pgrag.version import __version__

EXTENSIONS = ("vector", "pg_trgm")

DIGEST_COMMENT = "Digest of the SQL code tree in this schema: a process of another release is turned away"
OBJECTS_COMMENT = (
    "The functions, views and types that belong to pgrag, in order of creation, with the digest of their definition"
)


@dataclass(frozen=True, slots=True)
class CodeObject:
    """A function, view or composite type. `identity` is its name and argument types without the schema, `version` its
    row's xmin; `digest` is that of its definition, a view's with the server's major version and a colon before it.
    """

    kind: str
    oid: int
    identity: str
    version: str
    digest: str

    @property
    def key(self) -> tuple[str, str]:
        """What it is known by across oids."""
        return self.kind, self.identity


def execute_raw(connection: Connection, statement: bytes | Composed) -> None:
    """Runs statements as they stand (`%` and `:` mean nothing), in the transaction of `connection`."""
    _driver(connection).execute(statement)


def set_search_path(connection: Connection, schema: str) -> None:
    """For the transaction: the workspace, the extensions, and temporary tables last, so that none shadows ours."""
    found = connection.execute(
        text(
            "select n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace "
            "where e.extname = any (:names)"
        ),
        {"names": list(EXTENSIONS)},
    )
    path = list(dict.fromkeys((schema, *sorted(found.scalars()), "pg_temp")))
    quoted = SQL(", ").join(map(Identifier, path))
    execute_raw(connection, SQL("set local search_path to {}").format(quoted))


def live_objects(connection: Connection, schema: str) -> list[CodeObject]:
    """Functions, views and composite types in the schema, the user's own included; needs `set_search_path`."""
    rows = connection.execute(text(catalog_query("objects")), {"schema": schema})
    return [CodeObject(row.kind, row.oid, row.identity, row.version, row.digest) for row in rows]


def recorded_objects(connection: Connection, schema: str) -> dict[tuple[str, str], str]:
    """(kind, identity) -> digest of pgrag's functions, views and types as created; empty if there is no record."""
    if not _exists(connection, f'"{schema}".code_objects()'):
        return {}
    listed = getattr(func, schema).code_objects().table_valued("kind", "identity", "digest")
    rows = connection.execute(select(listed))
    return {(row.kind, row.identity): row.digest for row in rows}


def own_objects(connection: Connection, schema: str) -> list[CodeObject]:
    """pgrag's functions, views and types that are there, in order of creation; `code_objects()` is the last.

    Where somebody dropped the list, those with names of this release: no type can be replaced under its functions.
    """
    recorded = recorded_objects(connection, schema)
    live = live_objects(connection, schema)
    if not recorded and installed_code(connection, schema)[1]:
        return [item for item in live if (item.kind, item.identity.partition("(")[0]) in code_names()]
    return [item for item in live if item.key in recorded or item.key == ("routine", "code_objects()")]


def ids_by_kind(objects: Sequence[CodeObject]) -> dict[str, list[int]]:
    """The oids of objects as the parameters `routines`, `views` and `types` of the queries of the catalog."""
    return {f"{kind}s": [item.oid for item in objects if item.kind == kind] for kind in ("routine", "view", "type")}


@contextmanager
def code_removed(connection: Connection, schema: str, *, drop_dependents: bool, report: list[str]) -> Iterator[None]:
    """Inside, the schema has no code of pgrag's; afterwards it has this release's, with the grants as they were.

    Raises DependentObjectsError if objects of users depend on the code, unless `drop_dependents`: then they are
    dropped and listed in `report`.
    """
    own = own_objects(connection, schema)
    ids = ids_by_kind(own)
    grants = connection.execute(text(catalog_query("grants")), ids).all()
    dependents: Sequence[str] = connection.scalars(text(catalog_query("dependents")), ids).all()
    if dependents and not drop_dependents:
        raise DependentObjectsError(
            f"these objects depend on functions, views or types of pgrag in schema {schema} and would be lost: "
            f"{'; '.join(dependents)}. Drop them and create them again afterwards, or insist with --drop-dependents"
        )
    # Without dependents, "restrict" makes the server itself refuse what a user may create between the check and here.
    behaviour = SQL("cascade" if dependents else "restrict")
    for item in reversed(own):
        statement = SQL("drop {} if exists {}.{} {}").format(
            SQL(item.kind), Identifier(schema), SQL(item.identity), behaviour
        )
        execute_raw(connection, statement)
    report.extend(f"dropped {name}" for name in dependents)
    yield
    created = {item.identity for item in create_code(connection, schema)}
    for grant in grants:
        if grant.identity in created and _has_column(connection, schema, grant.identity, grant.attribute):
            execute_raw(connection, grant.statement.encode())


def create_code(connection: Connection, schema: str) -> list[CodeObject]:
    """Creates the code tree in a schema that has none; needs `set_search_path`. Returns the objects that were made.

    Raises DatabaseError naming file and line, WorkspaceError if a user's function or view has the name of one of ours.
    """
    before = {item.oid: item for item in live_objects(connection, schema)}
    digest = code_digest()
    execute_raw(
        connection,
        SQL(
            "create or replace function code_digest() returns text language sql immutable parallel safe as {body};"
            "comment on function code_digest() is {comment}"
        ).format(body=Literal(f"select '{digest}'"), comment=Literal(DIGEST_COMMENT)),
    )
    for file in code_files():
        _run_file(connection, file.name, file.text)
    touched = [
        item
        for item in live_objects(connection, schema)
        if item.oid not in before or item.version != before[item.oid].version
    ]
    replaced = [item.identity for item in touched if item.oid in before and item.digest != before[item.oid].digest]
    if replaced:
        raise WorkspaceError(
            f"schema {schema} has functions or views of its own with names that pgrag needs: {', '.join(replaced)}; "
            "rename or drop them"
        )
    _record(connection, schema, touched, digest)
    return touched


def installed_code(connection: Connection, schema: str) -> tuple[str, str]:
    """(release of pgrag, digest of the code tree) that the schema's code came with; empty where there is none."""
    comment = connection.scalar(
        text("select obj_description(cast(:schema as regnamespace), 'pg_namespace')"), {"schema": schema}
    )
    release = re.match(r"pgrag (\S+),", comment or "")
    digest = ""
    if _exists(connection, f'"{schema}".code_digest()'):
        digest = connection.scalar(select(getattr(func, schema).code_digest())) or ""
    return release.group(1) if release else "", digest


def code_problems(connection: Connection, schema: str) -> list[str]:
    """How the code in the schema differs from this release's tree, one line each; needs `set_search_path`."""
    release, digest = installed_code(connection, schema)
    if digest != code_digest():
        return [
            f"the SQL code is {digest[:12] or 'missing'} (pgrag {release or 'unknown'}), this release has "
            f"{code_digest()[:12]} (pgrag {__version__}): run `pgrag db upgrade`"
        ]
    recorded = recorded_objects(connection, schema)
    if not recorded:
        return ["the list of pgrag's functions, code_objects(), is missing: run `pgrag db upgrade`"]
    live = {item.key: item.digest for item in live_objects(connection, schema)}
    return [
        f"{kind} {identity} {'is missing' if (kind, identity) not in live else 'was changed by hand'}: "
        "run `pgrag db upgrade`"
        for (kind, identity), expected in recorded.items()
        if (kind, identity) not in live or _changed(expected, live[kind, identity])
    ]


def _changed(recorded: str, live: str) -> bool:
    """Whether two digests tell of a change; those that servers of different versions wrote out tell nothing."""
    return recorded != live and recorded.rpartition(":")[0] == live.rpartition(":")[0]


def _record(connection: Connection, schema: str, items: Sequence[CodeObject], digest: str) -> None:
    rows = SQL(", ").join(
        SQL("({}, {}, {})").format(Literal(item.kind), Literal(item.identity), Literal(item.digest)) for item in items
    )
    body = SQL("values {}").format(rows).as_string(_driver(connection))
    execute_raw(
        connection,
        SQL(
            "create or replace function code_objects() returns table (kind text, identity text, digest text) "
            "language sql immutable as {body};"
            "comment on function code_objects() is {comment};"
            "comment on schema {schema} is {version}"
        ).format(
            body=Literal(body),
            comment=Literal(OBJECTS_COMMENT),
            schema=Identifier(schema),
            version=Literal(f"pgrag {__version__}, SQL code {digest} (kept by pgrag)"),
        ),
    )


def _run_file(connection: Connection, name: str, content: str) -> None:
    try:
        execute_raw(connection, content.encode())
    except psycopg.Error as error:
        position = error.diag.statement_position
        line = f" line {content[: int(position) - 1].count(chr(10)) + 1}" if position else ""
        raise translate(error, f"sql/{name}{line}") from error


def _has_column(connection: Connection, schema: str, view: str, attribute: str | None) -> bool:
    if attribute is None:
        return True
    statement = text(
        "select exists (select from pg_attribute where attrelid = cast(:view as regclass) and attname = :name)"
    )
    return bool(connection.scalar(statement, {"view": f'"{schema}".{view}', "name": attribute}))


def _exists(connection: Connection, routine: str) -> bool:
    return connection.scalar(text("select to_regprocedure(:name) is not null"), {"name": routine}) is True


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    driver: Any = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)  # noqa: S101 - for the type checker: the engine is made for psycopg
    return driver
