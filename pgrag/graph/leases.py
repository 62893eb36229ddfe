"""Leases: what a worker claims under a token stays his while he works, and is free again when he fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

from pgrag.errors import DatabaseError

logger = logging.getLogger(__name__)

Tokens = Sequence[UUID]


@asynccontextmanager
async def leased(
    seconds: float, extend: Callable[[Tokens], Awaitable[int]], release: Callable[[Tokens], Awaitable[None]]
) -> AsyncIterator[UUID]:
    """A token to claim with; `seconds` is how long a lease holds.

    What it holds is prolonged, as a model may take longer than a lease and nobody else shall pay for the same
    meanwhile, and given back on failure, even by a claim that was cut off.
    """
    token = uuid4()
    keeping = asyncio.create_task(_keep(token, seconds / 3, extend))
    try:
        yield token
    except BaseException:
        try:
            await release([token])
        except DatabaseError as error:  # the first error matters more; the leases run out by themselves
            logger.warning("could not give leases back: %s", error)
        raise
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


async def _keep(token: UUID, pause: float, extend: Callable[[Tokens], Awaitable[int]]) -> None:
    while True:
        await asyncio.sleep(pause)
        try:
            await extend([token])
        except DatabaseError as error:  # whoever works notices by himself
            logger.warning("could not prolong leases: %s", error)
