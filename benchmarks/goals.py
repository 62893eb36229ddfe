"""What figures of a benchmark must be, and lines that say whether they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """`figure` None: not measured in this run."""

    text: str
    figure: float | None
    limit: float
    at_most: bool = True

    @property
    def met(self) -> bool | None:
        """Whether it is reached."""
        if self.figure is None:
            return None
        return self.figure <= self.limit if self.at_most else self.figure >= self.limit


def show_goals(found: Sequence[Goal]) -> None:
    """A line each."""
    print("\ngoals")
    for goal in found:
        said = {True: "met", False: "MISSED", None: "not measured"}[goal.met]
        figure = "" if goal.figure is None else f"{goal.figure:.2f}"
        print(f"  {goal.text:52} {figure:>6} {'<=' if goal.at_most else '>='} {goal.limit:<5} {said}")
