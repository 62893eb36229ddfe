"""What a search is asked and what it finds, and how lists of it are put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from tests.sql.reference_graph import Vector


@dataclass(frozen=True)
class Asked:
    """A question and its options, named as the parameters of `retrieve()`; `parts` are the words of each part."""

    question: Vector | None = None
    low: Vector | None = None
    high: Vector | None = None
    words: tuple[str, ...] = ()
    parts: tuple[tuple[str, ...], ...] = ()
    keys: tuple[str, ...] = ()
    similar: tuple[str, ...] = ()
    mode: str = "mix"
    top_k: int = 40
    chunk_top_k: int = 20
    ranking: str = "pagerank"
    threshold: float = 0.2
    degree_cap: int = 32
    hops: int = 1
    lexical: float = 0.2
    nearness: float | None = None
    entity_tokens: int = 6000
    relation_tokens: int = 8000
    total_tokens: int = 30000
    filter: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Found:
    """Something found: its score if it has one, and the reasons."""

    id: int
    score: float | None = None
    why: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Row:
    """A row of the answer; `told` is what it says of itself (name, type, body ... by layer)."""

    layer: str
    id: int
    score: float | None
    why: frozenset[str]
    tokens: int
    told: tuple[Any, ...] = field(default=(), repr=False)


def listed(ids: Iterable[int], why: str, scores: Mapping[int, float | None] | None = None) -> list[Found]:
    return [Found(i, (scores or {}).get(i), frozenset({why})) for i in ids]


def in_turn(*lists: Sequence[Found], then: Sequence[Found] = ()) -> list[Found]:
    """The first of each list, the second of each, and so on, then another list.

    What comes again adds its reasons, and its score if there is none yet.
    """
    longest = max(map(len, lists), default=0)
    turns = (one[n] for n in range(longest) for one in lists if n < len(one))
    merged: dict[int, Found] = {}
    for found in chain(turns, then):
        known = merged.get(found.id, Found(found.id))
        merged[found.id] = replace(
            known, score=found.score if known.score is None else known.score, why=known.why | found.why
        )
    return list(merged.values())


def fitting(rows: Iterable[Row], budget: int) -> list[Row]:
    """Whole items from the first on, as long as they fit."""
    kept, used = [], 0
    for row in rows:
        used += row.tokens
        if used > budget:
            break
        kept.append(row)
    return kept
