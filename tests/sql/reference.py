"""What should come out: plain Python over the texts of the tests alone, after the design and not after the SQL."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from pgrag.folding import name_key, words
from pgrag.records import NewDocument
from pgrag.types import ExtractedMention
from tests.sql.support import EMBEDDER, said, tokenizer


def expected_graph(documents: Iterable[NewDocument], fragments: int = 50, tokens: int = 300) -> dict[str, Any]:
    """Entities and relations that these documents state, all extracted: by key, as `snapshot` gives them."""
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
            _most_frequent(name for name, *_ in said_of),
            _most_frequent(type_ for _, type_, *_ in said_of),
            _description([(text, 0.0, date) for _, _, text, date in said_of if text], fragments, tokens),
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
            _description([(text, strength, date) for text, _, strength, date, _ in stated], fragments, tokens),
            round(sum(by_text.values()), 4),
        )
    return {"entities": entities, "relations": relations}


def _most_frequent(values: Iterable[str]) -> str:
    counts = Counter(value for value in values if value)
    return min(counts, key=lambda value: (-counts[value], value.encode()), default="")


def _description(said_of: Sequence[tuple[str, float, datetime | None]], fragments: int, tokens: int) -> str:
    """The newest, strongest, longest first until the limits; told oldest first, those without a date before."""
    never = datetime.min.replace(tzinfo=UTC)
    best: dict[str, tuple[datetime, float]] = {}
    for text, strength, date in said_of:
        known = best.get(text, (never, 0.0))
        best[text] = (max(known[0], date or never), max(known[1], strength))
    ranked = sorted(
        best, key=lambda t: (-best[t][0].timestamp() if best[t][0] != never else 1e18, -best[t][1], -len(t), t.encode())
    )
    kept: list[str] = []
    total = 0
    for text in ranked[:fragments]:
        total += tokenizer().count(text)
        if kept and total > tokens:
            break
        kept.append(text)
    told = sorted(kept, key=lambda t: best[t][0])  # stable: equal dates keep their rank
    return "\n".join(t if best[t][0] == never else f"({best[t][0]:%Y-%m-%d}) {t}" for t in told)


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


def bm25(documents: Iterable[NewDocument], asked: list[str], k1: float = 1.2, b: float = 0.75) -> dict[str, float]:
    """Score of every chunk (by its text) that holds a word asked for; words in over 60 % of the chunks say nothing."""
    counted = [(new.chunk.body, Counter(words(new.chunk.model_text))) for doc in documents for new in doc.chunks]
    chunks = [(body, count) for body, count in counted if count]
    held = Counter(word for _, count in chunks for word in count)
    known = {word for word in asked if 0 < held[word] <= max(0.6 * len(chunks), 1)}
    idf = {word: math.log(1 + (len(chunks) - held[word] + 0.5) / (held[word] + 0.5)) for word in known}
    words_in_all = sum(count.total() for _, count in chunks)
    scores: dict[str, float] = {}
    for body, count in chunks:
        length = k1 * (1 - b + b * count.total() * len(chunks) / words_in_all)
        parts = [idf[word] * count[word] * (k1 + 1) / (count[word] + length) for word in known if count[word]]
        if parts:
            scores[body] = math.fsum(parts)
    return scores


def passage_ranks(
    docs: list[NewDocument], question: str, asked_words: list[str], lexical: float, steps: int = 3
) -> dict[str, tuple[float, float]]:
    """(score, nearness) of every passage by a walk over entities and passages.

    Facts near the question give the seed entities, passages near it share the restart.
    """

    def unit(text: str) -> Any:
        stored = EMBEDDER.vector(text).astype(np.float16).astype(float)
        return stored / np.linalg.norm(stored)

    tau, damping, passages = 0.015, 0.6, 0.25
    texts = [new.chunk.body for doc in docs for new in doc.chunks]
    lex = bm25(docs, asked_words)
    near = {
        b: float(unit(question) @ unit(b)) + (lexical * lex.get(b, 0) / max(lex.values()) if lex and lexical else 0)
        for b in texts
    }
    stated = [(f, b) for b in texts for f in said(b).facts]
    named = {
        b: {name_key(m.name) for m in said(b).mentions} | {name_key(e.name) for f in said(b).facts for e in f.entities}
        for b in texts
    }
    score = {i: float(unit(question) @ unit(f.text)) + 0.3 * near[b] for i, (f, b) in enumerate(stated)}
    best = sorted(score, key=lambda i: -score[i])[:12]
    restart: dict[Any, float] = {}
    for i in best:
        ends = {name_key(e.name) for e in stated[i][0].entities}
        for e in ends:
            share = math.exp((score[i] - score[best[0]]) / tau) / len(ends) / sum(e in n for n in named.values())
            restart[e] = restart.get(e, 0) + share
    total = sum(restart.values())
    restart = {e: (1 - passages) * w / total for e, w in restart.items()}
    top = sorted(near, key=lambda b: -near[b])[:20]
    soft = {b: math.exp((near[b] - near[top[0]]) / tau) for b in top}
    restart |= {("passage", b): passages * w / sum(soft.values()) for b, w in soft.items()}

    edges: dict[Any, dict[Any, float]] = {}
    weight: dict[tuple[Any, ...], dict[str, float]] = {}
    for f, b in stated:
        pair = tuple(sorted({name_key(e.name) for e in f.entities}))
        weight.setdefault(pair, {})[b] = max(weight.get(pair, {}).get(b, 0), f.strength)
    for (one, other), by_text in weight.items():
        edges.setdefault(one, {})[other] = edges.setdefault(other, {})[one] = sum(by_text.values())
    for b, names in named.items():
        for e in names:
            edges.setdefault(e, {})["passage", b] = edges.setdefault(("passage", b), {})[e] = 1
    x = dict(restart)
    for _ in range(steps):
        y = {node: (1 - damping) * w for node, w in restart.items()}
        for node, w in x.items():
            out = edges.get(node, {})
            for other, strength in out.items():
                y[other] = y.get(other, 0) + damping * w * strength / sum(out.values())
        x = y
    return {b: (x.get(("passage", b), 0), near[b]) for b in texts}
