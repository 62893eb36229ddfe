"""What should come out: plain Python over the texts of the tests alone, after the design and not after the SQL.

The search itself is in `reference_search`, its parts in the other modules of that name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import numpy as np

from pgrag.database.rows import NewDocument
from pgrag.text.folding import name_key, words
from pgrag.types import ExtractedMention
from tests.sql.reference_graph import (
    Chunk,
    Document,
    Fact,
    Graph,
    Mention,
    Profile,
    Told,
    Vector,
    description,
    most_frequent,
)
from tests.sql.reference_ranking import Ranked, Recipe, rank_passages
from tests.sql.reference_words import Bm25
from tests.sql.reference_words import part_shares as shares
from tests.sql.support import EMBEDDER, said, tokenizer


def expected_graph(documents: Iterable[NewDocument], fragments: int = 50, tokens: int = 300) -> dict[str, Any]:
    """Entities and relations that these documents state, all extracted: by key, as `snapshot` gives them."""

    def told(said_of: Sequence[tuple[str, float, datetime | None]]) -> str:
        counts = {text: tokenizer().count(text) for text, *_ in said_of}
        return description(said_of, counts, fragments, tokens)[1]

    mentions: dict[str, list[tuple[Any, ...]]] = defaultdict(list)  # -> (name, type, description, date)
    facts: dict[tuple[str, ...], list[tuple[Any, ...]]] = defaultdict(list)  # -> (text, keywords, strength, date, sha)
    for doc in documents:
        for new in doc.chunks:
            extraction = said(new.chunk.body)
            named: dict[str, ExtractedMention] = {m.name: m for m in extraction.mentions}
            for f in extraction.facts:
                ends = [end.name for end in f.entities]
                for name in ends:
                    if name_key(name) not in map(name_key, named):
                        named[name] = ExtractedMention(name)
                pair = tuple(sorted({name_key(name) for name in ends}))
                if len(pair) == 2:
                    facts[pair].append((f.text, f.keywords, f.strength, doc.published_at, new.sha256))
            for m in named.values():
                mentions[name_key(m.name)].append((m.name, m.type, m.description, doc.published_at))
    entities = {
        key: (
            most_frequent(name for name, *_ in said_of),
            most_frequent(type_ for _, type_, *_ in said_of),
            told([(text, 0.0, date) for _, _, text, date in said_of if text]),
            sum(key in pair for pair in facts),
            len(said_of),
        )
        for key, said_of in mentions.items()
    }
    relations = {}
    for pair, stated in facts.items():
        by_text: dict[str, float] = defaultdict(float)
        for _, _, strength, _, sha in stated:
            by_text[sha] = max(by_text[sha], strength)
        keywords = {keyword for _, listed, *_ in stated for keyword in listed}
        relations[pair] = (
            sorted(keywords, key=str.encode),
            told([(text, strength, date) for text, _, strength, date, _ in stated]),
            round(sum(by_text.values()), 4),
        )
    return {"entities": entities, "relations": relations}


def word_counts(documents: Iterable[NewDocument]) -> dict[str, tuple[int, int]]:
    """word -> (chunks that hold it, 0), and '' -> (chunks, words of all)."""
    chunks: Counter[str] = Counter()
    every = occurrences = 0
    for doc in documents:
        for new in doc.chunks:
            found = words("\n".join((*new.chunk.headings, new.chunk.body)))
            chunks.update(set(found))
            every += bool(found)
            occurrences += len(found)
    return {word: (count, 0) for word, count in chunks.items()} | ({"": (every, occurrences)} if every else {})


def _counted(documents: Iterable[NewDocument]) -> list[tuple[str, Counter[str]]]:
    """Text and words of every chunk."""
    return [(new.chunk.body, Counter(words(new.chunk.model_text))) for doc in documents for new in doc.chunks]


def bm25(documents: Iterable[NewDocument], asked: Iterable[str]) -> dict[str, float]:
    """Score of every chunk (by its text) that holds a word asked for."""
    counted = _counted(documents)
    scores = Bm25(dict(enumerate(count for _, count in counted)), asked).scores()
    return {counted[i][0]: score for i, score in scores.items()}


def part_shares(documents: Iterable[NewDocument], parts: Sequence[Sequence[str]]) -> dict[str, float]:
    """Of each chunk (by its text) with a word asked for, the best share of what any chunk scores for a part."""
    counted = _counted(documents)
    chunks = dict(enumerate(count for _, count in counted))
    found = shares(chunks, parts, Bm25(chunks, [word for part in parts for word in part]))
    return {counted[i][0]: share for i, share in found.items()}


def passage_ranks(
    docs: Sequence[NewDocument],
    question: str,
    asked: Sequence[str],
    parts: Sequence[Sequence[str]] = (),
    names: Sequence[str] = (),
    **recipe: Any,
) -> dict[str, Ranked]:
    """Every passage, by its text: what `rank_passages` makes of documents that have been ingested."""
    graph = stored_graph(docs)
    counted = {c.id: c.words for c in graph.chunks.values()}
    scores = Bm25(counted, asked).scores()
    share = shares(counted, parts, scores)
    by_words = {i: (score, share[i]) for i, score in scores.items()}
    ranks = rank_passages(Told(graph), stored(question), by_words, names, Recipe(**recipe))
    return {graph.chunks[i].text: rank for i, rank in ranks.items()}


def stored_graph(docs: Sequence[NewDocument]) -> Graph:
    """The graph of documents, each chunk extracted, as far as a ranking of passages looks at it."""
    chunks: dict[int, Chunk] = {}
    mentions: list[Mention] = []
    facts: list[Fact] = []
    for n, doc in enumerate(docs, 1):
        for new in doc.chunks:
            body, i = new.chunk.body, len(chunks) + 1
            held = Counter(words(new.chunk.model_text))
            chunks[i] = Chunk(i, Document(n, doc.uri), new.chunk.ordinal, body, held, 0, stored(body))
            extraction = said(body)
            keys = [name_key(m.name) for m in extraction.mentions]
            for f in extraction.facts:
                source, target = (name_key(end.name) for end in f.entities)
                keys += [source, target]
                vector = stored(f.text)
                facts.append(Fact(len(facts) + 1, i, f.text, f.keywords, f.strength, 0, vector, source, target))
            mentions += [Mention(0, i, key, key, "", "", 0) for key in dict.fromkeys(keys)]
    aliases = {key: n for n, key in enumerate(dict.fromkeys(m.key for m in mentions), 1)}
    graph = Graph([], chunks, {}, aliases, mentions, facts, {})
    pairs = dict.fromkeys(pair for f in facts if (pair := graph.pair(f)))
    relations = {pair: Profile(n, 0, None, "") for n, pair in enumerate(pairs, 1)}
    return Graph([], chunks, {}, aliases, mentions, facts, relations)


@cache
def stored(text: str) -> Vector:
    """The vector of a text as it is stored."""
    return tuple(EMBEDDER.vector(text).astype(np.float16).tolist())
