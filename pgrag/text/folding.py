"""The one definition of text folding: SQL receives folded keys and words, so no result depends on a database's ctype.

Folding is NFKC and case folding without invisible characters; scripts written without spaces become bigrams.
Change `FOLDING_VERSION` with any change of a result: a workspace keeps the version its keys and words were made by.
"""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from pgrag.errors import UsageError
from pgrag.text.scripts import HAN_KANA, QUOTES, TITLE_MARKS, UNSPACED, quoted

FOLDING_VERSION = 1
MAX_WORD = 64
MAX_NAME = 512  # characters of a name and of its key
MAX_DEPTH = 100
MAX_BITS = 14_284  # of a whole number: Python writes no more than 4,300 digits

_MAX_NAME_INPUT = 2_048
_SLICE = 1_000  # unicodedata.normalize is quadratic in the length of a run of combining marks
_MAX_MARKS = 32

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_VARIANTS = str.maketrans(dict.fromkeys("‘’ʼ‛＇", "'") | dict.fromkeys("‐‑‒–−", "-") | dict.fromkeys("・•‧", "·"))
# Full-width letters, digits and the signs of names such as Ｃ＋＋; Chinese punctuation stays as it is written.
_HALF_WIDTH = str.maketrans(
    {c: c - 0xFEE0 for c in range(0xFF01, 0xFF5F) if chr(c) not in "（），：；！？～"} | {0x3000: 0x20}
)
_DISPLAY_JOINERS = "\u200c\u200d"  # they change how Persian and emoji look

_MARKS = (*QUOTES, *TITLE_MARKS)
_OPENING, _CLOSING = ("".join(pair[side] for pair in _MARKS) for side in (0, 1))
_AROUND = " ,;:!?、，。；：！？·…"
_SPACE = re.compile(r"\s+")
_CJK_SPACE = re.compile(f"(?<=[{UNSPACED}]) | (?=[{UNSPACED}])")
_HAN_SPACE = re.compile(f"(?<=[{HAN_KANA}]) (?=[{HAN_KANA}])")
_POSSESSIVE = re.compile(r"(?<=[^\W\d_])'s(?=\s|$)")


# ---------------------------------------------------------------- what the store can hold


def clean(text: str) -> str:
    """The text without U+0000 and lone surrogates, which PostgreSQL cannot store."""
    return _UNSTORABLE.sub("", text) if _UNSTORABLE.search(text) else text


def clean_json(value: Any, _depth: int = 0) -> Any:
    """A JSON value with `clean` applied to every string and key; NaN and infinities, which jsonb refuses, become None.

    Raises UsageError when the value is nested more than 100 levels deep.
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise UsageError("metadata: a number of more than 4300 digits")
    if not isinstance(value, dict | list | tuple):
        return value
    if _depth >= MAX_DEPTH:
        raise UsageError(f"metadata is nested more than {MAX_DEPTH} levels deep; flatten it")
    if isinstance(value, dict):
        return {clean(str(key)): clean_json(item, _depth + 1) for key, item in value.items()}
    return [clean_json(item, _depth + 1) for item in value]


# ---------------------------------------------------------------- names


@lru_cache(16_384)  # a text names the same again and again
def name_key(name: str) -> str:
    """The normal form of an entity's name, at most 512 characters: equal keys are one entity.

    Width, case, white space, invisible characters, HTML entities, quotes and book marks around, a leading "the" and the
    possessive 's make no difference; inner punctuation does (C++, C#, ORA-01555, node.js). '' when nothing is named.
    """
    text = _visible(_unescape(name[:_MAX_NAME_INPUT]))
    for _ in range(3):  # case folding can undo normalisation, and the other way round
        folded = unicodedata.normalize("NFKC", _lower(unicodedata.normalize("NFKC", text)))
        if folded == text:
            break
        text = _visible(folded)
    for _ in range(16):
        before = text
        text = _CJK_SPACE.sub("", _bare(_POSSESSIVE.sub("", text))).rstrip(_AROUND + ".")
        if text.startswith("the "):
            text = text.removeprefix("the ")
        text = text[:MAX_NAME]
        if text == before:
            break
    return text if any(map(_is_meaningful, text)) else ""


def display_name(name: str) -> str:
    """The name as shown, at most 512 characters: cleaned like its key, but with its case, article and possessive."""
    text = unicodedata.normalize("NFC", _unescape(name[:_MAX_NAME_INPUT])).translate(_HALF_WIDTH)
    text = _HAN_SPACE.sub("", _bare(_visible(text, keep=_DISPLAY_JOINERS)))[:MAX_NAME].rstrip()
    return text if any(map(_is_meaningful, text)) else ""


def _lower(text: str) -> str:
    """Case folded, with one kind of apostrophe, hyphen and middle dot; the Turkish dotted I is an i."""
    return text.casefold().replace("i\u0307", "i").translate(_VARIANTS)


def _unescape(name: str) -> str:
    return clean(_ENTITY.sub(lambda match: html.unescape(match[0]), name))


def _visible(text: str, keep: str = "") -> str:
    """Without control and format characters; white space of any kind becomes one space."""
    text = _SPACE.sub(" ", text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf") or c in keep)


def _bare(text: str) -> str:
    """Without the white space, light punctuation and quotes around; quotes that belong to a part of the name stay."""
    for _ in range(16):
        before = text
        text = _SPACE.sub(" ", text).strip(_AROUND)
        for pair in _MARKS if text and (text[0] in _OPENING or text[-1] in _CLOSING) else ():
            opening, closing = pair
            inner = text.lstrip(opening).rstrip(closing)
            if inner != text and opening not in inner and closing not in inner:
                text = inner
        if text == before:
            break
    return text


def _is_meaningful(char: str) -> bool:
    return char.isalnum() or (not char.isascii() and unicodedata.category(char)[0] == "S")


# ---------------------------------------------------------------- words


_POSSESSIVE_INSIDE = re.compile(r"'s(?=[-._/:]|$)")
_JOINERS = re.compile(r"[-._/:+#]+")
_CODE = re.compile(r"[\d_+#]")


def words(text: str) -> list[str]:
    """The folded words of a text, in order, repeats included; none longer than 64 characters.

    Letters and digits in a run are a word, with its marks; apostrophes vanish and a possessive 's with them (don't ->
    dont, Acme's -> acme). Unspaced scripts give overlapping bigrams, a character alone itself. A code gives its parts,
    then itself: ora, 01555, ora-01555; likewise max, tokens, max_tokens, and c, c++.
    """
    folded = _fold(text)
    marks = "".join(re.escape(c) for c in sorted(set(folded)) if not c.isascii() and unicodedata.category(c)[0] == "M")
    found: list[str] = []
    for match in _word_pattern(marks).finditer(folded):
        run = match[0]
        if match.lastgroup == "unspaced":
            found.extend(run[i : i + 2] for i in range(len(run) - 1)) if len(run) > 1 else found.append(run)
            continue
        run = _POSSESSIVE_INSIDE.sub("", run).replace("'", "")
        parts = [part[:MAX_WORD] for part in _JOINERS.split(run) if part]
        found.extend(parts)
        if run != parts[0] and len(run) <= MAX_WORD and _CODE.search(run):
            found.append(run)
    return found


def _word_pattern(marks: str) -> re.Pattern[str]:
    """Words and runs of unspaced scripts; `marks` are the combining marks of the text (`re` has no class for them)."""
    unit = rf"[^\W_{UNSPACED}]" + (f"[{marks}]*+" if marks else "")
    return re.compile(
        rf"(?P<unspaced>[{UNSPACED}]++)|(?P<word>(?:{unit})++(?:(?:'|[-./:]|_++)(?:{unit})++)*+(?:[+#]{{1,2}}(?![\w+#]))?+)"
    )


def _fold(text: str) -> str:
    if text.isascii():
        return text.casefold()
    folded = _lower("".join(unicodedata.normalize("NFKC", piece) for piece in _pieces(text)))
    invisible: dict[str, str | int | None] = {c: None for c in set(folded) if unicodedata.category(c) == "Cf"}
    return folded.translate(str.maketrans(dict(invisible))) if invisible else folded


def _pieces(text: str) -> Iterator[str]:
    """Slices of about 1,000 characters that begin with no character which composes with the one before it."""
    start = 0
    while start < len(text):
        end = start + _SLICE
        for _ in range(_MAX_MARKS):
            if end >= len(text) or not _composes(text[end]):
                break
            end -= 1
        yield text[start:end]
        start = end


def _composes(char: str) -> bool:
    return unicodedata.combining(char) > 0 or "\u1160" <= char <= "\u11ff" or char in "\uff9e\uff9f"


# ---------------------------------------------------------------- names in questions

_ENGLISH_STOP_WORDS = (
    "a about all an and any are as at be been between but by can could did do does each for from had has have how i if"
    " in into is it its many me more most much my no not of on or our out over please so some such tell than that the"
    " their them then there these they this those to under up us was we were what when where which who whom whose why"
    " will with would you your"
)
_CHINESE_STOP_WORDS = (
    "的 了 是 在 和 与 及 或 有 吗 呢 吧 被 把 对 为 从 到 谁 哪 几 请 我 你 他 她 它 们 这 那 都 也 就 不 没"
    " 哪个 哪些 哪里 什么 怎么 怎样 如何 为何 为什么 多少 这些 那些 这个 那个 没有 是否 可以 因为 所以 以及"
)
_STOP_WORDS = frozenset(f"{_ENGLISH_STOP_WORDS} {_CHINESE_STOP_WORDS}".split())
_BARRIER = re.compile(r"[\n。！？；，、]+")
_ATOM = re.compile(rf"(?P<unspaced>[{UNSPACED}])|[^\s{UNSPACED}]+")
_QUOTED = re.compile(quoted('""', "“”", "《》", "「」", "『』", shortest=1, longest=300))
_MAX_QUESTION = 2_000
_MAX_COST = 12  # of an n-gram: a spaced word costs 2, an unspaced character 1


def question_keys(question: str, limit: int = 400) -> list[str]:
    """At most `limit` distinct keys that names in the question may have, to be looked up exactly.

    Keys of quoted texts come first, then those of n-grams, shorter before longer: up to 6 words, or 2 to 12 unspaced
    characters, or a mixture of both; none is made of stop words and single letters only.
    """
    found: dict[str, None] = {}
    for candidate in _name_candidates(question[:_MAX_QUESTION]):
        if len(found) >= limit:
            break
        if key := name_key(candidate):
            found[key] = None
    return list(found)


class _Atom(NamedTuple):
    """A spaced word, or one unspaced character; `speaks`: a word that is more than a stop word or a single letter."""

    start: int
    end: int
    unspaced: str
    speaks: bool

    @property
    def cost(self) -> int:
        return 1 if self.unspaced else 2


def _name_candidates(text: str) -> Iterator[str]:
    for match in _QUOTED.finditer(text):
        yield match[match.lastindex or 0]
    segments = [(segment, [_atom(match) for match in _ATOM.finditer(segment)]) for segment in _BARRIER.split(text)]
    for size in range(1, _MAX_COST + 1):
        for segment, atoms in segments:
            for first in range(len(atoms) - size + 1):
                gram = atoms[first : first + size]
                if sum(atom.cost for atom in gram) <= _MAX_COST and _can_name(gram):
                    yield segment[gram[0].start : gram[-1].end]


def _atom(match: re.Match[str]) -> _Atom:
    key = "" if match["unspaced"] else name_key(match[0])
    return _Atom(match.start(), match.end(), match["unspaced"] or "", len(key) > 1 and key not in _STOP_WORDS)


def _can_name(gram: list[_Atom]) -> bool:
    """Whether anything in the n-gram is more than a stop word, a single letter or a single character."""
    if any(atom.speaks for atom in gram):
        return True
    run = "".join(atom.unspaced for atom in gram)
    return len(run) > 1 and run not in _STOP_WORDS and not _STOP_WORDS.issuperset(run)
