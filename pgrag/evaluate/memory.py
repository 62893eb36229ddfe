"""Vectors of a question, shared by the variants that search with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from pgrag.embedding.check import embed_checked
from pgrag.types import Embedder

if TYPE_CHECKING:
    from pgrag.types import Vectors


class QuestionMemory:
    """An embedder that embeds the texts of a question once for all variants."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[str, Vectors] = {}
        self.model = embedder.model
        self.dimension = embedder.dimension
        self.prefixes = embedder.prefixes
        self.cosine_threshold = embedder.cosine_threshold

    async def embed(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> Vectors:
        """As the embedder's own."""
        known = dict(self._known) if kind == "query" else {}
        if new := [text for text in dict.fromkeys(texts) if text not in known]:
            known.update(zip(new, await embed_checked(self._embedder, new, kind), strict=True))
        if kind == "query":
            self._known |= {text: known[text] for text in texts}
        return np.stack([known[text] for text in texts])

    def forget(self, texts: Sequence[str]) -> None:
        """Frees the vectors of these texts."""
        for text in texts:
            self._known.pop(text, None)
