"""The chunk table as the queue: who gets what, for how long, and what becomes of late and failed work."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest

from pgrag.database.rows import ClaimedChunk
from pgrag.database.store import Store
from pgrag.errors import CodeTreeError
from tests.migration.support import age_code
from tests.sql.reference import expected_graph
from tests.sql.support import (
    CODE,
    OneConnection,
    Workspace,
    at_once,
    document,
    fact,
    mention,
    result,
    run,
    snapshot,
    while_open,
)


def claimed_ids(claimed: list[ClaimedChunk]) -> list[int]:
    return [c.id for c in claimed]


def expire_leases(workspace: Workspace) -> None:
    workspace.rows("update pgrag.chunk set lease_until = now() - interval '1 second' where lease_until is not null")


def fail(workspace: Workspace, claimed: list[ClaimedChunk], error: str = "broken", backoff: float = 0) -> set[int]:
    return workspace.do(workspace.store.fail_chunks([(c, error) for c in claimed], backoff))


# ---------------------------------------------------------------- claiming


def test_chunks_are_claimed_in_order_up_to_the_limit_with_all_they_need(workspace: Workspace) -> None:
    doc = document("u", "one", "two", "three", headings=("T", "H"))
    [stored] = workspace.put(doc)
    first = workspace.claim(2)
    assert [(c.uri, c.document_id, c.chunk) for c in first] == [("u", stored.id, new.chunk) for new in doc.chunks[:2]]
    assert len({c.token for c in first}) == 1
    assert [c.chunk for c in workspace.claim(2)] == [doc.chunks[2].chunk]
    assert workspace.claim(2) == []


def test_a_live_lease_holds_and_an_expired_one_does_not(workspace: Workspace) -> None:
    workspace.put(document("u", "one"))
    [first] = workspace.claim()
    left = workspace.one("select extract(epoch from lease_until - now()) from pgrag.chunk")
    assert 290 < left <= 300
    assert workspace.claim() == []
    expire_leases(workspace)
    [second] = workspace.claim()
    assert second.id == first.id
    assert second.token != first.token


def test_a_claim_can_be_for_some_documents_only(workspace: Workspace) -> None:
    a, b, _ = workspace.put(document("a", "a1", "same"), document("b", "b1", "same"), document("c", "c1"))
    assert [c.uri for c in workspace.claim(documents=[b.id])] == ["b", "b"], "the equal text of another is no reason"
    assert [c.chunk.body for c in workspace.claim(documents=[a.id])] == ["a1"]
    assert workspace.claim(documents=[]) == []


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_claimers_at_once_never_get_the_same_chunk(workspace: Workspace, limit: int) -> None:
    total = 4 * limit + 20
    workspace.put(document("u", *(f"text {n}" for n in range(total))))

    async def claim_all(store: Store) -> list[int]:
        found: list[int] = []
        while claimed := await store.claim_chunks(None, limit):
            found += claimed_ids(claimed)
        return found

    claimed = at_once(*[lambda: run(workspace.dsn, claim_all)] * 3)
    assert Counter(i for ids in claimed for i in ids) == Counter(workspace.chunk_ids("u"))


def test_a_claim_passes_over_a_chunk_that_another_is_claiming(workspace: Workspace) -> None:
    workspace.put(document("u", "one", "two"))

    async def main() -> None:
        async def inner(store: Store) -> None:
            async with store._pool.acquire() as connection, connection.transaction():
                open_store = Store(OneConnection(connection), store._settings, 384)
                [mine] = await open_store.claim_chunks(None, 1)
                [other] = await store.claim_chunks(None, 5)
                assert (mine.chunk.body, other.chunk.body) == ("one", "two")

        await asyncio.to_thread(run, workspace.dsn, inner)

    asyncio.run(main())


def test_another_release_gets_nothing(own_workspace: Workspace) -> None:
    workspace = own_workspace
    workspace.put(document("u", "one"))
    [claimed] = workspace.claim()
    age_code(workspace.dsn)
    for call in (
        workspace.claim,
        lambda: workspace.save(claimed),
        lambda: fail(workspace, [claimed]),
        lambda: workspace.do(workspace.store.retry_chunks()),
    ):
        with pytest.raises(CodeTreeError):
            call()


# ---------------------------------------------------------------- results of late workers


def test_a_late_worker_writes_nothing(workspace: Workspace) -> None:
    workspace.put(document("u", fact("A", "B", "A made B"), fact("C", "D", "C made D")))
    late = workspace.claim()
    expire_leases(workspace)
    now = workspace.claim(1)
    assert workspace.save(*late) == {late[1].id}, "only the chunk that nobody took over"
    assert fail(workspace, late) == set()
    assert workspace.rows("select attempts, error from pgrag.chunk where id = $1", late[0].id) == [(0, None)]
    assert workspace.save(*now) == {now[0].id}
    assert workspace.save(*now) == set(), "done is done"
    assert workspace.save(late[0]) == set()
    assert workspace.count("fact") == 2


def test_results_of_a_deleted_or_changed_document_are_dropped(workspace: Workspace) -> None:
    workspace.put(document("gone", mention("A")), document("changed", mention("B"), mention("C")))
    claimed = workspace.claim()
    workspace.delete("gone")
    workspace.put(document("changed", mention("C"), mention("D")))
    assert workspace.save(*claimed) == {claimed[2].id}
    assert {key for (key,) in workspace.rows("select key from pgrag.entity_alias")} == {"c"}


# ---------------------------------------------------------------- failures


def test_failures_are_retried_with_back_off_and_then_given_up(workspace: Workspace) -> None:
    workspace.put(document("u", "one"))
    for attempt in range(1, 5):
        [claimed] = workspace.claim()
        assert fail(workspace, [claimed], f"broken {attempt}", 100) == {claimed.id}
        attempts, error, wait, lease = workspace.rows(
            "select attempts, error, extract(epoch from retry_at - now()), lease_until from pgrag.chunk"
        )[0]
        assert (attempts, error, lease) == (attempt, f"broken {attempt}", None)
        assert 100 * 2 ** (attempt - 1) - 5 < wait <= 100 * 2 ** (attempt - 1)
        assert workspace.claim() == []
        waiting = workspace.do(workspace.store.waiting_seconds())
        assert waiting is not None
        assert abs(waiting - float(wait)) < 2
        workspace.rows("update pgrag.chunk set retry_at = now()")
    fail(workspace, workspace.claim(), "broken at last", 100)
    assert workspace.rows("select attempts, retry_at = 'infinity', error from pgrag.chunk") == [
        (5, True, "broken at last")
    ]
    assert workspace.status() == {"u": "failed"}
    assert workspace.claim() == []
    assert workspace.do(workspace.store.waiting_seconds()) is None

    assert workspace.do(workspace.store.retry_chunks()) == 1
    assert workspace.status() == {"u": "pending"}
    [claimed] = workspace.claim()
    assert workspace.one("select attempts from pgrag.chunk") == 0
    workspace.save(claimed)
    assert workspace.rows("select error, retry_at from pgrag.chunk") == [(None, None)]
    assert workspace.do(workspace.store.retry_chunks()) == 0


def test_one_failed_chunk_fails_no_other(workspace: Workspace) -> None:
    workspace.put(document("u", mention("A"), "bad", mention("B")))
    a, bad, b = workspace.claim()
    assert fail(workspace, [bad]) == {bad.id}
    assert workspace.save(a, b) == {a.id, b.id}
    assert claimed_ids(workspace.claim()) == [bad.id]


def test_released_chunks_are_free_at_once(workspace: Workspace) -> None:
    workspace.put(document("u", "one", "two", "three"))
    first, other = workspace.claim(2), workspace.claim(1)
    workspace.do(workspace.store.release_chunks([first[0].token]))
    assert claimed_ids(workspace.claim()) == claimed_ids(first)
    assert workspace.save(*first) == set(), "a lease given back is no lease"
    assert workspace.save(*other) == {other[0].id}
    assert workspace.rows("select sum(attempts) from pgrag.chunk") == [(0,)]


def test_whoever_claims_again_with_its_token_gets_what_a_lost_reply_held(workspace: Workspace) -> None:
    """Else a chunk whose claim was committed, and never told, would be kept by a worker that does not know of it."""
    workspace.put(document("u", "one", "two", "three"))
    token = uuid4()
    lost = workspace.do(workspace.store.claim_chunks(None, 2, token))
    assert claimed_ids(workspace.do(workspace.store.claim_chunks(None, 2, token))) == claimed_ids(lost)
    [other] = workspace.claim()
    assert other.id not in claimed_ids(lost)
    assert workspace.save(*lost, other) == {*claimed_ids(lost), other.id}


def test_waiting_seconds_is_the_time_to_the_next_claim(workspace: Workspace) -> None:
    def wait(documents: list[int] | None = None) -> float | None:
        return workspace.do(workspace.store.waiting_seconds(documents))

    assert wait() is None
    a, b = workspace.put(document("a", "one"), document("b", "two"))
    assert wait() == 0
    workspace.claim(documents=[a.id])
    assert wait() == 0
    leased = wait([a.id])
    assert leased is not None
    assert 290 < leased <= 300
    assert wait([b.id]) == 0
    expire_leases(workspace)
    assert wait([a.id]) == 0
    workspace.work()
    assert wait() is None


def test_progress_counts(workspace: Workspace) -> None:
    workspace.put(document("u", fact("A", "B", "A made B"), "two", "three"))
    done, failed, _ = workspace.claim()
    workspace.save(done)
    workspace.rows("select pgrag.fail_chunks($1, $2, $3, $4, 1, 0)", CODE, [failed.id], [failed.token], ["x"])
    assert workspace.do(workspace.store.progress()) == {
        "documents": 1, "chunks_total": 3, "chunks_done": 1, "chunks_failed": 1, "entities": 2, "relations": 1,
        "facts": 1, "stale": 3,
    }  # fmt: skip


def test_progress_of_documents_counts_their_chunks_and_the_graph_of_all(workspace: Workspace) -> None:
    first, second = workspace.put(document("a", fact("A", "B", "A made B"), "two"), document("b", "three"))
    workspace.work([first.id])
    graph = {"entities": 2, "relations": 1, "facts": 1, "stale": 3}
    for documents, there, chunks, done in (
        ([first.id], 1, 2, 2),
        ([second.id], 1, 1, 0),
        ([second.id, first.id], 2, 3, 2),
        ([], 0, 0, 0),
    ):
        assert workspace.do(workspace.store.progress(documents)) == graph | {
            "documents": there,
            "chunks_total": chunks,
            "chunks_done": done,
            "chunks_failed": 0,
        }


# ---------------------------------------------------------------- equal texts

SAME = "themes: trade\n" + fact("A", "B", "A made B", 2, "craft") + "\n" + mention("C", "x", "a thing")


def test_equal_texts_are_extracted_once_and_adopted_with_everything(workspace: Workspace) -> None:
    docs = [document("a", SAME, "own"), document("b", SAME), document("titled", SAME, headings=("T",))]
    workspace.put(*docs)
    claimed = workspace.claim()
    assert [(c.uri, c.chunk.body) for c in claimed] == [("a", SAME), ("a", "own"), ("titled", SAME)]
    workspace.cached("k", "response", claimed[0].id)
    assert workspace.claim() == []
    assert workspace.do(workspace.store.adopt_extractions()) == 0
    workspace.save(*claimed)
    assert workspace.claim() == [], "it is for adoption"
    assert workspace.status() == {"a": "complete", "b": "pending", "titled": "complete"}
    assert workspace.do(workspace.store.adopt_extractions()) == 1
    assert workspace.do(workspace.store.adopt_extractions()) == 0
    assert workspace.status()["b"] == "complete"

    [first], [adopted] = workspace.chunk_ids("a")[:1], workspace.chunk_ids("b")
    for query in (
        "select key, entity_id, name, type, description, tokens from pgrag.mention where chunk_id = $1 order by key",
        "select ordinal, relation_id, text, keywords, strength, tokens from pgrag.fact where chunk_id = $1",
        "select e.key, e.entity_id, e.role from pgrag.fact f join pgrag.fact_entity e on e.fact_id = f.id "
        "where chunk_id = $1 order by key",
        "select v.embedding::text from pgrag.fact f join pgrag.fact_vector v on v.fact_id = f.id where chunk_id = $1",
        "select embedding::text from pgrag.chunk_vector where chunk_id = $1",
        "select cache_key from pgrag.llm_cache_source where chunk_id = $1",
        "select keywords from pgrag.chunk where id = $1",
    ):
        rows = workspace.rows(query, first)
        assert rows
        assert workspace.rows(query, adopted) == rows
    workspace.refresh()
    assert snapshot(workspace) == expected_graph(docs)
    workspace.delete("a")
    workspace.delete("titled")
    assert workspace.cache_keys() == {"k"}
    assert snapshot(workspace) == expected_graph(docs[1:2])


def test_equal_texts_of_one_document_and_of_a_later_one_are_adopted(workspace: Workspace) -> None:
    docs = [document("a", SAME, SAME, "x", SAME)]
    workspace.put(*docs)
    assert len(workspace.claim()) == 2
    expire_leases(workspace)
    workspace.work()
    docs.append(document("b", "y", SAME))
    workspace.put(docs[1])
    assert [c.chunk.body for c in workspace.claim()] == ["y"]
    expire_leases(workspace)
    workspace.work()
    workspace.refresh()
    assert snapshot(workspace) == expected_graph(docs)
    assert workspace.status() == {"a": "complete", "b": "complete"}


def test_an_equal_text_is_tried_where_another_has_failed(workspace: Workspace) -> None:
    workspace.put(document("a", SAME), document("b", SAME))
    first = workspace.claim()
    assert [c.uri for c in first] == ["a"]
    fail(workspace, first, backoff=1000)
    second = workspace.claim()
    assert [c.uri for c in second] == ["b"]
    workspace.save(*second)
    assert workspace.do(workspace.store.adopt_extractions()) == 1
    assert workspace.status() == {"a": "complete", "b": "complete"}
    assert workspace.rows("select * from pgrag.failures") == []


def test_a_worker_whose_chunk_was_adopted_meanwhile_writes_nothing(workspace: Workspace) -> None:
    a, b = workspace.put(document("a", SAME), document("b", SAME))
    slow = workspace.claim(documents=[b.id])
    quick = workspace.claim(documents=[a.id])
    assert quick == [], "the text is being worked on"
    expire_leases(workspace)
    quick = workspace.claim(documents=[a.id])
    workspace.save(*quick)
    assert workspace.do(workspace.store.adopt_extractions()) == 1
    assert workspace.save(*slow) == set()
    assert workspace.count("fact") == 2


def test_an_adoption_takes_so_many_at_most(workspace: Workspace) -> None:
    workspace.put(document("a", SAME, SAME, SAME, SAME))
    workspace.save(*workspace.claim())
    assert [workspace.do(workspace.store.adopt_extractions(2)) for _ in range(3)] == [2, 1, 0]


def test_adopters_at_once_adopt_each_chunk_once(workspace: Workspace) -> None:
    docs = [document(f"d{n}", SAME, f"own {n}") for n in range(20)]
    workspace.put(*docs)
    workspace.save(*workspace.claim())

    async def adopt(store: Store) -> int:
        return sum([await store.adopt_extractions(2) for _ in range(12)])

    assert sum(at_once(*[lambda: run(workspace.dsn, adopt)] * 3)) == 19
    workspace.refresh()
    assert snapshot(workspace) == expected_graph(docs)


# ---------------------------------------------------------------- the last two chunks of a document


def test_two_workers_that_finish_a_document_at_once_complete_it(workspace: Workspace) -> None:
    workspace.put(document("u", mention("A"), mention("B")))
    [a], [b] = workspace.claim(1), workspace.claim(1)

    def save(claimed: ClaimedChunk) -> Any:
        return lambda store: store.save_extraction([result(claimed)])

    assert asyncio.run(while_open(workspace.dsn, save(a), save(b))) == {b.id}
    assert workspace.status() == {"u": "complete"}


def test_words_are_found_before_a_chunk_is_extracted(workspace: Workspace) -> None:
    workspace.put(document("u", "zebra crossing", "horse"))
    found = workspace.rows("select chunk_id from pgrag.search_words($1)", ["zebra"])
    assert found == [(workspace.chunk_ids("u")[0],)]
