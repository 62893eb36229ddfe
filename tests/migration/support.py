"""What the migration tests share: an embedder's identity, statements as some role, and other releases of pgrag."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.sql import SQL, Composed, Identifier
from pydantic import SecretStr

from pgrag.config import Settings

PROJECT = Path(__file__).resolve().parents[2]
WORD_COUNT = (
    "create type word_count as (word text, number integer); comment on type word_count is 'x';"
    "create function word_counts(p_counts word_count[]) returns setof word_count language sql "
    "set search_path from current as 'select * from unnest(p_counts)'; comment on function word_counts is 'x';"
)
WORD_VIEW = "create view word_view as select 'x'::text as word; comment on view word_view is 'x';"


@dataclass(frozen=True)
class Identity:
    """The part of an embedder that a workspace remembers."""

    model: str = "tiny"
    dimension: int = 4
    prefixes: tuple[str, str] = ("query: ", "passage: ")


def settings_for(dsn: str, workspace: str = "default", **values: Any) -> Settings:
    return Settings(dsn=SecretStr(dsn), workspace=workspace, **values)


def run(dsn: str, statement: str | Composed, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of a statement, committed."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        query: Any = statement
        cursor = connection.execute(query, values or None)
        return cursor.fetchall() if cursor.description else []


def one(dsn: str, statement: str, *values: Any) -> Any:
    """The only value of a statement."""
    [(value,)] = run(dsn, statement, *values)
    return value


def to_role(dsn: str, statement: str, role: str) -> None:
    """Runs a statement with `{role}` and `{database}` in it."""
    database = one(dsn, "select current_database()")
    run(dsn, SQL(statement).format(role=Identifier(role), database=Identifier(database)))


def age_code(dsn: str, schema: str = "pgrag") -> None:
    """Makes the code in the database look like another release's."""
    function = SQL(
        "create or replace function {}.code_digest() returns text language sql immutable as $$select 'old'$$"
    )
    run(dsn, function.format(Identifier(schema)))


def fingerprint(dsn: str, schema: str = "pgrag") -> list[tuple[Any, ...]]:
    """Every relation, routine, grant and comment of a schema, by oid: equal iff nothing was changed."""
    return run(
        dsn,
        "select 'relation', c.oid, c.relname::text, c.relacl::text, obj_description(c.oid, 'pg_class') from pg_class c "
        "where c.relnamespace = %s::regnamespace union all "
        "select 'routine', p.oid, p.proname::text, p.proacl::text, p.prosrc from pg_proc p "
        "where p.pronamespace = %s::regnamespace union all "
        "select 'schema', n.oid, n.nspname::text, n.nspacl::text, obj_description(n.oid, 'pg_namespace') "
        "from pg_namespace n where n.nspname = %s order by 1, 2",
        schema,
        schema,
        schema,
    )


class Release:
    """A copy of this checkout in a directory of its own, to be changed into another release and run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("pgrag", "sql", "alembic"):
            shutil.copytree(PROJECT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(PROJECT / "alembic.ini", directory)

    def write(self, name: str, content: str) -> None:
        (self.directory / name).write_text(content, "utf-8")

    def add_revision(self, body: str) -> None:
        """Revision `next` after the newest one, doing `body`."""
        self.write(
            "alembic/versions/9999_next.py",
            "from alembic import op\n"
            f"revision = 'next'\ndown_revision = '{head()}'\nbranch_labels = depends_on = None\n"
            f"def upgrade():\n    {body}\ndef downgrade():\n    pass\n",
        )

    def upgrade(self, dsn: str, workspace: str = "default") -> list[str]:
        """Lines printed by an upgrade in a process of this release: what was done, or the error's class and message."""
        return self.python(
            "import sys\nfrom pgrag.database import migrate\nfrom pgrag.config import Settings\n"
            "from pgrag.errors import PgragError\n"
            "try:\n    print(*migrate.upgrade(Settings(dsn=sys.argv[1], workspace=sys.argv[2])), sep='\\n')\n"
            "except PgragError as error:\n    print(type(error).__name__, error, sep='\\n')",
            dsn,
            workspace,
        )

    def check(self, dsn: str) -> list[str]:
        """What a process of this release finds wrong with the default workspace."""
        code = "import sys\nfrom pgrag.database import migrate\nfrom pgrag.config import Settings\n"
        return self.python(f"{code}for line in migrate.check(Settings(dsn=sys.argv[1])): print(line)", dsn)

    def python(self, code: str, *arguments: str) -> list[str]:
        result = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=self.directory, env=self.env()
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    def env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.directory)}


def head() -> str:
    """The newest revision of this checkout."""
    return max(path.name for path in (PROJECT / "alembic" / "versions").glob("*.py")).split("_")[0]
