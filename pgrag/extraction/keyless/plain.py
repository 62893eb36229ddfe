"""What can be said of text in a script without a tagger here: codes, quoted strings, capitalised and katakana words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pgrag.extraction.keyless.names import MAX_SENTENCE, Name, Sentence, clean_name, distinct, find_codes, split_long
from pgrag.text.scripts import HAN, HAN_KANA, quoted
from pgrag.types import Keywords

_BETWEEN = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？؟।])(?![”’」』）])|(?<=[。！？][”’」』）])|\n")
_QUOTED = re.compile(quoted("「」", "『』", "«»", "“”", '""', shortest=2, longest=60))
_WORD = re.compile(r"[^\W\d_][\w’'-]{0,80}")
_KATAKANA = re.compile("[\u30a1-\u30fa\u30fc]{3,40}(?:・[\u30a1-\u30fa\u30fc]{1,40}){0,4}")
_UNSPACED = re.compile(f"[{HAN_KANA}]")
_IDEOGRAPHS = re.compile(f"[{HAN}]{{2,12}}")


def sentences(text: str, known: Sequence[str] = ()) -> list[Sentence]:
    """The sentences of one paragraph, with names known to be in it; no relations."""
    return [
        Sentence(piece, tuple(_names(piece, known)))
        for sentence in _BETWEEN.split(text)
        for piece in split_long(sentence, MAX_SENTENCE)
    ]


def identifiers(text: str) -> list[Sentence]:
    """A line of program text, configuration or log, or a heading: its identifiers."""
    found = []
    for piece in split_long(text, MAX_SENTENCE):
        names = distinct(clean_name(piece[a:b]) for a, b in find_codes(piece))
        found.append(Sentence(piece, tuple(Name(name, "code") for name in names)))
    return found


def keywords(question: str) -> Keywords:
    """Low: names, and runs of ideographs. High: the other words."""
    names = [name.text for name in _names(question)]
    low = distinct([*names, *_IDEOGRAPHS.findall(question)])
    taken = {name.casefold() for name in low}
    spaced = _UNSPACED.sub(" ", question)
    words = [w for w in _WORD.findall(spaced) if len(w) > 2 and w.casefold() not in taken and not w.istitle()]
    return Keywords(low, distinct(words))


def _names(text: str, known: Sequence[str] = ()) -> list[Name]:
    spans = [(a, b, "code") for a, b in find_codes(text, known)]
    others = [
        *((m.span(m.lastindex or 0)) for m in _QUOTED.finditer(text)),
        *(m.span() for m in _KATAKANA.finditer(text)),
    ]
    for start, end in [*others, *_capitalised(text)]:
        if not any(a < end and start < b for a, b, _ in spans):
            spans.append((start, end, "other"))
    found: dict[str, Name] = {}
    for start, end, kind in sorted(spans):
        if name := clean_name(text[start:end]):
            found.setdefault(name.casefold(), Name(name, kind))
    return list(found.values())


def _capitalised(text: str) -> list[tuple[int, int]]:
    """Runs of words with a capital; a single one at the start of the sentence is no name."""
    runs: list[tuple[int, int]] = []
    words = list(_WORD.finditer(text))
    for i, word in enumerate(words):
        if not word.group()[0].isupper():
            continue
        if i and runs and runs[-1][1] == words[i - 1].end() and text[words[i - 1].end() : word.start()] == " ":
            runs[-1] = (runs[-1][0], word.end())
        elif len(word.group()) > 1:
            runs.append(word.span())
    first = words[0] if words else None
    return [run for run in runs if not (first and run == first.span())]
