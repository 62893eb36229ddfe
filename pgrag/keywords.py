"""From a question to what the search matches: texts to embed, words, and keys of names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pgrag.folding import name_key, question_keys, words
from pgrag.types import Keywords, Mode

MAX_KEYS = 200
MAX_SIMILAR = 16
MAX_WORDS = 200


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """What one question asks of each channel. Texts that are None are not embedded."""

    low: str | None
    high: str | None
    words: tuple[str, ...]
    keys: tuple[str, ...]
    similar: tuple[str, ...]


def search_terms(question: str, keywords: Keywords, mode: Mode) -> SearchTerms:
    """Empty keyword lists fall back to the question, in every mode.

    `keys` are looked up exactly: those of the low-level keywords, then those of the names the question may hold,
    longest first. `similar` are looked up by trigrams where no exact name is found.
    """
    found = list(Counter(words(question)))[:MAX_WORDS]
    if mode is Mode.NAIVE:
        return SearchTerms(None, None, tuple(found), (), ())
    low = [k for k in (k.strip() for k in keywords.low) if k]
    high = [k for k in (k.strip() for k in keywords.high) if k]
    own = [key for key in map(name_key, low) if key]
    asked = sorted(question_keys(question), key=len, reverse=True)
    return SearchTerms(
        ", ".join(low) or question,
        ", ".join(high) or question,
        tuple(found),
        tuple(dict.fromkeys((*own, *asked)))[:MAX_KEYS],
        tuple(dict.fromkeys(own))[:MAX_SIMILAR],
    )
