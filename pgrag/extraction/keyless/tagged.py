"""From the tagged sentences of a chunk to its mentions, facts and keywords."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pgrag.extraction.keyless.markup import Block, plain_line
from pgrag.extraction.keyless.names import MAX_SENTENCE, Name, Sentence, clean_name, distinct, split_long
from pgrag.text.folding import MAX_NAME
from pgrag.types import ExtractedFact, ExtractedMention, Extraction, FactEntity, Role

DESCRIPTION_SENTENCES = 2
DESCRIPTION_CHARACTERS = 300
CHUNK_KEYWORDS = 10
SHORTEST_FACT = 15  # characters, a Han character counting twice; a shorter text is a fact only if it names something
# Headings that every document has: as entities they would tie together what has nothing in common.
GENERIC_HEADINGS = frozenset(
    {
        *("abstract", "action items", "actions", "agenda", "appendix", "background", "conclusion", "conclusions"),
        *("contents", "context", "details", "discussion", "example", "examples", "faq", "goals", "impact"),
        *("introduction", "next steps", "notes", "overview", "purpose", "references", "requirements", "results"),
        *(
            "resolution",
            "root cause",
            "scope",
            "see also",
            "status",
            "summary",
            "table of contents",
            "timeline",
            "todo",
        ),
        *(
            "概述",
            "概要",
            "简介",
            "介绍",
            "背景",
            "目的",
            "目标",
            "目录",
            "范围",
            "总结",
            "小结",
            "结论",
            "附录",
            "参考",
        ),
        *(
            "说明",
            "示例",
            "影响",
            "原因",
            "根本原因",
            "时间线",
            "时间轴",
            "后续",
            "后续步骤",
            "改进措施",
            "结果",
            "备注",
        ),
    }
)


class _Mentions:
    """The names of a chunk by their casefolded form: how first written, types seen, sentences that hold them."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self._written: dict[str, str] = {}
        self._types: dict[str, Counter[str]] = {}
        self._sentences: dict[str, list[str]] = {}

    def add(self, name: Name, sentence: str = "") -> str | None:
        """The name as the chunk first wrote it; None, and counted, if it is too long."""
        if len(name.text) > MAX_NAME:
            self.dropped["name too long"] += 1
            return None
        key = name.text.casefold()
        self._types.setdefault(key, Counter())[name.type] += 1
        if sentence:
            self._sentences.setdefault(key, []).append(sentence)
        return self._written.setdefault(key, name.text)

    def all(self, first: Sequence[str]) -> tuple[ExtractedMention, ...]:
        """In order of appearance. A name that stands only in headings is described by the chunk's `first` sentences."""
        return tuple(
            ExtractedMention(name, _main_type(self._types[key]), _shorten(self._sentences.get(key, first)))
            for key, name in self._written.items()
        )


def to_extraction(headings: Sequence[str], found: Iterable[tuple[Block, list[Sentence]]]) -> Extraction:
    """The extraction of one chunk: its headings and its blocks with their sentences.

    The first heading, the document's title, is named by every sentence: it ties the facts of a document together.
    """
    mentions = _Mentions()
    facts: list[ExtractedFact] = []
    nouns: Counter[str] = Counter()
    lines = [line for line in map(plain_line, headings) if clean_name(line)]
    title = mentions.add(Name(clean_name(lines[0]), "concept")) if lines else None
    for line in lines[1:]:
        _add_heading(mentions, line)
    for block, sentences in found:
        if block.kind == "heading":
            _add_heading(mentions, block.text)
            for name in (name for sentence in sentences for name in sentence.names):
                mentions.add(name)
            continue
        for sentence in [_row(block, sentences)] if block.kind == "row" else sentences:
            if block.kind == "code" and not sentence.names:
                mentions.dropped["line of code without a name"] += 1
            elif not sentence.names and _is_fragment(sentence.text):
                mentions.dropped["fragment too short"] += 1
            else:
                nouns.update(sentence.nouns)
                facts.append(_fact(sentence, title, mentions))
    return Extraction(
        mentions.all([fact.text for fact in facts[:DESCRIPTION_SENTENCES]]),
        tuple(facts),
        tuple(word for word, _ in nouns.most_common(CHUNK_KEYWORDS)),
        dict(mentions.dropped),
    )


def _add_heading(mentions: _Mentions, line: str) -> None:
    name = clean_name(line)
    if name and name.casefold() not in GENERIC_HEADINGS:
        mentions.add(Name(name, "concept"))


def _row(block: Block, sentences: Sequence[Sentence]) -> Sentence:
    """A table's row as one sentence, shown with its column names; no relation."""
    return Sentence(
        block.shown[:MAX_SENTENCE],
        tuple(name for sentence in sentences for name in sentence.names),
        keywords=distinct(word for sentence in sentences for word in sentence.keywords),
        nouns=tuple(noun for sentence in sentences for noun in sentence.nouns),
    )


def _fact(sentence: Sentence, title: str | None, mentions: _Mentions) -> ExtractedFact:
    roles: dict[str, Role] = {}
    source, target = (sentence.source or "").casefold(), (sentence.target or "").casefold()
    for name in sentence.names:
        written = mentions.add(name, sentence.text)
        if written is not None:
            roles.setdefault(written, Role.NAMED)
            if name.text.casefold() == source:
                roles[written] = Role.SOURCE
            elif name.text.casefold() == target:
                roles[written] = Role.TARGET
    if title is not None:
        roles.setdefault(title, Role.NAMED)
    if {Role.SOURCE, Role.TARGET} - set(roles.values()):  # one of the two was dropped, or there is none
        roles = dict.fromkeys(roles, Role.NAMED)
    entities = tuple(FactEntity(name, role) for name, role in roles.items())
    return ExtractedFact(sentence.text, entities, sentence.keywords, context=title or "")


def _main_type(types: Counter[str]) -> str:
    """The most frequent, the first seen on a tie; "other" only if there is nothing else."""
    known = [(kind, count) for kind, count in types.items() if kind != "other"]
    return max(known, key=lambda pair: pair[1])[0] if known else "other"


def _shorten(sentences: Sequence[str]) -> str:
    """The first different sentences, cut at a word."""
    text = " ".join(list(dict.fromkeys(sentences))[:DESCRIPTION_SENTENCES])
    return text if len(text) <= DESCRIPTION_CHARACTERS else split_long(text, DESCRIPTION_CHARACTERS - 2)[0] + " …"


def _is_fragment(text: str) -> bool:
    width = sum(2 if c >= "\u2e80" else 1 for c in text[:SHORTEST_FACT])
    return width < SHORTEST_FACT or not any(c.isalnum() for c in text)
