"""What a search sets for itself is as before when it returns: in its caller's transaction, for an ordinary role."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from itertools import product
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from tests.sql.support import Workspace, document, fact, half

CASES = list(
    product(
        ("local", "global", "hybrid", "mix", "naive"), ("vector", "weight", "pagerank"), (None, {"labels": ["kept"]})
    )
)
PARAMETERS = {
    "hnsw.ef_search": "77",
    "hnsw.iterative_scan": "strict_order",
    "hnsw.max_scan_tuples": "12345",
    "hnsw.scan_mem_multiplier": "3",
    "pg_trgm.similarity_threshold": "0.42",
    "pg_trgm.word_similarity_threshold": "0.43",
}
SEARCH = (
    "select * from pgrag.retrieve(p_question => %(v)s::text::public.halfvec, p_low => %(v)s::text::public.halfvec, "
    "p_high => %(v)s::text::public.halfvec, p_words => '{cars,berlin}', p_keys => '{berlin}', "
    "p_similar => '{alpha motor}', p_mode => %(mode)s, p_ranking => %(ranking)s, p_filter => %(filter)s)"
)
# Of these extensions all that there is: what it is now, and what it is where nobody set it.
FOUND = (
    "select name, setting, boot_val from pg_settings where split_part(name, '.', 1) in ('hnsw', 'ivfflat', 'pg_trgm')"
)


@pytest.fixture
def reader(workspace: Workspace) -> Iterator[str]:
    """The DSN of an ordinary role that may read a workspace of two documents."""
    name = f"reader_{uuid.uuid4().hex[:12]}"
    workspace.ingest(
        document("cars", fact("Alpha Motors", "Berlin", "Alpha Motors builds cars in Berlin"), labels=["kept"]),
        document("river", fact("Berlin", "Spree", "Berlin lies on the Spree")),
    )
    with psycopg.connect(workspace.dsn, autocommit=True) as connection:
        connection.execute(SQL("create role {} login").format(Identifier(name)))
        connection.execute(SQL("grant usage on schema pgrag to {}").format(Identifier(name)))
        connection.execute(SQL("grant select on all tables in schema pgrag to {}").format(Identifier(name)))
    yield make_conninfo(workspace.dsn, user=name)
    with psycopg.connect(workspace.dsn, autocommit=True) as connection:
        connection.execute(SQL("drop owned by {name}; drop role {name}").format(name=Identifier(name)))


def search(connection: psycopg.Connection[Any], mode: str, ranking: str, scope: dict[str, Any] | None) -> list[Any]:
    chosen = None if scope is None else json.dumps(scope)
    values = {"v": half("Alpha Motors").to_text(), "mode": mode, "ranking": ranking, "filter": chosen}
    return connection.execute(SEARCH, values).fetchall()


@pytest.mark.parametrize(("mode", "ranking", "scope"), CASES)
def test_in_a_fresh_session_nothing_is_set_after_a_search(
    reader: str, mode: str, ranking: str, scope: dict[str, Any] | None
) -> None:
    with psycopg.connect(reader) as connection:
        assert search(connection, mode, ranking, scope)
        connection.execute("select '[1]'::public.vector, public.show_trgm('a')")  # both libraries are loaded now
        found = connection.execute(FOUND).fetchall()
    assert {name for name, _, _ in found} >= set(PARAMETERS)
    assert [(name, now) for name, now, usual in found if now != usual] == []


def test_what_the_session_had_set_is_as_it_was(reader: str) -> None:
    with psycopg.connect(reader, autocommit=True) as connection:
        for name, chosen in PARAMETERS.items():
            connection.execute("select set_config(%s, %s, false)", (name, chosen))
        for case in CASES:
            with connection.transaction():
                assert search(connection, *case)
                assert current(connection) == PARAMETERS, case
            assert current(connection) == PARAMETERS, case


def test_what_the_transaction_had_set_is_as_it_was(reader: str) -> None:
    with psycopg.connect(reader, autocommit=True) as connection:
        for case in CASES:
            with connection.transaction():
                for name, chosen in PARAMETERS.items():
                    connection.execute("select set_config(%s, %s, true)", (name, chosen))
                assert search(connection, *case)
                assert current(connection) == PARAMETERS, case


def current(connection: psycopg.Connection[Any]) -> dict[str, str]:
    values = connection.execute("select n, current_setting(n) from unnest(%s::text[]) n", (list(PARAMETERS),))
    return dict(values.fetchall())
