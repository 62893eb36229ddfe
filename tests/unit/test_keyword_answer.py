"""Keywords and summaries out of whatever a model answers."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgrag.graph.summary_answer import clean_summary
from pgrag.search.keyword_answer import MAX_KEYWORDS, parse_keywords
from pgrag.types import Keywords

WANTED = Keywords(low=("Brindlewake", "Kestrix 9"), high=("cause of failure", "liability"))

SCRIPT = """```python
import json

def keywords(question):
    # split by hand
    return {
        "high_level_keywords": ["cause of failure", "liability"],
        "low_level_keywords": ["Brindlewake", "Kestrix 9"],
    }

print(json.dumps(keywords(question)))
```"""


HIGH = '["cause of failure", "liability"]'
LOW = '["Brindlewake", "Kestrix 9"]'


@pytest.mark.parametrize(
    "answer",
    [
        f'{{"high_level_keywords": {HIGH}, "low_level_keywords": {LOW}}}',
        '{"high_level_keywords": "cause of failure, liability", "low_level_keywords": "Brindlewake，Kestrix 9"}',
        f'```json\n{{"high_level": {HIGH}, "low_level": {LOW}}}\n```',
        f"Sure! {{'high_level_keywords': {HIGH}, 'low_level_keywords': {LOW}}}".replace('"', "'"),
        '<think>{"low_level_keywords": ["draft"]}</think>'
        f'{{"keywords": {{"High-Level Keywords": {HIGH}, "Low-Level Keywords": {LOW}}}}}',
        SCRIPT,
        f'high_level_keywords = {HIGH}\nlow_level_keywords = [\n  "Brindlewake",  # the ferry\n  "Kestrix 9",\n]',
        "It is about a ferry.\n\n**High-level keywords:** cause of failure, liability\n"
        "**Low-level keywords:** Brindlewake, Kestrix 9\n\nBye",
        "High-Level Keywords:\n- cause of failure\n- liability\n\n"
        "Low-Level Keywords:\n1. Brindlewake: the ferry\n2. Kestrix 9\n\nThese will help.",
        '{"high_level_keywords": ["cause of failure", "Cause of Failure", "", "liability"],\n'
        ' "low_level_keywords": ["Brindlewake", " Kestrix 9 ", "Brind',
    ],
)
def test_both_lists_are_read(answer: str) -> None:
    assert parse_keywords(answer) == WANTED


@pytest.mark.parametrize(
    "answer",
    [
        '{"高层关键词": ["收购原因"], "低层关键词": ["青崖轴承"]}',
        "高层关键词：收购原因\n低层关键词：青崖轴承",
        "高层次的关键词：\n- 收购原因\n低层次的关键词：\n- 青崖轴承\n",
        '{"high_level_keywords": "收购原因", "low_level_keywords": ["青崖轴承"]}',
    ],
)
def test_chinese_answers_are_read(answer: str) -> None:
    assert parse_keywords(answer) == Keywords(low=("青崖轴承",), high=("收购原因",))


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "<think>low_level_keywords: none</think>",
        '{"high_level_keywords": [], "low_level_keywords": []}',
        '{"high_level_keywords": null, "low_level_keywords": ["", "…"]}',
        "I cannot find any keyword in that question.",
        "def f(text):\n    high_level_keywords = []\n    low_level_keywords = []\n    return high_level_keywords",
        "[1, 2, 3]",
    ],
)
def test_nothing_usable_is_none(answer: str) -> None:
    assert parse_keywords(answer) is None


def test_one_level_may_be_empty_and_numbers_are_keywords() -> None:
    assert parse_keywords('{"high_level_keywords": [], "low_level_keywords": [42, "TCP/IP"]}') == Keywords(
        ("42", "TCP/IP")
    )


def test_items_of_a_list_keep_their_commas_and_lists_have_an_end() -> None:
    found = parse_keywords('{"low_level_keywords": ["Tessaly, North", "' + '", "'.join(map(str, range(99))) + '"]}')
    assert found is not None
    assert found.low[0] == "Tessaly, North"
    assert len(found.low) == MAX_KEYWORDS


@pytest.mark.parametrize(
    ("answer", "summary"),
    [
        ("Odrun Vael was a captain.", "Odrun Vael was a captain."),
        ("<think>short</think>\n\nOdrun Vael was a captain.\n", "Odrun Vael was a captain."),
        ("```\nOdrun Vael was a captain.\n```", "Odrun Vael was a captain."),
        ("Here is the merged summary:\n\nOdrun Vael was a captain.", "Odrun Vael was a captain."),
        ("Sure! Here's a concise description of both: Odrun Vael was a captain.", "Odrun Vael was a captain."),
        ("**Summary:** Odrun Vael was a captain.\n\nLet me know if you need more.", "Odrun Vael was a captain."),
        ("## Summary\nOdrun Vael was a captain.", "Odrun Vael was a captain."),
        ('{"summary": "Odrun Vael was a captain."}', "Odrun Vael was a captain."),
        ('"Odrun Vael was a captain."', "Odrun Vael was a captain."),
        ("以下是合并后的描述：\n砚川重工是一家企业。", "砚川重工是一家企业。"),
        ("摘要：砚川重工是一家企业。", "砚川重工是一家企业。"),
        # a text that only looks like a preamble stays
        ("Sure-Grip: a tyre by Hallowmere.", "Sure-Grip: a tyre by Hallowmere."),
        ("This is the port of Sundermoor: it opened in 1901.", "This is the port of Sundermoor: it opened in 1901."),
        ("Summary judgments are rare.\nSummary\nis a word.", "Summary judgments are rare.\nSummary\nis a word."),
        ('"Owl" and "Fox" are ships.', '"Owl" and "Fox" are ships.'),
    ],
)
def test_a_summary_is_only_its_text(answer: str, summary: str) -> None:
    assert clean_summary(answer) == summary


@pytest.mark.parametrize(
    "answer", ["", " \n", "<think>Odrun was", "```\n```", "Summary:", "…", "{}", '{"summary": ""}']
)
def test_an_empty_summary_is_none(answer: str) -> None:
    assert clean_summary(answer) is None


PIECES = [
    "high_level_keywords", "low-level keywords: ", '"', "[", "]", "{", "}", ":", ",", "\n", "- ", "a", "、", "Here is",
    "summary", "```", "<think>", "\x00", "\ud800",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=50).map("".join))
def test_never_raises(answer: str) -> None:
    found = parse_keywords(answer)
    assert found is None or all(map(str.strip, found.low + found.high))
    summary = clean_summary(answer)
    assert summary is None or summary == summary.strip() != ""


@pytest.mark.parametrize("piece", ["high-level keywords: ", "Here is ", "summary ", "\n", "- ", "[", '"，'])
def test_a_megabyte_takes_seconds_at_most(piece: str) -> None:
    started = time.perf_counter()
    parse_keywords(piece * (1_000_000 // len(piece)))
    clean_summary(piece * (1_000_000 // len(piece)))
    assert time.perf_counter() - started < 10
