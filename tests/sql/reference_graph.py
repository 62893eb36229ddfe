"""A small graph as plain values, and what may be read of it: everything, or what some passages state.

The searches of the reference (`reference_search`) see a graph only through `Told`.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

Vector = tuple[float, ...]
Pair = tuple[int, int]
FRAGMENTS, FRAGMENT_TOKENS = 50, 1200  # of a description


@dataclass(frozen=True)
class Document:
    id: int
    uri: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    published_at: datetime | None = None


@dataclass(frozen=True)
class Chunk:
    """`text` stands for the text itself: chunks of one text have the same."""

    id: int
    document: Document
    ordinal: int
    text: str
    words: Mapping[str, int]
    tokens: int
    vector: Vector | None


@dataclass(frozen=True)
class Mention:
    id: int
    chunk: int | None
    key: str
    name: str
    type: str
    description: str
    tokens: int


@dataclass(frozen=True)
class Fact:
    """`named` are keys of entities that play no part."""

    id: int
    chunk: int | None
    text: str
    keywords: tuple[str, ...]
    strength: float
    tokens: int
    vector: Vector | None
    source: str | None = None
    target: str | None = None
    named: tuple[str, ...] = ()

    @property
    def keys(self) -> set[str]:
        return {key for key in (self.source, self.target, *self.named) if key is not None}


@dataclass(frozen=True)
class Profile:
    """What is stored of an entity or a relation beside what can be derived; a relation has no name and type."""

    id: int
    tokens: int
    vector: Vector | None
    description: str
    name: str = ""
    type: str = ""


@dataclass(frozen=True)
class Graph:
    documents: Sequence[Document]
    chunks: Mapping[int, Chunk]
    entities: Mapping[int, Profile]
    aliases: Mapping[str, int]  # key -> entity
    mentions: Sequence[Mention]
    facts: Sequence[Fact]
    relations: Mapping[Pair, Profile]  # by the lower and the higher id of its ends

    def pair(self, fact: Fact) -> Pair | None:
        """What a fact relates: source and target, without direction, if they are two."""
        if fact.source is None or fact.target is None:
            return None
        ends = sorted({self.aliases[fact.source], self.aliases[fact.target]})
        return (ends[0], ends[1]) if len(ends) == 2 else None

    @cached_property
    def relation_pairs(self) -> dict[int, Pair]:
        return {profile.id: pair for pair, profile in self.relations.items()}


@dataclass(frozen=True)
class Edge:
    other: int
    relation: int
    weight: float


class Told:
    """What a graph tells: all of it, or (`scope`) only what these passages state."""

    def __init__(self, graph: Graph, scope: Iterable[int] | None = None) -> None:
        self.graph = graph
        self.whole = scope is None
        inside = set(graph.chunks) if scope is None else set(scope)
        self.chunks = {i: graph.chunks[i] for i in sorted(inside)}
        self.mentions = [m for m in graph.mentions if m.chunk in inside or (m.chunk is None and self.whole)]
        self.facts = [f for f in graph.facts if f.chunk in inside or (f.chunk is None and self.whole)]
        self.facts_of: dict[int, list[Fact]] = defaultdict(list)  # relation -> what states it
        for f in self.facts:
            if pair := graph.pair(f):
                self.facts_of[graph.relations[pair].id].append(f)

    def entity_names(self, entity: int) -> list[Mention]:
        return [m for m in self.mentions if self.graph.aliases[m.key] == entity]

    @cached_property
    def known(self) -> set[int]:
        """Entities that are mentioned."""
        return {self.graph.aliases[m.key] for m in self.mentions}

    @cached_property
    def passages_of(self) -> dict[int, list[int]]:
        """entity -> passages that mention it, oldest first."""
        found: dict[int, set[int]] = defaultdict(set)
        for m in self.mentions:
            if m.chunk is not None:
                found[self.graph.aliases[m.key]].add(m.chunk)
        return {entity: sorted(chunks) for entity, chunks in found.items()}

    @cached_property
    def entities_of(self) -> dict[int, set[int]]:
        """passage -> entities that it mentions."""
        found: dict[int, set[int]] = defaultdict(set)
        for entity, chunks in self.passages_of.items():
            for chunk in chunks:
                found[chunk].add(entity)
        return found

    def entities_in(self, fact: Fact) -> set[int]:
        return {self.graph.aliases[key] for key in fact.keys}

    @cached_property
    def weights(self) -> dict[int, float]:
        """relation -> sum over distinct texts of the strongest statement in each; all by hand is one text."""
        found = {}
        for relation, facts in self.facts_of.items():
            strongest: dict[str | None, float] = {}
            for f in facts:
                text = None if f.chunk is None else self.graph.chunks[f.chunk].text
                strongest[text] = max(strongest.get(text, f.strength), f.strength)
            found[relation] = sum(strongest.values())
        return found

    @cached_property
    def edges(self) -> dict[int, list[Edge]]:
        """entity -> its edges, heaviest first, then oldest first."""
        found: dict[int, list[Edge]] = defaultdict(list)
        for relation, weight in self.weights.items():
            one, other = self.graph.relation_pairs[relation]
            found[one].append(Edge(other, relation, weight))
            found[other].append(Edge(one, relation, weight))
        return {entity: sorted(edges, key=lambda e: (-e.weight, e.relation)) for entity, edges in found.items()}

    # ------------------------------------------------------------ the texts of a filtered search

    def name(self, entity: int) -> str:
        return most_frequent(m.name for m in self.entity_names(entity))

    def entity_line(self, entity: int) -> tuple[str, str, str, int]:
        """Name, type, description and a bound of the tokens of its line."""
        said = self.entity_names(entity)
        name, type_ = self.name(entity), most_frequent(m.type for m in said)
        text, tokens = self._told((m.description, 0.0, m.tokens, m.chunk) for m in said if m.description)
        return name, type_, text, 24 + _size(name) + (_size(type_) if type_ else 0) + tokens

    def relation_line(self, relation: int) -> tuple[tuple[str, str], list[str], str, int]:
        """Names, keywords, description and a bound of the tokens of its line."""
        facts = self.facts_of[relation]
        one, other = sorted((self.name(i) for i in self.graph.relation_pairs[relation]), key=str.encode)
        text, tokens = self._told((f.text, f.strength, f.tokens, f.chunk) for f in facts)
        keywords = sorted({keyword for f in facts for keyword in f.keywords}, key=str.encode)
        return (one, other), keywords, text, 24 + _size(one) + _size(other) + tokens

    def _told(self, said: Iterable[tuple[str, float, int, int | None]]) -> tuple[str, int]:
        """Description and a bound of its tokens: 16 for the date of each fragment, and what JSON escapes."""
        listed = [
            (text, strength, tokens, None if chunk is None else self.graph.chunks[chunk].document.published_at)
            for text, strength, tokens, chunk in said
        ]
        if not listed:
            return "", 0
        tokens_of = {text: max(t for other, _, t, _ in listed if other == text) for text, *_ in listed}
        kept, told = description([(text, strength, date) for text, strength, _, date in listed], tokens_of)
        return told, sum(tokens_of[text] + 16 for text in kept) + _size(told) - len(told.encode())


def most_frequent(values: Iterable[str]) -> str:
    counts = Counter(value for value in values if value)
    return min(counts, key=lambda value: (-counts[value], value.encode()), default="")


def description(
    said: Sequence[tuple[str, float, datetime | None]],
    tokens_of: Mapping[str, int],
    fragments: int = FRAGMENTS,
    tokens: int = FRAGMENT_TOKENS,
) -> tuple[list[str], str]:
    """The fragments kept and the text made of them; `said` is (text, strength, date).

    The newest, strongest, longest first until the limits; told oldest first, those without a date before.
    """
    never = datetime.min.replace(tzinfo=UTC)
    best: dict[str, tuple[datetime, float]] = {}
    for text, strength, date in said:
        known = best.get(text, (never, 0.0))
        best[text] = (max(known[0], date or never), max(known[1], strength))
    ranked = sorted(
        best, key=lambda t: (-best[t][0].timestamp() if best[t][0] != never else 1e18, -best[t][1], -len(t), t.encode())
    )
    kept: list[str] = []
    total = 0
    for text in ranked[:fragments]:
        total += tokens_of[text]
        if kept and total > tokens:
            break
        kept.append(text)
    told = sorted(kept, key=lambda t: best[t][0])  # stable: equal dates keep their rank
    return kept, "\n".join(t if best[t][0] == never else f"({best[t][0]:%Y-%m-%d}) {t}" for t in told)


def _size(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode())


# ---------------------------------------------------------------- filters


def is_allowed(doc: Document, conditions: Mapping[str, Any]) -> bool:
    """All conditions hold; None is no condition, and a lone text is a list of one."""
    tests: dict[str, Callable[[Any], bool]] = {
        "metadata": lambda wanted: _contains(doc.metadata, wanted),
        "uri": lambda globs: any(_matches(glob, doc.uri) for glob in _listed(globs)),
        "documents": lambda uris: doc.uri in _listed(uris),
        "labels": lambda wanted: set(_listed(wanted)) <= set(doc.labels),
        "any_label": lambda wanted: bool(set(_listed(wanted)) & set(doc.labels)),
        "published_from": lambda day: doc.published_at is not None and doc.published_at >= _moment(day),
        "published_until": lambda day: doc.published_at is not None and doc.published_at <= _moment(day),
    }
    return all(tests[name](value) for name, value in conditions.items() if value is not None)


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _matches(glob: str, uri: str) -> bool:
    pattern = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in glob)
    return re.fullmatch(pattern, uri, re.DOTALL) is not None


def _contains(value: Any, wanted: Any) -> bool:
    """jsonb's @>: objects by key, arrays as sets, anything else equal."""
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(k in value and _contains(value[k], w) for k, w in wanted.items())
    if isinstance(wanted, list):
        return isinstance(value, list) and all(any(_contains(v, w) for v in value) for w in wanted)
    return type(value) is type(wanted) and bool(value == wanted)
