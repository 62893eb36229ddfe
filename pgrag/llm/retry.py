"""When to ask a model server again, and how long to wait before."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Awaitable, Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeVar

logger = logging.getLogger(__name__)

LONGEST_BACKOFF = 60.0
LONGEST_RETRY_AFTER = 120.0
TIMEOUT_RETRIES = 2  # a time-out is long already: with the default, three make nine minutes
PASSING_STATUS = frozenset({408, 409, 425, 429})  # and every status from 500 on

T = TypeVar("T")


class CallError(Exception):
    """A failed request: the server's status (None: no answer came) and words, and whether asking again can help."""

    def __init__(
        self, words: str, *, status: int | None = None, passing: bool | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(words)
        self.words = words
        self.status = status
        self.passing = status is None or status in PASSING_STATUS or status >= 500 if passing is None else passing
        self.retry_after = retry_after
        self.tries = 1


class CallTimeoutError(CallError):
    """A request that took longer than it may."""


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Seconds a Retry-After header asks for (a number or an HTTP date; `now` in Unix seconds); None without one."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    return max(0.0, seconds) if math.isfinite(seconds) else None


def wait_before(retry: int, retry_after: float | None, chance: float) -> float:
    """Seconds to wait before the n-th repetition (from 1); `chance` from 0 to 1 spreads clients that failed together.

    What the server asks for is the least; without that, half to all of 1, 2, 4, ... seconds.
    """
    if retry_after is not None:
        return min(retry_after, LONGEST_RETRY_AFTER) + chance
    return min(2.0 ** (retry - 1), LONGEST_BACKOFF) * (0.5 + chance / 2)


async def with_retries(call: Callable[[], Awaitable[T]], retries: int, sleep: Callable[[float], Awaitable[None]]) -> T:
    """What `call` returns, after at most `retries` repetitions, and two of time-outs. Raises the last CallError, which
    counts the tries."""
    timeouts = 0
    for tries in range(1, retries + 2):
        try:
            return await call()
        except CallError as error:
            error.tries = tries
            timeouts += isinstance(error, CallTimeoutError)
            if not error.passing or tries > retries or timeouts > TIMEOUT_RETRIES:
                raise
            seconds = wait_before(tries, error.retry_after, random.random())  # noqa: S311 - jitter
            logger.info("a model request failed (status %s), again in %.1f s", error.status, seconds)
            await sleep(seconds)
    raise AssertionError("unreachable")
