"""What models wrap around their answers, taken off: thinking, Markdown fences, prose, and JSON that is broken or cut.

Everything is linear in the length of the answer, or bounded: a megabyte of brackets costs well under a second.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import json_repair

MAX_DEPTH = 32  # of brackets; no answer we ask for has more than four
MAX_REPAIR = 200_000  # characters: the repairer takes about 10 µs each
MAX_VALUES = 200
MAX_SCANNED = 4_000_000  # characters looked at in all, however many places may begin a value

_THINKING = re.compile(
    r"<(/?)(?:think|thinking|thought|reasoning)\b[^<>\n]{0,80}>|\u25c1(/?)think\u25b7", re.IGNORECASE
)
_FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[^\n`]{0,40}$|`{3,}(?:json\w?)?", re.MULTILINE)
_CLOSING_FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[ \t]*$", re.MULTILINE)
_VALUE = re.compile(r"\{(?=\s*+(?:[\"'“”‘’}]|\w++\s*+:))|\[(?=\s*+[\[{\"'“”‘’\]])")
_SIGN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?P<end>"|\\?\Z)|[{}\[\],]', re.DOTALL)
_WIDE_COLON = re.compile(r"(?<=[\"”’])\s{0,8}：\s{0,8}(?=[\"“‘{\[\d])")
_WIDE_COMMA = re.compile(r"(?<=[\"”’}\]\d])\s{0,8}，\s{0,8}(?=[\"“‘{\[\d])")


@dataclass(frozen=True, slots=True)
class JsonValue:
    """An object or list found in an answer; `cut` if its end was missing and what was incomplete has been left out."""

    value: dict[str, Any] | list[Any]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Mended:
    """An answer without thinking and fences, its JSON values in order, and what had to be mended, by reason."""

    text: str
    values: tuple[JsonValue, ...]
    mended: Mapping[str, int]


def mend(answer: str, *, truncated: bool = False) -> Mended:
    """The text and the JSON values of a model's answer. `truncated`: the model says it was cut off.

    Never raises. Values are objects and lists only; their items may be anything, NaN included.
    """
    mended: Counter[str] = Counter()
    text = answer.strip("\ufeff \t\r\n")
    value = _strict(text)
    if value is not None:  # also protects strings that speak of <think> or ```
        return Mended(text, (JsonValue(value),), mended)
    text, thought = _without_thinking(text)
    if thought:
        mended["think block"] += 1
    bare = _FENCE.sub("", text).strip()
    if bare != text:
        mended["code fence"] += 1
    value = _strict(bare)
    if value is not None:
        return Mended(bare, (JsonValue(value),), mended)
    values, inside = _values(text, truncated, mended)
    if values and inside < len(bare):
        mended["prose around JSON"] += 1
    return Mended(bare, tuple(values), mended)


def without_thinking(answer: str) -> str:
    """The answer without <think> blocks: closed, nested, several, never closed, or only closed."""
    return _without_thinking(answer)[0]


def may_be_thinking(beginning: str) -> bool:
    """Whether an answer that begins so opens with a <think> block that has not ended yet."""
    text = beginning.lstrip()
    if not text:
        return True
    tag = _THINKING.match(text)
    if tag is None:  # perhaps the tag is not complete
        return text[0] in "<\u25c1" and len(text) < 100 and not set(">\n\u25b7") & set(text)
    return not any(found[1] or found[2] for found in _THINKING.finditer(text, tag.end()))


def _without_thinking(answer: str) -> tuple[str, bool]:
    tags = [(m.start(), m.end(), not (m[1] or m[2])) for m in _THINKING.finditer(answer)]
    last_close = max((end for _, end, opens in tags if not opens), default=0)
    # A tag that is never closed is one only where a block begins; in a sentence it is a word of the text.
    tags = [t for t in tags if not t[2] or t[0] < last_close or _at_line_start(answer, t[0])]
    if not tags:
        return answer, False
    kept: list[str] = []
    depth = position = blocks = 0
    for start, end, opens in tags:
        if depth == 0:
            kept.append(answer[position:start])
            if not opens and blocks == 0 and answer[end:].strip():
                kept.clear()  # the prompt opened the block
        depth = depth + 1 if opens else max(0, depth - 1)
        if depth == 0:
            position, blocks = end, blocks + 1
    if depth:  # never closed; or a tag was only spoken of, and the last one closed the block
        position = last_close if last_close > position else len(answer)
    kept.append(answer[position:])
    return "".join(kept).strip(), True


def _at_line_start(text: str, position: int) -> bool:
    return not text[max(0, position - 100) : position].rpartition("\n")[2].strip()


def _strict(text: str) -> dict[str, Any] | list[Any] | None:
    if text[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


@dataclass(frozen=True, slots=True)
class _Span:
    """Where a value ends, `closed` if it does. Up to `whole` it is complete but for the `closers`."""

    end: int
    closed: bool
    deep: bool
    whole: int
    closers: str


def _values(text: str, truncated: bool, mended: Counter[str]) -> tuple[list[JsonValue], int]:
    """The values of a text in order, and how many characters they take."""
    values: list[JsonValue] = []
    position = inside = scanned = 0
    while len(values) < MAX_VALUES and scanned < MAX_SCANNED:
        match = _VALUE.search(text, position)
        if match is None:
            break
        start = match.start()
        span = _span(text, start)
        scanned += span.end - start + 1000
        if span.deep:
            position = span.end
            continue
        found = _closed(text[start : span.end], mended) if span.closed else _open(text, start, span, truncated, mended)
        if found is None:
            position = span.end if span.closed else start + 1
            continue
        values.append(found)
        inside += span.end - start
        position = span.end
    return values, inside


def _span(text: str, start: int) -> _Span:
    """From the bracket at `start` to the one that closes it, strings skipped."""
    stack: list[str] = []
    whole, closers = -1, ""
    for match in _SIGN.finditer(text, start):
        sign = match[0]
        if sign[0] == '"':
            if match["end"] != '"':
                break
            continue
        if sign in "{[":
            if len(stack) >= MAX_DEPTH:
                return _Span(match.end(), False, True, -1, "")
            stack.append(sign)
            continue
        if sign in "}]":
            opening = "{" if sign == "}" else "["
            if opening in stack:
                while stack.pop() != opening:
                    pass
            if not stack:
                return _Span(match.end(), True, False, match.end(), "")
        if _is_whole(stack, sign):
            whole = match.start() if sign == "," else match.end()
            closers = "".join("}" if bracket == "{" else "]" for bracket in reversed(stack))
    return _Span(len(text), False, False, whole, closers)


def _is_whole(stack: list[str], sign: str) -> bool:
    """Whether what stands before can be kept without losing a part of a record: not inside an object of a list."""
    if "{" in stack[stack.index("[") :] if "[" in stack else False:
        return False
    return stack[-1] == "[" or sign != ","


def _closed(piece: str, mended: Counter[str]) -> JsonValue | None:
    value = _strict(piece)
    if value is None:
        value = _repaired(piece)
        if value is None:
            return None
        mended["broken JSON"] += 1
    return JsonValue(value)


def _open(text: str, start: int, span: _Span, truncated: bool, mended: Counter[str]) -> JsonValue | None:
    """A value without an end: cut where its last record is whole, or repaired if only brackets or quotes are wrong."""
    fence = _CLOSING_FENCE.search(text, start)
    piece = text[start : fence.start() if fence else span.end].rstrip()
    if not truncated and piece.endswith(("}", "]")) and (value := _repaired(piece)) is not None:
        mended["broken JSON"] += 1
        return JsonValue(value)
    if span.whole < 0:
        return None
    piece = text[start : span.whole] + span.closers
    value = _strict(piece)
    if value is None:
        value = _repaired(piece)
    if value is None:
        return None
    mended["JSON cut off"] += 1
    return JsonValue(value, cut=True)


def _repaired(piece: str) -> dict[str, Any] | list[Any] | None:
    if len(piece) > MAX_REPAIR:
        return None
    piece = _WIDE_COMMA.sub(", ", _WIDE_COLON.sub(": ", piece))
    try:
        value = json_repair.loads(piece, skip_json_loads=True)
    except Exception:  # noqa: BLE001 - the repairer promises nothing for hostile text; such a piece is no JSON
        return None
    return value if isinstance(value, dict | list) and value else None
