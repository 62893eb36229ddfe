from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from pgrag.errors import ConfigError
from pgrag.text.tokens import CACHE_VARIABLE, Tokenizer, available_encodings
from tests.support.limits import PROGRAM_SECONDS

TOKENIZER = Tokenizer()
SAMPLE = "The payment service failed at 03:12, ORA-01555.\n支付平台在周二升级了数据库。\n"


def true_count(text: str) -> int:
    return len(tiktoken.get_encoding("o200k_base").encode(text, disallowed_special=()))


def test_counts() -> None:
    assert TOKENIZER.count("") == 0
    assert TOKENIZER.count("hello world") == 2
    assert TOKENIZER.count(SAMPLE) == true_count(SAMPLE)
    assert TOKENIZER.count_many(["hello", "", "hello world"]) == [1, 0, 2]
    assert Tokenizer("cl100k_base").count("支付平台") > TOKENIZER.count("支付平台")


def test_special_tokens_and_surrogates_are_text() -> None:
    assert TOKENIZER.count("<|endoftext|>") > 1
    assert TOKENIZER.count("a\ud800b") > 0


@pytest.mark.parametrize("unit", [SAMPLE, "word ", "中文，字。", "it's \n\n a-b_c "])
def test_long_text_with_words_is_counted_exactly(unit: str) -> None:
    text = unit * (150_000 // len(unit))
    assert TOKENIZER.count(text) == true_count(text)


@pytest.mark.parametrize("unit", ["a", " ", "\n", "中", ".", "\u0301", "7", "aB", "👩\u200d"])
def test_an_unbroken_run_is_counted_from_above_and_closely(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    assert true_count(text) <= TOKENIZER.count(text) <= true_count(text) + 20


def test_a_megabyte_without_a_space() -> None:
    assert 125_000 <= TOKENIZER.count("a" * 1_000_000) <= 125_200


@given(st.text(max_size=300), st.integers(1, 60))
def test_prefix_keeps_the_limit(text: str, limit: int) -> None:
    end = TOKENIZER.prefix_end(text, limit)
    assert TOKENIZER.count(text[:end]) <= limit or end == 1
    assert end == len(text) or TOKENIZER.count(text[: end + 40]) >= limit - 3


def test_prefix_is_as_long_as_the_limit_allows() -> None:
    text = SAMPLE * 50
    end = TOKENIZER.prefix_end(text, 200, 7)
    assert 198 <= TOKENIZER.count(text[7:end]) <= 200
    assert TOKENIZER.prefix_end("short", 100) == 5
    assert TOKENIZER.prefix_end("xshort", 100, 1) == 6
    assert 20_000 < TOKENIZER.prefix_end(" " * 100_000, 200) <= 200 * 128


def test_unknown_encoding_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'gpt5_base' is not on this machine; there is: .*cl100k_base.*o200k_base"):
        Tokenizer("gpt5_base")
    assert {"cl100k_base", "o200k_base"} <= set(available_encodings())


def test_load_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "/nowhere")
    with ThreadPoolExecutor(8) as pool:
        assert {tokenizer.count("hello world") for tokenizer in pool.map(Tokenizer, ["o200k_base"] * 16)} == {2}
    assert os.environ[CACHE_VARIABLE] == "/nowhere"
    monkeypatch.delenv(CACHE_VARIABLE)
    Tokenizer("p50k_base")
    assert CACHE_VARIABLE not in os.environ


def test_load_needs_no_network_and_not_litellm() -> None:
    program = (
        "import socket, sys\n"
        "def refuse(*args): raise AssertionError('network')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "from pgrag.text.tokens import Tokenizer\n"
        "assert Tokenizer().count('hello world') == 2\n"
        "assert 'litellm' not in sys.modules\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != CACHE_VARIABLE}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=PROGRAM_SECONDS)
