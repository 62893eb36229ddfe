"""What is in a workspace: the tables of the models, documented code, and nothing stored that depends on it."""

from __future__ import annotations

import re
from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import MetaData, text

from pgrag.database.codetree import own_objects, set_search_path
from pgrag.database.connect import transaction
from pgrag.database.tables import Base
from tests.migration.support import Identity, Release, one, run, settings_for

# Columns in order, constraints, indexes, storage options and comments of a schema, free of the schema's name.
CATALOG = {
    "columns": (
        "select c.relname::text, a.attnum, a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull, "
        "a.attidentity::text, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum) "
        "from pg_attribute a join pg_class c on c.oid = a.attrelid "
        "left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum "
        "where c.relnamespace = %s::regnamespace and c.relkind = 'r' and a.attnum > 0 "
        "and c.relname <> 'alembic_version' order by 1, 2"
    ),
    "tables": (
        "select c.relname::text, c.reloptions::text, obj_description(c.oid, 'pg_class') from pg_class c "
        "where c.relnamespace = %s::regnamespace and c.relkind = 'r' and c.relname <> 'alembic_version' order by 1"
    ),
    "constraints": (
        "select c.relname::text, o.conname::text, replace(pg_get_constraintdef(o.oid), n.nspname || '.', '') "
        "from pg_constraint o join pg_class c on c.oid = o.conrelid join pg_namespace n on n.oid = c.relnamespace "
        "where n.oid = %s::regnamespace and c.relname <> 'alembic_version' order by 1, 2"
    ),
    "indexes": (
        "select c.relname::text, replace(pg_get_indexdef(c.oid), n.nspname || '.', '') from pg_class c "
        "join pg_namespace n on n.oid = c.relnamespace join pg_index i on i.indexrelid = c.oid "
        "where n.oid = %s::regnamespace and i.indrelid <> (n.nspname || '.alembic_version')::regclass order by 1"
    ),
}


def create_models(dsn: str, schema: str, dimension: int) -> None:
    """The tables as SQLAlchemy makes them from the models."""
    copy = MetaData(naming_convention=Base.metadata.naming_convention)
    for table in Base.metadata.sorted_tables:
        for column in table.to_metadata(copy).columns:
            if isinstance(column.type, HALFVEC):
                column.type = HALFVEC(dimension)
    with transaction(settings_for(dsn)) as connection:
        connection.execute(text(f"create schema {schema}"))
        connection.execute(text(f"create table {schema}.alembic_version (x int)"))
        set_search_path(connection, schema)
        copy.create_all(connection, checkfirst=False)


def test_models_and_migrations_make_the_same_tables(made: str) -> None:
    create_models(made, "models", Identity().dimension)
    for what, query in CATALOG.items():
        migrated = run(made, query, "pgrag")
        assert len(migrated) >= len(Base.metadata.tables), what
        assert migrated == run(made, query, "models"), what


def test_autogenerate_finds_nothing_to_do(made: str) -> None:
    def compare_type(_context: Any, _column: Any, _wanted_column: Any, found: Any, wanted: Any) -> bool | None:
        return False if isinstance(found, HALFVEC) and isinstance(wanted, HALFVEC) else None

    options = {
        "version_table_schema": "pgrag",
        "compare_server_default": True,
        "compare_type": compare_type,
        "include_name": lambda name, _kind, _parents: name != "alembic_version",
    }
    with transaction(settings_for(made)) as connection:
        set_search_path(connection, "pgrag")
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []


def test_tables_views_types_and_functions_have_comments(made: str) -> None:
    missing = run(
        made,
        "select c.relname::text from pg_class c where c.relnamespace = 'pgrag'::regnamespace "
        "and c.relkind in ('r', 'v') and coalesce(obj_description(c.oid, 'pg_class'), '') = '' union all "
        "select c.relname::text from pg_class c where c.relnamespace = 'pgrag'::regnamespace "
        "and c.relkind = 'c' and coalesce(obj_description(c.reltype, 'pg_type'), '') = '' union all "
        "select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'pgrag'::regnamespace "
        "and coalesce(obj_description(p.oid, 'pg_proc'), '') = ''",
    )
    assert missing == []
    assert one(made, "select count(*) from pg_proc where pronamespace = 'pgrag'::regnamespace") > 3


def test_the_code_tree_makes_functions_views_and_composite_types_only(made: str, release: Release) -> None:
    others = (
        "select 'class', relname::text from pg_class "
        "where relnamespace = 'pgrag'::regnamespace and relkind not in ('v', 'c') "
        "union all select 'type', typname::text from pg_type where typnamespace = 'pgrag'::regnamespace "
        "and typname not in (select relname from pg_class where relkind in ('v', 'c')) "
        "and typname not in (select '_' || relname from pg_class where relkind in ('v', 'c')) "
        "union all select 'trigger', tgname::text from pg_trigger where not tgisinternal "
        "union all select 'operator', oprname::text from pg_operator where oprnamespace = 'pgrag'::regnamespace "
        "order by 1, 2"
    )
    routines = "select count(*) from pg_proc where pronamespace = 'pgrag'::regnamespace"
    with_code, number = run(made, others), one(made, routines)
    for path in (release.directory / "sql").glob("*.sql"):
        if path.name != "10_text.sql":
            path.unlink()
    release.upgrade(made)
    assert run(made, others) == with_code
    assert one(made, routines) < number


def test_nothing_stored_depends_on_the_code(made: str) -> None:
    with transaction(settings_for(made)) as connection:
        set_search_path(connection, "pgrag")
        own = own_objects(connection, "pgrag")
    assert len(own) > 3
    dependents = run(
        made,
        "select pg_describe_object(classid, objid, objsubid) from pg_depend where refobjid = any (%s) "
        "and classid <> all (array['pg_proc'::regclass, 'pg_rewrite'::regclass, 'pg_type'::regclass]) "
        "and deptype <> 'i'",
        [item.oid for item in own],
    )
    assert dependents == []


def test_every_function_brings_its_search_path(made: str) -> None:
    """Or is an expression on its arguments, which the planner may inline: no table, no function of ours."""
    rows = run(
        made,
        "select proname::text, lanname::text, prosrc, 'search_path=pgrag, public, pg_temp' = any (proconfig) "
        "from pg_proc p join pg_language l on l.oid = prolang where pronamespace = 'pgrag'::regnamespace "
        "and proname not in ('code_digest', 'code_objects')",
    )
    assert len(rows) > 3
    ours = {name for name, *_ in rows}
    for name, language, body, brings_path in rows:
        if not brings_path:
            assert language == "sql", name
            assert not re.search(r"\b(from|join)\s+\w+\b(?!\()", body), name
            assert not ours.intersection(re.findall(r"(\w+)\(", body)), name


def test_no_function_sets_a_parameter_of_an_extension(made: str) -> None:
    """In a header, it takes a superuser to create the function before the extension's library is loaded: no restore."""
    found = run(
        made,
        "select p.oid::regprocedure::text, parameter from pg_proc p cross join unnest(p.proconfig) parameter "
        "where p.pronamespace = 'pgrag'::regnamespace and split_part(parameter, '=', 1) like '%.%' order by 1, 2",
    )
    assert found == []
