"""What one question asks of each channel of the search."""

from __future__ import annotations

import pytest

from pgrag.keywords import MAX_KEYS, MAX_SIMILAR, MAX_WORDS, search_terms
from pgrag.types import Keywords, Mode

GRAPH_MODES = [mode for mode in Mode if mode not in (Mode.NAIVE, Mode.BYPASS)]
QUESTION = "Who repairs the pumps of Acme Corp?"


@pytest.mark.parametrize("mode", GRAPH_MODES)
@pytest.mark.parametrize("keywords", [Keywords(), Keywords(("", " "), ("\t",))])
def test_without_keywords_the_question_serves_both_levels(mode: Mode, keywords: Keywords) -> None:
    terms = search_terms(QUESTION, keywords, mode)
    assert (terms.low, terms.high) == (QUESTION, QUESTION)
    assert terms.similar == ()
    assert {"acme corp", "acme", "pumps"} <= set(terms.keys)


@pytest.mark.parametrize("mode", GRAPH_MODES)
def test_each_level_falls_back_by_itself(mode: Mode) -> None:
    low_only = search_terms(QUESTION, Keywords((" Acme Corp ", "pumps")), mode)
    assert (low_only.low, low_only.high) == ("Acme Corp, pumps", QUESTION)
    high_only = search_terms(QUESTION, Keywords((), ("maintenance", "repair")), mode)
    assert (high_only.low, high_only.high) == (QUESTION, "maintenance, repair")


def test_keys_of_keywords_come_first_then_longer_names_of_the_question() -> None:
    terms = search_terms(QUESTION, Keywords(("The Zenith", "ZENITH", "...")), Mode.MIX)
    assert terms.keys[0] == "zenith"
    assert terms.similar == ("zenith",)
    assert len(set(terms.keys)) == len(terms.keys)
    assert [len(key) for key in terms.keys[1:]] == sorted((len(key) for key in terms.keys[1:]), reverse=True)


def test_naive_asks_for_words_alone() -> None:
    terms = search_terms(QUESTION, Keywords(("Acme",), ("repair",)), Mode.NAIVE)
    assert (terms.low, terms.high, terms.keys, terms.similar) == (None, None, (), ())
    assert terms.words == search_terms(QUESTION, Keywords(), Mode.MIX).words


def test_words_are_folded_and_distinct() -> None:
    terms = search_terms("Pumps, PUMPS and ORA-01555", Keywords(), Mode.MIX)
    assert terms.words == ("pumps", "and", "ora", "01555", "ora-01555")


def test_a_huge_question_asks_for_a_bounded_number_of_things() -> None:
    question = " ".join(f"Name{i}" for i in range(3000))
    terms = search_terms(question, Keywords(tuple(f"Key{i}" for i in range(500))), Mode.MIX)
    assert len(terms.words) == MAX_WORDS
    assert (len(terms.keys), len(terms.similar)) == (MAX_KEYS, MAX_SIMILAR)


def test_han_and_hostile_questions() -> None:
    assert "宁波枢纽" in search_terms("宁波枢纽几点截单？", Keywords(), Mode.MIX).keys
    terms = search_terms("?!", Keywords(), Mode.LOCAL)
    assert (terms.low, terms.words, terms.keys) == ("?!", (), ())
