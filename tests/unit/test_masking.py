"""Passwords and keys in messages."""

from __future__ import annotations

import pytest

from pgrag.text.masking import mask


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("cannot reach postgresql://ann:hunter2@db:5432/x", "cannot reach postgresql://ann:***@db:5432/x"),
        ("postgresql://ann:a/b@c:d@db/x", "postgresql://ann:***@db/x"),
        ("postgresql://ann@db/x, postgres://ann@db/x", "postgresql://ann@db/x, postgres://ann@db/x"),
        (
            "postgresql://db/x?user=ann&password=hunter2&sslmode=require",
            "postgresql://db/x?user=ann&password=***&sslmode=require",
        ),
        ("host=db password='hunter 2' user=ann", "host=db password=*** user=ann"),
        ('{"api_key": "abc def", "model": "m"}', '{"api_key": ***, "model": "m"}'),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ('{"Authorization": "Bearer abc:def"}', '{"Authorization": "Bearer ***"}'),
        ("header was Bearer abcdef.ghijkl", "header was Bearer ***"),
        ("key sk-proj-abcdefgh12345 is wrong", "key *** is wrong"),
        ("Incorrect API key provided: sk-proj-abcdefghijkl", "Incorrect API key provided: ***"),
        ("at https://me:sk-abcdefghijkl@host/v1", "at https://me:***@host/v1"),
        ("at https://some-key@host/v1", "at https://***@host/v1"),
        ("AIzaSyAbcdefghijklmnop is wrong", "*** is wrong"),
        ("gsk_abcdefghijklmnop is wrong", "*** is wrong"),
        ("hf_abcdefgh1jklmnop is wrong", "*** is wrong"),
        ("chunk_tokens: 16 at least; token: a word", "chunk_tokens: 16 at least; token: a word"),
        ("see https://example.com/a:b and mail me@example.com", "see https://example.com/a:b and mail me@example.com"),
        ("pk_document, key_passages, hf_tokenizer", "pk_document, key_passages, hf_tokenizer"),
    ],
)
def test_what_looks_like_a_secret_is_hidden_and_nothing_else(text: str, masked: str) -> None:
    assert mask(text) == masked


def test_given_secrets_are_hidden_and_words_are_not() -> None:
    assert mask("hunter2 was used for keyword_extraction", ["hunter2"]) == "*** was used for keyword_extraction"
    assert mask("the longer-secret of two", ["longer", "longer-secret"]) == "the *** of two"


def test_a_key_that_is_any_short_word_does_not_black_out_the_message() -> None:
    assert mask("the maximum is exceeded", ["x", "none", ""]) == "the maximum is exceeded"
