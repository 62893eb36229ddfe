"""A model's answer to what the keywords of a question are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pgrag.llm.repair import mend
from pgrag.text.scripts import QUOTE_SIGNS
from pgrag.types import Keywords

MAX_KEYWORDS = 50  # of a level
MAX_KEYWORD = 200  # characters
MAX_TEXT = 50_000  # characters of an answer without JSON that are looked at

_BETWEEN = re.compile(r"\s*[,，、;；|\n\r]\s*")
_AROUND = QUOTE_SIGNS + " \t\r\n*[](){}【】"
_LABEL = re.compile(r"(?P<high>high|高层|高级|高阶|宏观|主题)|(?P<low>low|低层|低级|低阶|微观|具体)", re.IGNORECASE)
_HEADING = re.compile(
    r"(?:(?P<high>high|高层|高级|高阶|宏观)|(?P<low>low|低层|低级|低阶|微观))[-_ ]?(?:level)?[-_ ]?次?(?:的)?"
    r"(?:keywords?|关键词|关键字)[\"'”*_`]{0,4}[ \t]{0,4}(?:[:：=]|$)[*_ \t]{0,4}",
    re.IGNORECASE | re.MULTILINE,
)
_BULLET = re.compile(r"\s*(?:[-*+•·]|\d{1,2}[.)、．])\s*(?P<item>\S.*)")
_COMMENT = re.compile(r"\s{2,}#.*$|[ \t]+//.*$")


def parse_keywords(answer: str) -> Keywords | None:
    """The two lists of a keyword answer: JSON, JSON in prose or in a script, or labelled lines and bullets.

    None when the answer holds no keyword: the question then serves both levels. Never raises.
    """
    mended = mend(answer)
    low: list[str] = []
    high: list[str] = []
    for found in mended.values:
        _from_json(found.value, low, high, 0)
    if not (low or high):
        _from_text(mended.text[:MAX_TEXT], low, high)
    keywords = Keywords(_distinct(low), _distinct(high))
    return keywords if keywords.low or keywords.high else None


def _from_json(value: Any, low: list[str], high: list[str], depth: int) -> None:
    if depth > 4:
        return
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                _from_json(item, low, high, depth + 1)
        return
    for key, item in value.items():
        level = _LABEL.search(str(key))
        if level is not None and (strings := list(_strings(item))):
            (high if level["high"] else low).extend(strings)
        elif isinstance(item, dict | list):
            _from_json(item, low, high, depth + 1)


def _strings(value: Any) -> Iterator[str]:
    """A list's items as they are, a string split at its commas."""
    if isinstance(value, str):
        yield from _BETWEEN.split(value)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, str):
                yield item
            elif isinstance(item, int | float) and not isinstance(item, bool):
                yield str(item)
            elif isinstance(item, dict):
                named = (v for k, v in item.items() if str(k).lower() in ("keyword", "name", "关键词"))
                yield from (v for v in named if isinstance(v, str))


def _from_text(text: str, low: list[str], high: list[str]) -> None:
    """What follows each label up to the next one: the rest of its line, a list in brackets, or the bullets below."""
    labels = list(_HEADING.finditer(text))
    for label, following in zip(labels, [*labels[1:], None], strict=False):
        body = text[label.end() : following.start() if following else len(text)]
        (high if label["high"] else low).extend(_listed(body))


def _listed(body: str) -> list[str]:
    if body.lstrip()[:1] == "[":
        inner = body.lstrip()[1:].partition("]")[0]
        return [part for line in inner.splitlines() for part in _BETWEEN.split(_COMMENT.sub("", line))]
    first, _, rest = body.lstrip(" \t").partition("\n")
    if first.strip(_AROUND + ":："):
        return _BETWEEN.split(first.strip())
    items: list[str] = []
    for line in rest.splitlines():
        bullet = _BULLET.fullmatch(line)
        if bullet is not None:
            items.append(bullet["item"].split(": ")[0].split("：")[0])
        elif line.strip() and items:
            break
        elif line.strip():
            return _BETWEEN.split(line) if "," in line or "，" in line or "、" in line else []
    return items


def _distinct(found: list[str]) -> tuple[str, ...]:
    keywords: dict[str, str] = {}
    for keyword in found:
        bare = " ".join(keyword.split()).strip(_AROUND).rstrip(" .。")
        if not bare or len(bare) > MAX_KEYWORD or "_level_keyword" in bare or not any(map(str.isalnum, bare)):
            continue
        keywords.setdefault(bare.casefold(), bare)
    return tuple(keywords.values())[:MAX_KEYWORDS]
