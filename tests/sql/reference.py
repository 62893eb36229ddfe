"""What should come out: plain Python over the texts of the tests alone, after the design and not after the SQL."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


MAX_CONTRAST = 100  # of the best scores are looked at


def contrast(scores: Iterable[float]) -> float | None:
    """How far the best stand out; 1 where scores fall off exponentially, None for fewer than ten or equal scores.

    The distance from the best to the 20th (of fewer than a hundred: a fifth of the way) as a share of that to the 100th
    (or the last), over the share that exponential scores have: ln 20 / ln 100.
    """
    best = sorted(scores, reverse=True)[:MAX_CONTRAST]
    if len(best) < 10 or best[0] == best[-1]:
        return None
    near = min(20, len(best) // 5)
    return (best[0] - best[near - 1]) / (best[0] - best[-1]) / (math.log(near) / math.log(len(best)))


def part_shares(documents: Iterable[NewDocument], parts: Sequence[Sequence[str]]) -> dict[str, float]:
    """Of each chunk with a word asked for, the best share of what any chunk scores for one of the parts."""
    documents = list(documents)
    found = dict.fromkeys(bm25(documents, [word for part in parts for word in part]), 0.0)
    for part in parts:
        scores = bm25(documents, list(part))
        for body, score in scores.items():
            found[body] = max(found[body], score / max(scores.values()))
    return found


def part_bits(parts: Sequence[Sequence[str]]) -> dict[str, int]:
    """word -> the parts it stands in, a bit each."""
    bits: dict[str, int] = {}
    for i, part in enumerate(parts):
        for word in part:
            bits[word] = bits.get(word, 0) | 1 << i
    return bits


@dataclass(frozen=True)
class Ranked:
    """A passage: its place in the order, what the walk brought (None: not reached), and its nearness."""

    score: float
    walked: float | None
    near: float


def passage_ranks(
    docs: Sequence[NewDocument],
    question: str,
    asked: Sequence[str],
    parts: Sequence[Sequence[str]] = (),
    names: Sequence[str] = (),
    *,
    lexical: float = 0.2,
    nearness: float | None = None,
    steps: int = 4,
    passages: float = 0.4,
    of_names: float = 0.2,
    support: float = 0.3,
    tau: float = 0.015,
    damping: float = 0.6,
    flat: float = 0.9,
    sharp: float = 1.1,
    most: float = 0.8,
) -> dict[str, Ranked]:
    """Every passage of a corpus that is small enough to be looked at as a whole, by its text.

    Facts near the question say which entities matter, those named in it (`names`, keys) have a share, and passages near
    it share the restart of a walk over entities and passages; the less the best scores stand out, the more the
    passages' own nearness decides.
    """
    texts = [new.chunk.body for doc in docs for new in doc.chunks]
    vectors = _Cosines(question)
    lex, part = bm25(docs, list(asked)), part_shares(docs, parts)
    by_words = {b: lexical * (lex[b] / max(lex.values()) + part.get(b, 0)) if b in lex else 0.0 for b in texts}
    cosine = {b: vectors.to(b) for b in texts}
    start = {b: cosine[b] + by_words[b] / 2 for b in texts}
    near = {b: cosine[b] + by_words[b] for b in texts}
    stated = [(f, b) for b in texts for f in said(b).facts]
    fact_cosine = [vectors.to(f.text) for f, _ in stated]

    share = nearness
    if share is None:
        known = [c for c in (contrast(cosine.values()), contrast(fact_cosine)) if c is not None]
        share = 0.0
        if known and max(known) <= flat:
            share = most
        elif known and max(known) < sharp:
            share = most * (sharp - max(known)) / (sharp - flat)

    restart = _restart(docs, stated, fact_cosine, start, names, passages, of_names, support, tau)
    walked = _walk(docs, stated, restart, steps, damping)
    reached = {b: walked["passage", b] for b in texts if walked.get(("passage", b), 0) > 0}
    by_walk = _scaled({b: math.log(x) for b, x in reached.items()})
    by_nearness = _scaled(near)
    return {b: Ranked((1 - share) * by_walk.get(b, 0) + share * by_nearness[b], reached.get(b), near[b]) for b in texts}


class _Cosines:
    """To a question, of vectors as they are stored."""

    def __init__(self, question: str) -> None:
        self._question = self._unit(question)

    def to(self, text: str) -> float:
        return float(self._question @ self._unit(text))

    @staticmethod
    def _unit(text: str) -> Any:
        stored = EMBEDDER.vector(text).astype(np.float16).astype(float)
        return stored / np.linalg.norm(stored)


def _scaled(values: Mapping[str, float]) -> dict[str, float]:
    """From 1 for the best to 0 for the 100th and all below; 1 for all if they are equal."""
    best = sorted(values.values(), reverse=True)[:100]
    if not best or best[0] == best[-1]:
        return dict.fromkeys(values, 1.0)
    return {b: max(0.0, (v - best[-1]) / (best[0] - best[-1])) for b, v in values.items()}


def _names(docs: Iterable[NewDocument]) -> dict[str, set[str]]:
    return {
        b: {name_key(m.name) for m in said(b).mentions} | {name_key(e.name) for f in said(b).facts for e in f.entities}
        for b in (new.chunk.body for doc in docs for new in doc.chunks)
    }


def _restart(
    docs: Sequence[NewDocument],
    stated: Sequence[tuple[Any, str]],
    cosine: Sequence[float],
    start: Mapping[str, float],
    names: Sequence[str],
    passages: float,
    of_names: float,
    support: float,
    tau: float,
) -> dict[Any, float]:
    named = _names(docs)
    score = [cos + support * start[b] for cos, (_, b) in zip(cosine, stated, strict=True)]
    best = sorted(range(len(score)), key=lambda i: -score[i])[:12]
    mass: dict[Any, float] = {}
    for i in best:
        ends = {name_key(e.name) for e in stated[i][0].entities}
        for e in ends:
            share = math.exp((score[i] - score[best[0]]) / tau) / len(ends) / sum(e in n for n in named.values())
            mass[e] = mass.get(e, 0) + share
    held = {e: 1 / sum(e in n for n in named.values()) for e in set(names) if any(e in n for n in named.values())}
    seeds: dict[str, float] = defaultdict(float)
    for part, share in ((mass, 1 - of_names if held else 1.0), (held, of_names if mass else 1.0)):
        for e, w in part.items():
            seeds[e] += share * w / sum(part.values())
    top = sorted(start, key=lambda b: -start[b])[:20]
    soft = {b: math.exp((start[b] - start[top[0]]) / tau) for b in top}
    whole = sum(soft.values())
    return {e: (1 - passages) * w for e, w in seeds.items()} | {
        ("passage", b): passages * w / whole for b, w in soft.items()
    }


def _walk(
    docs: Sequence[NewDocument],
    stated: Sequence[tuple[Any, str]],
    restart: Mapping[Any, float],
    steps: int,
    damping: float,
) -> dict[Any, float]:
    edges: dict[Any, dict[Any, float]] = defaultdict(dict)
    weight: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for f, b in stated:
        by_text = weight[tuple(sorted({name_key(e.name) for e in f.entities}))]
        by_text[b] = max(by_text.get(b, 0), f.strength)
    for pair, by_text in weight.items():
        if len(pair) < 2:  # a fact about one entity
            continue
        one, other = pair
        edges[one][other] = edges[other][one] = sum(by_text.values())
    for b, names in _names(docs).items():
        for e in names:
            edges[e]["passage", b] = edges["passage", b][e] = 1
    x = dict(restart)
    for _ in range(steps):
        y = {node: (1 - damping) * w for node, w in restart.items()}
        for node, w in x.items():
            out = edges.get(node, {})
            for other, strength in out.items():
                y[other] = y.get(other, 0) + damping * w * strength / sum(out.values())
        x = y
    return x
