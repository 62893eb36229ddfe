"""What `check` finds wrong with a workspace."""

from __future__ import annotations

import re

import pytest
from psycopg.sql import SQL

from pgrag.database.migrate import check, current, upgrade
from pgrag.errors import WorkspaceError
from tests.migration.support import WORD_COUNT, Release, age_code, head, one, run, settings_for


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("drop index pgrag.chunk_queue_idx", "index chunk_queue_idx of table chunk is missing"),
        (
            "alter table pgrag.chunk drop constraint chunk_document_id_ordinal_key",
            "index chunk_document_id_ordinal_key of table chunk is missing",
        ),
        (
            "update pg_index set indisvalid = false where indexrelid = 'pgrag.fact_vector_embedding_idx'::regclass",
            "index fact_vector_embedding_idx is invalid: run: reindex index pgrag.fact_vector_embedding_idx",
        ),
        (
            "alter function pgrag.raise_unless_current(text) volatile",
            "routine raise_unless_current(text) was changed by hand: run `pgrag db upgrade`",
        ),
        (
            "drop function pgrag.raise_unless_current(text)",
            "routine raise_unless_current(text) is missing: run `pgrag db upgrade`",
        ),
        (
            "alter view pgrag.{view} set (security_barrier = true)",
            "view {view} was changed by hand: run `pgrag db upgrade`",
        ),
        (
            "alter view pgrag.{view} rename column {column} to renamed",
            "view {view} was changed by hand: run `pgrag db upgrade`",
        ),
    ],
)
def test_finds_what_was_changed(made: str, statement: str, problem: str) -> None:
    [(view, column)] = run(
        made,
        "select relname::text, attname::text from pg_class join pg_attribute on attrelid = pg_class.oid "
        "where relkind = 'v' and relnamespace = 'pgrag'::regnamespace and attnum = 1 order by 1 limit 1",
    )
    assert check(settings_for(made)) == []
    run(made, statement.format(view=view, column=column))
    assert check(settings_for(made)) == [problem.format(view=view)]


def test_finds_a_changed_type(made: str, release: Release) -> None:
    release.write("sql/05_types.sql", WORD_COUNT)
    release.upgrade(made)
    assert release.check(made) == []
    run(made, "alter type pgrag.word_count rename attribute word to renamed")
    assert release.check(made) == ["type word_count was changed by hand: run `pgrag db upgrade`"]
    run(made, "drop type pgrag.word_count cascade")
    assert release.check(made) == [
        "type word_count is missing: run `pgrag db upgrade`",
        "routine word_counts(word_count[]) is missing: run `pgrag db upgrade`",
    ]
    release.upgrade(made)
    assert release.check(made) == []


def test_a_view_written_out_by_another_version_of_the_server_is_not_compared(made: str) -> None:
    body = one(made, "select prosrc from pg_proc where oid = 'pgrag.code_objects()'::regprocedure")
    major = one(made, "select current_setting('server_version_num')::int / 10000")
    assert f"'{major}:" in body
    other = re.sub(f"'{major}:[0-9a-f]+'", f"'{major - 1}:{'0' * 64}'", body)
    statement = SQL(
        "create or replace function pgrag.code_objects() returns table (kind text, identity text, digest text) "
        "language sql immutable as {}"
    )
    run(made, statement.format(other))
    assert check(settings_for(made)) == []
    run(made, "alter function pgrag.raise_unless_current(text) volatile")
    run(made, "drop view pgrag.usage")
    assert check(settings_for(made)) == [
        "routine raise_unless_current(text) was changed by hand: run `pgrag db upgrade`",
        "view usage is missing: run `pgrag db upgrade`",
    ]
    upgrade(settings_for(made))
    assert one(made, "select prosrc from pg_proc where oid = 'pgrag.code_objects()'::regprocedure") == body


def test_an_upgrade_mends_code_changed_by_hand(made: str) -> None:
    run(made, "alter function pgrag.raise_unless_current(text) volatile")
    assert upgrade(settings_for(made)) == [f"revision {head()}", "SQL code created"]
    assert check(settings_for(made)) == []


def test_finds_other_code(made: str) -> None:
    age_code(made)
    [problem] = check(settings_for(made))
    assert problem.startswith("the SQL code is old (pgrag ")
    assert problem.endswith("run `pgrag db upgrade`")
    run(made, "drop function pgrag.code_digest()")
    run(made, "comment on schema pgrag is null")
    [problem] = check(settings_for(made))
    assert problem.startswith("the SQL code is missing (pgrag unknown), ")
    assert current(settings_for(made)) == f"revision {head()}, SQL code none, pgrag unknown"


def test_finds_a_revision_behind(made: str, release: Release) -> None:
    release.add_revision("pass")
    assert release.check(made) == [f"the data is at revision {head()}, this release is at next: run `pgrag db upgrade`"]


def test_finds_missing_and_old_extensions(made: str) -> None:
    run(made, "update pg_extension set extversion = '0.7.4' where extname = 'vector'")
    run(made, "drop extension pg_trgm cascade")
    problems = check(settings_for(made))
    assert problems[0] == (
        "extension vector is of version 0.7.4, pgrag needs 0.8: an administrator must install it and run: "
        "alter extension vector update"
    )
    assert problems[1] == "extension pg_trgm is missing: an administrator must run: create extension pg_trgm"
    assert "index entity_alias_key_idx of table entity_alias is missing" in problems


def test_no_workspace(empty_dsn: str) -> None:
    for function in (check, current, upgrade):
        with pytest.raises(WorkspaceError, match=r"no workspace acme \(schema pgrag_acme\).*make it with `pgrag init`"):
            function(settings_for(empty_dsn, "acme"))
