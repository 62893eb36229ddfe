"""A drafted question, read from a model's answer and checked against the passages that the model was shown."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgrag.evaluate.results import Gold, Kind
from pgrag.llm.prompts import language_of
from pgrag.llm.repair import mend
from pgrag.text.scripts import HAN

UNREADABLE = "answer that cannot be read"
CHUNKS_NEEDED: Mapping[Kind, int] = {Kind.SINGLE_FACT: 1, Kind.MULTI_HOP: 2, Kind.AGGREGATION: 3, Kind.THEMATIC: 2}
MAX_QUESTION = 500  # characters
MAX_ANSWERS = 5
MIN_EVIDENCE, MAX_EVIDENCE = 8, 1_000  # loosened characters: less is found everywhere, more is no sentence

_OF_THE_TEXT = re.compile(
    r"\b(?:the|this|that|these|those|each|both|above|given|provided|following)\s+(?:\w+\s+)?"
    r"(?:text|passage|excerpt|snippet|extract)s?\b|\bpassages?\s+\d|\[\d+\]"
    r"|\b(?:according to|based on|stated in|mentioned in)\s+(?:the|this|these)\s+"
    r"(?:documents?|articles?|contexts?|sources?|paragraphs?)\b"
    r"|(?:这|该|上|本|以上|上述|下列|所给|给定|给出的?)(?:一|两|三|几|些|个)?(?:段|篇)?(?:落|文本|文字|段落|节选|选段|材料|资料)"
    rf"|这段话|(?<![{HAN}])文中|原文中?|段落\s*\d|根据(?:文本|段落|上文|本文|资料|材料)",
    re.IGNORECASE,
)
_HAN = re.compile(f"[{HAN}]")
_VARIANTS = str.maketrans(
    dict.fromkeys("‘’ʼ‛`´", "'") | dict.fromkeys("“”„‟«»", '"') | dict.fromkeys("‐‑‒–—―−", "-")
)  # what models write in place of each other


@dataclass(frozen=True, slots=True)
class DrawnChunk:
    """A chunk as it is shown: its headings, then its text."""

    chunk_id: int
    uri: str
    ordinal: int
    headings: tuple[str, ...]
    body: str

    @property
    def text(self) -> str:
        """What the model reads."""
        return "\n".join((*self.headings, self.body))


@dataclass(frozen=True, slots=True)
class Draft:
    """A question with answers and gold, or the `problem` for which it is of no use."""

    text: str = ""
    answers: tuple[str, ...] = ()
    gold: tuple[Gold, ...] = ()
    problem: str = ""


def read_draft(answer: str, kind: Kind, chunks: Sequence[DrawnChunk], *, truncated: bool = False) -> Draft:
    """The question in a model's answer; its evidence stands in a passage, spelled as there. Never raises."""
    values = [found.value for found in mend(answer, truncated=truncated).values]
    objects = [item for value in values for item in (value if isinstance(value, list) else [value])]
    drafted = next((item for item in objects if isinstance(item, dict) and isinstance(item.get("question"), str)), None)
    if drafted is None:
        return Draft(problem=UNREADABLE)
    text = " ".join(drafted["question"].split())
    answers = _answers(drafted.get("answers", drafted.get("answer")))
    quoted = _quoted(drafted.get("evidence"))
    problem = _question_problem(text, chunks)
    if kind == Kind.NULL:
        return Draft(text, problem=problem or ("question that the passages answer" if answers or quoted else ""))
    gold: dict[Gold, None] = {}
    for number, sentence in quoted:
        found, trouble = _find(number, sentence, chunks)
        problem = problem or trouble
        if found is not None:
            gold[found] = None
    if not problem and not answers:
        problem = "question without an answer"
    if not problem and len({(g.document, g.ordinal) for g in gold}) < CHUNKS_NEEDED[kind]:
        problem = "evidence of too few passages"
    return Draft(text, answers, tuple(gold), problem)


def loosened(text: str) -> str:
    """Without case, width, white space, invisible characters and the shape of quotes and dashes."""
    return _loosened(text)[0]


def _loosened(text: str) -> tuple[str, list[int]]:
    """The loosened characters, and the place in the text that each comes from."""
    characters: list[str] = []
    places: list[int] = []
    for place, written in enumerate(text):
        for character in unicodedata.normalize("NFKD", written).casefold().translate(_VARIANTS):
            if not character.isspace() and unicodedata.category(character) not in ("Cf", "Cc"):
                characters.append(character)
                places.append(place)
    return "".join(characters), places


def _question_problem(text: str, chunks: Sequence[DrawnChunk]) -> str:
    if not text:
        return "no question of the kind in the passages"
    if len(text) > MAX_QUESTION:
        return "question that is too long"
    if _OF_THE_TEXT.search(text):
        return "question that speaks of the text"
    chinese = language_of("\n".join(chunk.text for chunk in chunks)) == "zh"
    if (chinese and not _HAN.search(text)) or (not chinese and language_of(text) == "zh"):
        return "question in another language than the passages"
    return ""


def _find(number: int | None, sentence: str, chunks: Sequence[DrawnChunk]) -> tuple[Gold | None, str]:
    """The place of a sentence, first looked for in the passage of that number (from 1)."""
    wanted = loosened(sentence[: 4 * MAX_EVIDENCE])
    if not MIN_EVIDENCE <= len(wanted) <= MAX_EVIDENCE:
        return None, "evidence that is no sentence"
    for chunk in sorted(chunks, key=lambda chunk: number is None or chunk is not _numbered(number, chunks)):
        text, places = _loosened(chunk.body)
        if (start := text.find(wanted)) >= 0:
            begin, end = places[start], places[start + len(wanted) - 1] + 1
            while begin and unicodedata.combining(chunk.body[begin]):  # a mark belongs to the letter before it
                begin -= 1
            while chunk.body[end : end + 1] and unicodedata.combining(chunk.body[end]):
                end += 1
            return Gold(chunk.uri, chunk.ordinal, chunk.body[begin:end]), ""
    return None, "evidence that no passage holds"


def _numbered(number: int, chunks: Sequence[DrawnChunk]) -> DrawnChunk | None:
    return chunks[number - 1] if 1 <= number <= len(chunks) else None


def _answers(value: Any) -> tuple[str, ...]:
    given = value if isinstance(value, list) else [value]
    texts = [" ".join(str(item).split()) for item in given if isinstance(item, str | int | float)]
    return tuple(dict.fromkeys(text for text in texts if text))[:MAX_ANSWERS]


def _quoted(value: Any) -> list[tuple[int | None, str]]:
    """(number of the passage, sentence) of each piece of evidence."""
    pieces: list[tuple[int | None, str]] = []
    for item in value if isinstance(value, list) else [value]:
        text = item.get("text") if isinstance(item, dict) else item
        if isinstance(text, str) and text.strip():
            number = str(item.get("passage", "")) if isinstance(item, dict) else ""
            pieces.append((int(number) if number.isascii() and number.isdigit() and len(number) < 5 else None, text))
    return pieces
