"""Embedding of many texts: equal ones once, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pgrag.errors import ModelError
from pgrag.types import Embedder

if TYPE_CHECKING:
    from pgrag.types import Vectors


async def embed_distinct(embedder: Embedder, texts: Sequence[str], batch: int) -> Vectors:
    """(len(texts), dimension) float32 passage vectors; each distinct text is embedded once, `batch` texts a request.

    Raises ModelError, also when the embedder returns another shape than it was asked for.
    """
    place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    distinct = list(place)
    vectors = np.empty((len(distinct), embedder.dimension), np.float32)
    for start in range(0, len(distinct), batch):
        part = distinct[start : start + batch]
        result = await embedder.embed(part, "passage")
        if result.shape != (len(part), embedder.dimension):
            raise ModelError(
                f"{embedder.model} returned vectors of shape {result.shape} for {len(part)} texts "
                f"of dimension {embedder.dimension}"
            )
        vectors[start : start + batch] = result
    return vectors[[place[text] for text in texts]] if texts else vectors
