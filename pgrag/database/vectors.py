"""Which vectors can be stored and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHORTEST = 1e-6


def usable(vectors: NDArray[Any]) -> NDArray[np.bool_]:
    """(n,) of (n, dimension): whether each has a direction: it is not zero, and all of it finite."""
    lengths = np.linalg.norm(vectors, axis=-1)
    found: NDArray[np.bool_] = (lengths > SHORTEST) & (lengths < np.inf)
    return found
