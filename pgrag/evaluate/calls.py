"""What the evaluation's calls of language models share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pgrag.errors import ModelError, PgragError
from pgrag.llm.lanes import HOPELESS, each

PURPOSE = "evaluate"
"""What these calls are counted as in llm_usage."""

T = TypeVar("T")
R = TypeVar("R")


async def each_answer(items: Sequence[T], at_a_time: int, work: Callable[[T], Awaitable[R]]) -> list[R | ModelError]:
    """What `work` makes of the items, in order; a ModelError stands for the item whose call failed.

    Any other error, and one after which no other call would fare better, is raised when what is under way has ended.
    """
    found = await each(items, at_a_time, work)
    kept: list[R | ModelError] = []
    for result in found:
        if isinstance(result, PgragError) and (isinstance(result, HOPELESS) or not isinstance(result, ModelError)):
            raise result
        kept.append(result)
    return kept
