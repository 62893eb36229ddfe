"""What is derived: names, types, descriptions, weights and degrees are functions of what was said, of nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr

from pgrag.config import Settings
from pgrag.database.pool import open_pool
from pgrag.database.rows import NewDocument, StaleEntity, StaleRelation
from pgrag.database.store import Store
from pgrag.errors import CodeTreeError, DimensionError, ModelError
from pgrag.graph.refresh import BATCH, Refresher
from pgrag.text.lines import entity_line, relation_line
from tests.migration.support import age_code
from tests.sql.reference import expected_graph
from tests.sql.support import (
    EMBEDDER,
    Workspace,
    at_once,
    document,
    embedded,
    fact,
    half,
    mention,
    refresh,
    run,
    seeded,
    snapshot,
    tokenizer,
    while_open,
    work_off,
)
from tests.support.models import WordEmbedder

T = TypeVar("T", StaleEntity, StaleRelation)


def year(number: int) -> datetime:
    return datetime(number, 1, 1, tzinfo=UTC)


def claim_entities(workspace: Workspace, limit: int = 100) -> list[StaleEntity]:
    return workspace.do(workspace.store.claim_stale_entities(limit))


def finish(workspace: Workspace, stale: Sequence[StaleEntity]) -> int:
    return workspace.do(
        workspace.store.finish_stale("entity", stale, [7] * len(stale), embedded([s.name for s in stale]))
    )


def description(workspace: Workspace, name: str) -> str:
    return str(workspace.one("select description from pgrag.entity where name = $1", name))


# ---------------------------------------------------------------- values


def test_name_and_type_are_the_most_frequent_ties_by_byte_order(workspace: Workspace) -> None:
    said = [
        ("Acme", "firm"), ("ACME", "org"), ("Acme", "org"), ("acme", ""), ("acme", ""),  # a tie of names, "" is no type
        ("Ärzte", "b"), ("ärzte", "a"), ("zeta", "x"), ("Zeta", "X"), ("Zeta", ""),
    ]  # fmt: skip
    workspace.ingest(*(document(f"d{n}", mention(*pair)) for n, pair in enumerate(said)))
    rows = workspace.rows("select name, type, mentions from pgrag.entity order by mentions desc, name")
    assert sorted(rows) == sorted([("Acme", "org", 5), ("Zeta", "X", 3), ("Ärzte", "a", 2)])


def test_a_description_tells_the_newest_and_longest_oldest_first(workspace: Workspace) -> None:
    workspace.ingest(
        document("new", mention("A", "", "now big"), published_at=year(2024)),
        document("undated", mention("A", "", "short"), mention("A", "", "rather longer"), mention("A", "", "short")),
        document("old", mention("A", "", "was small"), mention("A", "", "now big"), published_at=year(1999)),
    )
    assert description(workspace, "A") == ("rather longer\nshort\n(1999-01-01) was small\n(2024-01-01) now big")


@pytest.mark.parametrize(
    ("fragments", "tokens"), [(1, 1000), (2, 1000), (3, 1000), (50, 1), (50, 8), (50, 13), (50, 300)]
)
def test_a_description_keeps_to_its_limits_and_is_never_empty(
    workspace: Workspace, fragments: int, tokens: int
) -> None:
    texts = ["the oldest of all these statements", "one of nineteen ninety", "of two thousand", "newest"]
    docs = [
        document(f"d{n}", mention("A", "", text) + "\n" + fact("A", "B", text, n + 1), published_at=year(1980 + 10 * n))
        for n, text in enumerate(texts)
    ]
    workspace.put(*docs)

    async def work(store: Store) -> None:
        await work_off(store)
        await refresh(store)

    run(workspace.dsn, work, description_fragments=fragments, description_tokens=tokens)
    expected = expected_graph(docs, fragments, tokens)
    assert snapshot(workspace) == expected
    told = description(workspace, "A").splitlines()
    assert told[-1] == "(2010-01-01) newest"
    assert len(told) <= fragments
    assert len(told) == 1 or sum(tokenizer().count(line.split(") ")[1]) for line in told) <= tokens


def test_a_relation_tells_the_strongest_statement_among_equal_dates(workspace: Workspace) -> None:
    workspace.put(
        document("u", fact("A", "B", "weak but very long", 1), fact("A", "B", "strong", 9), fact("B", "A", "mid", 2))
    )

    async def work(store: Store) -> None:
        await work_off(store)
        [relation] = await store.claim_stale_relations(10)
        assert relation.description == "strong\nmid"
        assert (relation.source, relation.target, relation.keywords) == ("A", "B", ())

    run(workspace.dsn, work, description_fragments=2)


def test_notes_are_read_where_they_may_be_enough_for_a_summary(workspace: Workspace) -> None:
    """8 notes, or 1,200 tokens, of which each has a byte at least; the date before a note counts."""
    told = {"seven": ["n"] * 7, "eight": ["n"] * 8, "short": ["x" * 560] * 2, "long": ["x" * 600] * 2}
    workspace.put(
        *(
            document(f"{name}{n}", mention(name, "", f"{text} {n}"), published_at=year(2000))
            for name, texts in told.items()
            for n, text in enumerate(texts)
        )
    )
    workspace.work()
    found = workspace.do(workspace.store.stale_fragments("entity", [e.id for e in claim_entities(workspace)]))
    names = dict(workspace.rows("select id, name from pgrag.entity"))
    assert {names[notes.id]: len(notes.fragments) for notes in found} == {"eight": 8, "long": 2}
    assert all(note.startswith("(2000-01-01) ") for notes in found for note in notes.fragments)


def test_tokens_before_the_count_are_an_upper_bound(workspace: Workspace) -> None:
    workspace.put(document("u", fact("Ünïcødé 東京", 'B"\\\t', '東京 ist größer als "das" 🏯 \\ alles', 1)))
    workspace.work()
    entities = claim_entities(workspace)
    relations = workspace.do(workspace.store.claim_stale_relations(10))
    bound = dict(workspace.rows("select id, tokens from pgrag.entity"))
    for e in entities:
        assert tokenizer().count(entity_line(e.name, e.type, e.description)) <= bound[e.id] < 200
    [r] = relations
    tokens = workspace.one("select tokens from pgrag.relation")
    assert tokenizer().count(relation_line(r.source, r.target, r.description)) <= tokens < 400


def test_a_longer_spelling_of_an_end_bounds_the_tokens_of_its_relations_at_once(workspace: Workspace) -> None:
    """Names are shown as they are now: what was counted with the old ones would let a context exceed its budget."""
    short, long = "bureau of electricity inspection", "BUREAU OF ELECTRICITY INSPECTION"
    workspace.ingest(document("u", fact(short, "B", "checks", 1)))
    before = workspace.one("select tokens from pgrag.relation")
    workspace.put(*(document(f"v{n}", mention(long)) for n in range(2)))
    workspace.work()
    assert [e.name for e in claim_entities(workspace)] == [long]
    needed = tokenizer().count(relation_line("B", long, "checks"))
    assert before < needed <= workspace.one("select tokens from pgrag.relation")
    assert workspace.one("select count(*) from pgrag.stale where kind = 'relation'") == 1


# ---------------------------------------------------------------- a function of the set


def some_documents(rng: random.Random) -> list[NewDocument]:
    names = ["Ada", "ADA", "ada", "Bob", "BOB", "Cy", "Cy's", "東京", "Dee"]
    bodies = [
        "\n".join(
            [fact(*rng.sample(names, 2), f"fact {rng.randrange(12)}" + " more" * rng.randrange(3),
                  rng.choice([0.1, 0.2, 0.3, 0.7, 1, 3.3]), ", ".join(rng.sample(["k1", "k2", "Über", "z"], 2)))
             for _ in range(rng.randrange(3))]
            + [mention(rng.choice(names), rng.choice(["", "t", "u"]), f"words {rng.randrange(20)}" * rng.randrange(3))]
        )
        for _ in range(14)
    ]  # fmt: skip
    return [
        document(f"d{n}", *rng.choices(bodies, k=rng.randrange(1, 4)), published_at=rng.choice([None, year(2000 + n)]))
        for n in range(9)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_graph_does_not_depend_on_order_batches_or_when_it_is_refreshed(workspace: Workspace, seed: int) -> None:
    rng = seeded(seed)
    docs = some_documents(rng)
    expected = expected_graph(docs)
    for round_ in range(3):
        order = rng.sample(docs, len(docs))
        while order:
            size = rng.randrange(1, len(order) + 1)
            workspace.put(*order[:size])
            order = order[size:]
            if rng.random() < 0.6:
                workspace.do(work_off(workspace.store, batch=rng.randrange(1, 6)))
            if rng.random() < 0.4:
                workspace.refresh()
        workspace.work()
        workspace.refresh()
        assert snapshot(workspace) == expected, round_
        assert workspace.count("stale") == 0
        workspace.delete(*(doc.uri for doc in docs))
        assert workspace.count("entity") == 0


def test_a_relation_is_refreshed_when_an_end_gets_another_name(workspace: Workspace) -> None:
    """Both names are in its vector and in its line of the context, whose tokens are stored."""
    workspace.ingest(document("u", fact("ACME", "Bolt", "sells")))
    workspace.put(document("v", mention("Acme"), mention("Acme", "firm", "a firm")))
    workspace.work()
    entities = claim_entities(workspace)
    assert [e.name for e in entities] == ["Acme"]
    finish(workspace, entities)
    [relation] = workspace.do(workspace.store.claim_stale_relations(10))
    assert (relation.source, relation.target) == ("Acme", "Bolt")
    assert workspace.do(workspace.store.finish_stale("relation", [relation], [1], embedded(["x"]))) == 1
    assert workspace.count("stale") == 0


# ---------------------------------------------------------------- leases and versions


def test_vectors_and_counts_are_stored_and_the_mark_is_cleared(workspace: Workspace) -> None:
    workspace.put(document("u", fact("A", "B", "x")))
    workspace.work()
    assert workspace.count("stale") == 3
    stale = claim_entities(workspace)
    assert [(s.name, s.type, s.description) for s in stale] == [("A", "", ""), ("B", "", "")]
    assert finish(workspace, stale) == 2
    assert workspace.rows("select tokens from pgrag.entity") == [(7,), (7,)]
    rows = workspace.rows("select entity_id, embedding <=> $1 from pgrag.entity_vector order by 1", half("A"))
    assert [i for i, _ in rows] == [s.id for s in stale]
    assert rows[0][1] < 1e-3 < rows[1][1]
    [relation] = workspace.do(workspace.store.claim_stale_relations(10))
    assert workspace.do(workspace.store.finish_stale("relation", [relation], [9], embedded(["r"]))) == 1
    assert workspace.rows("select tokens from pgrag.relation") == [(9,)]
    assert workspace.count("stale") == 0
    assert finish(workspace, stale) == 0, "no mark, nothing to write"


def test_what_changed_while_it_was_refreshed_stays_marked_and_gets_no_vector(workspace: Workspace) -> None:
    workspace.put(document("u", mention("A", "", "first"), mention("B")))
    workspace.work()
    stale = claim_entities(workspace)
    workspace.put(document("v", mention("A", "", "the second")))
    workspace.work()
    assert finish(workspace, stale) == 1
    assert workspace.rows("select name from pgrag.entity_vector v join pgrag.entity e on e.id = v.entity_id") == [
        ("B",)
    ]
    [again] = claim_entities(workspace)
    assert (again.id, again.description) == (stale[0].id, "the second\nfirst"), "free again at once"
    assert finish(workspace, [again]) == 1
    workspace.delete("u", "v")
    assert finish(workspace, [again]) == 0
    assert workspace.count("entity_vector") == 0


def test_a_lease_is_exclusive_and_a_late_refresher_writes_nothing(workspace: Workspace) -> None:
    workspace.put(document("u", mention("A")))
    workspace.work()
    late = claim_entities(workspace)
    assert claim_entities(workspace) == []
    workspace.rows("update pgrag.stale set lease_until = now() - interval '1 second'")
    now = claim_entities(workspace)
    assert [s.id for s in now] == [s.id for s in late]
    assert finish(workspace, late) == 0
    assert claim_entities(workspace) == [], "the late one did not free the other's lease"
    assert finish(workspace, now) == 1


def test_leases_given_back_can_be_claimed_and_the_marks_stay(workspace: Workspace) -> None:
    workspace.put(document("u", mention("A")))
    workspace.work()
    stale = claim_entities(workspace)
    workspace.do(workspace.store.release_stale([s.lease_token for s in stale]))
    assert finish(workspace, stale) == 0
    assert [s.id for s in claim_entities(workspace)] == [s.id for s in stale]


def test_whoever_claims_again_with_its_token_gets_what_a_lost_reply_held(workspace: Workspace) -> None:
    workspace.put(document("u", fact("A", "B", "x")))
    workspace.work()
    token = uuid4()
    for claim in (workspace.store.claim_stale_entities, workspace.store.claim_stale_relations):
        lost = workspace.do(claim(10, token))
        assert lost
        assert workspace.do(claim(10)) == []
        assert workspace.do(claim(10, token)) == lost


@pytest.mark.parametrize("kind", ["entity", "relation"])
def test_a_refresh_stopped_within_a_claim_leaves_nothing_leased(workspace: Workspace, kind: str) -> None:
    """Its reply comes too late: the marks are held, and nobody knows of them."""
    workspace.put(document("u", fact("A", "B", "x")))
    workspace.work()
    held = asyncio.Event()

    class Slow(Store):
        async def claim_stale_entities(self, limit: int, token: UUID | None = None) -> list[StaleEntity]:
            return await self._told_late("entity", await super().claim_stale_entities(limit, token))

        async def claim_stale_relations(self, limit: int, token: UUID | None = None) -> list[StaleRelation]:
            return await self._told_late("relation", await super().claim_stale_relations(limit, token))

        async def _told_late(self, claimed: str, rows: list[T]) -> list[T]:
            if rows and claimed == kind:
                held.set()
                await asyncio.sleep(60)
            return rows

    async def stopped() -> None:
        settings = Settings(dsn=SecretStr(workspace.dsn))
        async with open_pool(settings) as pool:
            store = Slow(pool, settings, EMBEDDER.dimension)
            refreshing = asyncio.create_task(Refresher(store, EMBEDDER, tokenizer(), 32).run())
            await asyncio.wait_for(held.wait(), 10)
            refreshing.cancel()
            await asyncio.wait([refreshing])
            assert refreshing.cancelled()

    asyncio.run(stopped())
    marks = "select count(*), count(lease_token), count(lease_until) from pgrag.stale"
    assert workspace.rows(marks) == [(3 if kind == "entity" else 1, 0, 0)]


def test_one_lane_fails_and_what_the_other_has_under_way_is_kept(workspace: Workspace) -> None:
    """Its vectors are paid for; it begins nothing new."""
    workspace.put(document("u", *(mention(f"N{n}") for n in range(3 * BATCH))))
    workspace.work()
    both = asyncio.Barrier(2)
    asked: list[int] = []

    class Half(WordEmbedder):
        async def embed(self, texts: Any, kind: Any) -> Any:
            asked.append(len(texts))
            first = len(asked) == 1
            await asyncio.wait_for(both.wait(), 10)
            if first:
                raise ModelError("gone")
            await asyncio.sleep(0.2)
            return await super().embed(texts, kind)

    async def refresh_it(store: Store) -> None:
        with pytest.raises(ModelError, match="gone"):
            await Refresher(store, Half(), tokenizer(), BATCH).run()

    run(workspace.dsn, refresh_it)
    assert asked == [BATCH, BATCH]
    assert workspace.count("entity_vector") == BATCH
    assert workspace.rows("select count(*), count(lease_until) from pgrag.stale") == [(2 * BATCH, 0)]


def test_refreshers_at_once_never_get_the_same_row(workspace: Workspace) -> None:
    workspace.put(document("u", *(fact(f"A{n}", f"B{n}", "x") for n in range(40))))
    workspace.work()

    async def claim_all(store: Store) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        while rows := await store.claim_stale_relations(3):
            found += [("relation", r.id) for r in rows]
        while rows := await store.claim_stale_entities(3):
            found += [("entity", e.id) for e in rows]
        return found

    claimed = [key for keys in at_once(*[lambda: run(workspace.dsn, claim_all)] * 3) for key in keys]
    assert sorted(claimed) == workspace.rows("select kind, id from pgrag.stale order by 1, 2")
    assert len(claimed) == 120


def test_a_mark_made_while_a_refresher_claims_is_not_lost(workspace: Workspace) -> None:
    """The claim holds the mark until it has composed; what comes then moves the version."""
    workspace.put(document("u", mention("A", "", "first")))
    workspace.work()
    claimed: list[StaleEntity] = []
    workspace.put(document("v", mention("A", "", "second one")))

    async def claim(store: Store) -> None:
        claimed.extend(await store.claim_stale_entities(10))

    asyncio.run(while_open(workspace.dsn, claim, work_off))
    assert [c.description for c in claimed] == ["first"]
    assert finish(workspace, claimed) == 0
    assert [c.description for c in claim_entities(workspace)] == ["second one\nfirst"]


def test_bad_vectors_are_refused(workspace: Workspace) -> None:
    workspace.put(document("u", mention("A")))
    workspace.work()
    stale = claim_entities(workspace)
    for vectors in (embedded(["x"]) * 0, embedded(["x"]) * float("nan"), embedded(["x"])[:, :10]):
        with pytest.raises(DimensionError):
            workspace.do(workspace.store.finish_stale("entity", stale, [1], vectors))
    assert workspace.count("entity_vector") == 0


def test_another_release_gets_nothing(own_workspace: Workspace) -> None:
    workspace = own_workspace
    workspace.put(document("u", mention("A")))
    workspace.work()
    stale = claim_entities(workspace)
    age_code(workspace.dsn)
    for call in (
        lambda: finish(workspace, stale),
        lambda: claim_entities(workspace),
        lambda: workspace.do(workspace.store.claim_stale_relations(1)),
        lambda: workspace.do(workspace.store.finish_stale("relation", [], [], embedded(["x"])[:0])),
    ):
        with pytest.raises(CodeTreeError):
            call()
