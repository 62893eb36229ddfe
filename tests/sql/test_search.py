"""Full text is BM25, compared with BM25 in plain Python; and no word breaks it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from pgrag.database.rows import NewDocument
from pgrag.database.store import Store
from pgrag.text.folding import words
from tests.sql.reference import bm25, part_shares, word_counts
from tests.sql.reference_ranking import contrast
from tests.sql.reference_words import part_bits
from tests.sql.support import EMBEDDER, Workspace, at_once, document, fact, half, run, seeded


def found(workspace: Workspace, *asked: str, limit: int = 1000, budget: int = 600) -> list[tuple[str, float]]:
    """(text, score) of the chunks found, best first."""
    query = (
        "select c.body, s.score from pgrag.search_words($1, $2, $3) with ordinality as s (chunk_id, score, part, n) "
        "join pgrag.chunk c on c.id = s.chunk_id order by s.n"
    )
    return [(body, score) for body, score in workspace.rows(query, list(asked), limit, budget)]


def found_by_part(
    workspace: Workspace, parts: list[list[str]], limit: int = 1000, also: list[str] | None = None
) -> list[tuple[str, float, float]]:
    """(text, score, part) of the chunks found for a question of these parts, best first."""
    bits = part_bits(parts)
    asked = [*bits, *(also or [])]
    query = (
        "select c.body, s.score, s.part from pgrag.search_words($1, $2, 600, $3) "
        "with ordinality as s (chunk_id, score, part, n) join pgrag.chunk c on c.id = s.chunk_id order by s.n"
    )
    rows = workspace.rows(query, asked, limit, [bits.get(word, 0) for word in asked])
    return [(body, score, part) for body, score, part in rows]


def corpus(rng: random.Random, size: int = 120) -> list[NewDocument]:
    """Chunks of very unequal length over words of very unequal frequency; "the" is nearly everywhere."""
    vocabulary = [f"w{n}" for n in range(40)] + ["ora-01555", "naïve", "東京大学", "c++"]
    weights = [1 / (n + 1) for n in range(len(vocabulary))]
    texts = [" ".join(rng.choices(vocabulary, weights, k=rng.choice([3, 9, 40, 150]))) for _ in range(size)]
    return [document(f"d{n}", f"nr{n} " + "the " * rng.randrange(4) + text) for n, text in enumerate(texts)]


ASKED = [
    *("w0", "w1", "w2", "w5", "w12", "w20", "w39", "naïve", "c++", "東京", "京大", "大学", "ora-01555", "01555", "the"),
    *("nr7", "unknown"),
]


def assert_is_bm25(workspace: Workspace, there: Iterable[NewDocument], question: list[str]) -> None:
    """All chunks with a word of the question, with the score they should have, best first."""
    expected = bm25(there, question)
    answer = found(workspace, *question)
    assert len(answer) == len(expected)
    assert dict(answer) == pytest.approx(expected, rel=1e-9), question
    assert [score for _, score in answer] == sorted((score for _, score in answer), reverse=True)


@pytest.mark.parametrize("seed", range(2))
def test_scores_and_order_are_those_of_bm25(workspace: Workspace, seed: int) -> None:
    rng = seeded(seed)
    docs = corpus(rng)
    workspace.put(*docs)
    for size in (1, 1, 2, 3, 3, 5, 8, 16):
        question = rng.sample(ASKED, size)
        assert_is_bm25(workspace, docs, question)
        assert found(workspace, *question, limit=5) == found(workspace, *question)[:5]


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_right_after_every_insert_change_and_delete(workspace: Workspace, seed: int) -> None:
    """The average length grows more than tenfold on the way, and falls again: no score is of yesterday."""
    rng = seeded(seed)
    vocabulary = [f"w{n}" for n in range(20)] + ["naïve", "東京大学", "ora-01555", "c++", "—"]
    weights = [1 / (n + 1) for n in range(len(vocabulary))]
    there: dict[str, NewDocument] = {}
    averages: list[float] = []
    number = 0
    for step in range(20):
        longest = (6, 400, 3)[step // 7]
        uris = [f"d{n}" for n in rng.sample(range(12), rng.randrange(1, 6))]
        if there and rng.random() < 0.25:
            workspace.delete(*uris)
            there = {uri: doc for uri, doc in there.items() if uri not in uris}
        else:
            for uri in uris:
                kept = [new.chunk.body for new in there[uri].chunks][:1] if uri in there else []
                new = [
                    rng.choices(vocabulary, weights, k=rng.randrange(1, longest)) for _ in range(rng.randrange(1, 4))
                ]
                bodies = [f"nr{number + n} {' '.join(said)}" for n, said in enumerate(new)]
                number += len(bodies)
                there[uri] = document(uri, *kept, *bodies, headings=rng.choice([(), ("Naïve heading",)]))
            workspace.put(*(there[uri] for uri in uris))
        every, occurrences = word_counts(there.values()).get("", (0, 0))
        averages.append(occurrences / max(every, 1))
        for size in (1, 3, 8):
            assert_is_bm25(workspace, there.values(), rng.sample(ASKED, size))
    assert max(averages[7:]) > 10 * averages[6]
    workspace.delete(*there)
    assert found(workspace, *ASKED) == []


@pytest.mark.parametrize("length", [1, 2_000])
def test_a_stored_chunk_is_scored_by_the_average_of_now(workspace: Workspace, length: int) -> None:
    first = [
        document("a", "zebra " + "x " * 50),
        document("b", "zebra zebra y"),
        document("c", "z1"),
        document("d", "z2"),
    ]
    more = [document(f"m{n}", f"n{n} " + "filler " * length) for n in range(6)]
    workspace.put(*first)
    assert_is_bm25(workspace, first, ["zebra", "x"])
    workspace.put(*more)
    assert_is_bm25(workspace, [*first, *more], ["zebra", "x"])
    workspace.delete(*(doc.uri for doc in more))
    assert_is_bm25(workspace, first, ["zebra", "x"])


def test_scores_are_right_after_two_wrote_at_once(workspace: Workspace) -> None:
    docs = [
        [document(f"{side}{n}", f"alpha {side}{n} " + "beta " * n, f"gamma {side} {n}") for n in range(8)]
        for side in "xy"
    ]

    def put(mine: list[NewDocument]) -> None:
        async def one_by_one(store: Store) -> None:
            for doc in mine:
                await store.put_documents([doc], "settings")

        run(workspace.dsn, one_by_one)

    at_once(lambda: put(docs[0]), lambda: put(docs[1]))
    there = [*docs[0], *docs[1]]
    counts = workspace.rows("select word, chunks, occurrences from pgrag.lexeme")
    assert {word: tuple(rest) for word, *rest in counts} == word_counts(there)
    assert_is_bm25(workspace, there, ["alpha", "beta", "gamma", "x3", "y"])


def test_a_word_asked_twice_counts_once(workspace: Workspace) -> None:
    docs = corpus(seeded(5), 30)
    workspace.put(*docs)
    assert found(workspace, "w20", "w12", "w20", "w20") == found(workspace, "w12", "w20") != []
    assert_is_bm25(workspace, docs, ["w20", "w12", "w20", "w20"])
    terms = workspace.rows(
        "select n, word, chunks from pgrag.search_terms($1)", ["w20", "w12", "w20", "unknown", "w20"]
    )
    held = {word: sum(word in new.words for doc in docs for new in doc.chunks) for word in ("w12", "w20")}
    rarest = sorted(held, key=lambda word: (held[word], word))
    assert terms == [(n, word, held[word]) for n, word in enumerate(rarest, 1)]


def test_bigrams_are_scored_each_by_its_own_frequency(workspace: Workspace) -> None:
    docs = [
        document(f"d{n}", body)
        for n, body in enumerate(["東京大学東京大学", "東京", "京大", "大学と東京", *"あいうえお"])
    ]
    workspace.put(*docs)
    assert words("東京大学") == ["東京", "京大", "大学"]
    assert_is_bm25(workspace, docs, words("東京大学"))
    assert found(workspace, *words("東京大学"))[0][0] == "東京大学東京大学"


def test_codes_and_scripts_without_spaces_are_found(workspace: Workspace) -> None:
    bodies = [
        "Fix ORA-01555 now",
        "snapshot too old",
        "我住在东京大学附近",
        "北京大学",
        "C++ and C#",
        "filler",
        "more filler",
    ]
    workspace.put(document("u", *bodies))
    assert [b for b, _ in found(workspace, *words("ora-01555"))] == ["Fix ORA-01555 now"]
    assert [b for b, _ in found(workspace, *words("东京大学"))] == ["我住在东京大学附近", "北京大学"]
    assert [b for b, _ in found(workspace, *words("C++"))] == ["C++ and C#"]


def test_nothing_asked_nothing_known_and_nothing_there_give_no_rows(workspace: Workspace) -> None:
    assert found(workspace) == found(workspace, "x") == []
    workspace.put(document("u", "one", "two", "three"))
    assert found(workspace) == found(workspace, "unknown", "") == found(workspace, "one", limit=0) == []
    assert [b for b, _ in found(workspace, "one", "unknown")] == ["one"]
    workspace.delete("u")
    assert found(workspace, "one") == []


def test_a_single_chunk_is_found_though_its_words_are_everywhere(workspace: Workspace) -> None:
    workspace.put(document("u", "only"))
    assert [b for b, _ in found(workspace, "only")] == ["only"]


# ---------------------------------------------------------------- parts of a question


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_part_counts_as_much_as_the_whole(workspace: Workspace, number: int) -> None:
    """The best share of what any chunk scores for one part; words may stand in several parts, or be unknown."""
    rng = seeded(number)
    docs = corpus(rng)
    workspace.put(*docs)
    ids = dict(workspace.rows("select body, id from pgrag.chunk"))
    for _ in range(4):
        parts = [rng.sample(ASKED, rng.randrange(1, 6)) for _ in range(number)]
        expected = bm25(docs, [word for part in parts for word in part])
        share = part_shares(docs, parts)
        answer = found_by_part(workspace, parts)
        assert {body: score for body, score, _ in answer} == pytest.approx(expected, rel=1e-9)
        assert {body: part for body, _, part in answer} == pytest.approx(share, rel=1e-9), parts
        assert max(share.values(), default=1) == pytest.approx(1)
        place = [score / max(expected.values()) + part for _, score, part in answer]
        assert place == sorted(place, reverse=True)
        for (body, *_), (other, *_), one, two in zip(answer, answer[1:], place, place[1:], strict=False):
            assert one > two or ids[body] < ids[other], "equal ones by their age"
        assert found_by_part(workspace, parts, limit=7) == answer[:7]


def test_no_part_is_nothing_and_unknown_words_make_no_part(workspace: Workspace) -> None:
    workspace.put(document("u", "apple pear", "apple", "plum", "filler one", "filler two"))
    assert {part for *_, part in found_by_part(workspace, [], also=["apple", "plum"])} == {0}
    assert found_by_part(workspace, [["unknown", "never"]]) == []
    answer = found_by_part(workspace, [["unknown"], ["apple"], ["nothing", "never"]], also=["plum"])
    assert {body: part > 0 for body, _, part in answer} == {"apple pear": True, "apple": True, "plum": False}


def test_a_word_given_twice_stands_in_the_parts_of_both(workspace: Workspace) -> None:
    workspace.put(document("u", "apple one", "pear pear", "apple apple", "filler one", "filler two"))
    query = "select chunk_id, part from pgrag.search_words($1, 100, 600, $2) order by chunk_id"
    once = workspace.rows(query, ["apple", "pear", "one"], [3, 1, 2])
    twice = workspace.rows(query, ["apple", "pear", "one", "apple"], [1, 1, 2, 2])
    assert once == twice != workspace.rows(query, ["apple", "pear", "one"], [1, 1, 2])


# ---------------------------------------------------------------- contrast


def contrast_of(workspace: Workspace, scores: list[float] | None) -> float | None:
    value: float | None = workspace.one("select pgrag.contrast($1)", scores)
    return value


def test_contrast_is_one_where_scores_fall_off_exponentially(workspace: Workspace) -> None:
    for size in (10, 14, 50, 99, 100, 101, 5000):
        scores = [0.8 - 0.05 * math.log(n) for n in range(1, size + 1)]
        assert contrast_of(workspace, scores) == pytest.approx(1, abs=1e-9), size
    rng = seeded(1)
    drawn = [
        contrast_of(workspace, sorted((rng.expovariate(1) for _ in range(2000)), reverse=True)) for _ in range(200)
    ]
    assert sum(value or 0 for value in drawn) / 200 == pytest.approx(1, abs=0.06)


def test_contrast_says_what_stands_out(workspace: Workspace) -> None:
    alone = [0.9] + [0.5 - n / 1000 for n in range(120)]
    assert (contrast_of(workspace, alone) or 0) > 1.2
    even = [0.9 - n / 1000 for n in range(120)]
    assert contrast_of(workspace, even) == pytest.approx(19 / 99 * math.log(100) / math.log(20))
    assert contrast_of(workspace, [1] + [0] * 99) == pytest.approx(math.log(100) / math.log(20))
    for scores in (alone, even, [3 * score - 7 for score in alone], even[:37], even[:10]):
        assert contrast_of(workspace, scores) == pytest.approx(contrast(scores))
    assert contrast_of(workspace, [3 * score - 7 for score in alone]) == pytest.approx(contrast(alone))
    assert contrast_of(workspace, [*alone[:100], -5.0]) == contrast_of(workspace, alone[:100]), "the best hundred"


@pytest.mark.parametrize("scores", [None, [], [0.5], [0.9 - n / 10 for n in range(9)], [0.5] * 10, [0.25] * 300])
def test_few_or_equal_scores_have_no_contrast(workspace: Workspace, scores: list[float] | None) -> None:
    assert contrast_of(workspace, scores) is None


HOSTILE = [
    "o'brien",
    "''",
    "'",
    "\\",
    "a\\b",
    "\\'",
    "'; drop table chunk; --",
    "a & b",
    "!(x|y)",
    "x:*",
    "x <-> y",
    '"q"',
    "%s",
    "$1",
    "{",
    "5:2",
    "5:2A,3",
    "é\u0301",
    " ",
]


def test_no_word_breaks_the_search(workspace: Workspace) -> None:
    """Folding makes no such words; a caller of the SQL function may."""
    doc = document("u", *(f"text {n}" for n in range(len(HOSTILE) + 3)))
    chunks = [replace(new, words={word: 1}) for new, word in zip(doc.chunks, [*HOSTILE, "x", "y", "z"], strict=True)]
    workspace.put(replace(doc, chunks=chunks))
    for n, word in enumerate(HOSTILE):
        assert [b for b, _ in found(workspace, word)] == [f"text {n}"], word
    everything = found(workspace, *HOSTILE)
    assert len(everything) == len(HOSTILE)
    assert len(found(workspace, *HOSTILE, budget=1)) >= 1
    assert workspace.delete("u")["chunks"] == len(HOSTILE) + 3
    assert workspace.one("select count(*) from pgrag.lexeme where word <> ''") == 0


def test_frequent_words_are_searched_within_the_budget(workspace: Workspace) -> None:
    bodies = (
        [f"apple a{n}" for n in range(30)]
        + [f"pear p{n}" for n in range(30)]
        + [f"apple pear both{n}" for n in range(3)]
    )
    bodies += [f"other o{n}" for n in range(40)]
    workspace.put(document("u", *bodies))
    pairs = found(workspace, "apple", "pear", budget=5)
    assert [b for b, _ in pairs][:3] == bodies[60:63], "both words beat one"
    assert len(pairs) <= 10, "twice the budget"
    rare = found(workspace, "apple", "pear", "a7", budget=5)
    assert rare[0][0] == "apple a7"
    single = found(workspace, "apple", budget=5)
    assert len(single) == 5


def test_two_frequent_words_that_never_meet_are_found(workspace: Workspace) -> None:
    workspace.put(document("u", *(f"apple a{n}" for n in range(20)), *(f"pear p{n}" for n in range(20)), *"vwxyz"))
    assert len(found(workspace, "apple", "pear", budget=5)) == 5


@pytest.mark.parametrize("budget", [1, 3, 10, 30])
def test_a_budget_takes_candidates_and_changes_no_score(workspace: Workspace, budget: int) -> None:
    rng = seeded(budget)
    docs = corpus(rng, 80)
    workspace.put(*docs)
    for size in (1, 2, 3, 5, 8):
        question = rng.sample(ASKED, size)
        expected = bm25(docs, question)
        answer = found(workspace, *question, budget=budget)
        assert (not expected) <= (not answer)
        assert len(answer) == len(dict(answer)) <= 2 * budget, "no chunk twice"
        assert dict(answer) == pytest.approx({body: expected[body] for body, _ in answer}, rel=1e-9)


def put_words(workspace: Workspace, *counts: Mapping[str, int]) -> None:
    """A document "u" of chunks 0, 1, ... with these words, whatever their text: what folding never makes."""
    doc = document("u", *(str(n) for n in range(len(counts))))
    chunks = [replace(new, words=held) for new, held in zip(doc.chunks, counts, strict=True)]
    workspace.put(replace(doc, chunks=chunks))


def score(idf_of: tuple[int, int], count: int, length: int, average: float) -> float:
    """BM25 of a word that so many of all chunks hold."""
    n, chunks = idf_of
    idf = math.log(1 + (chunks - n + 0.5) / (n + 0.5))
    return idf * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * length / average))


def test_words_that_no_tsvector_holds_are_not_indexed_but_counted_in_the_length(workspace: Workspace) -> None:
    longest = "é" * 1_023
    put_words(workspace, {"x" * 2_047: 5, "": 1, longest: 1, "ok": 2}, {"y" * 9_000: 3}, {"z": 1}, {"z": 2})
    assert workspace.rows("select length from pgrag.chunk_search order by chunk_id") == [(9,), (1,), (2,)]
    assert dict(found(workspace, "ok")) == pytest.approx({"0": score((1, 3), 2, 9, 4)})
    assert [body for body, _ in found(workspace, longest)] == ["0"]
    assert found(workspace, "x" * 2_047, "", "y" * 9_000) == []
    assert set(workspace.rows("select word from pgrag.lexeme")) == {("",), (longest,), ("ok",), ("z",)}
    workspace.delete("u")
    assert workspace.rows("select word, chunks, occurrences from pgrag.lexeme") == [("", 0, 0)]


def test_a_chunk_of_more_words_than_a_tsvector_holds_is_indexed_by_its_most_frequent(workspace: Workspace) -> None:
    rare = {f"{n:03}" + "é" * 1_000: 1 for n in range(600)}  # 1.2 MB; 522 of these words fit
    put_words(workspace, rare | {"zz": 3, "zzz": 2}, {"a": 1}, {"b": 1})
    [(length, kept)] = workspace.rows("select length, length(words) from pgrag.chunk_search where length > 1")
    assert (length, kept) == (605, 524)
    average = 607 / 3
    assert dict(found(workspace, "zz")) == pytest.approx({"0": score((1, 3), 3, 605, average)})
    assert dict(found(workspace, *list(rare)[:1])) == pytest.approx({"0": score((1, 3), 1, 605, average)})
    assert found(workspace, list(rare)[521]) != []
    assert found(workspace, list(rare)[522]) == []
    assert workspace.count("lexeme") == kept + 2 + 1
    workspace.delete("u")
    assert workspace.count("lexeme") == 1


def test_a_chunk_of_a_hundred_thousand_words_is_found_by_each(workspace: Workspace) -> None:
    put_words(workspace, {f"w{n}": 1 for n in range(90_000)}, {"a": 1}, {"b": 1})
    assert workspace.count("lexeme") == 90_003
    for word in ("w0", "w44444", "w89999"):
        assert [body for body, _ in found(workspace, word)] == ["0"]


def test_a_count_is_kept_up_to_16383(workspace: Workspace) -> None:
    put_words(workspace, {"much": 16_383, "more": 16_384, "most": 10**6}, {"a": 1}, {"b": 1})
    length = 16_383 + 16_384 + 10**6
    expected = score((1, 3), 16_383, length, (length + 2) / 3)
    for word in ("much", "more", "most"):
        assert dict(found(workspace, word)) == pytest.approx({"0": expected}), word


def test_facts_of_chunks_are_ranked_by_the_question(workspace: Workspace) -> None:
    texts = ["rivers carry water", "water boils", "trees grow", "rivers freeze"]
    workspace.ingest(*(document(f"d{n}", fact("A", f"B{n}", text)) for n, text in enumerate(texts)))
    chunks = [workspace.chunk_ids(f"d{n}")[0] for n in range(3)]
    answer = workspace.do(workspace.store.rank_facts(EMBEDDER.vector("rivers water"), chunks, 2))
    assert [(c, text) for c, text, _ in answer] == [(chunks[0], texts[0]), (chunks[1], texts[1])]
    for _, text, score in answer:
        assert score == pytest.approx(float(np.dot(EMBEDDER.vector("rivers water"), EMBEDDER.vector(text))), abs=2e-3)
    assert workspace.do(workspace.store.rank_facts(EMBEDDER.vector("x"), [], 5)) == []
    assert workspace.rows("select * from pgrag.rank_facts($1, null)", half("x")) == []


# ---------------------------------------------------------------- breadth


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [(-1, 100), (0, 100), (50_000, 100), (500_000, 178), (5_000_000, 316), (10**9, 1000)],
)
def test_the_breadth_of_a_scan_grows_with_the_table(workspace: Workspace, vectors: int, expected: int) -> None:
    workspace.rows("update pg_class set reltuples = $1 where oid = 'pgrag.relation_vector'::regclass", float(vectors))
    breadth = "select pgrag.search_breadth('entity_vector', 'relation_vector', 'no_such_table')"
    assert workspace.one(breadth) == expected
    assert workspace.one("select pgrag.search_breadth('no_such_table')") == 100


def test_a_search_leaves_the_settings_of_the_session_alone(workspace: Workspace) -> None:
    workspace.ingest(document("u", fact("One", "Two", "one is two")))
    [(before, found, after)] = workspace.rows(
        "select current_setting('hnsw.ef_search'), (select count(*) from pgrag.retrieve($1, p_top_k => 400)), "
        "current_setting('hnsw.ef_search')",
        half("one"),
    )
    assert (before, after, found > 0) == ("40", "40", True)
