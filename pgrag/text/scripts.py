"""Ranges of characters by script, for use inside the brackets of a pattern, and the quotation marks of all scripts."""

from __future__ import annotations

HAN = "\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KANA = "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
BOPOMOFO = "\u3105-\u312f"
HANGUL = "\uac00-\ud7a3"
HAN_KANA = HAN + KANA + BOPOMOFO
# Scripts written without spaces between words (the others: Thai, Lao, Burmese, Khmer), and Hangul, whose particles
# stick to the words.
UNSPACED = HAN_KANA + HANGUL + "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u1049\u1780-\u17d3"

QUOTES = tuple((pair[0], pair[1]) for pair in ('""', "''", "``", "“”", "„“", "‘’", "「」", "『』", "«»", "‹›", "＂＂"))
TITLE_MARKS = (("《", "》"), ("〈", "〉"), ("【", "】"))
QUOTE_SIGNS = "".join(dict.fromkeys(sign for pair in QUOTES for sign in pair))


def quoted(*marks: str, shortest: int, longest: int) -> str:
    """A pattern of a text between marks, each pair a string of two: a group a pair, which holds what is between."""
    return "|".join(
        f"{pair[0]}([^{''.join(dict.fromkeys(pair))}\n]{{{shortest},{longest}}}){pair[1]}" for pair in marks
    )
