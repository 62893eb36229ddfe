"""Answers of models without thinking, fences and prose, and their JSON mended."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgrag.llm.repair import MAX_DEPTH, may_be_thinking, mend, without_thinking

PIECES = [
    "<think>", "</think>", "```json\n", "```\n", "{", "}", "[", "]", '"', "'", ":", ",", "\\", "\n", " ", "“", "：",
    '"a"', '{"name": "x"}', "null", "NaN", "1e999", "\x00", "\ud800", "text", "//", "#",
]  # fmt: skip


def values(answer: str, *, truncated: bool = False) -> list[object]:
    return [found.value for found in mend(answer, truncated=truncated).values]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("<think>maybe</think>Yes", "Yes"),
        ("<think>\na <think>b</think> c\n</think>\nYes", "Yes"),
        ("<think>a</think>One<think>b</think>Two", "OneTwo"),
        ("<THINKING>a</THINKING>Yes", "Yes"),
        ("reasoned without opening\n</think>\nYes", "Yes"),
        ("Yes</think>", "Yes"),
        ("<think>a</think>Yes</think>", "Yes"),
        ("Yes\n<think>never closed, Yes", "Yes"),
        ("<think>I shall not write <think> again</think>Yes", "Yes"),
        ("<think>only this", ""),
        ("<think></think>", ""),
        ("The tag <think> opens a block.", "The tag <think> opens a block."),
        ("\u25c1think\u25b7hm\u25c1/think\u25b7Yes", "Yes"),
    ],
)
def test_thinking_is_taken_off(answer: str, text: str) -> None:
    assert without_thinking(answer) == text
    assert mend(answer).text == text


def test_valid_json_is_untouched_even_if_it_speaks_of_tags_and_fences() -> None:
    value = {"description": "Use <think> and ```json fences``` in a {prompt}", "n": [1, {"deep": []}]}
    mended = mend(f"\ufeff {json.dumps(value)}\n")
    assert [found.value for found in mended.values] == [value]
    assert mended.text == json.dumps(value)
    assert not mended.mended


@pytest.mark.parametrize(
    ("answer", "reasons"),
    [
        ('```json\n{"a": 1}\n```', {"code fence"}),
        ('~~~python\n{"a": 1}\n~~~', {"code fence"}),
        ('<think>{"a": 2}</think>\n```\n{"a": 1}\n```', {"think block", "code fence"}),
        ('Certainly, here {it} is:\n```json\n{"a": 1}\n```\nAnything else?', {"code fence", "prose around JSON"}),
        ('The [result] is {"a": 1}. Bye', {"prose around JSON"}),
        ("{'a': 1,}", {"broken JSON"}),
        ('{"a": 1 // one\n}', {"broken JSON"}),
        ("{“a”：1}", {"broken JSON"}),
    ],
)
def test_one_object_is_found_in_all_of_it(answer: str, reasons: set[str]) -> None:
    assert values(answer) == [{"a": 1}]
    assert set(mend(answer).mended) == reasons


def test_values_of_several_fences_and_lines_come_in_order() -> None:
    answer = 'First\n```json\n{"a": 1}\n```\nthen\n```json\n[{"b": 2}]\n```\n{"c": 3}\n{"d": 4}'
    assert values(answer) == [{"a": 1}, [{"b": 2}], {"c": 3}, {"d": 4}]


def test_quotes_that_are_not_escaped_do_not_lose_the_record() -> None:
    found = values('{"name": "Vael", "description": "called "the Owl" by sailors"}')
    assert found == [{"name": "Vael", "description": 'called "the Owl" by sailors'}]


@pytest.mark.parametrize("tail", ['{"name": "C", "descr', '{"name": "C", "tags": ["x", "y', "{", "", '{"name": "C"'])
@pytest.mark.parametrize("reported", [True, False])
def test_what_was_cut_off_goes_and_whole_records_stay(tail: str, reported: bool) -> None:
    mended = mend('{"entities": [{"name": "A"}, {"name": "B", "tags": ["x"]}, ' + tail, truncated=reported)
    assert [found.value for found in mended.values] == [{"entities": [{"name": "A"}, {"name": "B", "tags": ["x"]}]}]
    assert mended.values[0].cut
    assert mended.mended["JSON cut off"] == 1


def test_prose_after_a_missing_bracket_is_no_part_of_the_value() -> None:
    mended = mend('{"entities": [{"name": "A"}]\n\nI hope this helps!')
    assert [found.value for found in mended.values] == [{"entities": [{"name": "A"}]}]


def test_numbers_beyond_json_are_read() -> None:
    (value,) = values('{"a": NaN, "b": -Infinity}')
    assert isinstance(value, dict)
    assert math.isnan(value["a"])
    assert value["b"] == -math.inf


def test_deep_nesting_is_left_out_and_what_follows_is_found() -> None:
    assert values("[" * (MAX_DEPTH + 5) + "]" * (MAX_DEPTH + 5) + ' {"a": 1}')[-1] == {"a": 1}
    assert values("[" * 100_000 + "1") == []


@pytest.mark.parametrize("piece", ["[", "{", '{"a":', '{"', "[{", '"', "<think>", "```\n", '{"a" 1 ', "{ ", "\\", "]"])
def test_a_megabyte_of_anything_takes_seconds_at_most(piece: str) -> None:
    started = time.perf_counter()
    mend(piece * (1_000_000 // len(piece)))
    mend('{"a":"' + piece * (1_000_000 // len(piece)), truncated=True)
    assert time.perf_counter() - started < 10  # about a second when nothing else runs


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join), st.booleans())
def test_never_raises(answer: str, truncated: bool) -> None:
    for found in mend(answer, truncated=truncated).values:
        assert isinstance(found.value, dict | list)


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.integers() | st.text(max_size=8) | st.none(),
        lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=5), c, max_size=3),
        max_leaves=12,
    )
)
def test_json_comes_through_a_fence_as_it_was(value: object) -> None:
    if isinstance(value, dict | list):
        assert values(json.dumps(value)) == [value]
        assert values(f"<think>x</think>\n```json\n{json.dumps(value, indent=1)}\n```") == [value]


@pytest.mark.parametrize(
    ("beginning", "held"),
    [
        ("", True), (" \n", True), ("<", True), ("<thi", True), ("<think>", True), ("\n<think>a < b, a > c\n", True),
        ("<thinking mode='x'>hm", True), ("<think>a</think>", False), ("<think>a</think>Alder", False),
        ("Alder", False), ("Alder wrote <think>", False), ("<p>Alder", False), ("<b\nAlder", False),
        ("<" + "a" * 200, False),
    ],
)  # fmt: skip
def test_a_stream_is_held_back_while_it_may_be_thinking(beginning: str, held: bool) -> None:
    assert may_be_thinking(beginning) is held
