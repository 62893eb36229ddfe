"""What one question asks of each channel of the search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrag.search.terms import MAX_KEYS, MAX_PARTS, MAX_SIMILAR, MAX_WORDS, PART_WORDS, search_terms
from pgrag.text.folding import words
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


# ---------------------------------------------------------------- parts of a long question


def parts_of(question: str) -> list[list[str]]:
    """The words of each part, in their order; none for a question of one part."""
    terms = search_terms(question, Keywords(), Mode.MIX)
    assert len(terms.parts) == len(terms.words)
    return [
        [word for word, bits in zip(terms.words, terms.parts, strict=True) if bits >> i & 1] for i in range(MAX_PARTS)
    ][: max(terms.parts, default=0).bit_length()]


def said(name: str, count: int = PART_WORDS) -> str:
    return " ".join(f"{name}{n}" for n in range(count))


@pytest.mark.parametrize(
    "question",
    ["", "?!", "Who?", QUESTION, "One, two, three, four; five: six!", said("a", 23), "宁波枢纽几点截单？为什么？",
     said("a") + ", " + said("b", PART_WORDS - 1) + "."],
)  # fmt: skip
def test_a_short_question_has_no_parts(question: str) -> None:
    assert parts_of(question) == []


@pytest.mark.parametrize(
    "mark", [", ", "; ", ": ", "? ", "! ", ". ", "?! ", "... ", ",\n", "，", "；", "？！", "。", "、"]
)
def test_a_long_question_is_cut_at_its_punctuation(mark: str) -> None:
    assert parts_of(said("a") + mark + said("b", 15)) == [said("a").split(), said("b", 15).split()]
    assert parts_of(said("a", 7) + mark + said("b", 7) + mark + said("c")) == [
        [*said("a", 7).split(), *said("b", 7).split()],
        said("c").split(),
    ]


def test_a_short_rest_belongs_to_the_part_before() -> None:
    assert parts_of(f"{said('a')}, {said('b')}, {said('c', 11)}?") == [
        said("a").split(),
        [*said("b").split(), *said("c", 11).split()],
    ]


def test_there_are_four_parts_at_most() -> None:
    found = parts_of(". ".join(said(name) for name in "abcdef"))
    assert found[:3] == [said(name).split() for name in "abc"]
    assert found[3:] == [[word for name in "def" for word in said(name).split()]]
    assert parts_of(", ".join([*(said(name) for name in "abcd"), said("e", 3)]))[3] == [
        *said("d").split(),
        *said("e", 3).split(),
    ]


def test_a_chinese_question_is_cut_without_spaces() -> None:
    one, two = "东京大学图书馆昨天晚上为什么突然停电", "北京机场今天早上有多少航班因大雾取消"
    assert parts_of(f"{one}，{two}？") == [words(one), words(two)]


@pytest.mark.parametrize("code", ["1.5", "10,000", "ORA-01555", "3:30", "node.js", "v2.0.1", "8:15-9:45", "a;b"])
def test_numbers_and_codes_are_not_cut(code: str) -> None:
    assert parts_of(f"{said('a')} {code} {said('b')}") == []
    for word in words(code):
        assert word in search_terms(f"{said('a')}, costs {code} {said('b')}", Keywords(), Mode.MIX).words


def test_a_word_of_two_parts_has_both_bits() -> None:
    terms = search_terms(f"pump {said('a')}. pump valve {said('b')}. Valve PUMP {said('c')}?", Keywords(), Mode.MIX)
    bits = dict(zip(terms.words, terms.parts, strict=True))
    assert (bits["pump"], bits["valve"], bits["a0"], bits["b0"], bits["c0"]) == (7, 6, 1, 2, 4)


def test_a_huge_question_keeps_the_parts_of_the_words_it_keeps() -> None:
    terms = search_terms(", ".join(said(name, 90) for name in "abcde"), Keywords(), Mode.MIX)
    assert len(terms.words) == len(terms.parts) == MAX_WORDS
    assert list(terms.parts) == [1] * 90 + [2] * 90 + [4] * 20


@given(st.text(st.sampled_from("ab1 ,.;:?!，。东京\n-") | st.characters(exclude_categories=["Cs"]), max_size=400))
def test_every_word_is_there_once_and_in_parts_that_there_are(question: str) -> None:
    terms = search_terms(question, Keywords(), Mode.NAIVE)
    assert list(terms.words) == list(dict.fromkeys(words(question)))[:MAX_WORDS]
    if max(terms.parts, default=0) > 0:
        assert all(0 < bits < 1 << MAX_PARTS for bits in terms.parts)
        assert max(terms.parts) > 1
    else:
        assert set(terms.parts) <= {0}
