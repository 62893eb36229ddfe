"""The upper layers of a search: seeds, the walk around them, relations, and both lists in turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tests.sql.reference_graph import Told, Vector
from tests.sql.reference_lists import Asked, Found, in_turn, listed
from tests.sql.reference_ranking import near

SIMILAR, SIMILAR_NAMES = 0.5, 3  # trigram similarity, and names taken for one that is not known
WALKED_ON = 8  # edges of an entity that a further hop goes along
SEED_PASSAGES = 5  # whose entities follow the other seeds of a filtered search
MOST_RELATIONS = 1000


def named(told: Told, keys: Iterable[str]) -> list[int]:
    """Entities with one of these names, in the order of the names."""
    entities = (told.graph.aliases.get(key) for key in keys)
    return list(dict.fromkeys(e for e in entities if e in told.known))


def similarly_named(told: Told, keys: Iterable[str], letters: str) -> list[int]:
    """Entities with a name like one that nobody has: the three most similar for each, in the order of the names."""
    known = {key: e for key, e in told.graph.aliases.items() if e in told.known}
    found: list[int] = []
    for asked in keys:
        if asked in known:
            continue
        alike = {key: similarity(asked, key, letters) for key in known}
        close = sorted((key for key in known if alike[key] >= SIMILAR), key=lambda key: (-alike[key], key.encode()))
        found += [known[key] for key in close[:SIMILAR_NAMES]]
    return list(dict.fromkeys(found))


def similarity(one: str, other: str, letters: str) -> float:
    """Share of common trigrams; `letters`: beyond ASCII, what the server takes for letters."""
    a, b = trigrams(one, letters), trigrams(other, letters)
    return len(a & b) / len(a | b) if a and b else 0.0


def trigrams(text: str, letters: str = "") -> set[str]:
    words = "".join(c if (c.isascii() and c.isalnum()) or c in letters else " " for c in text.lower()).split()
    return {f"  {word} "[i : i + 3] for word in words for i in range(len(word) + 1)}


def close_to(
    told: Told, vectors: Mapping[int, Vector | None], asked: Vector | None, threshold: float
) -> dict[int, float]:
    """What is at least as near as the threshold, nearest first, oldest first of equals."""
    scores = {i: near(v, asked) for i, v in vectors.items()}
    kept = {i: s for i, s in scores.items() if s is not None and s >= threshold}
    return dict(sorted(kept.items(), key=lambda item: (-item[1], item[0])))


def first(scores: Mapping[int, float], limit: int) -> dict[int, float]:
    return dict(list(scores.items())[:limit])


def seeds(told: Told, asked: Asked, letters: str) -> list[Found]:
    """At most top_k entities: names, vectors (filtered: facts) and similar names in turn, so that none takes all."""
    if asked.mode == "global":
        return []
    names = listed(named(told, asked.keys), "name")
    similar = listed(similarly_named(told, asked.similar, letters), "similar name")
    if told.whole:
        profiles = {i: e.vector for i, e in told.graph.entities.items()}
        close = first(close_to(told, profiles, asked.low, asked.threshold), asked.top_k)
        return in_turn(names, listed(close, "vector", close), similar)[: asked.top_k]
    facts = first(close_to(told, {f.id: f.vector for f in told.facts}, asked.low, asked.threshold), asked.top_k)
    stated: dict[int, float] = {}
    for f in told.facts:
        for e in told.entities_in(f) if f.id in facts else ():
            stated[e] = max(stated.get(e, facts[f.id]), facts[f.id])
    close = first(dict(sorted(stated.items(), key=lambda item: (-item[1], item[0]))), asked.top_k)
    passages = close_to(told, {c.id: c.vector for c in told.chunks.values()}, asked.low, asked.threshold)
    inside = [e for i in first(passages, SEED_PASSAGES) for e in sorted(told.entities_of.get(i, ()))]
    return in_turn(names, listed(close, "fact", close), similar, then=listed(dict.fromkeys(inside), "passage"))[
        : asked.top_k
    ]


def walk(told: Told, seeds: Sequence[int], asked: Asked) -> tuple[list[int], list[int]]:
    """Relations and entities around the seeds, each at its best depth, its best rank among edges and its best seed.

    Of a seed the degree_cap heaviest edges are followed; each further hop goes on along the eight heaviest of those,
    with a quarter of the cap of the hop before, but two at least (if the cap allows two).
    """
    relations: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    entities: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    cap = min(asked.degree_cap, 1000)
    frontier = {(entity, n) for n, entity in enumerate(seeds, 1)}
    for depth in range(1, asked.hops + 1):
        allowed = cap if depth == 1 else min(cap, max(2, cap // 4 ** (depth - 1)))
        onward = set()
        for entity, n in frontier:
            for rank, edge in enumerate(told.edges.get(entity, ())[:allowed], 1):
                relations[edge.relation].append((depth, rank, n))
                entities[edge.other].append((depth, rank, n))
                if rank <= WALKED_ON:
                    onward.add((edge.other, n))
        frontier = onward
    return _by_best(relations), _by_best(entities)


def _by_best(places: Mapping[int, Sequence[tuple[int, int, int]]]) -> list[int]:
    return sorted(places, key=lambda i: (*(min(column) for column in zip(*places[i], strict=True)), i))


def close_relations(told: Told, asked: Asked) -> list[Found]:
    """top_k relations by the vector of the high-level keywords; filtered: by the nearest fact that states them."""
    if asked.mode == "local":
        return []
    if told.whole:
        vectors = {p.id: p.vector for p in told.graph.relations.values()}
        scores = close_to(told, vectors, asked.high, asked.threshold)
        return listed(first(scores, asked.top_k), "vector", scores)
    best: dict[int, float] = {}
    for relation, facts in told.facts_of.items():
        kept = close_to(told, {f.id: f.vector for f in facts}, asked.high, asked.threshold)
        if kept:
            best[relation] = max(kept.values())
    ordered = sorted(best, key=lambda i: (-best[i], i))[: asked.top_k]
    return listed(ordered, "fact", best)


def graph_layers(told: Told, asked: Asked, letters: str) -> tuple[list[Found], list[Found]]:
    """Entities and relations, uncut.

    Local and global in turn: seeds with the ends of relations, relations of the walk with those by vector; the other
    entities of the walk (4 top_k at most) follow.
    """
    if asked.mode == "naive":
        return [], []
    start = seeds(told, asked, letters)
    around, neighbours = walk(told, [s.id for s in start], asked)
    by_vector = close_relations(told, asked)
    ends = dict.fromkeys(e for r in by_vector for e in told.graph.relation_pairs[r.id])
    entities = in_turn(start, listed(ends, "relation"), then=listed(neighbours[: 4 * asked.top_k], "hop"))
    return entities, in_turn(listed(around, "hop"), by_vector)[:MOST_RELATIONS]
