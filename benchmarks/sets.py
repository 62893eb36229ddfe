"""Sets of passages and questions on disk, and the extractions that an LLM once made of some of them.

A set is a directory with `corpus.jsonl` ({id, title, text}) and `questions.jsonl` ({question, gold_ids}). What an LLM
extracted is `triples.jsonl` (a passage a line: {chunk_id, entities, triples}) or `entities.jsonl` and `relations.jsonl`
(LightRAG's: an object a line with the `descriptions` and `chunk_ids` of its sources).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgrag.errors import ExtractionError, PgragError
from pgrag.types import Chunk, Document, ExtractedFact, ExtractedMention, Extraction, FactEntity, Role

# titles that only number the passages: no model should read them
WITHOUT_TITLES = frozenset({"graphrag_bench_medical"})
# a field of the passages: where some have it set, the others are no part of the set
POOL = "in_fg101_pool"


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its kind in the set's own words, and the ids of the passages that it needs."""

    text: str
    gold: frozenset[str]
    kind: str


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Passages as documents, whose uris are their ids, and the questions that have gold passages."""

    name: str
    documents: tuple[Document, ...]
    questions: tuple[Question, ...]


def load_set(directory: Path) -> EvaluationSet:
    """Questions without gold passages, or with evidence that is in no passage (`missing_evidence`), are left out."""
    rows = _rows(directory / "corpus.jsonl")
    pool = [row for row in rows if row.get(POOL)] or rows
    titled = directory.name not in WITHOUT_TITLES
    documents = tuple(Document(row["id"], row["text"], row["title"] if titled else "") for row in pool)
    questions = tuple(
        Question(row["question"], frozenset(row["gold_ids"]), str(row.get("subtype") or row.get("type") or ""))
        for row in _rows(directory / "questions.jsonl")
        if row["gold_ids"] and not row.get("missing_evidence")
    )
    absent = frozenset().union(*(q.gold for q in questions)) - {d.uri for d in documents}
    if absent:
        raise SystemExit(f"{directory.name}: {len(absent)} gold passages are not in the corpus, e.g. {min(absent)}")
    return EvaluationSet(directory.name, documents, questions)


def has_extraction(directory: Path) -> bool:
    """Whether what an LLM extracted comes with the set."""
    return (directory / "triples.jsonl").exists() or (directory / "entities.jsonl").exists()


@dataclass(slots=True)
class _Said:
    """What an LLM said of one passage."""

    mentions: list[ExtractedMention] = field(default_factory=list)
    facts: list[ExtractedFact] = field(default_factory=list)


class ReadyMade:
    """An `Extractor` that hands out what an LLM extracted before. A chunk is known by its text: a whole passage."""

    label = "ready-made extraction"
    digest = "ready-made 1"

    def __init__(self, directory: Path, documents: Sequence[Document]) -> None:
        if (directory / "triples.jsonl").exists():
            said = _triples(directory)
        elif (directory / "relations.jsonl").exists():
            said = _entities_and_relations(directory)
        else:
            raise SystemExit(f"{directory.name} comes without an extraction: leave out --graph")
        self._by_text: dict[str, _Said] = defaultdict(_Said)
        for document in documents:
            here = self._by_text[document.body.strip()]
            here.mentions += said[document.uri].mentions
            here.facts += said[document.uri].facts

    async def extract(self, chunks: Sequence[Chunk]) -> list[Extraction | PgragError]:
        """One result a chunk; an ExtractionError for one that is no whole passage."""
        return [self._extract(chunk) for chunk in chunks]

    def _extract(self, chunk: Chunk) -> Extraction | PgragError:
        said = self._by_text.get(chunk.body.strip())
        if said is None:
            return ExtractionError("the chunk is no passage of the set")
        return Extraction(tuple(said.mentions), tuple(dict.fromkeys(said.facts)))


def _triples(directory: Path) -> dict[str, _Said]:
    """A fact a triple: its three parts as a sentence, the predicate as its keyword. Loops and blanks are no facts."""
    said: dict[str, _Said] = defaultdict(_Said)
    for row in _rows(directory / "triples.jsonl"):
        here = said[row["chunk_id"]]
        here.mentions += [ExtractedMention(name) for name in row["entities"] if name.strip()]
        for triple in row["triples"]:
            if len(triple) == 3 and all(isinstance(part, str) and part.strip() for part in triple):
                source, predicate, target = triple
                if source.strip().casefold() != target.strip().casefold():
                    here.facts.append(_fact(source, target, " ".join(triple), (predicate,)))
    return said


def _entities_and_relations(directory: Path) -> dict[str, _Said]:
    """The n-th description is that of the n-th source: so they were appended.

    Equal descriptions are kept once, so that some objects have fewer than sources. Which source lacks one is not told:
    the last ones do, and merely name the entity. A description more than there are sources goes to the last source.
    """
    said: dict[str, _Said] = defaultdict(_Said)
    for row in _rows(directory / "entities.jsonl"):
        for source, description in _by_source(row):
            said[source].mentions.append(ExtractedMention(row["name"], row["type"], description))
    for row in _rows(directory / "relations.jsonl"):
        keywords = tuple(k.strip() for k in row["keywords"].split(",") if k.strip())
        for source, description in _by_source(row):
            text = description or f"{row['src']} {row['keywords']} {row['tgt']}"
            said[source].facts.append(_fact(row["src"], row["tgt"], text, keywords))
    return said


def _by_source(row: dict[str, Any]) -> list[tuple[str, str]]:
    sources, descriptions = row["chunk_ids"], row["descriptions"]
    length = max(len(sources), len(descriptions))
    return [
        (sources[min(i, len(sources) - 1)], descriptions[i] if i < len(descriptions) else "")
        for i in range(length if sources else 0)
    ]


def _fact(source: str, target: str, text: str, keywords: tuple[str, ...]) -> ExtractedFact:
    ends = (FactEntity(source, Role.SOURCE), FactEntity(target, Role.TARGET))
    return ExtractedFact(text, ends, keywords)


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
