"""Upgrading replaces the code tree; users' objects, grants and owners stay; or nothing happens at all."""

from __future__ import annotations

import asyncio
import re

import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import func, select, text

from pgrag import Settings, __version__
from pgrag.database.codetree import ids_by_kind, own_objects, set_search_path
from pgrag.database.connect import transaction
from pgrag.database.migrate import check, current, initialise, upgrade, upgrade_all, workspaces
from pgrag.database.pool import open_pool, read_workspace
from pgrag.database.trees import catalog_query, code_digest
from pgrag.errors import CodeTreeError, DependentObjectsError, MissingRightError, PgragError, WorkspaceError
from tests.migration.support import (
    WORD_COUNT,
    WORD_VIEW,
    Identity,
    Release,
    age_code,
    fingerprint,
    head,
    one,
    run,
    settings_for,
    to_role,
)


def test_nothing_is_touched_when_nothing_is_to_do(made: str) -> None:
    before = fingerprint(made)
    assert upgrade(settings_for(made)) == []
    assert fingerprint(made) == before


def test_code_of_another_release_is_replaced(made: str) -> None:
    age_code(made)
    with pytest.raises(CodeTreeError, match=r"the database runs SQL code old, this process wants .*: restart"):
        require_current(made)
    assert upgrade(settings_for(made)) == [f"revision {head()}", "SQL code created"]
    require_current(made)
    assert check(settings_for(made)) == []
    assert one(made, "select obj_description('pgrag'::regnamespace)") == (
        f"pgrag {__version__}, SQL code {code_digest()} (kept by pgrag)"
    )
    assert current(settings_for(made)) == f"revision {head()}, SQL code {code_digest()[:12]}, pgrag {__version__}"


def require_current(dsn: str) -> None:
    with transaction(settings_for(dsn)) as connection:
        connection.execute(select(func.pgrag.raise_unless_current(code_digest())))


def test_functions_a_release_no_longer_has_go(made: str, release: Release) -> None:
    release.write(
        "sql/99_more.sql",
        "create function extra() returns text language sql set search_path from current as $$select 'a%b:c'$$;"
        "comment on function extra() is 'x';"
        "create view extra_view as select extra() as e; comment on view extra_view is 'x';",
    )
    assert release.upgrade(made) == [f"revision {head()}", "SQL code created"]
    assert one(made, "select e from pgrag.extra_view") == "a%b:c"
    [problem] = check(settings_for(made))
    assert re.fullmatch("the SQL code is .*, this release has .*: run `pgrag db upgrade`", problem)
    upgrade(settings_for(made))
    assert check(settings_for(made)) == []
    assert one(made, "select to_regproc('pgrag.extra') is null and to_regclass('pgrag.extra_view') is null") is True


def test_types_of_the_code_tree_are_replaced_and_go(made: str, release: Release) -> None:
    release.write("sql/05_types.sql", WORD_COUNT)
    assert release.upgrade(made) == [f"revision {head()}", "SQL code created"]
    assert one(made, "select word from pgrag.word_counts(array[('a', 1)::pgrag.word_count])") == "a"
    assert release.upgrade(made) == [""]
    release.write("sql/05_types.sql", WORD_COUNT.replace("number integer", "number bigint, share real"))
    assert release.upgrade(made) == [f"revision {head()}", "SQL code created"]
    assert one(made, "select share from pgrag.word_counts(array[('a', 1, .5)::pgrag.word_count])") == 0.5
    upgrade(settings_for(made))
    assert check(settings_for(made)) == []
    assert one(made, "select to_regtype('pgrag.word_count') is null and to_regproc('pgrag.word_counts') is null")


def test_a_users_type_with_a_name_that_a_release_needs_is_not_replaced(made: str, release: Release) -> None:
    run(made, "create type pgrag.word_count as (mine text)")
    release.write("sql/05_types.sql", WORD_COUNT)
    assert release.upgrade(made) == [
        "DatabaseError",
        'sql/05_types.sql: type "word_count" already exists',
    ]
    assert one(made, "select (row('x')::pgrag.word_count).mine") == "x"
    upgrade(settings_for(made))
    assert one(made, "select (row('x')::pgrag.word_count).mine") == "x"


def test_a_revision_runs_and_finds_no_code_in_its_way(made: str, release: Release) -> None:
    run(made, "insert into pgrag.entity (name) values ('Ada')")
    release.add_revision("op.execute('alter table entity rename column name to label')")
    # The tree of that release goes with its tables.
    for path in (release.directory / "sql").glob("*.sql"):
        if path.name != "10_text.sql":
            path.unlink()
    assert release.upgrade(made) == [f"revision {head()} -> next", "SQL code created"]
    assert one(made, "select label from pgrag.entity") == "Ada"
    with pytest.raises(WorkspaceError, match="revision next, which this release of pgrag does not know"):
        upgrade(settings_for(made))
    with pytest.raises(WorkspaceError, match="revision next"):
        check(settings_for(made))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("sql/99_more.sql", "create view ok as select 1 as x;\n\nselect nonsense;\n", "sql/99_more.sql line 3: column"),
        ("sql/99_more.sql", "create view ok as select 1 as x;\nselect 1/0;", "sql/99_more.sql: division by zero"),
        ("revision", "op.execute('create table half (x int)'); op.execute('select 1/0')", "division by zero"),
    ],
)
def test_after_a_failure_everything_is_as_before(
    made: str, release: Release, name: str, content: str, words: str
) -> None:
    age_code(made)
    before = fingerprint(made)
    if name == "revision":
        release.add_revision(content)
    else:
        release.write(name, content)
    kind, message = release.upgrade(made)
    assert kind == "DatabaseError"
    assert message.startswith(words)
    assert fingerprint(made) == before


# ---------------------------------------------------------------- what users built

DEPENDENTS = {
    "view elsewhere": ("create view theirs.v as select word from pgrag.word_view", "view theirs.v"),
    "view in ours": ("create view pgrag.v as select word from pgrag.word_view", "view pgrag.v"),
    "view on a view": (
        "create view theirs.v as select word from pgrag.word_view; create view theirs.w as select * from theirs.v",
        "view theirs.w",
    ),
    "materialised view": (
        "create materialized view theirs.m as select * from pgrag.word_view",
        "materialized view theirs.m",
    ),
    "function on a row type": (
        "create function theirs.f(pgrag.word_view) returns int language sql as 'select 1'",
        "function theirs.f(pgrag.word_view)",
    ),
    "function with a parsed body": (
        "create function theirs.f() returns text language sql begin atomic; select pgrag.code_digest(); end",
        "function theirs.f()",
    ),
    "default": ("create table theirs.t (x text default pgrag.code_digest())", "default value for theirs.t.x"),
    "generated column": (
        "create table theirs.t (y int, x text generated always as (pgrag.code_digest()) stored)",
        "table column theirs.t.x",
    ),
    "check": (
        "create table theirs.t (x text constraint c check (x <> pgrag.code_digest()))",
        "table constraint c on theirs.t",
    ),
    "index": (
        "create table theirs.t (x text); create index i on theirs.t ((x || pgrag.code_digest()))",
        "index theirs.i",
    ),
    "policy": (
        "create table theirs.t (x text); create policy p on theirs.t using (x = pgrag.code_digest())",
        "policy p on theirs.t",
    ),
    "trigger": (
        "create function theirs.f() returns trigger language plpgsql as 'begin return new; end';"
        "create trigger g instead of insert on pgrag.word_view for each row execute function theirs.f()",
        "trigger g on pgrag.word_view",
    ),
    "rule": ("create rule r as on insert to pgrag.word_view do instead nothing", "rule r on pgrag.word_view"),
    "column of a row type": ("create table theirs.t (y int, x pgrag.word_view)", "table column theirs.t.x"),
    "column of a type": ("create table theirs.t (y int, x pgrag.word_count)", "table column theirs.t.x"),
    "column of an array of a type": ("create table theirs.t (y int, x pgrag.word_count[])", "table column theirs.t.x"),
    "function on a type": (
        "create function theirs.f(pgrag.word_count) returns int language sql as 'select 1'",
        "function theirs.f(pgrag.word_count)",
    ),
    "view of a type": (
        "create view theirs.v as select (row('a', 1)::pgrag.word_count).word",
        "view theirs.v",
    ),
    "type of a type": ("create type theirs.c as (x pgrag.word_count)", "composite type column theirs.c.x"),
    "domain over a type": ("create domain theirs.d as pgrag.word_count", "type theirs.d"),
}


@pytest.mark.parametrize("kind", DEPENDENTS)
def test_what_users_built_on_ours_is_never_lost_silently(word_view: str, kind: str) -> None:
    statements, name = DEPENDENTS[kind]
    run(word_view, statements)
    before = fingerprint(word_view), fingerprint(word_view, "theirs")
    with pytest.raises(DependentObjectsError, match=re.escape(name)):
        upgrade(settings_for(word_view))
    assert (fingerprint(word_view), fingerprint(word_view, "theirs")) == before
    done = upgrade(settings_for(word_view), drop_dependents=True)
    assert f"dropped {name}" in done
    assert name not in dependents_left(word_view)
    assert check(settings_for(word_view)) == []


def dependents_left(dsn: str) -> list[str]:
    """What depends on the code now."""
    with transaction(settings_for(dsn)) as connection:
        set_search_path(connection, "pgrag")
        own = own_objects(connection, "pgrag")
        return list(connection.scalars(text(catalog_query("dependents")), ids_by_kind(own)))


def test_the_list_of_dependents_is_exact(word_view: str) -> None:
    run(word_view, "create view theirs.v as select word from pgrag.word_view")
    run(word_view, "create view theirs.w as select word from theirs.v")
    run(word_view, "create table theirs.t (x text default pgrag.code_digest(), y int)")
    run(word_view, "create view theirs.innocent as select 1 as x")
    assert upgrade(settings_for(word_view), drop_dependents=True)[:-2] == [
        "dropped default value for theirs.t.x",
        "dropped view theirs.v",
        "dropped view theirs.w",
    ]
    assert run(word_view, "select y from theirs.t") == []
    assert one(word_view, "select x from theirs.innocent") == 1


def test_users_own_objects_in_our_schema_survive(made: str) -> None:
    run(made, "create function pgrag.mine(int) returns int language sql as 'select $1 + 1'")
    run(made, "create view pgrag.my_view as select uri from pgrag.document")
    run(made, "create table pgrag.my_table (x int)")
    age_code(made)
    oids = (
        "select 'pgrag.mine(int)'::regprocedure::oid, 'pgrag.my_view'::regclass::oid, 'pgrag.my_table'::regclass::oid"
    )
    before = run(made, oids)
    assert upgrade(settings_for(made)) == [f"revision {head()}", "SQL code created"]
    assert run(made, oids) == before
    assert check(settings_for(made)) == []


def test_a_users_function_with_a_name_that_a_release_needs_is_not_replaced(made: str, release: Release) -> None:
    run(made, "create function pgrag.extra() returns text language sql as $$select 'mine'$$")
    release.write(
        "sql/99_more.sql", "create or replace function extra() returns text language sql as $$select 'ours'$$;"
    )
    kind, message = release.upgrade(made)
    assert (kind, message.split(";")[0]) == (
        "WorkspaceError",
        "schema pgrag has functions or views of its own with names that pgrag needs: extra()",
    )
    assert one(made, "select pgrag.extra()") == "mine"


def test_code_without_its_list_is_taken_over(made: str) -> None:
    run(made, "drop function pgrag.code_objects()")
    assert check(settings_for(made)) == [
        "the list of pgrag's functions, code_objects(), is missing: run `pgrag db upgrade`"
    ]
    upgrade(settings_for(made))
    assert check(settings_for(made)) == []


# ---------------------------------------------------------------- grants and owners


def acl(dsn: str, name: str) -> set[str]:
    """Who may do what with the function or view, without the owner's own entry."""
    entries = one(
        dsn,
        "select coalesce(array_agg(e::text), '{}') from (select unnest(proacl) e from pg_proc where proname = %s "
        "union all select unnest(typacl) from pg_type where typname = %s "
        "union all select unnest(relacl) from pg_class where relname = %s "
        "union all select unnest(attacl) from pg_attribute where attrelid = to_regclass('pgrag.' || %s)) x",
        *[name] * 4,
    )
    return {entry.rsplit("/", 1)[0] for entry in entries if not entry.startswith("postgres=")}


def test_grants_survive(word_view: str, role: str, release: Release) -> None:
    to_role(word_view, "grant execute on function pgrag.code_digest() to {role} with grant option", role)
    to_role(word_view, "grant select, insert on pgrag.word_view to {role}", role)
    to_role(word_view, "grant update (word) on pgrag.word_view to {role}", role)
    run(word_view, "grant select on pgrag.word_view to public")
    run(word_view, "revoke execute on function pgrag.raise_unless_current(text) from public")
    names = ("code_digest", "word_view", "raise_unless_current")
    before = {name: acl(word_view, name) for name in names}
    assert before == {
        "code_digest": {"=X", f'"{role}"=X*'},
        "word_view": {"=r", f'"{role}"=ar', f'"{role}"=w'},
        "raise_unless_current": set(),
    }
    oid = one(word_view, "select 'pgrag.word_view'::regclass::oid")
    release.write("sql/99_more.sql", f"{WORD_VIEW} create view another as select 1 as x;")
    assert release.upgrade(word_view) == [f"revision {head()}", "SQL code created"]
    assert one(word_view, "select 'pgrag.word_view'::regclass::oid") != oid
    assert {name: acl(word_view, name) for name in names} == before


def test_grants_on_types_survive(word_view: str, role: str, release: Release) -> None:
    to_role(word_view, "revoke usage on type pgrag.word_count from public", role)
    to_role(word_view, "grant usage on type pgrag.word_count to {role} with grant option", role)
    before = acl(word_view, "word_count")
    assert before == {f'"{role}"=U*'}
    release.write("sql/05_types.sql", f"{WORD_COUNT} create view another as select 1 as x;")
    assert release.upgrade(word_view) == [f"revision {head()}", "SQL code created"]
    assert acl(word_view, "word_count") == before


def test_grants_on_what_is_gone_are_dropped(word_view: str, role: str) -> None:
    to_role(word_view, "grant select on pgrag.word_view to {role}", role)
    to_role(word_view, "grant execute on function pgrag.code_digest() to {role}", role)
    upgrade(settings_for(word_view))
    assert acl(word_view, "code_digest") == {"=X", f'"{role}"=X'}


def test_an_administrators_upgrade_leaves_everything_to_the_owner(empty_dsn: str, role: str) -> None:
    run(empty_dsn, "create extension vector")
    run(empty_dsn, "create extension pg_trgm")
    to_role(empty_dsn, "create schema pgrag authorization {role}", role)
    initialise(settings_for(make_conninfo(empty_dsn, user=role)), Identity())
    age_code(empty_dsn)
    upgrade(settings_for(empty_dsn))
    owners = run(
        empty_dsn,
        "select distinct pg_get_userbyid(proowner)::text from pg_proc where pronamespace = 'pgrag'::regnamespace "
        "union select pg_get_userbyid(relowner) from pg_class where relnamespace = 'pgrag'::regnamespace",
    )
    assert owners == [(role,)]
    assert upgrade(settings_for(make_conninfo(empty_dsn, user=role))) == []


def test_only_the_owner_may_upgrade(made: str, role: str) -> None:
    to_role(made, "grant usage on schema pgrag to {role}", role)
    to_role(made, "grant select on all tables in schema pgrag to {role}", role)
    age_code(made)
    with pytest.raises(
        MissingRightError, match=r"schema pgrag belongs to role postgres, and role .* may not act for it"
    ):
        upgrade(settings_for(make_conninfo(made, user=role)))


def test_a_role_without_any_right_is_told_so(made: str, role: str) -> None:
    with pytest.raises(MissingRightError, match="permission denied for schema pgrag: an administrator must grant"):
        upgrade(settings_for(make_conninfo(made, user=role)))


# ---------------------------------------------------------------- many workspaces


def test_a_renamed_schema_works_after_an_upgrade(made: str) -> None:
    run(made, "create function pgrag.mine() returns int language sql as 'select 1'")
    run(made, "alter schema pgrag rename to pgrag_moved")
    moved = settings_for(made, "moved")
    problems = check(moved)
    assert any(line.startswith("routine raise_unless_current(text) was changed by hand") for line in problems), problems
    assert upgrade(moved) == [f"revision {head()}", "SQL code created"]
    assert check(moved) == []
    run(made, "select pgrag_moved.raise_unless_current(%s)", code_digest())
    assert one(made, "select pgrag_moved.mine()") == 1
    assert workspaces(settings_for(made)) == ["moved"]
    with pytest.raises(WorkspaceError, match=r"no workspace default \(schema pgrag\).*`pgrag init`"):
        upgrade(settings_for(made))


def test_a_renamed_schema_never_reads_the_one_that_took_its_name(made: str) -> None:
    run(made, "alter schema pgrag rename to pgrag_moved")
    initialise(settings_for(made), Identity())
    moved = settings_for(made, "moved")

    async def opened(settings: Settings) -> str:
        async with open_pool(settings) as pool:
            return (await read_workspace(pool, settings)).embedding_model

    with pytest.raises(CodeTreeError, match=r"was renamed and its functions read another one: run `pgrag db upgrade`"):
        asyncio.run(opened(moved))
    assert upgrade(moved) == [f"revision {head()}", "SQL code created"]
    assert asyncio.run(opened(moved)) == asyncio.run(opened(settings_for(made)))


def test_workspaces_are_only_ours(made: str) -> None:
    initialise(settings_for(made, "zeta"), Identity())
    initialise(settings_for(made, "acme"), Identity())
    run(made, "create schema pgrag_notes")
    run(made, "create schema pgragx")
    run(made, 'create schema "pgrag_Big"')
    for schema in ("pgragx", '"pgrag_Big"', "public"):
        run(made, f"create table {schema}.meta (x int)")
        run(made, f"create table {schema}.alembic_version (x int)")
    assert workspaces(settings_for(made)) == ["acme", "default", "zeta"]


def test_one_workspace_that_fails_does_not_stop_the_others(made: str) -> None:
    initialise(settings_for(made, "acme"), Identity())
    initialise(settings_for(made, "zeta"), Identity(dimension=7))
    for schema in ("pgrag", "pgrag_acme", "pgrag_zeta"):
        age_code(made, schema)
    run(made, "create view public.theirs as select pgrag_acme.code_digest() as d")
    upgraded = [f"revision {head()}", "SQL code created"]
    results = upgrade_all(settings_for(made))
    assert (results["default"], results["zeta"]) == (upgraded, upgraded)
    error = results["acme"]
    assert isinstance(error, PgragError)
    assert "view public.theirs" in str(error)
    run(made, "drop view public.theirs")
    assert upgrade_all(settings_for(made)) == {"acme": upgraded, "default": [], "zeta": []}
