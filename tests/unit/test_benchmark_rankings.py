from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rankings import BM25, best, exact_rankings, recalls

TEXTS = ["the red apple apple", "The green pear", "the red stone wall", "plum"]  # three words on average
URIS = ["a", "b", "c", "d"]


def test_bm25_is_the_value_computed_by_hand_and_ignores_repeats_and_words_in_over_60_percent() -> None:
    # apple: idf ln(1 + 3.5 / 1.5), twice in four words: 2 * 2.2 / (2 + 1.2 (.25 + .75 * 4 / 3)) = 4.4 / 3.5
    # red: idf ln(1 + 2.5 / 2.5), once in four words: 2.2 / 2.5; "the" is in three of four
    scores = BM25(TEXTS).scores("the Apple's apple, red")
    assert scores == pytest.approx([1.2039728 * 4.4 / 3.5 + 0.6931472 * 0.88, 0, 0.6931472 * 0.88, 0], abs=1e-6)


@pytest.mark.parametrize(("texts", "question"), [([], "apple"), (TEXTS, ""), (TEXTS, "unknown"), (["", ""], "apple")])
def test_bm25_of_nothing_is_nothing(texts: list[str], question: str) -> None:
    assert BM25(texts).scores(question).tolist() == [0.0] * len(texts)


def test_best_are_distinct_uris_in_order_and_ties_keep_theirs() -> None:
    assert best(np.array([0.1, 0.9, 0.9, 0.5]), ["d", "b", "a", "b"]) == ["b", "a", "d"]
    assert best(np.array([0.1, 0.0, 0.2]), ["a", "b", "c"], above=0) == ["c", "a"]
    assert best(np.arange(30.0), [str(i) for i in range(30)], 3) == ["29", "28", "27"]


def test_hybrid_adds_a_tenth_of_the_normalised_bm25() -> None:
    vectors = np.array([[1, 0], [0.8, 0.6], [0.95, np.sqrt(1 - 0.95**2)], [0, 1]])
    found = exact_rankings(TEXTS, URIS, vectors, ["pear", "nothing"], np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert found["bm25"] == [["b"], []]
    assert found["dense"] == [["a", "c", "b", "d"]] * 2
    assert found["hybrid"] == [["a", "c", "b", "d"], ["a", "c", "b", "d"]]  # .8 + .1 < .95

    found = exact_rankings(TEXTS, URIS, vectors, ["wall"], np.array([[1.0, 0.0]]))
    assert found["hybrid"] == [["c", "a", "b", "d"]]  # .95 + .1 > 1


def test_recall_counts_gold_among_the_first_k_distinct_uris() -> None:
    rankings = [["a", "a", "b", "c", "d", "e", "f"], ["x"], []]
    table = recalls(rankings, [{"b", "f"}, {"x", "y"}, {"z"}], (2, 5, 10))
    assert table.tolist() == [[0.5, 0.5, 1.0], [0.5, 0.5, 0.5], [0.0, 0.0, 0.0]]
