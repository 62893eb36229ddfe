"""Making and upgrading workspaces: schema, extensions, revisions and code tree, in one transaction each."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace

import psycopg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from psycopg.sql import SQL, Identifier, Literal
from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    Row,
    String,
    Table,
    UniqueConstraint,
    insert,
    select,
    text,
    update,
)

from pgrag.config import WORKSPACE_PATTERN, Settings, schema_of
from pgrag.database.codetree import (
    code_problems,
    code_removed,
    create_code,
    execute_raw,
    installed_code,
    set_search_path,
)
from pgrag.database.connect import transaction
from pgrag.database.extensions import ensure_extensions, extension_problems
from pgrag.database.tables import Base, Meta
from pgrag.database.trees import alembic_directory, catalog_query
from pgrag.database.workspace import WorkspaceMeta, check_dimension, check_identity
from pgrag.errors import ConfigError, MissingRightError, PgragError, WorkspaceError
from pgrag.text.folding import FOLDING_VERSION
from pgrag.types import EmbedderIdentity

__all__ = [
    "Upgrade",
    "WorkspaceMeta",
    "change_model",
    "check",
    "check_identity",
    "current",
    "initialise",
    "reading",
    "upgrade",
    "upgrade_all",
    "upgrading",
    "workspaces",
]

VECTOR_TABLES = ("chunk_vector", "fact_vector", "entity_vector", "relation_vector")

# alembic's `op` and `context` are process-wide: revisions of two threads must not run at once.
_ALEMBIC = threading.Lock()


@dataclass(frozen=True, slots=True)
class Upgrade:
    """An upgrade under way: its connection, and `report`, one line for each thing done."""

    connection: Connection
    schema: str
    dimension: int
    report: list[str]


def initialise(settings: Settings, embedder: EmbedderIdentity) -> bool:
    """Makes the workspace unless it is there: True if made, False if it was there and fits `embedder` and `settings`.

    One transaction: after an error nothing is left. Processes doing it at once both succeed. Raises DimensionError
    (before anything is written), MissingExtensionError, MissingRightError, WorkspaceError, DatabaseError.
    """
    check_dimension(embedder)
    schema = settings.schema_name
    with transaction(settings) as connection:
        state = _state(connection, schema)
        if not state.ours:
            _lock(connection, "")  # the whole database: the extensions are shared by all workspaces
            _lock(connection, schema)
            state = _state(connection, schema)
        if state.ours:
            check_identity(_read_meta(connection, settings), embedder, settings)
            return False
        if state.occupied:
            raise WorkspaceError(
                f"schema {schema} exists and holds objects that are not of pgrag: "
                "choose another workspace name, or move them away"
            )
        if state.owner is None:
            _check_right_to_create(connection)
        ensure_extensions(connection)
        if state.owner is None:
            execute_raw(connection, SQL("create schema {}").format(Identifier(schema)))
        else:
            _become_owner(connection, schema, state)
        set_search_path(connection, schema)
        _run_revisions(connection, schema, embedder.dimension)
        query_prefix, passage_prefix = embedder.prefixes
        meta = WorkspaceMeta(
            embedding_model=embedder.model,
            dimension=embedder.dimension,
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
            tokenizer=settings.tokenizer,
            folding_version=FOLDING_VERSION,
        )
        connection.execute(insert(Meta), asdict(meta), execution_options=_in_schema(schema))
        create_code(connection, schema)
    return True


def change_model(settings: Settings, embedder: EmbedderIdentity) -> bool:
    """Makes the workspace one of `embedder`: False if it is already. All vectors go; they are to be made again.

    One transaction. Raises DimensionError before anything is written, WorkspaceError, DatabaseError.
    """
    check_dimension(embedder)
    schema = settings.schema_name
    query_prefix, passage_prefix = embedder.prefixes
    with transaction(settings) as connection:
        _lock(connection, schema)
        _become_owner(connection, schema, _require_workspace(connection, settings))
        set_search_path(connection, schema)
        meta = _read_meta(connection, settings)
        wanted = replace(
            meta,
            embedding_model=embedder.model,
            dimension=embedder.dimension,
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
        )
        if wanted == meta:
            return False
        connection.execute(text("select forget_vectors()"))
        if wanted.dimension != meta.dimension:
            for table in VECTOR_TABLES:
                execute_raw(
                    connection,
                    SQL("alter table {} alter column embedding type halfvec({})").format(
                        Identifier(table), Literal(wanted.dimension)
                    ),
                )
        connection.execute(update(Meta).values(asdict(wanted)), execution_options=_in_schema(schema))
    return True


def upgrade(settings: Settings, *, drop_dependents: bool = False) -> list[str]:
    """Brings the workspace to this release, in one transaction; returns what was done, nothing if nothing was to do.

    Raises DependentObjectsError (unless `drop_dependents`: they are dropped and listed), WorkspaceError if there is
    no such workspace or a newer pgrag made it, MissingRightError, DatabaseError; then everything is as before.
    """
    if not check(settings):
        return []
    with upgrading(settings, drop_dependents=drop_dependents) as run:
        before = _revision(run.connection, run.schema)
        _run_revisions(run.connection, run.schema, run.dimension)
        after = _revision(run.connection, run.schema)
        run.report.append(f"revision {after}" if before == after else f"revision {before} -> {after}")
        run.report.append("SQL code created")
    return run.report


@contextmanager
def upgrading(settings: Settings, *, drop_dependents: bool = False) -> Iterator[Upgrade]:
    """The transaction of an upgrade: inside, run the revisions; the code is gone before and created again after."""
    schema = settings.schema_name
    with transaction(settings) as connection:
        _lock(connection, schema)
        state = _require_workspace(connection, settings)
        _become_owner(connection, schema, state)
        set_search_path(connection, schema)
        _check_known_revision(connection, settings)
        dimension = connection.scalar(select(Meta.dimension), execution_options=_in_schema(schema))
        if dimension is None:
            raise WorkspaceError(f"workspace {settings.workspace} has lost its row in table meta: restore a backup")
        run = Upgrade(connection, schema, dimension, [])
        with code_removed(connection, schema, drop_dependents=drop_dependents, report=run.report):
            yield run


@contextmanager
def reading(settings: Settings) -> Iterator[Connection]:
    """A transaction on an existing workspace, with search_path set, that changes nothing. Raises as `check`."""
    with transaction(settings) as connection:
        _require_workspace(connection, settings)
        set_search_path(connection, settings.schema_name)
        yield connection


def upgrade_all(settings: Settings, *, drop_dependents: bool = False) -> dict[str, list[str] | PgragError]:
    """`upgrade` for every workspace of the database, one transaction each: what was done, or the error, by workspace.

    A workspace that fails stays as it was and does not stop the others; run again, only what is left is done.
    """
    results: dict[str, list[str] | PgragError] = {}
    for workspace in workspaces(settings):
        try:
            results[workspace] = upgrade(
                settings.model_copy(update={"workspace": workspace}), drop_dependents=drop_dependents
            )
        except PgragError as error:
            results[workspace] = error
    return results


def workspaces(settings: Settings) -> list[str]:
    """Names of the database's workspaces, sorted."""
    with transaction(settings) as connection:
        schemas = set(connection.scalars(text(catalog_query("workspaces"))))
    names = {"default" if schema == "pgrag" else schema.removeprefix("pgrag_") for schema in schemas}
    return sorted(name for name in names if _is_workspace(name) and schema_of(name) in schemas)


def check(settings: Settings) -> list[str]:
    """What is wrong with the workspace, a line each; empty: it is of this release and whole.

    Raises WorkspaceError if there is no such workspace or a newer pgrag made it.
    """
    schema = settings.schema_name
    with reading(settings) as connection:
        _check_known_revision(connection, settings)
        problems = extension_problems(connection)
        revision, head = _revision(connection, schema), _head()
        if revision != head:
            return [*problems, f"the data is at revision {revision}, this release is at {head}: run `pgrag db upgrade`"]
        return [*problems, *_index_problems(connection, schema), *code_problems(connection, schema)]


def current(settings: Settings) -> str:
    """One line: revision of the data, digest of the SQL code (12 digits), and the release of pgrag it came with."""
    schema = settings.schema_name
    with reading(settings) as connection:
        release, digest = installed_code(connection, schema)
        return (
            f"revision {_revision(connection, schema)}, SQL code {digest[:12] or 'none'}, pgrag {release or 'unknown'}"
        )


# ---------------------------------------------------------------- the schema


def _lock(connection: Connection, name: str) -> None:
    """Until the end of the transaction, one process at a time (the database's, whatever the schema is called)."""
    connection.execute(
        text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": f"pgrag schema {name}"}
    )


def _state(connection: Connection, schema: str) -> Row[tuple[object, ...]]:
    """present, owner, ours, occupied, role: see catalog/state.sql."""
    return connection.execute(text(catalog_query("state")), {"schema": schema}).one()


def _require_workspace(connection: Connection, settings: Settings) -> Row[tuple[object, ...]]:
    state = _state(connection, settings.schema_name)
    if not state.ours:
        raise WorkspaceError(
            f"there is no workspace {settings.workspace} (schema {settings.schema_name}) in this database: "
            "make it with `pgrag init`"
        )
    return state


def _check_right_to_create(connection: Connection) -> None:
    statement = text(
        "select current_user as role, current_database() as name, "
        "has_database_privilege(current_database(), 'create') as granted"
    )
    database = connection.execute(statement).one()
    if not database.granted:
        raise MissingRightError(
            f"role {database.role} may not create a schema in database {database.name}: an administrator must run: "
            f'grant create on database "{database.name}" to "{database.role}"'
        )


def _become_owner(connection: Connection, schema: str, state: Row[tuple[object, ...]]) -> None:
    """Acts as the schema's owner, so that an administrator's upgrade leaves everything in the hands it was in."""
    if state.owner == state.role:
        return
    try:
        execute_raw(connection, SQL("set local role {}").format(Identifier(str(state.owner))))
    except psycopg.errors.InsufficientPrivilege as error:
        raise MissingRightError(
            f"schema {schema} belongs to role {state.owner}, and role {state.role} may not act for it: "
            f'connect as {state.owner}, or an administrator must run: alter schema "{schema}" owner to "{state.role}"'
        ) from error


def _in_schema(schema: str) -> dict[str, object]:
    return {"schema_translate_map": {None: schema}}


def _read_meta(connection: Connection, settings: Settings) -> WorkspaceMeta:
    columns = [getattr(Meta, field.name) for field in fields(WorkspaceMeta)]
    row = connection.execute(select(*columns), execution_options=_in_schema(settings.schema_name)).one_or_none()
    if row is None:
        raise WorkspaceError(f"workspace {settings.workspace} has lost its row in table meta: restore a backup")
    return WorkspaceMeta(**row._mapping)


# ---------------------------------------------------------------- the revisions


def _alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(alembic_directory()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _run_revisions(connection: Connection, schema: str, dimension: int) -> None:
    config = _alembic_config()
    config.attributes.update(connection=connection, schema=schema, dimension=dimension)
    with _ALEMBIC:
        command.upgrade(config, "head")


def _head() -> str:
    head = ScriptDirectory.from_config(_alembic_config()).get_current_head()
    if head is None:
        raise ConfigError("the installation of pgrag has no revisions: install it again")
    return head


def _revision(connection: Connection, schema: str) -> str:
    version = Table("alembic_version", MetaData(), Column("version_num", String), schema=schema)
    return connection.scalar(select(version.c.version_num)) or "none"


def _check_known_revision(connection: Connection, settings: Settings) -> None:
    revision = _revision(connection, settings.schema_name)
    known = {script.revision for script in ScriptDirectory.from_config(_alembic_config()).walk_revisions()}
    if revision not in known:
        raise WorkspaceError(
            f"workspace {settings.workspace} is at revision {revision}, which this release of pgrag does not know: "
            "install the release that made it, or a newer one"
        )


def _index_problems(connection: Connection, schema: str) -> list[str]:
    rows = connection.execute(text(catalog_query("indexes")), {"schema": schema})
    valid = {row.name: row.valid for row in rows}
    problems = [f"index {name} is invalid: run: reindex index {schema}.{name}" for name, ok in valid.items() if not ok]
    for table in Base.metadata.sorted_tables:
        names = [str(index.name) for index in table.indexes]
        names += [str(c.name) for c in table.constraints if isinstance(c, PrimaryKeyConstraint | UniqueConstraint)]
        problems.extend(f"index {name} of table {table.name} is missing" for name in names if name not in valid)
    return sorted(problems)


def _is_workspace(name: str) -> bool:
    return re.fullmatch(WORKSPACE_PATTERN, name) is not None
