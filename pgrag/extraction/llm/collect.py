"""Collects the records of one model answer, whatever their format: cleans them, and counts what is left out and why."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

from pgrag.text.folding import MAX_NAME, name_key
from pgrag.text.scripts import QUOTES
from pgrag.types import ExtractedFact, ExtractedMention, Extraction, FactEntity, Role

MAX_TYPE = 100
MAX_KEYWORD = 200
MAX_KEYWORDS = 50
STRENGTH_SCALE = 10.0  # of the prompt; the store takes up to assemble.MAX_STRENGTH from other extractors

FROM_EXAMPLE = "from the prompt's example"
TOO_LONG = "name too long"
NO_NAME = "empty name"
SELF_LOOP = "self loop"
REPEATED = "repeated record"
TEMPLATE = "template of the format"
MALFORMED = "malformed record"
MISSING_FIELDS = "missing fields"
CUT_OFF = "cut off"

_TEMPLATE_WORD = re.compile(
    r"entity_(?:name|type|description)|(?:source|target)_entity|relationship_(?:description|keywords|strength)"
)
_KEYWORD_BREAK = re.compile(r"[,，、;；|\n]")
_NUMBER = re.compile(r"[^\w+.-]{0,4}([-+]?\d{1,6}(?:\.\d{1,20})?|\.\d{1,20})(?:\s?/\s?10(?:\.0)?)?\W{0,4}")


class Collector:
    """Takes records one by one; `names_in_prompt` are normal forms that may not come out of the answer."""

    def __init__(self, names_in_prompt: frozenset[str]) -> None:
        self._names_in_prompt = names_in_prompt
        self._mentions: dict[tuple[str, str], ExtractedMention] = {}
        self._facts: dict[tuple[frozenset[str], str], ExtractedFact] = {}
        self._keywords: list[str] = []
        self.dropped: Counter[str] = Counter()
        self.mended: Counter[str] = Counter()

    @property
    def records(self) -> int:
        """Entities and relations kept so far."""
        return len(self._mentions) + len(self._facts)

    def entity(self, name: Any, type_: Any = "", description: Any = "") -> None:
        """An entity; anything but text and numbers counts as nothing."""
        shown = self._name(name)
        if shown is None:
            return
        mention = ExtractedMention(shown, _type(type_), prose(description))
        if is_template(mention.type):
            self.dropped[TEMPLATE] += 1
            return
        if self._mentions.setdefault((name_key(shown), mention.description), mention) is not mention:
            self.dropped[REPEATED] += 1

    def relation(
        self, source: Any, target: Any, keywords: Any = (), description: Any = "", strength: Any = None
    ) -> None:
        """A relation, as a fact with a source and a target; one without description and keywords says nothing."""
        first = self._name(source)
        second = self._name(target) if first is not None else None
        if first is None or second is None:
            return
        pair = frozenset((name_key(first), name_key(second)))
        if len(pair) == 1:
            self.dropped[SELF_LOOP] += 1
            return
        words = tuple(split_keywords(keywords))
        text = prose(description) or (f"{first} {', '.join(words)} {second}" if words else "")
        if not text:
            self.dropped[MISSING_FIELDS] += 1
            return
        ends = (FactEntity(first, Role.SOURCE), FactEntity(second, Role.TARGET))
        fact = ExtractedFact(text, ends, words, as_strength(strength))
        if self._facts.setdefault((pair, text), fact) is not fact:
            self.dropped[REPEATED] += 1

    def content_keywords(self, keywords: Any) -> None:
        """Themes of the whole chunk."""
        for keyword in split_keywords(keywords):
            if name_key(keyword) in self._names_in_prompt:
                self.dropped[FROM_EXAMPLE] += 1
            elif not _TEMPLATE_WORD.search(keyword) and "content_keyword" not in keyword:
                self._keywords.append(keyword)

    def extraction(self) -> Extraction:
        """Everything kept, in the order of the answer."""
        keywords = tuple(dict.fromkeys(self._keywords))[:MAX_KEYWORDS]
        return Extraction(tuple(self._mentions.values()), tuple(self._facts.values()), keywords, dict(self.dropped))

    def _name(self, value: Any) -> str | None:
        """The name as written, or None with the reason counted."""
        name = unquoted(_scalar(value))
        if len(name) > MAX_NAME:
            self.dropped[TOO_LONG] += 1
        elif is_template(name):
            self.dropped[TEMPLATE] += 1
        elif not (key := name_key(name)):
            self.dropped[NO_NAME] += 1
        elif key in self._names_in_prompt:
            self.dropped[FROM_EXAMPLE] += 1
        else:
            return name
        return None


def is_template(name: str) -> bool:
    """Whether it is a field of the format, or of a program, that the model wrote down instead of filling it in."""
    return bool(_TEMPLATE_WORD.search(name)) or (name[:1] in "{$" and name[-1:] == "}")


def split_keywords(value: Any) -> list[str]:
    """A list's items as they are; a string split at commas and semicolons of any script. At most 50."""
    if isinstance(value, str):
        parts: list[Any] = _KEYWORD_BREAK.split(value.strip("[](){}【】"))
    else:
        parts = list(value) if isinstance(value, list | tuple) else [value]
    found: dict[str, str] = {}
    for part in parts:
        keyword = unquoted(_scalar(part)).rstrip(" .。")
        if 0 < len(keyword) <= MAX_KEYWORD and any(map(str.isalnum, keyword)):
            found.setdefault(keyword.casefold(), keyword)
    return list(found.values())[:MAX_KEYWORDS]


def as_number(value: Any) -> float | None:
    """The number a field holds and nothing else: 8, "8", "8/10", "(0.9)"; None for any other."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) and len(value) < 100 else None
    return float(match[1]) if match else None


def as_strength(value: Any) -> float:
    """0 to 10; 1 when there is no usable number."""
    number = as_number(value)
    if number is None or math.isnan(number):
        return 1.0
    return min(STRENGTH_SCALE, max(0.0, number))


def unquoted(text: str) -> str:
    """On one line, without the quotes and Markdown emphasis around."""
    text = " ".join(text.split())
    for _ in range(4):
        before = text
        if text.startswith("**") and text.endswith("**") and text.count("**") == 2:
            text = text[2:-2].strip()
        for opening, closing in QUOTES:
            if len(text) > 1 and text[0] == opening and text[-1] == closing and _is_pair(text[1:-1], opening, closing):
                text = text[1:-1].strip()
        if text.count('"') % 2:
            text = text.removeprefix('"') if text.startswith('"') else text.removesuffix('"')
        text = text.strip()
        if text == before:
            break
    return text


def _is_pair(inner: str, opening: str, closing: str) -> bool:
    """Whether the quotes around belong together: they do not in `"A" and "B"`."""
    for i, char in enumerate(inner):
        if char in (opening, closing):
            before, after = inner[i - 1 : i], inner[i + 1 : i + 2]
            if opening == closing and before.isalnum() and after.isalnum():  # an apostrophe
                continue
            return char == opening and (opening != closing or not before.strip())
    return True


def prose(value: Any) -> str:
    """A description: text or a number; a list of texts becomes one."""
    if isinstance(value, list | tuple):
        return " ".join(filter(None, map(prose, value[:20]))) if not any(isinstance(v, list) for v in value) else ""
    return unquoted(_scalar(value))


def _type(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else value
    type_ = unquoted(_scalar(first).strip("<>[] \t\n"))
    return type_ if len(type_) <= MAX_TYPE else ""


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return str(value) if math.isfinite(value) else ""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**40 else ""
