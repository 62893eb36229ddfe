"""Where a text may be cut: at the ends of sentences, clauses and words, never within what is seen as one character."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_MIN_SENTENCE = 8  # characters; shorter ones stay with the next

# Always matches at a sentence mark, so that a run of marks is read once: whether it ends a sentence is decided after.
_STOP = re.compile(r"[.!?。！？｡…]++[\"'”’)\]」』）》】]*+\s*+")
_CJK_STOPS = frozenset("。！？｡")
_CLAUSE = re.compile(r"[，；、：]|[,;]?\s+")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]{1,20}$")
_INITIALS = re.compile(r"(?:[A-Za-z]\.)*[A-Za-z]")
_TITLES = "mr mrs ms dr prof sr jr st inc ltd co corp dept gen col sgt capt lt rev hon gov sen rep"
_SHORT_WORDS = "vs fig figs eq sec ch vol pp ed eds approx cf al ca jan feb mar apr jun jul aug sep sept oct nov dec"
_ABBREVIATIONS = frozenset(f"{_TITLES} {_SHORT_WORDS}".split())


def sentence_cuts(text: str, start: int, end: int) -> Iterator[int]:
    """Where sentences begin after the first one of text[start:end]."""
    last = start
    for match in _STOP.finditer(text, start, end):
        cut = match.end()
        if cut >= end or cut - last < _MIN_SENTENCE or not _ends_sentence(text, last, match):
            continue
        if not _splits_cluster(text, cut, last):
            yield cut
            last = cut


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    marks = match[0]
    if not _CJK_STOPS.isdisjoint(marks):
        return True
    following = text[match.end()]
    if not marks[-1].isspace() or following.islower():
        return False
    if marks.rstrip() != ".":
        return True
    word = _LAST_WORD.search(text, max(start, match.start() - 20), match.start())
    if word is None:
        return True
    if word[0].isdigit():
        return bool(text[start : word.start()].strip(" -*+•\t"))  # "1. Install" is one sentence
    return not (
        _INITIALS.fullmatch(word[0])
        or word[0].lower() in _ABBREVIATIONS
        or (word[0].lower() in ("no", "p", "art") and following.isdigit())
    )


def good_end(text: str, start: int, end: int) -> int:
    """The best place to cut at or a little before `end`: after a line, a clause, white space, or a whole character."""
    if end >= len(text):
        return end
    half = start + (end - start) // 2
    newline = text.rfind("\n", half, end)
    if newline > half:
        return newline + 1
    best = 0
    for match in _CLAUSE.finditer(text, half, end):
        cut = match.end()
        if cut > half and not text[cut].isspace() and not _splits_cluster(text, cut, start):
            best = cut
    if best:
        return best
    cut = end
    while cut > start and _splits_cluster(text, cut, start):
        cut -= 1
    return cut if cut > start else end


def _splits_cluster(text: str, cut: int, floor: int) -> bool:
    """Whether a cut parts what is seen as one character: the rules of UAX 29 that need no tables.

    `floor` is a place at or before the cut that parts none.
    """
    before, after = text[cut - 1], text[cut]
    if before == "\r":
        return after == "\n"
    if before == "\n" or after < "\u0300":
        return before == "\u200d"
    if before == "\u200d" or after in "\u200c\u200d\uff9e\uff9f" or "\u1160" <= after <= "\u11ff":
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":
        return True
    if "\U0001f1e6" <= after <= "\U0001f1ff":
        flags = 0
        while cut - flags > floor and "\U0001f1e6" <= text[cut - flags - 1] <= "\U0001f1ff":
            flags += 1
        return flags % 2 == 1
    return unicodedata.category(after)[0] == "M"
