"""Work that is done so many at a time, and what becomes of the rest when a part of it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pgrag.errors import BudgetError, DatabaseError, ModelAccessError, PgragError, UsageError

T = TypeVar("T")
R = TypeVar("R")

HOPELESS = (BudgetError, ModelAccessError, DatabaseError, UsageError)
"""After one of these no other text would fare better: nothing more is begun."""


async def in_lanes(count: int, lane: Callable[[asyncio.Event], Awaitable[R]]) -> list[R]:
    """What `count` lanes return that work side by side.

    When one fails, the event that all are given is set: the others end what they have under way, which will be paid
    for, and begin nothing more. Then the first error is raised.
    """
    failed = asyncio.Event()
    errors: list[BaseException] = []

    async def watched() -> R:
        try:
            return await lane(failed)
        except BaseException as error:
            errors.append(error)
            failed.set()
            raise

    ended = await asyncio.gather(*(watched() for _ in range(count)), return_exceptions=True)
    if errors:
        raise errors[0]
    return [value for value in ended if not isinstance(value, BaseException)]


async def each(items: Sequence[T], at_a_time: int, work: Callable[[T], Awaitable[R]]) -> list[R | PgragError]:
    """What `work` makes of the items, in order, or the error by which it failed; `HOPELESS` ones stand for the rest."""
    waiting = iter(enumerate(items))
    found: dict[int, R | PgragError] = {}
    end: PgragError | None = None

    async def lane(failed: asyncio.Event) -> None:
        nonlocal end
        for place, item in waiting:
            if failed.is_set():
                return
            try:
                found[place] = await work(item) if end is None else end
            except PgragError as error:
                found[place] = error
                if isinstance(error, HOPELESS):
                    end = end or error

    await in_lanes(min(at_a_time, len(items)), lane)
    return [found[place] for place in range(len(items))]
