from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrag.errors import UsageError
from pgrag.text.folding import (
    MAX_NAME,
    MAX_WORD,
    clean,
    clean_json,
    display_name,
    name_key,
    question_keys,
    words,
)

ANY_TEXT = st.text(st.characters(), max_size=60)  # lone surrogates included


def test_clean_drops_only_what_cannot_be_stored() -> None:
    assert clean("a\x00b\ud800c\udfff 中\U0001f642\n") == "abc 中\U0001f642\n"


def test_clean_json_reaches_keys_and_nested_strings_and_refuses_no_number() -> None:
    value = {"a\x00": ["x\ud800", 1, None, True, {"k": "v\x00"}], "n": float("nan"), "i": float("inf"), "f": 1.5}
    assert clean_json(value) == {"a": ["x", 1, None, True, {"k": "v"}], "n": None, "i": None, "f": 1.5}


def test_clean_json_refuses_endless_nesting() -> None:
    value: object = "deep"
    for _ in range(5_000):
        value = [value]
    with pytest.raises(UsageError, match="100 levels"):
        clean_json(value)


@pytest.mark.parametrize(
    "written",
    [
        *(
            "ACME",
            "Acme",
            "acme",
            "ＡＣＭＥ",
            "ACME ",
            "  Acme,",
            "Acme\t",
            "Acme\x00",
            "“Acme”.",
            "「ACME」",
            "《Acme》",
        ),
        *("''Acme''", "the Acme", "The ACME", '"The Acme"', "Acme's", "Acme’s", "A&#99;me", "\u202eacme\u202c"),
        "\u200bAc\u00adme\ufeff",
    ],
)
def test_one_name_however_it_is_written(written: str) -> None:
    assert name_key(written) == "acme"


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("C++", "c++"),
        ("Ｃ＋＋", "c++"),
        ("C#", "c#"),
        ("C", "c"),
        ("ORA-01555", "ora-01555"),
        ("ORA\u201101555", "ora-01555"),
        ("node.js", "node.js"),
        (".NET", ".net"),
        ('List "big \\ plan"', 'list "big \\ plan"'),
        ("x'); drop table chunk; --", "x'); drop table chunk; --"),
        ("Acme   Pay\n Inc.", "acme pay inc"),
        ("AT&amp;T", "at&t"),
        ("支付 平台", "支付平台"),
        ("Acme 支付", "acme支付"),
        ("列夫・托尔斯泰", "列夫·托尔斯泰"),
        ("Straße", "strasse"),
        ("e\u0301clair", "éclair"),
        ("The The", "the"),
        ("İzmir", "izmir"),
        ("🙂", "🙂"),
    ],
)
def test_key_keeps_what_tells_names_apart(written: str, key: str) -> None:
    assert name_key(written) == key


@pytest.mark.parametrize("written", ["", "   ", "...", "!!!", '""', "《》", "\u200b", "\x00", "-", "+", "，。"])
def test_no_name_no_key(written: str) -> None:
    assert name_key(written) == ""
    assert display_name(written) == ""


def test_key_is_bounded_and_holds_a_long_name_whole() -> None:
    assert name_key("N" * 300) == "n" * 300
    assert len(name_key("\ufdfa" * 5_000)) <= MAX_NAME
    assert len(display_name("x" * 5_000)) == MAX_NAME


@given(ANY_TEXT)
def test_key_is_its_own_key(text: str) -> None:
    key = name_key(text)
    assert name_key(key) == key
    assert key == clean(key)


@given(ANY_TEXT)
def test_a_name_and_how_it_is_shown_have_one_key(text: str) -> None:
    assert name_key(display_name(text)) == name_key(text)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("  ＡＣＭＥ　Pay,", "ACME Pay"),
        ("《红楼梦》", "红楼梦"),
        ("北京（海淀）", "北京（海淀）"),
        ("支付 平台", "支付平台"),
        ("The Acme's", "The Acme's"),
        ("AT&amp;T", "AT&T"),
        ('List "big \\ plan"', 'List "big \\ plan"'),
        ("👨\u200d👩", "👨\u200d👩"),
    ],
)
def test_display_name(written: str, shown: str) -> None:
    assert display_name(written) == shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Error ORA-01555!", ["error", "ora", "01555", "ora-01555"]),
        ("ORA\u201101555.", ["ora", "01555", "ora-01555"]),
        ("Don't, don’t", ["dont", "dont"]),
        ("Acme's O'Brien", ["acme", "obrien"]),
        ("node.js e-mail", ["node", "js", "e", "mail"]),
        ("max_tokens v1.2", ["max", "tokens", "max_tokens", "v1", "2", "v1.2"]),
        ("C++ C# a+b", ["c", "c++", "c", "c#", "a", "b"]),
        ("ＡＣＭＥ", ["acme"]),
        ("支付平台v2升级", ["支付", "付平", "平台", "v2", "升级"]),
        ("我 和你", ["我", "和你"]),
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("हिन्दी", ["हिन्दी"]),
        ("co\u00adoperate e\u0301t\u00e9", ["cooperate", "été"]),
        ("the the", ["the", "the"]),
        ("  ,.;", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_words_are_cut_and_no_code_is_longer() -> None:
    assert words("x" * 70 + " 1-" + "y" * 63) == ["x" * 64, "1", "y" * 63]


@given(ANY_TEXT)
def test_words_are_folded_and_bounded(text: str) -> None:
    for word in words(text):
        assert 0 < len(word) <= MAX_WORD
        assert not re.search(r"[\s,;!?'\"A-Z]", word)


def test_words_do_not_depend_on_where_a_long_text_is_sliced() -> None:
    for padding in range(990, 1_004):
        assert words("a" * padding + " cafe\u0301s ｶﾞ")[1:] == ["cafés", "ガ"]


@pytest.mark.parametrize("unit", ["\u0301", "a\u0301", "a.", "a'", "_", "&#", "中", "\ufdfa", "\"'"])
def test_hostile_text_takes_linear_time(unit: str) -> None:
    text = unit * (100_000 // len(unit))  # a quadratic step would run into minutes here
    assert len(words(text)) <= len(text) * 18
    assert len(name_key(text)) <= MAX_NAME
    assert len(question_keys(text)) <= 400


def test_question_keys_of_english() -> None:
    keys = question_keys("Who leads the Acme payment team after ORA-01555?")
    assert {"acme", "acme payment team", "ora-01555", "payment team"} <= set(keys)
    assert not {"who", "the", "leads the acme payment team after ora-01555", ""} & set(keys)
    assert keys.index("acme") < keys.index("acme payment") < keys.index("acme payment team")


def test_question_keys_of_chinese_and_mixed_scripts() -> None:
    assert {"微信支付", "微信支付平台", "负责人"} <= set(question_keys("微信支付平台的负责人是谁？"))
    assert {"acme", "acme支付", "acme支付平台"} <= set(question_keys("Acme 支付平台为什么重启"))
    assert not {"什么", "是谁", "我"} & set(question_keys("我是谁？什么"))


def test_question_keys_take_quoted_names_of_any_length_first() -> None:
    name = "a name of nine words that nobody would type"
    assert question_keys(f'What is "{name}"?')[0] == name
    assert 'list "big \\ plan"' in question_keys('What is in List "big \\ plan"?')
    assert "x'); drop table chunk; --" in question_keys("Who is x'); drop table chunk; --?")


def test_question_keys_are_bounded_and_distinct() -> None:
    keys = question_keys(" ".join(f"word{number}" for number in range(1_000)))
    assert len(keys) == 400 == len(set(keys))
    assert question_keys("Acme Pay outage", limit=2) == ["acme", "pay"]
    assert question_keys("what is it, a b?") == []
