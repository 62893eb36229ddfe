"""Two sides asked the same questions in turn: how their times compare, and whether they found the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

RESAMPLES = 2000
Rows = Mapping[str, Sequence[int]]


@dataclass(slots=True)
class Side:
    """What one side took for each question, pass by pass, in ms, and the ids it found, best first, layer by layer."""

    ms: list[list[float]] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)

    def percentile(self, percent: float) -> float:
        """Of all questions in all passes."""
        return float(np.percentile(self.ms, percent))


@dataclass(frozen=True, slots=True)
class Ratio:
    """The p50 of one side over that of the other, with its 95 % interval."""

    value: float
    low: float
    high: float


def turn(sides: Sequence[str], *numbers: int) -> list[str]:
    """The sides in the order that they are asked: who goes first alternates in each of the numbers."""
    return list(sides) if sum(numbers) % 2 == 0 else list(reversed(sides))


def ratio(ours: Side, theirs: Side, resamples: int = RESAMPLES, seed: int = 1) -> Ratio:
    """Ours over theirs; the interval is a percentile bootstrap (Efron 1979) of the questions.

    A question is drawn with all its times on both sides: that it is a hard one is in both medians.
    """
    a, b = np.asarray(ours.ms), np.asarray(theirs.ms)
    if a.shape != b.shape:
        raise ValueError(f"the sides were not asked the same: {a.shape} and {b.shape} times")
    random = np.random.default_rng(seed)
    drawn = [random.integers(0, len(a), len(a)) for _ in range(resamples)]
    low, high = np.percentile([np.median(a[of]) / np.median(b[of]) for of in drawn], [2.5, 97.5])
    return Ratio(float(np.median(a) / np.median(b)), float(low), float(high))


def differing(ours: Side, theirs: Side) -> int:
    """How many questions found other ids, or the same in another order, in any layer."""
    return sum(_listed(a) != _listed(b) for a, b in zip(ours.rows, theirs.rows, strict=True))


def _listed(rows: Rows) -> dict[str, list[int]]:
    return {layer: list(ids) for layer, ids in rows.items() if ids}
