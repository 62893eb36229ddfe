"""Cuts a document into chunks by tokens: on headings, then paragraphs, then sentences, with exact character spans.

The text is first cut into units: headings, sentences (Chinese and Japanese ones too), lines of code, tables and lists;
a unit of more than `max_tokens` is cut further at line ends, clauses, white space and, last, between characters.
Units are packed in order, by three rules:

1. a heading of level 1 or 2 starts a new chunk once the current one is a quarter full;
2. when the next unit does not fit, the chunk ends at the last heading in its second half, else at the last paragraph
   there, else at the last unit that fits; a heading is never left behind at the end of a chunk;
3. a chunk repeats whole sentences from the end of the one before, up to `overlap` tokens, but nothing across a heading.

With a separator the text is parted after each of them first: a part that fits is one chunk, none repeats another.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate

from pgrag.errors import ConfigError, DocumentError
from pgrag.text.folding import name_key
from pgrag.text.sentences import good_end, sentence_cuts
from pgrag.text.tokens import Tokenizer
from pgrag.types import Chunk, Document

CHUNKING_VERSION = 1
RST = "text/x-rst"
MAX_HEADING = 200

_MIN_TOKENS = 16

_LINE = re.compile(r"[^\n]*+\n|[^\n]++")
_ATX = re.compile(r" {0,3}(#{1,6})(?=[ \t]|$)")
_UNDERLINE = re.compile(r"(={3,}|-{3,}|~{3,}|\^{3,})$")
_UNDERLINE_LEVELS = {"=": 1, "-": 2, "~": 3, "^": 4}
_FENCE = re.compile(r"`{3,}+(?!.*`)|~{3,}+")
_ITEM = re.compile(r"(?:[-*+•‣]|\d{1,3}[.)、])\s")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_MARKUP = re.compile(r"\*\*|__|`|\s\{#[\w-]+\}$")


class _Rank(IntEnum):
    """How good a place a unit's start is to begin a chunk."""

    PIECE = 0
    SENTENCE = 1
    PARAGRAPH = 2
    HEADING = 3


@dataclass(slots=True)
class _Block:
    """What begins at `start` and runs to the next block."""

    start: int
    rank: _Rank
    prose: bool = False
    level: int = 0
    title: str = ""


@dataclass(frozen=True, slots=True)
class _Unit:
    start: int
    end: int
    tokens: int
    rank: _Rank
    level: int
    path: tuple[str, ...]


class Chunker:
    """Cuts documents into chunks of at most `max_tokens` tokens of body text, which repeat at most `overlap` tokens.

    `split_by` also ends a chunk after each place where it stands; with `split_only` nowhere else.
    Raises ConfigError unless max_tokens >= 16 and 0 <= overlap <= max_tokens / 2.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_tokens: int = 1200,
        overlap: int = 100,
        *,
        split_by: str | None = None,
        split_only: bool = False,
    ) -> None:
        if max_tokens < _MIN_TOKENS:
            raise ConfigError(f"chunk_tokens is {max_tokens}: use {_MIN_TOKENS} at least")
        if not 0 <= overlap * 2 <= max_tokens:
            raise ConfigError(f"chunk_overlap is {overlap}: use 0 to {max_tokens // 2}, half of chunk_tokens")
        if split_only and not split_by:
            raise ConfigError("split_by_character_only needs split_by_character")
        self._tokenizer = tokenizer
        self._max = max_tokens
        self._overlap = overlap
        self._split_by = split_by
        self._split_only = split_only

    @property
    def digest(self) -> str:
        """Equal digests cut the same document the same way."""
        split = f" {self._split_by!r} {self._split_only}" if self._split_by else ""
        return f"chunking {CHUNKING_VERSION} {self._tokenizer.name} {self._max} {self._overlap}{split}"

    def chunk(self, document: Document) -> list[Chunk]:
        """The document's chunks in order; none for a text of white space.

        `body == document.body[start:end]`; the spans begin at 0, leave no gap and end at the text's end; white space
        belongs to the chunk before it. `headings` are the document's title and the headings above the chunk's start;
        `tokens` counts `model_text`, headings included. Raises DocumentError with `split_only` for a part over the
        limit.
        """
        text = document.body
        if not text.strip():
            return []
        cuts = _part_ends(text, self._split_by) if self._split_by else [len(text)]
        units = self._units(text, document.mime, cuts)
        chunks: list[Chunk] = []
        first = 0
        for cut in cuts:
            stop = bisect_right(units, cut, lo=first, key=lambda unit: unit.end)
            self._pack(document, units[first:stop], chunks)
            first = stop
        return chunks

    def _pack(self, document: Document, units: Sequence[_Unit], chunks: list[Chunk]) -> None:
        """Adds the chunks of one part of the document."""
        text = document.body
        if self._split_by:
            tokens = self._count(text, units, 0, len(units))
            if tokens <= self._max:
                chunks.append(self._make(document, units[0], units[-1].end, len(chunks)))
                return
            if self._split_only:
                raise DocumentError(
                    f"has {tokens} tokens between two separators (characters {units[0].start} to {units[-1].end}), and "
                    f"chunk_tokens is {self._max}: raise it, or let longer parts be split (split_by_character_only)"
                )
        begin = first = 0
        while first < len(units):
            stop = self._fill(text, units, begin, first)
            while stop > first + 1 and self._count(text, units, begin, stop) > self._max:
                stop -= 1  # joined units can take a token more than they take alone
            if self._count(text, units, begin, stop) > self._max:
                begin = first
            chunks.append(self._make(document, units[begin], units[stop - 1].end, len(chunks)))
            begin, first = self._overlap_start(text, units, begin, stop), stop

    def _make(self, document: Document, first: _Unit, end: int, ordinal: int) -> Chunk:
        title, path, pages = document.title, first.path, document.page_starts
        if title and path and name_key(path[0]) == name_key(title):
            path = path[1:]
        headings = (title, *path) if title else path
        body = document.body[first.start : end]
        return Chunk(
            ordinal=ordinal,
            body=body,
            start=first.start,
            end=end,
            tokens=self._tokenizer.count("\n".join((*headings, body))),
            headings=headings,
            page=max(1, bisect_right(pages, first.start)) if pages else None,
        )

    # ------------------------------------------------------------ packing

    def _count(self, text: str, units: Sequence[_Unit], begin: int, stop: int) -> int:
        return self._tokenizer.count(text[units[begin].start : units[stop - 1].end]) if stop > begin else 0

    def _fill(self, text: str, units: Sequence[_Unit], begin: int, first: int) -> int:
        """Where the chunk ends that holds the units from `begin` (of which those from `first` are new)."""
        total = sum(unit.tokens for unit in units[begin:first])
        stop = first
        while stop < len(units):
            unit = units[stop]
            if stop > first and unit.level in (1, 2) and total * 4 >= self._max:
                return stop
            if total + unit.tokens > self._max:
                # Units take fewer tokens joined than apart: look whether there is room after all.
                exact = self._count(text, units, begin, stop)
                if exact + unit.tokens > self._max:
                    return self._break(units, begin, first, stop)
                total = exact
            total += unit.tokens
            stop += 1
        return stop

    def _break(self, units: Sequence[_Unit], begin: int, first: int, stop: int) -> int:
        best, rank = stop, _Rank.PIECE
        sizes = accumulate(unit.tokens for unit in units[begin:stop])
        for place, size in enumerate(sizes, start=begin + 1):
            unit = units[place]
            if place > first and size * 2 >= self._max and not units[place - 1].level and unit.rank >= rank:
                best, rank = place, unit.rank
        while best - 1 > first and units[best - 1].level:
            best -= 1
        return best

    def _overlap_start(self, text: str, units: Sequence[_Unit], begin: int, first: int) -> int:
        """The first of the units before `first` that the next chunk repeats."""
        if first == len(units) or units[first].level:
            return first
        room = min(self._overlap, self._max - units[first].tokens)
        start = first
        while start - 1 > begin and not units[start - 1].level and room >= units[start - 1].tokens:
            start -= 1
            room -= units[start].tokens
        while start < first and (
            units[start].rank == _Rank.PIECE or self._count(text, units, start, first) > self._overlap
        ):
            start += 1
        return start

    # ------------------------------------------------------------ units

    def _units(self, text: str, mime: str, cuts: Sequence[int]) -> list[_Unit]:
        units: list[_Unit] = []
        path: list[tuple[int, str]] = []
        for block, end in _with_ends(_blocks(text, mime), len(text)):
            if block.level:
                path = [heading for heading in path if heading[0] < block.level]
            titles = tuple(title for _, title in path)
            ends = [*(sentence_cuts(text, block.start, end) if block.prose else ()), end]
            inside = cuts[bisect_right(cuts, block.start) : bisect_left(cuts, end)]
            start, rank = block.start, block.rank
            for cut in sorted({*ends, *inside}) if inside else ends:
                for piece_end, tokens in self._pieces(text[start:cut]):
                    units.append(_Unit(start, start + piece_end, tokens, rank, block.level, titles))
                    start, rank = start + piece_end, _Rank.PIECE
                rank = _Rank.SENTENCE
            if block.level:
                path.append((block.level, block.title))
        return units

    def _pieces(self, text: str) -> Iterator[tuple[int, int]]:
        """(length, tokens) of the parts of a unit, each within the limit; nearly always one."""
        tokens = self._tokenizer.count(text)
        if tokens <= self._max:
            yield len(text), tokens
            return
        start = 0
        while start < len(text):
            end, tokens = self._piece_end(text, start)
            yield end - start, tokens
            start = end

    def _piece_end(self, text: str, start: int) -> tuple[int, int]:
        end, tokens = start + 1, self._max
        for limit in range(self._max, 0, -1):
            end = good_end(text, start, self._tokenizer.prefix_end(text, limit, start))
            tokens = self._tokenizer.count(text[start:end])
            if tokens <= self._max:
                break
        return end, tokens


def first_title(text: str, mime: str = "text/markdown") -> str:
    """The text of the first heading of level 1, '' without one."""
    return next((block.title for block in _blocks(text, mime) if block.level == 1), "")


def _part_ends(text: str, separator: str) -> list[int]:
    """Where the parts end: after each separator, which stays with the part before. Blank parts go with the one before
    them, at the text's start with the one after."""
    ends: list[int] = []
    start = 0
    while (place := text.find(separator, start)) >= 0:
        end = place + len(separator)
        if text[start:place].strip():
            ends.append(end)
        elif ends:
            ends[-1] = end
        start = end
    if text[start:].strip() or not ends:
        ends.append(len(text))
    else:
        ends[-1] = len(text)
    return ends


def _with_ends(blocks: Iterator[_Block], length: int) -> Iterator[tuple[_Block, int]]:
    """Each block with its end; the first begins at 0, the last ends at `length`."""
    held: _Block | None = None
    for block in blocks:
        if held is None:
            block.start = 0
        else:
            yield held, block.start
        held = block
    if held is not None:
        yield held, length


def _blocks(text: str, mime: str) -> Iterator[_Block]:
    """Headings, paragraphs, list items, and the lines of tables and code, in order (CommonMark's rules, roughly)."""
    held: _Block | None = None  # a paragraph's line may prove to be a heading by the line below it
    lines = 0  # of the paragraph or item being read; 0: none
    rank = _Rank.PARAGRAPH
    fence = ""
    for match in _LINE.finditer(text):
        raw, start = match[0], match.start()
        line = raw.strip()
        block: _Block | None = None
        if fence:
            block = _Block(start, _Rank.SENTENCE)
            if line.startswith(fence) and not line.strip(fence[0]):
                fence = ""
        elif not line:
            lines, rank = 0, _Rank.PARAGRAPH
        elif heading := _atx(raw):
            block = _Block(start, _Rank.HEADING, level=heading[0], title=heading[1])
            lines = 0
        elif mime != RST and (opening := _FENCE.match(line)):
            block, fence, lines = _Block(start, rank), opening[0], 0
        elif (mime == RST or line[0] in "=-") and _UNDERLINE.match(line):
            if held is not None and held.prose and lines == 1:
                title = _heading_text(text[held.start : start])
                held.rank, held.prose, held.level, held.title = _Rank.HEADING, False, _UNDERLINE_LEVELS[line[0]], title
            else:
                block = _Block(start, rank)
            lines = 0
        elif line.startswith("|") or " | " in line:
            block, lines = _Block(start, rank), 0
        elif _ITEM.match(line):
            block, lines = _Block(start, rank, prose=True), 2  # an item is no heading whatever follows
        elif lines:
            lines += 1
        else:
            block, lines = _Block(start, rank, prose=True), 1
        if line and not fence:
            rank = _Rank.SENTENCE
        if block is not None:
            if held is not None:
                yield held
            held = block
    if held is not None:
        yield held


def _atx(line: str) -> tuple[int, str] | None:
    match = _ATX.match(line)
    if not match:
        return None
    title = line[match.end() :].strip()
    bare = title.rstrip("#")
    title = _heading_text(bare if not bare or bare[-1].isspace() else title)
    return (len(match[1]), title) if title else None


def _heading_text(text: str) -> str:
    text = _MARKUP.sub("", _LINK.sub(r"\1", " ".join(text[: 5 * MAX_HEADING].split())))
    return text[:MAX_HEADING].strip()
