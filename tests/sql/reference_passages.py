"""The text layer of a search: passages behind the graph, by vector and by words, ranked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.sql.reference_graph import Told
from tests.sql.reference_lists import Asked, Found, in_turn, listed
from tests.sql.reference_ranking import CLOSE, LINKS_READ, Recipe, UndecidedError, near, rank_passages
from tests.sql.reference_words import Bm25, part_shares


@dataclass(frozen=True)
class Linked:
    """A passage behind the graph: the first item it is linked to, how many link to it, through which layers."""

    item: int
    items: int
    why: frozenset[str]


def linked_passages(told: Told, entities: Sequence[int], relations: Sequence[int]) -> dict[int, Linked]:
    """Through the source links of the entities and relations that are told; of each item a bounded number is read."""
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for n, e in enumerate(entities, 1):
        for i in told.passages_of.get(e, ())[:LINKS_READ]:
            found[i].append(("entity", n))
    for n, r in enumerate(relations, 1):
        for i in _passages_of_relation(told, r):
            found[i].append(("relation", n))
    return {
        i: Linked(min(n for _, n in links), len(links), frozenset(channel for channel, _ in links))
        for i, links in found.items()
    }


def _passages_of_relation(told: Told, relation: int) -> set[int]:
    """The first 50 that state it: two facts of one passage are one link."""
    return set(sorted({f.chunk for f in told.facts_of.get(relation, ()) if f.chunk is not None})[:LINKS_READ])


class Passages:
    """The text layer of one search."""

    def __init__(self, told: Told, asked: Asked, entities: Sequence[int], relations: Sequence[int]) -> None:
        self.told, self.asked = told, asked
        self.near = {c.id: near(c.vector, asked.question) for c in told.chunks.values()}
        self.linked = linked_passages(told, entities, relations)
        self.words = self._words()

    def _words(self) -> dict[int, tuple[float, float]]:
        """BM25 by the counts of the whole workspace and the share for the best part, of passages that may be told."""
        every = {c.id: c.words for c in self.told.graph.chunks.values()}
        bm25 = Bm25(every, self.asked.words)
        scores = {i: score for i, score in bm25.scores().items() if i in self.told.chunks}
        share = part_shares(every, self.asked.parts, scores)
        self._worth = {i: tuple(sorted(bm25[i])) for i in scores}
        return {i: (score, share[i]) for i, score in scores.items()}

    def ranked(self, seen: Sequence[int] = ()) -> list[Found]:
        """Passages best first; those that differ by rounding alone in the order of `seen`, an answer to be checked."""
        asked = self.asked
        if asked.mode == "naive":
            return listed(self._nearest(), "vector", self.near)
        ranking = asked.ranking if asked.question is not None else "weight"
        mix = asked.mode == "mix"
        if ranking == "pagerank":
            return self._by_walk(mix, seen)
        close = listed(self._nearest(), "vector", self.near) if mix else []
        by_words = listed(self._best_by_words(), "words") if mix and asked.lexical > 0 else []
        if ranking == "vector":
            behind = sorted(self.linked, key=self._by_nearness)
            of_entities = [i for i in behind if "entity" in self.linked[i].why]
            of_relations = [i for i in behind if "entity" not in self.linked[i].why]
            return in_turn(
                close, by_words, listed(of_entities, "entity", self.near), listed(of_relations, "relation", self.near)
            )
        behind = sorted(
            self.linked, key=lambda i: (-self.linked[i].items, self.linked[i].item, *_nulls_last(self.near[i]), i)
        )
        most_linked = [Found(i, float(self.linked[i].items), self.linked[i].why) for i in behind]
        return in_turn(most_linked, close, by_words)

    def _by_walk(self, mix: bool, seen: Sequence[int]) -> list[Found]:
        asked = self.asked
        assert asked.question is not None
        recipe = Recipe(lexical=asked.lexical, nearness=asked.nearness)
        ranks = rank_passages(self.told, asked.question, self.words, asked.similar, recipe)
        order = sorted(
            (i for i in ranks if mix or i in self.linked),
            key=lambda i: (-ranks[i].score, *_nulls_last(ranks[i].near), i),
        )
        order = as_seen(order, [ranks[i].score for i in order], seen)
        scores = {i: ranks[i].score for i in order}
        rest = [Found(i, self.near[i], self.linked[i].why) for i in sorted(self.linked, key=self._by_nearness)]
        return in_turn(listed(order, "pagerank", scores), then=rest)

    def _nearest(self) -> list[int]:
        scores = {i: s for i, s in self.near.items() if s is not None}
        return sorted(scores, key=lambda i: (-scores[i], i))

    def _by_nearness(self, i: int) -> tuple[float, ...]:
        return (*_nulls_last(self.near[i]), -self.linked[i].items, self.linked[i].item, i)

    def _best_by_words(self) -> list[int]:
        """By the share of the best score plus the share for a part, as much as each other."""
        best = max((score for score, _ in self.words.values()), default=1.0)
        place = {i: score / best + part for i, (score, part) in self.words.items()}
        order = sorted(place, key=lambda i: (-place[i], i))
        for a, b in pairwise(order):
            same = place[a] == place[b] and (self._worth[a] == self._worth[b] or len(self._worth[a]) < 3)
            if place[a] - place[b] < CLOSE and not same:
                raise UndecidedError
        return order


def _nulls_last(score: float | None) -> tuple[int, float]:
    return (1, 0.0) if score is None else (0, -score)


def as_seen(order: Sequence[int], scores: Sequence[float], seen: Sequence[int]) -> list[int]:
    """The order with each run of scores that differ by rounding alone put into the order seen."""
    place = {i: n for n, i in enumerate(seen)}
    runs: list[list[int]] = []
    for n, i in enumerate(order):
        if n and scores[n - 1] - scores[n] < CLOSE:
            runs[-1].append(i)
        else:
            runs.append([i])
    return [i for run in runs for i in sorted(run, key=lambda i: place.get(i, len(place)))]
