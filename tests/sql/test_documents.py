"""Documents in, changed and out: what is kept, what is counted, and that nothing deleted can be read again."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from pgrag.database.rows import ClaimedChunk, NewDocument
from pgrag.database.store import Store
from pgrag.errors import CodeTreeError
from pgrag.text.folding import words
from tests.migration.support import age_code
from tests.sql.reference import expected_graph, word_counts
from tests.sql.support import (
    Workspace,
    document,
    fact,
    mention,
    result,
    run,
    seeded,
    snapshot,
    texts_of,
    while_open,
)

A_DAY = datetime(2024, 5, 1, tzinfo=UTC)


def chunk_rows(workspace: Workspace, uri: str) -> list[tuple[Any, ...]]:
    return workspace.rows(
        "select c.id, c.ordinal, c.body, c.start_char, c.end_char, c.headings, c.extracted_at is not null "
        "from pgrag.chunk c join pgrag.document d on d.id = c.document_id where d.uri = $1 order by c.ordinal",
        uri,
    )


def lexemes(workspace: Workspace) -> dict[str, tuple[int, int]]:
    rows = workspace.rows("select word, chunks, occurrences from pgrag.lexeme where word <> '' or chunks > 0")
    return {word: (chunks, occurrences) for word, chunks, occurrences in rows}


# ---------------------------------------------------------------- in


def test_a_new_document_is_stored_as_it_is(workspace: Workspace) -> None:
    doc = document(
        "file:a", "one two", "three", headings=("Top", "Part"), title="T", published_at=A_DAY, metadata={"n": [1, "x"]},
        labels=("red", "b,\"c"),
    )  # fmt: skip
    [stored] = workspace.put(doc)
    assert (stored.uri, stored.added, stored.chunks, stored.reused) == ("file:a", True, 2, 0)
    row = workspace.rows(
        "select id, uri, title, mime, sha256, settings_digest, metadata::text, labels, body, tokens, status, error, "
        "published_at from pgrag.document"
    )
    tokens = sum(new.chunk.tokens for new in doc.chunks)
    assert row == [
        (stored.id, "file:a", "T", "text/plain", doc.sha256, "settings", '{"n": [1, "x"]}', ["red", 'b,"c'],
         "one two\n\nthree", tokens, "pending", None, A_DAY)
    ]  # fmt: skip
    first, second = chunk_rows(workspace, "file:a")
    assert first[1:] == (0, "one two", 0, 7, ["Top", "Part"], False)
    assert second[1:] == (1, "three", 9, 14, ["Top", "Part"], False)


def test_documents_of_one_call_keep_their_own_chunks_and_their_order(workspace: Workspace) -> None:
    workspace.put(document("b", "old"))
    stored = workspace.put(document("c", "third"), document("b", "second", "old"), document("a", "first", "x", "x"))
    assert [(s.uri, s.added, s.chunks, s.reused) for s in stored] == [
        ("c", True, 1, 0),
        ("b", False, 2, 1),
        ("a", True, 3, 0),
    ]
    bodies = {uri: [row[2] for row in chunk_rows(workspace, uri)] for uri in "abc"}
    assert bodies == {"a": ["first", "x", "x"], "b": ["second", "old"], "c": ["third"]}
    assert workspace.put() == []


def test_a_replaced_document_has_the_new_columns(workspace: Workspace) -> None:
    workspace.put(document("u", "text", title="Old", metadata={"old": 1}, labels=["old"], published_at=A_DAY))
    [stored] = workspace.put(document("u", "text", title="New", metadata={"new": 2}, labels=["new"]))
    assert (stored.added, stored.reused) == (False, 1)
    assert workspace.rows("select title, metadata::text, labels, published_at from pgrag.document") == [
        ("New", '{"new": 2}', ["new"], None)
    ]


def test_an_unchanged_document_keeps_every_extraction(workspace: Workspace) -> None:
    doc = document("u", fact("A", "B", "A knows B"), mention("C", "x", "a thing"))
    workspace.ingest(doc)
    before = chunk_rows(workspace, "u"), workspace.rows("select * from pgrag.fact"), snapshot(workspace)
    [stored] = workspace.put(doc)
    assert (stored.added, stored.reused) == (False, 2)
    assert (chunk_rows(workspace, "u"), workspace.rows("select * from pgrag.fact"), snapshot(workspace)) == before
    assert workspace.status() == {"u": "complete"}
    assert workspace.claim() == []


@pytest.mark.parametrize("seed", range(6))
def test_chunks_that_moved_keep_their_row_the_nth_equal_text_the_nth_row(workspace: Workspace, seed: int) -> None:
    """Shifted, permuted, repeated, removed and new chunks; headings make a text another one."""
    rng = seeded(seed)
    pool = [f"text {n} " + "long " * n for n in range(5)]
    bodies = [rng.choice(pool) for _ in range(8)]
    workspace.ingest(document("u", *bodies))
    for _ in range(4):
        before: dict[str, list[int]] = defaultdict(list)
        for i, _ordinal, body, *_ in chunk_rows(workspace, "u"):
            before[body].append(i)
        bodies = rng.sample(bodies, rng.randrange(3, len(bodies) + 1)) + [rng.choice(pool) for _ in range(3)]
        rng.shuffle(bodies)
        doc = document("u", *bodies)
        [stored] = workspace.put(doc)
        rows = chunk_rows(workspace, "u")
        assert [row[1:5] for row in rows] == [
            (c.ordinal, c.body, c.start, c.end) for c in (n.chunk for n in doc.chunks)
        ]
        reused = 0
        for i, _ordinal, body, _start, _end, _headings, extracted in rows:
            old = before[body].pop(0) if before[body] else None
            assert extracted == (old is not None)
            assert old is None or i == old
            reused += old is not None
        assert stored.reused == reused
        workspace.work()
    [stored] = workspace.put(document("u", *bodies, headings=("Now with a heading",)))
    assert stored.reused == 0


def test_one_changed_chunk_is_extracted_again_and_its_old_fact_is_gone(workspace: Workspace) -> None:
    bodies = [mention(f"Person{n}", "person", f"number {n}") for n in range(9)]
    workspace.ingest(document("u", *bodies, fact("Ada", "Rome", "Ada was born 987 in Rome", 1, "birth")))
    kept = [row[0] for row in chunk_rows(workspace, "u")][:9]
    new = document("u", *bodies, fact("Ada", "Paris", "Ada was born 986 in Paris", 1, "origin"))
    [stored] = workspace.put(new)
    assert stored.reused == 9
    [claimed] = workspace.claim()
    assert "986" in claimed.chunk.body
    assert not [place for place, text in texts_of(workspace).items() if "987" in text or "rome" in text.lower()]
    workspace.save(claimed)
    workspace.refresh()
    assert [row[0] for row in chunk_rows(workspace, "u")][:9] == kept
    assert snapshot(workspace) == expected_graph([new])


def test_a_new_date_of_a_document_is_told_in_the_descriptions(workspace: Workspace) -> None:
    bodies = fact("A", "B", "A met B"), mention("C", "", "C slept")
    workspace.ingest(document("u", *bodies, published_at=A_DAY))
    new = document("u", *bodies, published_at=datetime(2025, 1, 2, tzinfo=UTC))
    [stored] = workspace.put(new)
    assert stored.reused == 2
    workspace.refresh()
    assert snapshot(workspace) == expected_graph([new])


def test_another_release_may_not_write(own_workspace: Workspace) -> None:
    workspace = own_workspace
    age_code(workspace.dsn)
    with pytest.raises(CodeTreeError):
        workspace.put(document("u", "x"))
    with pytest.raises(CodeTreeError):
        workspace.delete("u")
    assert workspace.count("document") == 0


# ---------------------------------------------------------------- words


@pytest.mark.parametrize("seed", range(4))
def test_words_are_counted_exactly_whatever_happens(workspace: Workspace, seed: int) -> None:
    rng = seeded(seed)
    vocabulary = ["red", "green", "blue", "東京", "ora-01555", "it's", "naïve", "c++", "x", "y", "—", "…"]
    there: dict[str, NewDocument] = {}
    for _ in range(12):
        uris = rng.sample("abcde", rng.randrange(1, 3))
        if rng.random() < 0.3:
            workspace.delete(*uris)
            there = {uri: doc for uri, doc in there.items() if uri not in uris}
        else:
            docs = [
                document(
                    uri,
                    *(" ".join(rng.choices(vocabulary, k=rng.randrange(1, 6))) for _ in range(rng.randrange(1, 5))),
                    headings=rng.choice([(), ("Red heading",)]),
                )
                for uri in uris
            ]
            workspace.put(*docs)
            there |= {doc.uri: doc for doc in docs}
        assert lexemes(workspace) == word_counts(there.values())
    workspace.delete(*"abcde")
    assert lexemes(workspace) == {}
    assert workspace.count("chunk_search") == 0


def test_two_writers_of_the_same_words_lose_no_count(workspace: Workspace) -> None:
    docs = [[document(f"{side}{n}", "alpha beta gamma", f"{side} delta") for n in range(10)] for side in "xy"]

    async def put(side: int) -> None:
        async def one_by_one(store: Store) -> None:
            for doc in docs[side]:
                await store.put_documents([doc], "settings")
                await store.put_documents([document(doc.uri, "beta", "gamma " + doc.uri)], "settings")

        await asyncio.to_thread(run, workspace.dsn, one_by_one)

    async def both() -> None:
        await asyncio.gather(put(0), put(1))

    asyncio.run(both())
    now = [document(doc.uri, "beta", "gamma " + doc.uri) for side in docs for doc in side]
    assert lexemes(workspace) == word_counts(now)


# ---------------------------------------------------------------- status


def test_status_follows_the_chunks(workspace: Workspace) -> None:
    def fail(*claimed: Any) -> None:
        workspace.do(workspace.store.fail_chunks([(c, "too odd") for c in claimed], 0.0))

    workspace.put(document("full", mention("A"), mention("B")), document("none", "nothing", "here"))
    assert workspace.status() == {"full": "pending", "none": "pending"}
    a, b, *rest = workspace.claim()
    workspace.save(a)
    assert workspace.status()["full"] == "pending"
    workspace.save(b)
    workspace.save(*rest)
    assert workspace.status() == {"full": "complete", "none": "empty"}

    workspace.put(document("bad", mention("C"), "fails", mention("D")))
    c, bad, d = workspace.claim()
    fail(bad)
    assert workspace.status()["bad"] == "pending"
    for _ in range(4):
        [bad] = workspace.claim()
        fail(bad)
    assert workspace.status()["bad"] == "pending", "other chunks still wait"
    workspace.save(c, d)
    assert workspace.status()["bad"] == "failed"
    assert workspace.one("select error from pgrag.document where uri = 'bad'") == "chunk 1: too odd"
    workspace.put(document("bad", mention("C"), mention("D")))
    assert workspace.status()["bad"] == "complete", "the chunk that failed is gone"
    assert workspace.one("select error from pgrag.document where uri = 'bad'") is None
    workspace.put(document("bad", mention("C"), mention("E")))
    assert workspace.status()["bad"] == "pending"


# ---------------------------------------------------------------- out

KEPT = document(
    "kept",
    fact("Acme", "Bolt", "Acme sells bolts", 2, "trade, shop") + "\n" + mention("acme", "firm", "a firm"),
    mention("Acme", "firm", "in Ulm"),
)
SECRET = document(
    "secret",
    "themes: quokka\n" + fact("ACME", "Bolt", "ACME hides plutonium", 3, "smuggling, trade"),
    mention("ACME", "syndicate", "run by Zorro") + "\n" + mention("ACME Inc", "syndicate") + "\nxylophone",
    fact("Zorro", "Acme", "Zorro owns it", 1, "ownership"),
    title="Dossier",
    headings=("Dossier",),
    labels=("classified",),
    metadata={"agent": "Mulder"},
)


@pytest.mark.parametrize("caches", ["cleared before", "cleared after", "never cleared"])
def test_no_word_of_a_deleted_document_can_be_read_in_the_schema(workspace: Workspace, caches: str) -> None:
    """CASES 14: two documents share entities and a relation; every table and text column is searched."""
    workspace.ingest(KEPT)
    before = snapshot(workspace)
    workspace.ingest(SECRET)
    workspace.cached("k1", "ACME hides plutonium, says Zorro", workspace.chunk_ids("secret")[0])
    workspace.cached("k2", "Acme sells bolts", workspace.chunk_ids("kept")[0])
    workspace.cached("k3", "Acme, bolts, plutonium", workspace.chunk_ids("kept")[0], workspace.chunk_ids("secret")[0])
    secret_words = set(words(SECRET.body + " Dossier classified agent Mulder")) - set(words(KEPT.body))
    secret_words = {word for word in secret_words if not word.isdigit()}  # counts are numbers too
    assert {"plutonium", "zorro", "syndicate", "smuggling", "xylophone", "quokka", "inc"} <= secret_words
    known = texts_of(workspace)
    for word in ("plutonium", "zorro", "dossier", "mulder"):
        assert any(word in text.lower() for text in known.values())
    if caches == "cleared before":
        workspace.rows("delete from pgrag.llm_cache")
    gone = workspace.delete("secret", "never there")
    if caches == "cleared after":
        workspace.rows("delete from pgrag.llm_cache")

    assert gone == {"uris": ["secret"], "chunks": 3, "facts": 2, "entities": 2, "relations": 1}
    for place, text in texts_of(workspace).items():
        assert not set(words(text)) & secret_words, place
        assert "ACME" not in text, place
    assert workspace.cache_keys() == ({"k2"} if caches == "never cleared" else set())
    assert snapshot(workspace) == before == expected_graph([KEPT])
    touched = workspace.rows("select kind, id from pgrag.stale order by 1, 2")
    ids = [("entity", i) for (i,) in workspace.rows("select id from pgrag.entity order by 1")]
    assert touched == [*ids, ("relation", workspace.one("select id from pgrag.relation"))]
    assert workspace.count("entity_vector") == 0
    assert workspace.count("relation_vector") == 0
    workspace.refresh()
    assert workspace.count("entity_vector") == 2
    assert workspace.count("relation_vector") == 1


def test_what_a_deletion_does_not_touch_keeps_its_vector(workspace: Workspace) -> None:
    workspace.ingest(document("a", fact("A", "B", "A and B")), document("c", fact("C", "D", "C and D")))
    workspace.delete("a")
    assert workspace.count("stale") == 0
    assert workspace.count("entity_vector") == 2
    assert workspace.count("relation_vector") == 1


def test_unknown_uris_delete_nothing(workspace: Workspace) -> None:
    workspace.ingest(KEPT)
    before = snapshot(workspace)
    nothing = {"uris": [], "chunks": 0, "facts": 0, "entities": 0, "relations": 0}
    assert workspace.delete("x", "") == nothing
    assert workspace.delete() == nothing
    assert snapshot(workspace) == before


def test_a_document_of_waiting_chunks_can_be_deleted(workspace: Workspace) -> None:
    workspace.put(document("u", "one", "two"))
    assert workspace.delete("u") == {"uris": ["u"], "chunks": 2, "facts": 0, "entities": 0, "relations": 0}
    assert workspace.count("chunk") == 0


@pytest.mark.parametrize("seed", range(4))
def test_after_any_deletions_the_graph_is_that_of_the_rest(workspace: Workspace, seed: int) -> None:
    """Composed in the same transaction, without a refresh."""
    rng = seeded(seed)
    names = ["Ada", "ADA", "Bob", "bob", "Cy", "Dee"]
    docs = [
        document(
            f"d{n}",
            *(
                "\n".join(
                    [
                        fact(*rng.sample(names, 2), f"says {rng.randrange(9)}", rng.choice([0.3, 0.7, 1, 2]), f"k{n}"),
                        mention(rng.choice(names), rng.choice(["t", "u", ""]), f"words {rng.randrange(9)}"),
                    ]
                )
                for _ in range(rng.randrange(1, 4))
            ),
            published_at=rng.choice([None, datetime(2020 + n, 1, 1, tzinfo=UTC)]),
        )
        for n in range(8)
    ]
    workspace.ingest(*docs)
    assert snapshot(workspace) == expected_graph(docs)
    while docs:
        out = rng.sample(docs, min(len(docs), rng.randrange(1, 4)))
        docs = [doc for doc in docs if doc not in out]
        gone = workspace.delete(*(doc.uri for doc in out))
        assert gone["uris"] == sorted(doc.uri for doc in out)
        assert snapshot(workspace) == expected_graph(docs)
    assert workspace.count("entity_alias") == 0
    assert workspace.count("stale") == 0


# ---------------------------------------------------------------- cached responses


def test_a_response_goes_with_its_source_unless_the_same_text_lives_on(workspace: Workspace) -> None:
    same = "the same text"
    workspace.put(
        document("a", same, "only a"), document("b", same, "only b"), document("titled", same, headings=("T",))
    )
    [a_same, a_only], [b_same, b_only], [titled] = map(workspace.chunk_ids, ("a", "b", "titled"))
    workspace.cached("twin", "1", a_same)
    workspace.cached("own", "2", a_only)
    workspace.cached("b", "3", b_only)
    workspace.cached("both", "4", a_same, a_only)
    workspace.cached("twin and b", "5", a_same, b_only)
    workspace.cached("titled", "6", titled)
    workspace.cached("none", "7")
    workspace.delete("a")
    assert workspace.cache_keys() == {"twin", "b", "twin and b", "titled", "none"}
    sources = set(workspace.rows("select cache_key, chunk_id from pgrag.llm_cache_source"))
    assert sources == {
        ("twin", b_same),
        ("b", b_only),
        ("twin and b", b_same),
        ("twin and b", b_only),
        ("titled", titled),
    }
    workspace.delete("titled")
    assert workspace.cache_keys() == {"twin", "b", "twin and b", "none"}, "other headings: another text"
    workspace.delete("b")
    assert workspace.cache_keys() == {"none"}


def test_equal_texts_deleted_together_take_their_responses_along(workspace: Workspace) -> None:
    workspace.put(document("a", "same", "same"), document("b", "same"))
    workspace.cached("k", "r", workspace.chunk_ids("a")[0])
    workspace.delete("a", "b")
    assert workspace.cache_keys() == set()


def test_equal_texts_deleted_at_once_by_two_leave_no_response(workspace: Workspace) -> None:
    """Both are stopped at the row that counts all words, after they have looked for an equal text elsewhere."""
    workspace.put(document("a", "same"), document("b", "same"))
    workspace.cached("k", "r", *workspace.chunk_ids("a"), *workspace.chunk_ids("b"))

    async def both(store: Store) -> None:
        await asyncio.gather(store.delete_documents(["a"]), store.delete_documents(["b"]))

    async def hold(store: Store) -> None:
        await (await store._pool.acquire()).fetch("select from pgrag.lexeme where word = '' for update")

    asyncio.run(while_open(workspace.dsn, hold, both, blocked=2))
    assert workspace.count("document") == 0
    assert workspace.cache_keys() == set()


# ---------------------------------------------------------------- races


def in_turn(first: str, uri: str, claimed: ClaimedChunk) -> list[Callable[[Store], Awaitable[Any]]]:
    """Deleting a document and storing a chunk, the one named first."""
    deletes = [lambda store: store.delete_documents([uri]), lambda store: store.save_extraction([result(claimed)])]
    return deletes if first == "delete" else deletes[::-1]


@pytest.mark.parametrize("first", ["delete", "save"])
def test_a_relation_stated_anew_while_its_last_source_is_deleted_stays(workspace: Workspace, first: str) -> None:
    workspace.ingest(document("old", fact("A", "B", "A likes B")))
    new = document("new", fact("B", "A", "B likes A"))
    workspace.put(new)
    asyncio.run(while_open(workspace.dsn, *in_turn(first, "old", *workspace.claim())))
    workspace.refresh()
    assert snapshot(workspace) == expected_graph([new])


@pytest.mark.parametrize("first", ["delete", "save"])
def test_a_chunk_deleted_while_it_is_stored_does_not_come_back(workspace: Workspace, first: str) -> None:
    workspace.put(document("u", fact("A", "B", "A likes B")))
    answer = asyncio.run(while_open(workspace.dsn, *in_turn(first, "u", *workspace.claim())))
    assert first == "save" or answer == set()
    for table in (
        "chunk",
        "mention",
        "fact",
        "entity",
        "entity_alias",
        "relation",
        "adjacency",
        "stale",
        "fact_vector",
    ):
        assert workspace.count(table) == 0, table
