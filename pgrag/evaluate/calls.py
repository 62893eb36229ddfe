"""What the evaluation's calls of language models share: so many at a time, and no more after one that ends it all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pgrag.errors import ModelAccessError, ModelError

PURPOSE = "evaluate"
"""What these calls are counted as in llm_usage."""

T = TypeVar("T")
R = TypeVar("R")


async def each(items: Sequence[T], at_a_time: int, work: Callable[[T], Awaitable[R]]) -> list[R | ModelError]:
    """What `work` makes of the items, in order; a ModelError stands for the item whose call failed.

    After a BudgetError, a ModelAccessError or any other error nothing more is begun: what is under way, and will be
    paid for, ends, and the error is raised.
    """
    results: dict[int, R | ModelError] = {}
    waiting = deque(enumerate(items))

    async def worker() -> None:
        while waiting:
            number, item = waiting.popleft()
            try:
                results[number] = await _made(work, item)
            except BaseException:
                waiting.clear()
                raise

    ends = await asyncio.gather(*(worker() for _ in range(min(at_a_time, len(items)))), return_exceptions=True)
    for end in ends:
        if end is not None:
            raise end
    return [results[number] for number in range(len(items))]


async def _made(work: Callable[[T], Awaitable[R]], item: T) -> R | ModelError:
    try:
        return await work(item)
    except ModelAccessError:
        raise
    except ModelError as error:
        return error
