"""From a question to what the search matches: texts to embed, words, and keys of names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgrag.text.folding import name_key, question_keys, words
from pgrag.types import Keywords, Mode

MAX_KEYS = 200
MAX_SIMILAR = 16
MAX_WORDS = 200
PART_WORDS = 12  # of a part of a long question at least: shorter ones say too little to find a passage by
MAX_PARTS = 4

_BREAK = re.compile(r"[,;:?!.]+\s+|[，；：？！。、]+")


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """What one question asks of each channel. Texts that are None are not embedded.

    `parts` says of each word in which parts of the question it stands, a bit a part; 0 where it has but one.
    """

    low: str | None
    high: str | None
    words: tuple[str, ...]
    parts: tuple[int, ...]
    keys: tuple[str, ...]
    similar: tuple[str, ...]


def search_terms(question: str, keywords: Keywords, mode: Mode) -> SearchTerms:
    """Empty keyword lists fall back to the question, in every mode.

    `keys` are looked up exactly: those of the low-level keywords, then those of the names the question may hold,
    longest first. `similar` are looked up by trigrams where no exact name is found.
    """
    found, parts = _words_by_part(question)
    if mode is Mode.NAIVE:
        return SearchTerms(None, None, found, parts, (), ())
    low = [k for k in (k.strip() for k in keywords.low) if k]
    high = [k for k in (k.strip() for k in keywords.high) if k]
    own = [key for key in map(name_key, low) if key]
    asked = sorted(question_keys(question), key=len, reverse=True)
    return SearchTerms(
        ", ".join(low) or question,
        ", ".join(high) or question,
        found,
        parts,
        tuple(dict.fromkeys((*own, *asked)))[:MAX_KEYS],
        tuple(dict.fromkeys(own))[:MAX_SIMILAR],
    )


def _words_by_part(question: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The distinct words of a question and, of each, the bits of its parts.

    A long question often asks for several things: it is cut at its punctuation into parts of at least PART_WORDS words.
    """
    parts: list[list[str]] = [[]]
    for piece in _BREAK.split(question):
        if len(parts[-1]) >= PART_WORDS and len(parts) < MAX_PARTS:
            parts.append([])
        parts[-1] += words(piece)
    if len(parts) > 1 and len(parts[-1]) < PART_WORDS:
        rest = parts.pop()
        parts[-1] += rest
    bits: dict[str, int] = {}
    for i, part in enumerate(parts):
        for word in part:
            bits[word] = bits.get(word, 0) | (1 << i if len(parts) > 1 else 0)
    found = list(bits)[:MAX_WORDS]
    return tuple(found), tuple(bits[word] for word in found)
