"""Graphs of any size that are as hard to search as real ones.

Twice as many relations as entities, two and a half times as many facts, a chunk for every ten facts. Degrees fall off
as Zipf's law, with a hub that some four percent of all relations meet; so do the frequencies of words. Vectors lie in
topics within fields, those of relations in themes of topics, and all overlap. They share a direction, as those of real
models do, so that unrelated texts have a cosine of .8. An index finds less of them than of real ones: of 100,000 at
ef_search 100 .96 to .97 of the 40 nearest, where of as many e5 vectors of real texts it finds .98.
Equal sizes and seeds give equal graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int64]

DIMENSION = 384
LATENT = 64  # dimensions that vectors differ in, most of all in the first
ANCHOR = 2.0  # length of what all vectors share, against 1 for what they differ in
SPREAD = 0.75
NOISE = 0.3  # length of what is in no model of ours: the same in all dimensions
FIELD, TOPIC, OWN = 0.3, 0.35, 0.35  # shares of an entity's variance
# how much of a relation's vector its ends are, and the variances of its theme and of what is its own
ENDS, THEME, SAID = 0.8, 0.5, 0.15
THEMES_PER_TOPIC = 10
FACTS_PER_CHUNK = 10
CHUNKS_PER_DOCUMENT = 4
ENTITIES_PER_TOPIC = 100
VOCABULARY = 30_000
CONSONANTS = ("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "st", "tr")
VOWELS = ("a", "e", "i", "o", "u", "ai")
SYLLABLES = tuple(c + v for c in CONSONANTS for v in VOWELS)
MAX_ENTITIES = len(SYLLABLES) ** 3
BLOCK = 20_000
VECTOR_KINDS = ("chunk", "entity", "relation", "fact")


class Space:
    """Where the vectors lie: the same for every graph."""

    def __init__(self) -> None:
        random = np.random.default_rng(7)
        axes = np.linalg.qr(random.standard_normal((DIMENSION, LATENT + 1)))[0].T.astype(np.float32)
        spread = (np.arange(LATENT) + 4.0) ** -SPREAD
        self.anchor = axes[0]
        self.basis = axes[1:]
        self.spread = (spread / np.linalg.norm(spread)).astype(np.float32)

    def latent(self, random: np.random.Generator, n: int) -> Floats:
        """(n, LATENT), each of length about 1."""
        return random.standard_normal((n, LATENT), np.float32) * self.spread

    def vectors(self, random: np.random.Generator, latent: Floats) -> Floats:
        """(n, DIMENSION) unit vectors."""
        noise = random.standard_normal((len(latent), DIMENSION), np.float32) * np.float32(NOISE / DIMENSION**0.5)
        found = ANCHOR * self.anchor + latent @ self.basis + noise
        return _unit(found)

    def near(self, random: np.random.Generator, vectors: Floats, distance: float) -> Floats:
        """Unit vectors beside the given ones; a distance of 1 is that of unrelated ones, but for what all share."""
        moved = self.latent(random, len(vectors)) @ self.basis * (distance / (ANCHOR**2 + 1 + NOISE**2) ** 0.5)
        return _unit(_unit(vectors) + moved)


class Graph:
    """Who is related to whom, and which chunk says so. Numbers count from 0; ids in the tables from 1."""

    def __init__(self, entities: int, seed: int = 1) -> None:
        if not 1000 <= entities <= MAX_ENTITIES:
            raise ValueError(f"a graph of {entities} entities: choose 1,000 to {MAX_ENTITIES:,}")
        self.space = Space()
        self.seed = seed
        self.entities = entities
        self.chunks = entities // (4 * CHUNKS_PER_DOCUMENT) * CHUNKS_PER_DOCUMENT
        self.facts = self.chunks * FACTS_PER_CHUNK
        random = self._random(0)
        self.topics = entities // ENTITIES_PER_TOPIC
        self.topic = random.integers(0, self.topics, entities)
        self.pairs = self._relations(random)
        order = np.concatenate([np.arange(len(self.pairs)), self._zipf(random, len(self.pairs), self.facts)])[
            : self.facts
        ]
        # a document speaks of a few topics of one field, and documents come in any order
        order = order[np.argsort(self.topic[self.pairs[order, 1]] + 3 * random.random(self.facts), kind="stable")]
        self.fact_relation = random.permutation(order.reshape(-1, FACTS_PER_CHUNK * CHUNKS_PER_DOCUMENT)).ravel()
        self.named = np.where(random.random(self.facts) < 0.2, random.integers(0, entities, self.facts), -1)

    @cached_property
    def latents(self) -> tuple[Floats, Floats]:
        """Of entities and of relations: between their ends."""
        random, space = self._random(1), self.space
        fields = space.latent(random, max(1, round(self.topics**0.5)))
        topics = FIELD**0.5 * fields[np.arange(self.topics) * len(fields) // self.topics]
        topics = topics + TOPIC**0.5 * space.latent(random, self.topics)
        entities = topics[self.topic] + OWN**0.5 * space.latent(random, self.entities)
        relations = ENDS * entities[self.pairs].mean(1)
        themes = space.latent(random, self.topics * THEMES_PER_TOPIC)
        theme = self.topic[self.pairs[:, 1]] * THEMES_PER_TOPIC + random.integers(0, THEMES_PER_TOPIC, len(self.pairs))
        relations += THEME**0.5 * themes[theme] + SAID**0.5 * space.latent(random, len(self.pairs))
        return entities, relations

    def vectors(self, kind: str) -> Iterator[Floats]:
        """All vectors of a kind in the order of the ids, in blocks. A chunk's lies amid those of its facts."""
        random = self._random(2 + VECTOR_KINDS.index(kind))
        entities, relations = self.latents
        table = entities if kind == "entity" else relations
        rows = np.arange(len(table)) if kind in ("entity", "relation") else self.fact_relation
        for start in range(0, len(rows), BLOCK):
            latent = table[rows[start : start + BLOCK]]
            if kind == "fact":
                latent = latent + 0.4 * self.space.latent(random, len(latent))
            if kind == "chunk":
                latent = latent.reshape(-1, FACTS_PER_CHUNK, LATENT).mean(1)
                latent = 1.2 * latent + 0.5 * self.space.latent(random, len(latent))
            yield self.space.vectors(random, latent)

    def names(self) -> list[str]:
        """Two words each; many share the first."""
        random = self._random(6)
        first = self._zipf(random, min(4000, self.entities), self.entities) * 2971 % len(SYLLABLES) ** 2
        last = random.permutation(MAX_ENTITIES)[: self.entities]
        return [
            f"{_spell(a, 2).capitalize()} {_spell(b, 3).capitalize()}"
            for a, b in zip(first.tolist(), last.tolist(), strict=True)
        ]

    def texts(self, names: Sequence[str]) -> Iterator[tuple[list[str], str]]:
        """The facts of each chunk and its whole text. Half of the words of a fact are those of its topic."""
        random = self._random(7)
        spelled = random.permutation(MAX_ENTITIES)[:VOCABULARY].tolist()
        vocabulary = [_spell(n, 2 + (i > 2000)) for i, n in enumerate(spelled)]
        for start in range(0, self.chunks, BLOCK // FACTS_PER_CHUNK):
            chunks = min(BLOCK // FACTS_PER_CHUNK, self.chunks - start)
            numbers = slice(start * FACTS_PER_CHUNK, (start + chunks) * FACTS_PER_CHUNK)
            pairs = self.pairs[self.fact_relation[numbers]]
            general = self._zipf(random, VOCABULARY, len(pairs) * 4).reshape(-1, 4)
            topical = 300 + (
                self.topic[pairs[:, 1]][:, None] * 37 + self._zipf(random, 40, len(pairs) * 4).reshape(-1, 4)
            ) % (VOCABULARY - 300)
            said = np.concatenate([general[:, :2], topical, general[:, 2:]], axis=1).tolist()
            filler = self._zipf(random, VOCABULARY, chunks * 40).reshape(-1, 40).tolist()
            third = self.named[numbers].tolist()
            for chunk in range(chunks):
                facts = []
                for i in range(chunk * FACTS_PER_CHUNK, (chunk + 1) * FACTS_PER_CHUNK):
                    s, t = pairs[i].tolist()
                    w = [vocabulary[word] for word in said[i]]
                    also = [names[third[i]]] if third[i] >= 0 else []
                    facts.append(" ".join([names[s], *w[:4], names[t], *w[4:], *also]))
                yield facts, ". ".join([*facts, " ".join(vocabulary[word] for word in filler[chunk])]) + "."

    def _relations(self, random: np.random.Generator) -> Integers:
        """(n, 2) pairs, the lower first, none twice: one end is everybody at least once, the other Zipf's."""
        wanted = 2 * self.entities
        n = round(1.3 * wanted)
        other = np.concatenate(
            [random.permutation(self.entities), random.integers(0, self.entities, n - self.entities)]
        )
        by_topic = np.argsort(self.topic, kind="stable")
        first = np.searchsorted(self.topic[by_topic], np.arange(self.topics + 1))
        place, size = first[self.topic[other]], np.diff(first)[self.topic[other]]
        beside = by_topic[place + (random.random(n) ** 2 * size).astype(np.int64)]
        one = np.where(random.random(n) < 0.5, self._zipf(random, self.entities, n), beside)
        one = np.where(one == other, (other + 1) % self.entities, one)
        pairs = np.stack([np.minimum(one, other), np.maximum(one, other)], axis=1)
        kept = np.sort(np.unique(pairs @ np.array([self.entities, 1]), return_index=True)[1])
        return pairs[kept[:wanted]]

    def _zipf(self, random: np.random.Generator, n: int, count: int) -> Integers:
        """Numbers below n; the i-th comes up as 1 / (i + 1)."""
        shares = np.cumsum(1 / (np.arange(n) + 1.0))
        return np.asarray(np.minimum(np.searchsorted(shares, random.random(count) * shares[-1]), n - 1), np.int64)

    def _random(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.entities, stream])


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _spell(number: int, syllables: int) -> str:
    spelled = []
    for _ in range(syllables):
        number, syllable = divmod(number, len(SYLLABLES))
        spelled.append(SYLLABLES[syllable])
    return "".join(spelled)
