"""An upgrade breaks no open connection: what it prepared before works after, for no type of ours reaches the driver."""

from __future__ import annotations

import inspect
import re
from itertools import product

from pydantic import SecretStr

from pgrag.config import Settings
from pgrag.database.codetree import code_removed, set_search_path
from pgrag.database.connect import transaction
from pgrag.database.store import Store
from tests.sql.support import EMBEDDER, Workspace, document, fact

MODES = ("local", "global", "hybrid", "mix", "naive")
RANKINGS = ("vector", "weight", "pagerank")
FILTERS = (None, {"labels": ["in"]})


def recreate_code(dsn: str) -> None:
    """As an upgrade to another release does."""
    with transaction(Settings(dsn=SecretStr(dsn))) as connection:
        set_search_path(connection, "pgrag")
        with code_removed(connection, "pgrag", drop_dependents=False, report=[]):
            pass


def search(workspace: Workspace) -> list[list[tuple[object, ...]]]:
    vector = EMBEDDER.vector("one is two")
    return [
        [
            tuple(row)
            for row in workspace.retrieve(
                mode=mode, ranking=ranking, filter=scope, question=vector, low=vector, high=vector,
                keys=["one"], similar=["one", "tow"], words=["two"],
            )
        ]
        for mode, ranking, scope in product(MODES, RANKINGS, FILTERS)
    ]  # fmt: skip


def test_an_open_connection_searches_and_ingests_after_the_code_was_made_anew(own_workspace: Workspace) -> None:
    own_workspace.ingest(
        document("in", fact("One", "Two", "one is two"), labels=["in"]),
        document("out", fact("Two", "Three", "two is three")),
    )
    before = search(own_workspace)
    assert all(before)
    server_process = "select pg_backend_pid()"
    process = own_workspace.one(server_process)
    recreate_code(own_workspace.dsn)
    assert search(own_workspace) == before
    own_workspace.ingest(document("later", fact("Three", "Four", "three is four"), labels=["in"]))
    assert own_workspace.count("document") == 3
    assert own_workspace.one(server_process) == process, "the same connection"


def test_no_function_that_the_store_calls_takes_or_gives_a_type_of_ours(workspace: Workspace) -> None:
    called = set(re.findall(r'_(?:call|statement)\(\s*"(\w+)"', inspect.getsource(Store)))
    assert {"retrieve", "put_documents", "save_extraction", "claim_chunks"} <= called
    types = workspace.rows(
        "select p.proname, t.typname from pg_proc p "
        "cross join unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]) || p.prorettype) as used (type) "
        "join pg_type t on t.oid = used.type or t.typarray = used.type "
        "where p.pronamespace = 'pgrag'::regnamespace and t.typnamespace = 'pgrag'::regnamespace "
        "and p.proname = any ($1)",
        sorted(called),
    )
    assert types == []
    many = workspace.rows(
        "select proname, pronargs from pg_proc where pronamespace = 'pgrag'::regnamespace and pronargs > 12 "
        "order by proname"
    )
    assert [name for name, _ in many] == ["put_documents", "retrieve", "save_extraction"], "and are called by name"
