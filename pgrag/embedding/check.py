"""Embedding of texts: what a model returns is checked here, equal texts are asked for once, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pgrag.database.vectors import usable
from pgrag.errors import ModelError
from pgrag.types import Embedder

if TYPE_CHECKING:
    from pgrag.types import Vectors


def unit_vectors(model: str, given: Any, count: int, dimension: int, advice: str = "") -> Vectors:
    """(count, dimension) float32 vectors of length 1, made of what `model` gave for as many texts.

    Raises ModelError naming the text for another number, a wrong length (with `advice`), a zero vector or a NaN.
    """
    try:
        rows = list(given)
    except TypeError as error:
        raise ModelError(f"{model} returned no vectors: {error}") from error
    if len(rows) != count:
        raise ModelError(f"{model} returned {len(rows)} vectors for {count} texts")
    vectors = np.empty((count, dimension), np.float32)
    for i, row in enumerate(rows):
        try:
            vector = np.asarray(row, np.float64)
        except (TypeError, ValueError):
            raise ModelError(f"{model} returned no numbers for text {i}") from None
        if vector.shape != (dimension,):
            size = f"a vector of {vector.size} numbers for text {i} where {dimension} were expected"
            raise ModelError(f"{model} returned {size}{advice.format(size=vector.size)}")
        if not usable(vector):
            raise ModelError(f"{model} returned a zero or non-finite vector for text {i}")
        vectors[i] = vector / np.linalg.norm(vector)
    return vectors


async def embed_checked(embedder: Embedder, texts: Sequence[str], kind: Literal["query", "passage"]) -> Vectors:
    """(len(texts), dimension) float32 vectors of length 1, by one request. Raises ModelError, see `unit_vectors`."""
    given = await embedder.embed(texts, kind)
    return unit_vectors(embedder.model, given, len(texts), embedder.dimension)


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
