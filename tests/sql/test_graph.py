"""From facts to entities and relations: one entity a key, one relation a pair, whoever writes in whatever order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from pgrag.database.rows import NewDocument
from pgrag.database.store import Store
from pgrag.types import ExtractedFact, ExtractedMention, Extraction, FactEntity, Role
from tests.sql.reference import expected_graph
from tests.sql.support import (
    Workspace,
    at_once,
    document,
    fact,
    mention,
    refresh,
    result,
    run,
    snapshot,
    while_open,
    work_off,
)


def relation_rows(workspace: Workspace) -> list[tuple[Any, ...]]:
    return workspace.rows("select source, target, weight, keywords from pgrag.relations order by source, target")


def test_spellings_of_a_name_are_one_entity_whatever_their_type(workspace: Workspace) -> None:
    """CASES 13."""
    spellings = ["ACME", "Acme", "acme", "ＡＣＭＥ", "ACME ", "Acme"]
    workspace.ingest(*(document(f"d{n}", mention(name, f"type {n}")) for n, name in enumerate(spellings)))
    assert workspace.rows("select name, mentions from pgrag.entities") == [("ACME", 6)], "full width is shown half"
    assert workspace.rows("select distinct key from pgrag.mention") == [("acme",)]


def test_names_that_look_like_code_are_stored_and_found_again(workspace: Workspace) -> None:
    """CASES 2 and 3."""
    names = ['List "big \\ plan"', "x'); drop table chunk; --", "n" * 300, "costs $$$ (RM200)", "{a,b}", "NULL", "%s"]
    doc = document("u", "hostile")
    workspace.put(doc)
    [claimed] = workspace.claim()
    facts = tuple(
        ExtractedFact(f"{a} -> {b}", (FactEntity(a, Role.SOURCE), FactEntity(b, Role.TARGET)), (a,))
        for a, b in pairwise(names)
    )
    extraction = Extraction(tuple(ExtractedMention(n, n, f"{n} is {n}") for n in names), facts, tuple(names))
    workspace.do(workspace.store.save_extraction([result(claimed, extraction)]))
    workspace.refresh()
    assert sorted(n for (n,) in workspace.rows("select name from pgrag.entity")) == sorted(names)
    assert [k for (k,) in workspace.rows("select keywords from pgrag.chunk")] == [names]
    rows = workspace.rows("select fact, entities from pgrag.sources order by fact_id")
    assert rows == [(f"{a} -> {b}", [a, b]) for a, b in pairwise(names)]


def test_a_pair_is_one_relation_and_a_chunk_counts_once_with_its_strongest_statement(workspace: Workspace) -> None:
    """CASES 17: A-B and B-A in a chunk, and the same again."""
    body = "\n".join([fact("A", "B", "A to B", 2), fact("B", "A", "B to A", 5), fact("A", "B", "A to B", 2)])
    workspace.ingest(document("u", body, fact("B", "A", "again", 0.5)))
    assert relation_rows(workspace) == [("A", "B", 5.5, [])]
    assert workspace.one("select count(*) from pgrag.fact where relation_id is not null") == 4
    for _ in range(2):
        workspace.ingest(document("u", body, fact("B", "A", "again", 0.5)))
        assert relation_rows(workspace) == [("A", "B", 5.5, [])]


def test_the_same_text_in_two_documents_counts_once(workspace: Workspace) -> None:
    docs = [document("u", fact("A", "B", "x", 3)), document("v", fact("A", "B", "x", 3), fact("A", "B", "y", 1))]
    docs.append(document("titled", fact("A", "B", "x", 3), headings=("Another heading",)))
    workspace.ingest(*docs)
    assert relation_rows(workspace) == [("A", "B", 4.0, [])]
    assert workspace.rows("select mentions from pgrag.entity") == [(4,), (4,)]


def test_a_fact_between_two_spellings_of_one_thing_makes_no_relation(workspace: Workspace) -> None:
    workspace.ingest(document("u", fact("Acme", "ACME", "Acme owns itself")))
    assert workspace.count("relation") == 0
    assert workspace.rows("select text, relation_id from pgrag.fact") == [("Acme owns itself", None)]
    assert workspace.rows("select name, degree from pgrag.entity") == [("Acme", 0)]
    rows = workspace.rows("select key, role from pgrag.fact_entity order by role")
    assert rows == [("acme", "source"), ("acme", "target")]


def test_everything_touched_is_marked_stale(workspace: Workspace) -> None:
    def marks() -> set[tuple[str, str]]:
        return set(
            workspace.rows(
                "select s.kind, e.name from pgrag.stale s join pgrag.entity e using (id) where s.kind = 'entity' union "
                "select s.kind, r.source || r.target from pgrag.stale s join pgrag.relations r using (id) "
                "where s.kind = 'relation'"
            )
        )

    workspace.ingest(document("u", fact("A", "B", "x"), fact("C", "D", "y")))
    assert marks() == set()
    workspace.put(document("v", fact("A", "B", "z") + "\n" + mention("C")))
    workspace.work()
    assert marks() == {("entity", "A"), ("entity", "B"), ("entity", "C"), ("relation", "AB")}


def link(key: str) -> Callable[[Store], Any]:
    """Links a name as save_extraction does."""
    return lambda store: store._pool.fetch(
        "select * from pgrag.link_names($1, $2, $3)", [key, "other"], [key.upper(), "Other"], ["", ""]
    )


def test_a_name_made_by_two_at_once_is_one_entity(workspace: Workspace) -> None:
    rows = asyncio.run(while_open(workspace.dsn, link("acme"), link("acme")))
    aliases = dict(workspace.rows("select key, entity_id from pgrag.entity_alias"))
    assert {row["key"]: row["entity_id"] for row in rows} == aliases
    assert set(aliases) == {"acme", "other"}
    assert workspace.rows("select id from pgrag.entity order by id") == [(i,) for i in sorted(aliases.values())]


def test_a_name_whose_maker_gave_up_is_made_by_the_next(workspace: Workspace) -> None:
    workspace.rows("select * from pgrag.link_names('{a,b}', '{A,B}', array['t', ''])")
    assert workspace.rows("select name, type from pgrag.entity order by name") == [("A", "t"), ("B", "")]
    again = workspace.rows("select key, entity_id from pgrag.link_names('{b,b,c}', '{Bb,B,C}', array['', '', ''])")
    assert [key for key, _ in again] == ["b", "c"]
    assert workspace.rows("select name from pgrag.entity order by name") == [("A",), ("B",), ("C",)]


@pytest.mark.parametrize("round_", range(2))
def test_many_names_made_by_many_at_once_are_made_once(workspace: Workspace, round_: int) -> None:
    keys = [f"name {n}" for n in range(60)]

    def linker(side: int) -> Callable[[], None]:
        async def all_of_them(store: Store) -> None:
            for start in range(0, 60, 20):
                part = (keys if side % 2 else keys[::-1])[start : start + 25]
                await store._fetch("select * from pgrag.link_names($1, $1, $1)", part)

        return lambda: run(workspace.dsn, all_of_them)

    at_once(*(linker(side) for side in range(4)))
    assert workspace.count("entity_alias") == 60
    orphans = (
        "select id from pgrag.entity e where not exists (select from pgrag.entity_alias a where a.entity_id = e.id)"
    )
    assert workspace.rows(orphans) == []


def test_writers_in_different_orders_lose_nothing(workspace: Workspace) -> None:
    """CASES 6: (A,B), (B,C), (C,A) in different orders by three at once, while a fourth refreshes."""
    pairs = [("A", "B"), ("B", "C"), ("C", "A")] * 4
    docs = {
        worker: [
            document(f"w{worker} {n}", *(fact(*pairs[i + worker + n], f"{worker} {n} {i}") for i in range(3)))
            for n in range(6)
        ]
        for worker in range(3)
    }

    def ingest(worker: int) -> Callable[[], int]:
        async def all_of_them(store: Store) -> int:
            done = 0
            for doc in docs[worker]:
                [stored] = await store.put_documents([doc], "settings")
                done += await work_off(store, [stored.id], batch=2)
            return done

        return lambda: run(workspace.dsn, all_of_them)

    def keep_fresh() -> int:
        async def often(store: Store) -> int:
            for _ in range(8):
                await refresh(store)
                await asyncio.sleep(0.05)
            return 0

        return run(workspace.dsn, often)

    assert at_once(*(ingest(worker) for worker in range(3)), keep_fresh) == [18, 18, 18, 0]
    workspace.refresh()
    assert snapshot(workspace) == expected_graph(doc for made in docs.values() for doc in made)
    assert set(workspace.status().values()) == {"complete"}


def test_two_writers_about_one_entity_keep_every_source(workspace: Workspace) -> None:
    """CASES 7, and deletions by a third of what was there before."""
    old = [document(f"old {n}", fact("Hub", f"Old{n}", f"old {n}")) for n in range(10)]
    workspace.ingest(*old)
    new = [[document(f"{side} {n}", fact("Hub", f"Leaf{n}", f"{side} {n}")) for n in range(15)] for side in "xy"]

    def ingest(docs: list[NewDocument]) -> Callable[[], None]:
        async def one_by_one(store: Store) -> None:
            for doc in docs:
                [stored] = await store.put_documents([doc], "settings")
                await work_off(store, [stored.id])

        return lambda: run(workspace.dsn, one_by_one)

    def delete() -> None:
        async def one_by_one(store: Store) -> None:
            for doc in old:
                await store.delete_documents([doc.uri])

        run(workspace.dsn, one_by_one)

    at_once(*map(ingest, new), delete)
    workspace.refresh()
    assert snapshot(workspace) == expected_graph(new[0] + new[1])
    assert workspace.one("select mentions from pgrag.entities where name = 'Hub'") == 30


INTERFERENCE = """
create sequence pgrag.interferences;
create function pgrag.interfere() returns trigger language plpgsql as $f$
begin
    if nextval('pgrag.interferences') = 1 then
        delete from pgrag.{removed};
    end if;
    return null;
end $f$;
create trigger interfere after insert on pgrag.{table} for each statement execute function pgrag.interfere();
"""


@pytest.mark.parametrize("table", ["entity", "relation"])
def test_what_a_deletion_removes_between_two_statements_is_not_left_out(own_workspace: Workspace, table: str) -> None:
    """A trigger stands for a deletion that is committed just then; the work is given up as a whole and repeated."""
    workspace = own_workspace
    doc = document("u", fact("A", "B", "A made B"))
    workspace.put(doc)
    watched = "entity_alias" if table == "entity" else table
    script = INTERFERENCE.format(table=watched, removed=table)
    workspace.do(workspace.store._pool.execute(script))
    claimed = workspace.claim()
    assert workspace.save(*claimed) == {c.id for c in claimed}
    assert workspace.one("select last_value from pgrag.interferences") == 2, "the second attempt"
    workspace.refresh()
    assert snapshot(workspace) == expected_graph([doc])


@pytest.mark.parametrize("state", ["23001", "23503", "40001", "40P01"])
def test_a_transaction_that_lost_a_race_is_repeated(own_workspace: Workspace, state: str) -> None:
    """23001: what PostgreSQL 18 says of a RESTRICT key, where others say 23503."""
    own_workspace.rows("create sequence pgrag.tries")
    own_workspace.rows(
        "create or replace function pgrag.waiting_seconds(p_document bigint[] default null) returns double precision "
        "language plpgsql as $f$ begin if nextval('pgrag.tries') = 1 then "
        f"raise exception 'lost' using errcode = '{state}'; end if; return 7; end $f$"
    )
    assert own_workspace.do(own_workspace.store.waiting_seconds()) == 7
    assert own_workspace.one("select last_value from pgrag.tries") == 2
