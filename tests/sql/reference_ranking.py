"""Passages ranked by a walk over the graph around a question (after HippoRAG 2) and by their own nearness.

Facts near the question say which entities matter, those named in it have a share, and passages near it share the
restart of the walk; the less the best scores stand out, the more the passages' own nearness decides.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.sql.reference_graph import Fact, Told, Vector

Node = tuple[str, int]  # an entity or a passage
NEAREST = 100  # of passages and facts are looked at, as many passages by words
BEST_FACTS = 12
FIRST_PASSAGES = 30  # belong to the subgraph with all their entities
RESTART_PASSAGES = 20
LINKS_READ = 50  # source links of one item
SEED_PASSAGES = 5
SEED_NEIGHBOURS = 10
NODE_EDGES = 32
CLOSE = 1e-9


class UndecidedError(Exception):
    """Scores that are equal but for rounding decide what comes next: no order is right or wrong."""


@dataclass(frozen=True)
class Recipe:
    """The figures of the ranking. `nearness` None: by contrast."""

    lexical: float = 0.2
    nearness: float | None = None
    steps: int = 4
    passages: float = 0.4
    of_names: float = 0.2
    support: float = 0.3
    tau: float = 0.015
    damping: float = 0.6
    flat: float = 0.9
    sharp: float = 1.1
    most: float = 0.8


@dataclass(frozen=True)
class Ranked:
    """A passage: its score, what the walk brought (None: not reached), its nearness (None: no candidate by itself)."""

    score: float
    walked: float | None
    near: float | None


def cosine(a: Vector, b: Vector) -> float:
    """As doubles give it, so that equal directions tie exactly where the vectors are of small integers."""
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    similarity = dot / math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    return 1 - (1 - max(-1.0, min(1.0, similarity)))


def contrast(scores: Iterable[float]) -> float | None:
    """How far the best stand out; 1 where scores fall off exponentially, None for fewer than ten or equal scores.

    The distance from the best to the 20th (of fewer than a hundred: a fifth of the way) as a share of that to the 100th
    (or the last), over the share that exponential scores have: ln 20 / ln 100.
    """
    best = sorted(scores, reverse=True)[:100]
    if len(best) < 10 or best[0] == best[-1]:
        return None
    near = min(20, len(best) // 5)
    return (best[0] - best[near - 1]) / (best[0] - best[-1]) / (math.log(near) / math.log(len(best)))


def best_of(ids: Iterable[int], score: Callable[[int], float], limit: int) -> list[int]:
    """The best, older ones before newer ones of equal scores. Raises UndecidedError where rounding decides."""
    ordered = sorted(ids, key=lambda i: (-score(i), i))
    if len(ordered) > limit > 0 and 0 < score(ordered[limit - 1]) - score(ordered[limit]) < CLOSE:
        raise UndecidedError
    return ordered[:limit]


def nearest(ids: Iterable[int], score: Callable[[int], float], limit: int) -> list[int]:
    """The nearest as an index gives them: who is in must not depend on a tie."""
    ordered = sorted(ids, key=lambda i: -score(i))
    if len(ordered) > limit and score(ordered[limit - 1]) - score(ordered[limit]) < CLOSE:
        raise UndecidedError
    return ordered[:limit]


def rank_passages(
    told: Told,
    question: Vector,
    words: Mapping[int, tuple[float, float]],
    names: Sequence[str] = (),
    recipe: Recipe = Recipe(),
) -> dict[int, Ranked]:
    """passage -> how it ranks. `words`: BM25 score and part of the passages that hold a word asked for."""
    near_of = {c.id: cosine(question, c.vector) for c in told.chunks.values() if c.vector is not None}
    dense = nearest(near_of, near_of.__getitem__, NEAREST)
    best_words = max((score for score, _ in words.values()), default=1.0)
    by_words = {
        i: recipe.lexical * (score / best_words + part) for i, (score, part) in words.items() if recipe.lexical > 0
    }
    start = {i: near_of[i] + by_words.get(i, 0.0) / 2 for i in {*dense, *by_words} if i in near_of}
    if not start:
        return {}
    nearness = {i: near_of[i] + by_words.get(i, 0.0) for i in start}

    facts = {f.id: (f, cosine(question, f.vector)) for f in told.facts if f.vector is not None}
    close = nearest(facts, lambda i: facts[i][1], NEAREST)
    seeds = _seeds(told, {i: facts[i] for i in close}, {**near_of, **start}, names, recipe)
    share = recipe.nearness
    if share is None:
        share = _share(recipe, contrast(near_of[i] for i in dense), contrast(facts[i][1] for i in close))

    restart = _restart(seeds, start, recipe)
    walked = _walk(_subgraph(told, seeds, start, near_of), restart, recipe)
    reached = {i: x for (kind, i), x in walked.items() if kind == "passage" and x > 0}
    by_walk = scaled({i: math.log(x) for i, x in reached.items()})
    by_nearness = scaled(nearness)
    return {
        i: Ranked((1 - share) * by_walk.get(i, 0.0) + share * by_nearness.get(i, 0.0), reached.get(i), nearness.get(i))
        for i in {*reached, *nearness}
    }


def _share(recipe: Recipe, *contrasts: float | None) -> float:
    """Of nearness: all it may have where nothing stands out; none where the best do, or there is too little to say."""
    known = [c for c in contrasts if c is not None]
    if not known:
        return 0.0
    if max(known) <= recipe.flat:
        return recipe.most
    if max(known) >= recipe.sharp:
        return 0.0
    return recipe.most * (recipe.sharp - max(known)) / (recipe.sharp - recipe.flat)


def _seeds(
    told: Told,
    facts: Mapping[int, tuple[Fact, float]],
    passage: Mapping[int, float],
    names: Sequence[str],
    recipe: Recipe,
) -> dict[int, float]:
    """entity -> its share, 1 in all: of the best facts (helped by the passages that state them) and of the names."""
    score = {i: cos + recipe.support * passage.get(f.chunk or 0, 0.0) for i, (f, cos) in facts.items()}
    best = best_of(facts, score.__getitem__, BEST_FACTS)
    stating: dict[int, float] = defaultdict(float)
    for i in best:
        entities = told.entities_in(facts[i][0])
        for e in entities:
            stating[e] += math.exp((score[i] - score[best[0]]) / recipe.tau) / len(entities) / _passages(told, e)
    named = {
        told.graph.aliases[key]: 1 / _passages(told, told.graph.aliases[key])
        for key in names
        if told.graph.aliases.get(key) in told.known
    }
    seeds: dict[int, float] = defaultdict(float)
    for part, share in (
        (stating, 1 - recipe.of_names if named else 1.0),
        (named, recipe.of_names if stating else 1.0),
    ):
        for e, w in part.items():
            seeds[e] += share * w / sum(part.values())
    return seeds


def _passages(told: Told, entity: int) -> int:
    return max(1, len(told.passages_of.get(entity, ())))


def _restart(seeds: Mapping[int, float], start: Mapping[int, float], recipe: Recipe) -> dict[Node, float]:
    top = best_of(start, start.__getitem__, RESTART_PASSAGES)
    soft = {i: math.exp((start[i] - start[top[0]]) / recipe.tau) for i in top}
    return {("entity", e): (1 - recipe.passages) * w for e, w in seeds.items()} | {
        ("passage", i): recipe.passages * w / sum(soft.values()) for i, w in soft.items()
    }


def _subgraph(
    told: Told, seeds: Mapping[int, float], start: Mapping[int, float], near_of: Mapping[int, float]
) -> dict[Node, dict[Node, float]]:
    """node -> where the walk may go from it, and how strongly."""
    first = best_of(start, start.__getitem__, FIRST_PASSAGES)
    passages, entities = set(first), set(seeds)
    for e in seeds:
        read = [i for i in told.passages_of.get(e, ())[:LINKS_READ] if i in near_of]
        chosen = nearest if told.whole else best_of
        passages |= set(chosen(read, near_of.__getitem__, SEED_PASSAGES))
        entities |= {edge.other for edge in told.edges.get(e, ())[:SEED_NEIGHBOURS]}
    for i in first:
        entities |= told.entities_of.get(i, set())
    edges: dict[Node, dict[Node, float]] = defaultdict(lambda: defaultdict(float))
    for e in entities:
        for edge in told.edges.get(e, ())[:NODE_EDGES]:
            if edge.other in entities and edge.weight > 0:
                edges["entity", e]["entity", edge.other] = edge.weight
    for i in passages:
        for e in told.entities_of.get(i, set()) & entities:
            edges["entity", e]["passage", i] = edges["passage", i]["entity", e] = 1
    return edges


def _walk(
    edges: Mapping[Node, Mapping[Node, float]], restart: Mapping[Node, float], recipe: Recipe
) -> Mapping[Node, float]:
    x = dict(restart)
    for _ in range(recipe.steps):
        y: dict[Node, float] = defaultdict(float)
        for node, w in restart.items():
            y[node] += (1 - recipe.damping) * w
        for node, w in x.items():
            out = edges.get(node, {})
            for other, strength in out.items():
                y[other] += recipe.damping * w * strength / sum(out.values())
        x = y
    return x


def scaled(values: Mapping[Any, float]) -> dict[Any, float]:
    """From 1 for the best to 0 for the 100th and all below; 1 for all if they are equal."""
    best = sorted(values.values(), reverse=True)[:100]
    if not best or best[0] == best[-1]:
        return dict.fromkeys(values, 1.0)
    if best[0] - best[-1] < CLOSE:
        raise UndecidedError
    return {key: max(0.0, (v - best[-1]) / (best[0] - best[-1])) for key, v in values.items()}


def near(one: Vector | None, other: Vector | None) -> float | None:
    """Cosine, if both vectors are there."""
    return None if one is None or other is None else cosine(one, other)
