"""Small models that implement pgrag's public interfaces, as a user's own would: fast and predictable."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pgrag.errors import PgragError
from pgrag.text.folding import words
from pgrag.types import Chunk, Extraction, Keywords


class WordEmbedder:
    """A vector is the sum of a fixed random direction for each word: texts that share words are near each other."""

    model = "words"
    prefixes = ("", "")
    cosine_threshold = 0.0

    def __init__(self, dimension: int = 384, model: str = "words") -> None:
        self.dimension = dimension
        self.model = model
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> NDArray[np.float32]:
        """(len(texts), dimension) float32 unit vectors."""
        self.asked += texts
        return np.stack([self.vector(text) for text in texts]) if texts else np.zeros((0, self.dimension), np.float32)

    def vector(self, text: str) -> NDArray[np.float32]:
        """The unit vector of one text."""
        total = np.zeros(self.dimension)
        for word in words(text) or [text]:
            total += np.random.default_rng(zlib.crc32(word.encode("utf-8", "replace"))).standard_normal(self.dimension)
        return (total / np.linalg.norm(total)).astype(np.float32)


class FunctionExtractor:
    """Extracts by a function of the caller's; counts the chunks it was asked for."""

    label = "by function"

    def __init__(self, function: Callable[[Chunk], Extraction | PgragError], digest: str = "1") -> None:
        self.function = function
        self.digest = digest
        self.asked: list[str] = []

    async def extract(self, chunks: Sequence[Chunk]) -> list[Extraction | PgragError]:
        """What the function says of each chunk."""
        self.asked += [chunk.body for chunk in chunks]
        return [self.function(chunk) for chunk in chunks]


class FixedKeywords:
    """The same keywords for every question."""

    def __init__(self, low: Sequence[str] = (), high: Sequence[str] = ()) -> None:
        self._keywords = Keywords(tuple(low), tuple(high))

    async def keywords(self, question: str, history: Sequence[Mapping[str, str]] = ()) -> Keywords:
        """The keywords given."""
        return self._keywords
