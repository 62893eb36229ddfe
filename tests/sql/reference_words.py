"""BM25 over words that are counted, and what a question of several parts gets of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
EVERYWHERE = 0.6  # of the chunks: a word in more of them says nothing
K1, B = 1.2, 0.75


class Bm25(dict[K, tuple[float, ...]]):
    """Of every chunk that holds a word asked for, what each of these words is worth (Robertson and Zaragoza 2009)."""

    def __init__(self, chunks: Mapping[K, Mapping[str, int]], asked: Iterable[str]) -> None:
        counted = {key: Counter(count) for key, count in chunks.items() if count}
        self.held = Counter(word for count in counted.values() for word in count)
        self.number = len(counted)
        self.known = {w for w in asked if 0 < self.held[w] <= max(EVERYWHERE * self.number, 1)}
        in_all = sum(count.total() for count in counted.values())
        super().__init__()
        for key, count in counted.items():
            length = K1 * (1 - B + B * count.total() * self.number / in_all)
            worth = [self.idf(w) * count[w] * (K1 + 1) / (count[w] + length) for w in sorted(self.known) if count[w]]
            if worth:
                self[key] = tuple(worth)

    def idf(self, word: str) -> float:
        return math.log(1 + (self.number - self.held[word] + 0.5) / (self.held[word] + 0.5))

    def scores(self) -> dict[K, float]:
        return {key: math.fsum(worth) for key, worth in self.items()}


def part_shares(
    chunks: Mapping[K, Mapping[str, int]], parts: Sequence[Sequence[str]], among: Iterable[K]
) -> dict[K, float]:
    """Of each of these chunks, the best share of what any of them scores for one of the parts."""
    found = dict.fromkeys(among, 0.0)
    for part in parts:
        scores = {key: score for key, score in Bm25(chunks, part).scores().items() if key in found}
        for key, score in scores.items():
            found[key] = max(found[key], score / max(scores.values()))
    return found


def part_bits(parts: Sequence[Sequence[str]]) -> dict[str, int]:
    """word -> the parts it stands in, a bit each."""
    bits: dict[str, int] = {}
    for i, part in enumerate(parts):
        for word in part:
            bits[word] = bits.get(word, 0) | 1 << i
    return bits


def candidates(chunks: Mapping[K, Mapping[str, int]], asked: Iterable[str], budget: int) -> tuple[set[K], set[K]]:
    """The chunks that a search within a budget may score: those with a rare word, and others with two frequent ones.

    The rarest word, and further ones as long as their frequencies sum to no more than the budget, are rare; of the
    next three words a chunk must hold two. Of each kind no more than the budget are scored.
    """
    bm25 = Bm25(chunks, asked)
    ordered = sorted(bm25.known, key=lambda w: (bm25.held[w], w.encode()))
    sums = [sum(bm25.held[w] for w in ordered[: n + 1]) for n in range(len(ordered))]
    rare = {w for n, w in enumerate(ordered) if n == 0 or sums[n] <= budget}
    frequent = [w for n, w in enumerate(ordered) if sums[n] > budget][:3]
    pairs = {key for key, count in chunks.items() if sum(w in count for w in frequent) >= 2}
    with_rare = {key for key, count in chunks.items() if any(w in count for w in rare)}
    if sums and sums[0] > budget:  # not all of them can be scored: the pairs are the better ones
        return with_rare - pairs, pairs
    return with_rare, pairs - with_rare
