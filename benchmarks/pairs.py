"""Two sides asked the same questions in turn: how their times compare, and whether they found the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    """How many times as long one side takes as the other, with its 95 % interval."""

    value: float
    low: float
    high: float


def turn(sides: Sequence[str], *numbers: int) -> list[str]:
    """The sides in the order that they are asked: who goes first alternates in each of the numbers."""
    return list(sides) if sum(numbers) % 2 == 0 else list(reversed(sides))


def ratio(ours: Side, theirs: Side) -> Ratio:
    """The p50 of ours over that of theirs.

    The interval is a percentile bootstrap (Efron 1979) of the questions. A question is drawn with all its times on both
    sides: that it is a hard one is in both medians.
    """
    a, b = _times(ours, theirs)
    return Ratio(*_interval(len(a), lambda drawn: float(np.median(a[drawn]) / np.median(b[drawn]))))


def least_ratio(ours: Side, theirs: Side) -> Ratio:
    """The median over the questions of our least time for it over their least: what a busy machine disturbs less."""
    a, b = _times(ours, theirs)
    ratios = a.min(axis=1) / b.min(axis=1)
    return Ratio(*_interval(len(a), lambda drawn: float(np.median(ratios[drawn]))))


def _times(ours: Side, theirs: Side) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(ours.ms), np.asarray(theirs.ms)
    if a.shape != b.shape:
        raise ValueError(f"the sides were not asked the same: {a.shape} and {b.shape} times")
    return a, b


def _interval(questions: int, figure: Callable[[Any], float]) -> tuple[float, float, float]:
    """The figure of all questions and its interval; the draws are the same every time."""
    random = np.random.default_rng(1)
    found = [figure(random.integers(0, questions, questions)) for _ in range(RESAMPLES)]
    low, high = np.percentile(found, [2.5, 97.5])
    return figure(slice(None)), float(low), float(high)


def differing(ours: Side, theirs: Side) -> int:
    """How many questions found other ids, or the same in another order, in any layer."""
    return sum(_listed(a) != _listed(b) for a, b in zip(ours.rows, theirs.rows, strict=True))


def _listed(rows: Rows) -> dict[str, list[int]]:
    return {layer: list(ids) for layer, ids in rows.items() if ids}
