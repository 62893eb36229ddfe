"""Paid responses: the last stays, every call is counted, and none outlives its source."""

from __future__ import annotations

import asyncio
from datetime import date
from decimal import Decimal

import asyncpg
import pytest

from pgrag.database.rows import Response
from pgrag.database.store import Store
from tests.sql.support import CODE, Workspace, document, while_open

PUT = "select pgrag.put_cached($1, $2, $3, $4, $5, $6, $7, $8, $9)"


def test_the_last_response_stays_and_every_call_is_counted(workspace: Workspace) -> None:
    [stored] = workspace.put(document("u", "one", "two"))
    one, two = workspace.chunk_ids("u")
    workspace.rows(PUT, CODE, "k", "extract", "m", "first", 10, 5, Decimal("0.25"), [one])
    workspace.rows(PUT, CODE, "k", "extract", "m", "second", 7, 3, Decimal("0.5"), [one, two])
    workspace.rows(PUT, CODE, "other", "answer", "m", "third", 1, 1, Decimal(0), [])
    workspace.rows(PUT, CODE, "last", "answer", "m", "fourth", 2, 2, Decimal(1), None)
    assert sorted(workspace.rows("select * from pgrag.get_cached('{k,other,unknown}')")) == [
        ("k", "second"),
        ("other", "third"),
    ]
    assert workspace.rows("select prompt_tokens, completion_tokens, cost from pgrag.llm_cache where key = 'k'") == [
        (7, 3, Decimal("0.5"))
    ]
    assert sorted(workspace.rows("select * from pgrag.llm_cache_source")) == [("k", one), ("k", two)]
    today = workspace.one("select current_date")
    assert isinstance(today, date)
    usage = (
        "select purpose, model, document_id, day, calls, prompt_tokens, completion_tokens, cost from pgrag.llm_usage"
    )
    assert workspace.rows(f"{usage} order by purpose desc") == [
        ("extract", "m", stored.id, today, 2, 17, 8, Decimal("0.75")),
        ("answer", "m", None, today, 2, 3, 3, Decimal(1)),
    ]


def test_usage_is_kept_apart_by_purpose_model_and_document(workspace: Workspace) -> None:
    workspace.put(document("u", "one"), document("v", "two"))
    for purpose, model, uri in [("a", "m", "u"), ("b", "m", "u"), ("a", "n", "u"), ("a", "m", "v"), ("a", "m", "u")]:
        workspace.rows(PUT, CODE, f"{purpose}{model}{uri}", purpose, model, "r", 1, 1, 1, workspace.chunk_ids(uri))
    assert sorted(workspace.rows("select calls, cost from pgrag.llm_usage")) == [(1, 1), (1, 1), (1, 1), (2, 2)]
    workspace.delete("u", "v")
    assert workspace.one("select sum(calls) from pgrag.llm_usage") == 5, "what was paid stays counted"


def test_a_response_whose_source_is_gone_is_counted_and_not_kept(workspace: Workspace) -> None:
    workspace.put(document("u", "one"), document("v", "two"))
    [gone], [there] = workspace.chunk_ids("u"), workspace.chunk_ids("v")
    workspace.delete("u")
    workspace.rows(PUT, CODE, "k", "extract", "m", "says one", 1, 1, 1, [gone])
    workspace.rows(PUT, CODE, "both", "extract", "m", "says one and two", 1, 1, 1, [there, gone])
    assert workspace.cache_keys() == set()
    assert workspace.one("select sum(calls) from pgrag.llm_usage") == 2


def test_a_response_stored_while_its_source_is_deleted_is_not_kept(workspace: Workspace) -> None:
    workspace.put(document("u", "one"))
    chunks = workspace.chunk_ids("u")

    async def delete(store: Store) -> None:
        await store.delete_documents(["u"])

    async def put(store: Store) -> None:
        await store._call("put_cached", CODE, "k", "extract", "m", "says one", 1, 1, 0, chunks)

    asyncio.run(while_open(workspace.dsn, delete, put))
    assert workspace.cache_keys() == set()
    assert workspace.one("select sum(calls) from pgrag.llm_usage") == 1


def test_an_answer_is_kept_only_while_the_texts_are_those_it_was_asked_for(workspace: Workspace) -> None:
    put = "select pgrag.put_cached($1, $2, 'answer', 'm', 'r', 1, 1, 0, '{}', $3)"
    states = [workspace.one("select pgrag.corpus_state()")]
    for change in (
        lambda: workspace.put(document("u", "one")),
        lambda: workspace.put(document("v", "two")),
        lambda: workspace.put(document("u", "three")),
        lambda: workspace.delete("v"),
    ):
        change()
        workspace.rows(put, CODE, f"late {len(states)}", states[-1])
        states.append(workspace.one("select pgrag.corpus_state()"))
        workspace.rows(put, CODE, "in time", states[-1])
        assert workspace.cache_keys() == {"in time"}
    assert len(set(states)) == 5
    assert workspace.one("select sum(calls) from pgrag.llm_usage") == 8


@pytest.mark.parametrize("first_is_the_deletion", [True, False])
def test_an_answer_stored_while_a_document_is_deleted_is_not_kept(
    workspace: Workspace, first_is_the_deletion: bool
) -> None:
    workspace.put(document("u", "one"), document("v", "two"))
    state = workspace.one("select pgrag.corpus_state()")

    async def delete(store: Store) -> None:
        await store.delete_documents(["u"])

    async def put(store: Store) -> None:
        await store.put_cached(Response("k", "answer", "m", "says one", 1, 1, Decimal(0), state=state))

    first, second = (delete, put) if first_is_the_deletion else (put, delete)
    asyncio.run(while_open(workspace.dsn, first, second))
    assert workspace.cache_keys() == set()
    assert workspace.one("select sum(calls) from pgrag.llm_usage") == 1


def test_another_release_may_not_write(workspace: Workspace) -> None:
    with pytest.raises(asyncpg.PostgresError) as raised:
        workspace.rows(PUT, "other", "k", "p", "m", "r", 1, 1, 0, [])
    assert raised.value.sqlstate == "PGR01"
    assert workspace.cache_keys() == set()


def test_the_state_changes_with_texts_that_have_no_words(workspace: Workspace) -> None:
    def state() -> str:
        return workspace.do(workspace.store.corpus_state())

    states = [state()]
    workspace.put(document("words", "one"))
    states.append(state())
    workspace.put(document("none", "?!"))
    states.append(state())
    workspace.delete("none")
    states.append(state())
    workspace.delete("words")
    states.append(state())
    assert len(set(states)) == 5
    assert workspace.rows("select word, chunks, occurrences from pgrag.lexeme") == [("", 0, 0)]
