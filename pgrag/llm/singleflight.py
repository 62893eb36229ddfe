"""Work that several wait for, and work that must end: identical requests at one time are one request."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from pgrag.errors import PgragError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Requests that are under way, by key, over all tasks, event loops and threads of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, Future[T | None]] = {}

    async def join(self, key: Hashable, call: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """What `call` returns, and whether it was this caller's: who comes while it runs gets the same, or its error.

        When the task that runs it is cancelled, one of those that wait starts again.
        """
        while True:
            with self._lock:
                running = self._under_way.get(key)
                if running is None:
                    own = self._under_way[key] = Future()
            if running is None:
                return await self._lead(key, own, call), True
            result = await asyncio.shield(asyncio.wrap_future(running))
            if result is not None:
                return result, False

    async def _lead(self, key: Hashable, own: Future[T | None], call: Callable[[], Awaitable[T]]) -> T:
        result: T | None = None
        failure: PgragError | None = None
        try:
            result = await call()
            return result
        except PgragError as error:
            failure = error
            raise
        finally:  # a cancelled call leaves None behind
            with self._lock:
                del self._under_way[key]
            if failure is None:
                own.set_result(result)
            else:
                own.set_exception(failure)


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Does the work to its end even when this task is cancelled meanwhile, and then lets itself be cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("work of a cancelled task failed: %s", error)
        raise
