"""Making a workspace: what it needs, what it refuses, and that nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from pgrag.config import load_settings
from pgrag.database.migrate import check, initialise
from pgrag.errors import (
    ConfigError,
    DatabaseError,
    DimensionError,
    MissingExtensionError,
    MissingRightError,
    WorkspaceError,
)
from pgrag.text.folding import FOLDING_VERSION
from tests.migration.support import Identity, one, run, settings_for, to_role
from tests.support.limits import PROGRAM_SECONDS

SCHEMAS = "select nspname::text from pg_namespace where nspname like 'pgrag%%' order by 1"
EXTENSIONS = (
    "select extname::text, nspname::text from pg_extension e join pg_namespace n on n.oid = extnamespace "
    "where extname <> 'plpgsql' order by 1"
)

IN_A_PROCESS = """
import sys
from pgrag.config import Settings
from pgrag.database.migrate import initialise
from tests.migration.support import Identity
print("ready", flush=True)
sys.stdin.readline()
print(initialise(Settings(dsn=sys.argv[1], workspace=sys.argv[2]), Identity()))
"""


def test_makes_the_workspace_once(empty_dsn: str) -> None:
    settings = settings_for(empty_dsn, tokenizer="cl100k_base")
    assert initialise(settings, Identity()) is True
    [row] = run(
        empty_dsn,
        "select embedding_model, dimension, query_prefix, passage_prefix, tokenizer, folding_version from pgrag.meta",
    )
    assert row == ("tiny", 4, "query: ", "passage: ", "cl100k_base", FOLDING_VERSION)
    assert check(settings) == []
    assert initialise(settings, Identity()) is False
    assert one(empty_dsn, "select count(*) from pgrag.meta") == 1


def test_workspaces_of_one_database_have_their_own_dimension(empty_dsn: str) -> None:
    assert initialise(settings_for(empty_dsn), Identity()) is True
    assert initialise(settings_for(empty_dsn, "acme"), Identity(dimension=7)) is True
    found = run(
        empty_dsn,
        "select attrelid::regclass::text, format_type(atttypid, atttypmod) from pg_attribute "
        "where attname = 'embedding' "
        "and attrelid in ('pgrag.fact_vector'::regclass, 'pgrag_acme.fact_vector'::regclass) order by 1",
    )
    assert found == [("pgrag.fact_vector", "halfvec(4)"), ("pgrag_acme.fact_vector", "halfvec(7)")]


@pytest.mark.parametrize(
    ("identity", "error", "words"),
    [
        (Identity(dimension=8), DimensionError, "vectors of 4 dimensions (tiny); tiny gives 8: .*pgrag reembed"),
        (Identity(model="other"), WorkspaceError, "vectors of tiny, not of other: .*pgrag reembed"),
        (Identity(prefixes=("", "")), WorkspaceError, "prefixes .'query: ', 'passage: '.*now set to .'', ''."),
    ],
)
def test_another_model_is_refused(empty_dsn: str, identity: Identity, error: type[Exception], words: str) -> None:
    initialise(settings_for(empty_dsn), Identity())
    with pytest.raises(error, match=words.replace("(tiny)", r"\(tiny\)")):
        initialise(settings_for(empty_dsn), identity)


def test_another_tokenizer_or_folding_is_refused(empty_dsn: str) -> None:
    initialise(settings_for(empty_dsn), Identity())
    with pytest.raises(WorkspaceError, match="counts tokens with o200k_base; the setting tokenizer says cl100k_base"):
        initialise(settings_for(empty_dsn, tokenizer="cl100k_base"), Identity())
    run(empty_dsn, "update pgrag.meta set folding_version = 99")
    with pytest.raises(WorkspaceError, match="folded by version 99"):
        initialise(settings_for(empty_dsn), Identity())


@pytest.mark.parametrize(("second", "expected"), [("default", ["False", "True"]), ("acme", ["True", "True"])])
def test_two_processes_at_once_both_succeed(empty_dsn: str, second: str, expected: list[str]) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", IN_A_PROCESS, empty_dsn, workspace],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for workspace in ("default", second)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=PROGRAM_SECONDS) for process in processes]
    assert sorted(out.strip() for out, _ in outputs) == expected, outputs
    assert check(settings_for(empty_dsn)) == check(settings_for(empty_dsn, second)) == []


def test_an_extension_that_someone_creates_meanwhile(empty_dsn: str) -> None:
    result: list[bool] = []
    with psycopg.connect(empty_dsn) as other:
        other.execute("create extension vector")
        thread = threading.Thread(target=lambda: result.append(initialise(settings_for(empty_dsn), Identity())))
        thread.start()
        waiting = (
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        deadline = time.monotonic() + 20
        while one(empty_dsn, waiting) == 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        other.commit()
        thread.join(timeout=PROGRAM_SECONDS)
    assert result == [True]


def test_extensions_stay_where_an_administrator_put_them(empty_dsn: str) -> None:
    run(empty_dsn, 'create schema "Ext Place"')
    run(empty_dsn, 'create extension vector schema "Ext Place"')
    initialise(settings_for(empty_dsn), Identity())
    assert run(empty_dsn, EXTENSIONS) == [("pg_trgm", "public"), ("vector", "Ext Place")]
    assert check(settings_for(empty_dsn)) == []
    [config] = one(empty_dsn, "select proconfig from pg_proc where proname = 'raise_unless_current'")
    assert config == 'search_path=pgrag, "Ext Place", public, pg_temp'


def test_extensions_without_a_schema_public(empty_dsn: str) -> None:
    run(empty_dsn, "drop schema public")
    initialise(settings_for(empty_dsn), Identity())
    assert run(empty_dsn, EXTENSIONS) == [("pg_trgm", "extensions"), ("vector", "extensions")]


def test_3072_dimensions_have_an_index_that_is_used(empty_dsn: str) -> None:
    initialise(settings_for(empty_dsn), Identity(dimension=3072))
    run(empty_dsn, "insert into pgrag.entity (name) select 'e' || g from generate_series(1, 20) g")
    run(
        empty_dsn,
        "insert into pgrag.entity_vector select id, (array_fill(id::real, array[3072]))::halfvec from pgrag.entity",
    )
    with psycopg.connect(empty_dsn) as connection:
        connection.execute("set enable_seqscan = off")
        lines = connection.execute(
            "explain select entity_id from pgrag.entity_vector order by embedding <=> "
            "(select embedding from pgrag.entity_vector where entity_id = 1) limit 5"
        ).fetchall()
    assert any("Index Scan using entity_vector_embedding_idx" in line for (line,) in lines), lines


def test_4001_dimensions_are_refused_before_anything_is_written(empty_dsn: str) -> None:
    with pytest.raises(DimensionError, match=r"4001 dimensions; pgvector indexes 4000 at most.*`dimensions` option"):
        initialise(settings_for(empty_dsn), Identity(dimension=4001))
    assert run(empty_dsn, SCHEMAS) == []
    assert run(empty_dsn, EXTENSIONS) == []


def test_the_largest_dimension_works(empty_dsn: str) -> None:
    assert initialise(settings_for(empty_dsn), Identity(dimension=4000)) is True


def test_a_server_that_is_not_there_is_named_without_the_password(empty_dsn: str) -> None:
    dsn = make_conninfo(empty_dsn, port=1, password="s3cret", user="someone")
    with pytest.raises(DatabaseError) as caught:
        initialise(settings_for(dsn), Identity())
    message = str(caught.value)
    database = one(empty_dsn, "select current_database()")
    assert message.startswith(f"cannot connect to database {database} on 127.0.0.1 port 1 as user someone: ")
    assert "s3cret" not in message
    assert "\n" not in message


def test_a_database_that_is_not_there_is_named(empty_dsn: str) -> None:
    with pytest.raises(DatabaseError, match=r'cannot connect to database nowhere on .*"nowhere" does not exist'):
        initialise(settings_for(make_conninfo(empty_dsn, dbname="nowhere")), Identity())


@pytest.mark.parametrize(
    "dsn", ["s3cret words", "postgresql://u:s3cret%zz@h/d", "mysql://u:s3cret@h/d", "host=a\0b s3cret"]
)
def test_a_malformed_dsn_is_refused_without_repeating_it(dsn: str) -> None:
    with pytest.raises(ConfigError, match="not a PostgreSQL connection string") as caught:
        initialise(settings_for(dsn), Identity())
    assert "s3cret" not in str(caught.value)


def test_no_dsn() -> None:
    with pytest.raises(ConfigError, match="PGRAG_DSN"):
        initialise(load_settings(environ={}), Identity())


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_another_encoding_is_refused(empty_dsn: str, encoding: str) -> None:
    name = f"e{uuid.uuid4().hex[:12]}"
    run(
        empty_dsn,
        SQL("create database {} encoding {} template template0 locale 'C' locale_provider libc").format(
            Identifier(name), encoding
        ),
    )
    try:
        dsn = make_conninfo(empty_dsn, dbname=name)
        with pytest.raises(WorkspaceError, match=f"encoded in {encoding}: pgrag needs UTF8"):
            initialise(settings_for(dsn), Identity())
        assert run(dsn, SCHEMAS) in ([], [(b"",)])
    finally:
        run(empty_dsn, SQL("drop database {}").format(Identifier(name)))


def test_a_role_without_the_right_to_create(empty_dsn: str, role: str) -> None:
    database = one(empty_dsn, "select current_database()")
    with pytest.raises(MissingRightError, match=f'grant create on database "{database}" to "{role}"'):
        initialise(settings_for(make_conninfo(empty_dsn, user=role)), Identity())
    assert run(empty_dsn, SCHEMAS) == []


def test_an_ordinary_role_that_may_create_needs_nothing_else(empty_dsn: str, role: str) -> None:
    to_role(empty_dsn, "grant create on database {database} to {role}", role)
    run(empty_dsn, "create extension vector")  # the one extension that takes a superuser
    settings = settings_for(make_conninfo(empty_dsn, user=role))
    assert initialise(settings, Identity()) is True
    assert check(settings) == []
    assert run(empty_dsn, EXTENSIONS) == [("pg_trgm", "public"), ("vector", "public")]


def test_a_role_that_may_not_create_the_extension(empty_dsn: str, role: str) -> None:
    to_role(empty_dsn, "create schema pgrag authorization {role}", role)
    settings = settings_for(make_conninfo(empty_dsn, user=role))
    with pytest.raises(
        MissingExtensionError, match=f"{role} may not create extension vector: .*: create extension vector$"
    ):
        initialise(settings, Identity())
    run(empty_dsn, "create extension vector")
    run(empty_dsn, "create extension pg_trgm")
    assert initialise(settings, Identity()) is True


def test_a_role_that_may_not_use_the_extensions_schema(empty_dsn: str, role: str) -> None:
    to_role(empty_dsn, "grant create on database {database} to {role}", role)
    run(empty_dsn, "create schema ext")
    run(empty_dsn, "create extension vector schema ext")
    with pytest.raises(MissingRightError, match=f'grant usage on schema "ext" to "{role}"'):
        initialise(settings_for(make_conninfo(empty_dsn, user=role)), Identity())
    assert run(empty_dsn, SCHEMAS) == []


def test_a_schema_of_another_owner_is_refused(empty_dsn: str, role: str) -> None:
    run(empty_dsn, "create extension vector")
    run(empty_dsn, "create extension pg_trgm")
    run(empty_dsn, "create schema pgrag")
    to_role(empty_dsn, "grant all on schema pgrag to {role}", role)
    with pytest.raises(MissingRightError, match=f'alter schema "pgrag" owner to "{role}"'):
        initialise(settings_for(make_conninfo(empty_dsn, user=role)), Identity())


@pytest.mark.parametrize(
    "statement",
    [
        "create table pgrag.theirs (id int)",
        "create view pgrag.theirs as select 1 as x",
        "create function pgrag.theirs() returns int language sql as 'select 1'",
        "create type pgrag.theirs as enum ('a')",
    ],
)
def test_a_schema_in_use_by_something_else_is_refused(empty_dsn: str, statement: str) -> None:
    run(empty_dsn, "create schema pgrag")
    run(empty_dsn, statement)
    with pytest.raises(WorkspaceError, match="schema pgrag exists and holds objects that are not of pgrag"):
        initialise(settings_for(empty_dsn), Identity())


def test_an_empty_schema_is_taken_even_if_it_holds_the_extensions(empty_dsn: str) -> None:
    run(empty_dsn, "create schema pgrag")
    run(empty_dsn, "create extension vector schema pgrag")
    run(empty_dsn, "create extension pg_trgm schema pgrag")
    assert initialise(settings_for(empty_dsn), Identity()) is True
    assert check(settings_for(empty_dsn)) == []


def test_tables_of_the_same_names_elsewhere_do_not_matter(empty_dsn: str) -> None:
    for table in ("alembic_version", "meta", "document", "chunk", "entity"):
        run(empty_dsn, SQL("create table public.{} (version_num text, x int)").format(Identifier(table)))
    run(empty_dsn, "insert into public.alembic_version values ('of another program')")
    assert initialise(settings_for(empty_dsn), Identity()) is True
    assert check(settings_for(empty_dsn)) == []
    assert one(empty_dsn, "select version_num from public.alembic_version") == "of another program"


def test_a_read_only_database_is_refused_and_an_existing_workspace_opens(empty_dsn: str) -> None:
    read_only = make_conninfo(empty_dsn, options="-c default_transaction_read_only=on")
    with pytest.raises(DatabaseError, match="read-only transaction"):
        initialise(settings_for(read_only), Identity())
    initialise(settings_for(empty_dsn), Identity())
    assert initialise(settings_for(read_only), Identity()) is False
