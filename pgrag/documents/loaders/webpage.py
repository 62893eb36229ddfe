"""HTML to text: headings as `#` lines, list items as `-` lines, table rows as `| a | b |`, code in fences."""

from __future__ import annotations

import codecs
import re
import warnings

from bs4 import BeautifulSoup
from bs4.dammit import EncodingDetector
from bs4.element import NavigableString, PageElement, Tag
from bs4.exceptions import ParserRejectedMarkup

from pgrag.documents.loaders.decoding import decode, tidy
from pgrag.errors import DocumentError
from pgrag.types import Document

_NOT_TEXT = "script style nav noscript template svg title meta link iframe object canvas audio video map"
_CONTROLS = "button select option textarea"
_DROPPED = frozenset(f"{_NOT_TEXT} {_CONTROLS}".split())
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_SECTIONS = "html head body p div section article main header footer aside form fieldset details summary address hr"
_LISTS_AND_TABLES = "ul ol li dl dt dd table caption thead tbody tfoot tr td th blockquote figure figcaption"
_BLOCKS = frozenset(f"{_SECTIONS} {_LISTS_AND_TABLES}".split())
_LAYOUT = ["table", "pre", *_HEADINGS]  # a table row that holds one of these arranges a page, it is no row of data
_TEXT_CODECS = re.compile(r"(utf|iso8859|cp\d|gb|big5|euc|shift|koi8|mac|ascii|hz|tis)")
_SPACE = re.compile(r"\s+")
_BACKTICKS = re.compile(r"`{3,}")


def html_document(data: bytes, uri: str) -> Document:
    """The page's text and title (`<title>`, else its first `<h1>`). Raises DocumentError if it has none to read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # XHTML, or a page that looks like a file name: both are fine
        try:
            soup = BeautifulSoup(_decode(data), "html.parser")
        except (ParserRejectedMarkup, RecursionError):
            raise DocumentError("is not HTML that can be parsed") from None
    title = soup.find("title") or soup.find("h1")
    return Document(
        uri=uri,
        body=tidy(_render(soup)),
        title=_squash(title.get_text()) if title else "",
        mime="text/html",
    )


def _decode(data: bytes) -> str:
    declared = EncodingDetector.find_declared_encoding(data[:4096], is_html=True)
    if not declared or data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return decode(data)
    try:
        name = codecs.lookup(declared).name
        name = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}.get(name, name)
        if _TEXT_CODECS.match(name) and not name.startswith("utf"):
            return tidy(data.decode(name))
    except (LookupError, UnicodeDecodeError):
        return decode(data)
    return decode(data)


def _render(soup: BeautifulSoup) -> str:
    page = _Page(_with_layout(soup))
    # A stack instead of recursion: hostile pages nest deeper than Python's stack. None ends a block.
    todo: list[PageElement | None] = [soup]
    while todo:
        node = todo.pop()
        if node is None:
            page.end_block()
        elif isinstance(node, NavigableString):
            if type(node) is NavigableString:  # comments and declarations are subclasses
                page.inline.append(_SPACE.sub(" ", node))
        elif isinstance(node, Tag) and node.name not in _DROPPED:
            children = page.open(node)
            if children is not None:
                todo.extend(children)
    page.end_block()
    return page.text()


class _Page:
    """Collects the text block by block."""

    def __init__(self, with_layout: set[int]) -> None:
        self._with_layout = with_layout
        self.inline: list[str] = []
        self._blocks: list[tuple[str, str]] = []
        self._prefix = ""

    def open(self, tag: Tag) -> list[PageElement | None] | None:
        """What of the tag is still to be read, last first; None when it is done with."""
        name = tag.name
        if name == "br":
            self.inline.append("\n")
            return None
        children: list[PageElement | None] = list(reversed(tag.contents))
        if name not in _BLOCKS and name not in _HEADINGS and name != "pre":
            return children
        self.end_block()
        if name in _HEADINGS:
            if text := _squash(tag.get_text()):
                self._blocks.append(("", f"{'#' * _HEADINGS[name]} {text}"))
            return None
        if name == "pre":
            code = tag.get_text().strip("\n")
            fence = "`" * (1 + max((len(run) for run in _BACKTICKS.findall(code)), default=2))
            self._blocks.append(("", f"{fence}\n{code}\n{fence}"))
            return None
        if name == "tr" and id(tag) not in self._with_layout:
            cells = [_cell(cell) for cell in tag.find_all(["td", "th"], recursive=False)]
            if any(cells):
                self._blocks.append(("row", f"| {' | '.join(cells)} |"))
            return None
        if name == "li":
            self._prefix = "- "
        return [None, *children]

    def end_block(self) -> None:
        lines = (" ".join(line.split()) for line in "".join(self.inline).split("\n"))
        text = "\n".join(line for line in lines if line)
        self.inline.clear()
        if text:
            self._blocks.append(("item" if self._prefix else "", self._prefix + text))
            self._prefix = ""

    def text(self) -> str:
        parts: list[str] = []
        before = ""
        for kind, text in self._blocks:
            parts.append(("\n" if kind and kind == before else "\n\n") + text)
            before = kind
        return "".join(parts).strip("\n") + "\n"


def _with_layout(soup: BeautifulSoup) -> set[int]:
    """Ids of the tags that hold one of `_LAYOUT`; asking each row by itself takes quadratic time on nested tables."""
    found: set[int] = set()
    for tag in soup.find_all(_LAYOUT):
        parent = tag.parent
        while parent is not None and id(parent) not in found:
            found.add(id(parent))
            parent = parent.parent
    return found


def _cell(cell: Tag) -> str:
    has_blocks = any(isinstance(node, Tag) and (node.name in _BLOCKS or node.name == "br") for node in cell.descendants)
    return _squash(cell.get_text(" " if has_blocks else ""))


def _squash(text: str) -> str:
    return " ".join(text.split())
