"""Embedding of texts: what a model returns is checked here, equal texts are asked for once, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from pgrag.errors import ModelError
from pgrag.types import Embedder

if TYPE_CHECKING:
    from pgrag.types import Vectors


async def embed_checked(embedder: Embedder, texts: Sequence[str], kind: Literal["query", "passage"]) -> Vectors:
    """(len(texts), dimension) float32 vectors of length 1, by one request.

    Raises ModelError, also when the embedder returns another shape than it was asked for, a zero vector or a NaN.
    """
    try:
        vectors = np.asarray(await embedder.embed(texts, kind), np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{embedder.model} returned no vectors: {error}") from error
    if vectors.shape != (len(texts), embedder.dimension):
        raise ModelError(
            f"{embedder.model} returned vectors of shape {vectors.shape} for {len(texts)} texts "
            f"of dimension {embedder.dimension}"
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.all(np.isfinite(lengths)) or np.any(lengths < 1e-6):
        raise ModelError(f"{embedder.model} returned a zero or non-finite vector")
    units: Vectors = (vectors / lengths).astype(np.float32)
    return units


async def embed_distinct(embedder: Embedder, texts: Sequence[str], batch: int) -> Vectors:
    """(len(texts), dimension) float32 passage vectors; each distinct text is embedded once, `batch` texts a request.

    Raises ModelError as `embed_checked`.
    """
    place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    distinct = list(place)
    vectors = np.empty((len(distinct), embedder.dimension), np.float32)
    for start in range(0, len(distinct), batch):
        part = distinct[start : start + batch]
        vectors[start : start + batch] = await embed_checked(embedder, part, "passage")
    return vectors[[place[text] for text in texts]] if texts else vectors
