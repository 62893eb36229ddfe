"""From a chunk's text, possibly Markdown, to blocks of plain prose: paragraphs, list items, rows, headings, code."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pgrag.extraction.keyless.names import plain_text

WRAPPED_WIDTH = 50  # a line at least this wide may be continued by the next one

_FENCE = re.compile(r"\s{0,8}(```+|~~~+)\s*(\S*)")
_RULE = re.compile(r"[\s=\-_*~+|:.>#`]*$")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(\S.*)")
_BULLET = re.compile(
    r"\s*(?:[-*+•‣◦▪]\s+(?:\[[ xX]\]\s+)?|\d{1,3}[.)]\s+|\(\d{1,3}\)\s*|\d{1,3}、\s*"
    r"|[（(][一二三四五六七八九十]{1,3}[）)]\s*|[一二三四五六七八九十]{1,3}、\s*)"
)
_QUOTE = re.compile(r"\s{0,3}(?:>\s?)+")
_ENDS = re.compile(r"[.!?:;。！？：；…][\"'”’」』）)\]*_]{0,3}$")
_NUMBERING = re.compile(r"(?:\d{1,3}(?:\.\d{1,3})+\.?|\d{1,3}[.)])\s+(?=\S)")

_CODE = re.compile(r"`{1,2}([^`\n]{1,200})`{1,2}")
_CODE_NAME = re.compile(r"[A-Za-z_][\w.\-/:]{2,63}")
_NOT_NAMES = frozenset({"true", "false", "null", "none", "nil", "select", "from", "where", "and", "not", "sudo"})
_IMAGE = re.compile(r"!?\[([^\[\]\n]{0,300})\]\([^()\n]{0,800}\)")
_REFERENCE = re.compile(r"\[\^[^\]\n]{1,40}\]:?")
_LINK = re.compile(r"<((?:https?|mailto):[^<>\s]{1,800})>")
_TAG = re.compile(
    r"<!--[^>]{0,2000}-->|</?(?:a|b|br|blockquote|center|code|details|div|em|font|h[1-6]|hr|i|img|kbd|li|ol|p|pre|s|"
    r"small|span|strong|sub|summary|sup|table|tbody|td|th|thead|tr|u|ul)\b[^<>\n]{0,500}>",
    re.IGNORECASE,
)
_EMPHASIS = re.compile(
    r"(?<![\w*\\])\*(?=[^\s*])([^*\n]{1,300})(?<=[^\s\\])\*(?!\*)|(?<!\w)_(?=[^\s_])([^_\n]{1,300})(?<=\S)_(?!\w)"
)
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+.!|<>~-])")


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of text without markup or line ends. A table's row is read as `text` and shown, with the column
    names, as `shown`; `codes` are the names that stood in back quotes."""

    text: str
    kind: Literal["text", "row", "heading", "code"] = "text"
    shown: str = ""
    codes: tuple[str, ...] = ()


def plain_line(line: str) -> str:
    """A heading or another single line without markup and numbering."""
    line = " ".join(plain_text(line).split())
    match = _HEADING.match(line)
    return _NUMBERING.sub("", _inline((match[1] if match else line).rstrip("# "))[0], count=1).strip()


def blocks(text: str) -> list[Block]:
    """The blocks of a chunk in order. Never fails; takes time linear in the length."""
    found: list[Block] = []
    paragraph: list[str] = []
    header: list[str] = []  # column names of the table we are in
    row: list[str] = []  # cells of the row before this line; [] outside tables
    quoted = False
    lines = plain_text(text).split("\n")
    in_code = _starts_in_code(lines)

    def close() -> None:
        if paragraph:
            found.extend(_text_block(_join(paragraph)))
            paragraph.clear()

    for line in lines:
        if _FENCE.match(line):
            close()
            in_code = not in_code
            continue
        if in_code:
            if line.strip():
                found.append(Block(" ".join(line.split()), "code"))
            continue
        cells = [_inline(cell) for cell in _cells(line)]
        if not cells:
            header, row = [], []
        if _RULE.match(line):
            close()
            if row and not header:  # the row above the rule names the columns
                found.pop()
                header = row
        elif cells:
            close()
            row = [text for text, _ in cells]
            found.append(_row(cells, header))
        elif heading := _HEADING.match(line):
            close()
            found.append(Block(plain_line(heading[1]), "heading"))
        else:
            quote = _QUOTE.match(line)
            line = line[quote.end() :] if quote else line
            bullet = _BULLET.match(line)
            if bullet or bool(quote) != quoted or (paragraph and not _continues(paragraph[-1], line)):
                close()
            quoted = bool(quote)
            paragraph.append(line[bullet.end() :] if bullet else line)
    close()
    return [block for block in found if block.text]


def _starts_in_code(lines: list[str]) -> bool:
    """Whether a chunk begins inside a code block: only an opening fence names a language."""
    fences = [match for line in lines if (match := _FENCE.match(line))]
    return any(match[2] and i % 2 == 1 for i, match in enumerate(fences[:2]))


def _cells(line: str) -> list[str]:
    line = line.strip()
    if not (line.startswith("|") and line.count("|") >= 2):
        return []
    return [cell.strip() for cell in line.strip("|").split("|")]


def _row(cells: list[tuple[str, tuple[str, ...]]], header: list[str]) -> Block:
    texts = [text for text, _ in cells]
    labels = header if len(header) == len(texts) else [""] * len(texts)
    shown = "; ".join(f"{a}: {b}" if a else b for a, b in zip(labels, texts, strict=True) if b)
    return Block("; ".join(filter(None, texts)), "row", shown, tuple(code for _, codes in cells for code in codes))


def _continues(before: str, line: str) -> bool:
    """Whether a line goes on with the paragraph: the one before is full or this one begins in lower case."""
    if _ENDS.search(before.rstrip()):
        return False
    width = sum(2 if c >= "\u2e80" else 1 for c in before[: WRAPPED_WIDTH + 1])
    return width >= WRAPPED_WIDTH or line.lstrip()[:1].islower()


def _join(lines: list[str]) -> str:
    """One line; between Han characters a line end is no space."""
    text = " ".join(" ".join(line.split()) for line in lines)
    return re.sub(r"(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])", "", text)


def _text_block(text: str) -> Iterator[Block]:
    plain, codes = _inline(text)
    if plain:
        yield Block(plain, codes=codes)


def _inline(text: str) -> tuple[str, tuple[str, ...]]:
    """The text without inline markup, and the names that stood in back quotes."""
    codes: list[str] = []

    def keep(match: re.Match[str]) -> str:
        code = match[1].strip()
        if _CODE_NAME.fullmatch(code) and code.casefold() not in _NOT_NAMES:
            codes.append(code)
        return code

    text = _CODE.sub(keep, text)
    text = _LINK.sub(r"\1", _REFERENCE.sub("", _IMAGE.sub(r"\1", text)))
    text = html.unescape(_TAG.sub(" ", text))
    text = _EMPHASIS.sub(r"\1\2", text.replace("**", "").replace("~~", "").replace("``", ""))
    text = _ESCAPE.sub(r"\1", text.replace("`", ""))
    return " ".join(plain_text(text).split()), tuple(codes)
