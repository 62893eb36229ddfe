"""Writers of the same documents wait for each other, in one order: documents first, by id, then chunks."""

from __future__ import annotations

import asyncio
import random
import time

from pgrag.database.store import Store
from tests.sql.support import document, fact, refresh, run, work_off

WRITERS, DOCUMENTS, SECONDS = 8, 4, 6


def test_writers_of_a_few_documents_are_hardly_ever_in_each_others_way(dsn: str) -> None:
    async def writer(store: Store, seed: int) -> int:
        chosen, done, end = random.Random(seed), 0, time.monotonic() + SECONDS  # noqa: S311 - a test's
        while time.monotonic() < end:
            uris = chosen.sample([f"doc/{n}" for n in range(DOCUMENTS)], 2)
            match chosen.randrange(4):
                case 0:
                    await store.delete_documents(uris)
                case 1:
                    texts = [fact(f"Pump {n % 3}", f"Valve {n}", f"{seed} {done} {n}") for n in range(3)]
                    await store.put_documents([document(uri, *texts) for uri in uris], "s")
                case 2:
                    await work_off(store, batch=4)
                case _:
                    await refresh(store)
            done += 1
        return done

    async def main(store: Store) -> tuple[list[int], int]:
        done = await asyncio.gather(*(writer(store, seed) for seed in range(WRITERS)))
        await asyncio.sleep(1.5)  # statistics come a second late
        rows = await store._fetch("select deadlocks from pg_stat_database where datname = current_database()")
        return done, rows[0][0]

    done, deadlocks = run(dsn, main, pool_size=WRITERS)
    assert min(done) > 0
    assert deadlocks * 100 < sum(done), f"{deadlocks} deadlocks in {sum(done)} operations"  # these are tried again
