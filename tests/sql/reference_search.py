"""The search in plain Python: what `retrieve()` must answer about a small graph, row by row.

Written from the design and from LightRAG's rules, with plain loops over `Told`; where pgrag differs from LightRAG, the
rule says so. A filtered search is the same search over what the passages in scope state, with other seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.sql.reference_graph import Graph, Told, is_allowed
from tests.sql.reference_layers import graph_layers
from tests.sql.reference_lists import Asked, Found, Row, fitting
from tests.sql.reference_passages import Passages
from tests.sql.reference_ranking import UndecidedError, near, nearest
from tests.sql.reference_words import Bm25

LINE = 24  # tokens that every line composed for a filtered search has at least


@dataclass(frozen=True)
class Bounds:
    """So many allowed passages are all looked at; of more, so many nearest, or chunk_top_k up to 1,000."""

    all: int = 500
    nearest: int = 100


BOUNDS = Bounds()


def in_scope(graph: Graph, asked: Asked, bounds: Bounds) -> set[int]:
    """Passages that a filtered search looks at: all allowed ones, if they are few, else those that matter.

    These are the nearest to the question and, but for a naive search, those with its rarest words, those of the facts
    nearest to its vectors, and those of the entities named or in these facts (40 entities, 20 passages each).
    """
    allowed = {i for i, c in graph.chunks.items() if is_allowed(c.document, asked.filter or {})}
    if len(allowed) <= bounds.all:
        return allowed
    near_of = {i: score for i in allowed if (score := near(graph.chunks[i].vector, asked.question)) is not None}
    scope = set(nearest(near_of, near_of.__getitem__, max(bounds.nearest, min(asked.chunk_top_k, 1000))))
    if asked.mode == "naive":
        return scope
    bm25 = Bm25({c.id: c.words for c in graph.chunks.values()}, asked.words)
    scope |= allowed & set(bm25)
    facts = [f for f in graph.facts if f.chunk in allowed and f.vector is not None]
    asked_for = [v for v in (asked.question, asked.low, asked.high) if v is not None]
    if len(facts) > 100:
        raise UndecidedError
    close = facts if asked_for else []
    scope |= {f.chunk for f in close if f.chunk is not None}
    told = Told(graph)
    entities = {e for f in close for e in told.entities_in(f)}
    entities |= {graph.aliases[key] for key in (*asked.keys, *asked.similar) if key in graph.aliases}
    if len(entities) > 40:
        raise UndecidedError
    for e in entities:
        scope |= set([i for i in told.passages_of.get(e, ()) if i in allowed][:20])
    return scope


def search(
    graph: Graph, asked: Asked, letters: str = "", seen: Sequence[int] = (), bounds: Bounds = BOUNDS
) -> list[Row]:
    """The rows of `retrieve()`. `seen`: the passages of an answer, which decide between those that rounding decides."""
    filtered = bool(asked.filter)
    told = Told(graph, in_scope(graph, asked, bounds) if filtered else None)
    share = min(1.0, asked.total_tokens / max(1, asked.entity_tokens + asked.relation_tokens))
    budgets = int(share * asked.entity_tokens), int(share * asked.relation_tokens)
    entities, relations = graph_layers(told, asked, letters)
    if filtered:
        entities, relations = entities[: budgets[0] // LINE], relations[: budgets[1] // LINE]
    upper = fitting((_entity_row(told, e) for e in entities), budgets[0])
    lower = fitting((_relation_row(told, r) for r in relations), budgets[1])
    passages = Passages(told, asked, [r.id for r in upper], [r.id for r in lower])
    room = asked.total_tokens - sum(row.tokens for row in (*upper, *lower))
    text = [_chunk_row(graph, c) for c in passages.ranked(seen)[: asked.chunk_top_k]]
    return [*upper, *lower, *fitting(text, room)]


def _entity_row(told: Told, found: Found) -> Row:
    e = told.graph.entities[found.id]
    *line, tokens = (e.name, e.type, e.description, e.tokens) if told.whole else told.entity_line(found.id)
    return Row("entity", found.id, found.score, found.why, tokens, tuple(line))


def _relation_row(told: Told, found: Found) -> Row:
    if told.whole:
        pair = told.graph.relation_pairs[found.id]
        profile = told.graph.relations[pair]
        low, high = sorted((told.graph.entities[e].name for e in pair), key=str.encode)
        keywords, body, tokens = list[str](), profile.description, profile.tokens
    else:
        (low, high), keywords, body, tokens = told.relation_line(found.id)
    return Row(
        "relation", found.id, found.score, found.why, tokens, (low, high, keywords, body, told.weights[found.id])
    )


def _chunk_row(graph: Graph, found: Found) -> Row:
    c = graph.chunks[found.id]
    return Row("chunk", c.id, found.score, found.why, c.tokens, (c.document.uri, c.ordinal, c.text))
