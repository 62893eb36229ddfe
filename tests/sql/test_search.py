"""Full text is BM25, compared with BM25 in plain Python; and no word breaks it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from pgrag.folding import words
from pgrag.records import NewDocument
from tests.sql.reference import bm25
from tests.sql.support import EMBEDDER, Workspace, document, fact, half, seeded


def found(workspace: Workspace, *asked: str, limit: int = 1000, budget: int = 600) -> list[tuple[str, float]]:
    """(text, score) of the chunks found, best first."""
    query = (
        "select c.body, s.score from pgrag.search_words($1, $2, $3) with ordinality as s (chunk_id, score, n) "
        "join pgrag.chunk c on c.id = s.chunk_id order by s.n"
    )
    return [(body, score) for body, score in workspace.rows(query, list(asked), limit, budget)]


def corpus(rng: random.Random, size: int = 120) -> list[NewDocument]:
    """Chunks of very unequal length over words of very unequal frequency; "the" is nearly everywhere."""
    vocabulary = [f"w{n}" for n in range(40)] + ["ora-01555", "naïve", "東京大学", "c++"]
    weights = [1 / (n + 1) for n in range(len(vocabulary))]
    texts = [" ".join(rng.choices(vocabulary, weights, k=rng.choice([3, 9, 40, 150]))) for _ in range(size)]
    return [document(f"d{n}", f"nr{n} " + "the " * rng.randrange(4) + text) for n, text in enumerate(texts)]


@pytest.mark.parametrize("seed", range(2))
def test_scores_and_order_are_those_of_bm25(workspace: Workspace, seed: int) -> None:
    rng = seeded(seed)
    docs = corpus(rng)
    workspace.put(*docs)
    asked = [
        "w0",
        "w1",
        "w2",
        "w5",
        "w12",
        "w20",
        "w39",
        "naïve",
        "c++",
        "東京",
        "京大",
        "ora-01555",
        "01555",
        "the",
        "nr7",
        "unknown",
    ]
    for size in (1, 1, 2, 3, 3, 5, 8, 16):
        question = rng.sample(asked, size)
        expected = bm25(docs, question)
        answer = found(workspace, *question)
        assert dict(answer).keys() == expected.keys(), question
        for body, score in answer:
            assert score == pytest.approx(expected[body], rel=1e-3)
        assert answer == sorted(answer, key=lambda item: -item[1])
        ranked = sorted(expected, key=lambda body: -expected[body])
        for place in range(len(answer) - 1):
            if expected[ranked[place]] > 1.01 * expected[ranked[place + 1]]:
                assert {b for b, _ in answer[: place + 1]} == set(ranked[: place + 1]), question
        assert found(workspace, *question, limit=5) == answer[:5]


def test_the_average_length_is_that_of_the_chunks_there_when_a_chunk_came(workspace: Workspace) -> None:
    first = document("a", "zebra " + "x " * 9)
    workspace.put(first, document("b", "y"))
    [(_, before)] = found(workspace, "zebra")
    assert before == pytest.approx(bm25([first, document("b", "y")], ["zebra"])[first.chunks[0].chunk.body], rel=1e-3)
    workspace.put(document("c", "y " * 500))
    assert found(workspace, "zebra")[0][1] > before, "rarer now; its own saturation stays"


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


def test_words_of_one_hash_share_a_place(workspace: Workspace) -> None:
    """Their weights add up; nothing fails."""
    workspace.put(document("u", "one", "two", "three", "four"))
    workspace.rows("update pgrag.lexeme set term = 5 where word in ('one', 'two') returning word")
    assert len(workspace.rows("select chunk_id from pgrag.search_words('{one,two}')")) == 2


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
