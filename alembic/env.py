"""Runs the revisions of one workspace: for pgrag itself, or for `alembic -x workspace=NAME upgrade head`.

The database comes from PGRAG_DSN or pgrag.toml. `upgrade` goes through pgrag's upgrade transaction: the SQL code is
dropped, the revisions run, the code is created again. A workspace is made by `pgrag init`, not here.
"""

from __future__ import annotations

from typing import Any

from alembic import context
from alembic.util import CommandError
from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import Connection, inspect

from pgrag.config import load_settings
from pgrag.database.migrate import reading, upgrading
from pgrag.database.tables import Base
from pgrag.errors import PgragError

CHANGES_DATA = ("upgrade", "downgrade", "stamp")


def run(connection: Connection, schema: str) -> None:
    """The revisions, or what else the alembic command does with them; search_path starts with the schema."""
    own_tables = set(inspect(connection).get_table_names(schema=schema)) - {"alembic_version"}

    def include_name(name: str | None, kind: str, _parents: Any) -> bool:
        return kind != "table" or name in own_tables

    def compare_type(_context: Any, _column: Any, _metadata_column: Any, found: Any, wanted: Any) -> bool | None:
        # The dimension belongs to the workspace, not to the model.
        return False if isinstance(found, HALFVEC) and isinstance(wanted, HALFVEC) else None

    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table_schema=schema,
        include_name=include_name,
        compare_type=compare_type,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_from_command_line() -> None:
    """Finds workspace and database as `pgrag` does."""
    arguments = context.get_x_argument(as_dictionary=True)
    settings = load_settings({"workspace": arguments.get("workspace") or None})
    command = getattr(context.config.cmd_opts, "cmd", None)
    if command and command[0].__name__ in CHANGES_DATA:
        with upgrading(settings) as upgrade:
            context.config.attributes["dimension"] = int(arguments.get("dimension") or upgrade.dimension)
            run(upgrade.connection, upgrade.schema)
    else:
        with reading(settings) as connection:
            run(connection, settings.schema_name)


if context.is_offline_mode():
    raise CommandError("--sql is refused: an upgrade reads the database to protect what users built on it")
if "connection" in context.config.attributes:
    run(context.config.attributes["connection"], context.config.attributes["schema"])
else:
    try:
        run_from_command_line()
    except PgragError as error:
        raise CommandError(str(error)) from error
