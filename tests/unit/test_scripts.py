"""What is Han and what is a quotation mark is the same everywhere."""

from __future__ import annotations

import pytest

from pgrag.evaluate.metrics import answer_tokens
from pgrag.extraction.keyless.extractor import split_by_script
from pgrag.extraction.keyless.names import clean_name
from pgrag.extraction.llm.collect import unquoted
from pgrag.graph.summary_answer import clean_summary
from pgrag.llm.prompts import language_of
from pgrag.search.keyword_answer import parse_keywords
from pgrag.text.folding import display_name, name_key, question_keys, words
from pgrag.text.scripts import QUOTES

HAN = ("汉", "々", "〇", "㐀", "豈", "𠀋")  # of every block


@pytest.mark.parametrize("char", HAN)
def test_han_of_every_block_is_han_everywhere(char: str) -> None:
    assert language_of(char * 5) == "zh"
    assert [route for route, _ in split_by_script(char * 5)] == ["chinese"]
    assert len(answer_tokens(char * 2)) == 2
    assert name_key(f"{char} {char}") == name_key(char * 2)
    assert words(f"{char}{char}") != []


@pytest.mark.parametrize("pair", QUOTES, ids="".join)
def test_quotation_marks_are_taken_off_everywhere(pair: tuple[str, str]) -> None:
    quoted = f"{pair[0]}Blue Harbor{pair[1]}"
    assert name_key(quoted) == "blue harbor"
    assert display_name(quoted) == clean_name(quoted) == unquoted(quoted) == clean_summary(quoted) == "Blue Harbor"
    keywords = parse_keywords(f"high_level_keywords: {quoted}\nlow_level_keywords: {quoted}")
    assert keywords is not None
    assert (keywords.low, keywords.high) == (("Blue Harbor",), ("Blue Harbor",))


@pytest.mark.parametrize("pair", ['""', "“”", "《》", "「」", "『』"])
def test_what_a_question_quotes_is_looked_up(pair: str) -> None:
    assert question_keys(f"who wrote {pair[0]}the end of the beginning of it all and more{pair[1]}?")[0] == name_key(
        "the end of the beginning of it all and more"
    )
