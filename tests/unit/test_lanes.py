"""Work in lanes: what is under way ends, nothing more is begun."""

from __future__ import annotations

import asyncio

import pytest

from pgrag.errors import BudgetError, DatabaseError, ModelError, PgragError
from pgrag.llm.lanes import each, in_lanes


def test_so_many_at_a_time_and_the_results_in_order() -> None:
    busy, most = 0, 0

    async def work(item: int) -> int:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0.01 * (4 - item % 4))
        busy -= 1
        return item * item

    assert asyncio.run(each(range(12), 3, work)) == [n * n for n in range(12)]
    assert most == 3
    assert asyncio.run(each([], 3, work)) == []


def test_an_error_is_the_result_of_its_item_and_a_hopeless_one_that_of_the_rest() -> None:
    begun: list[int] = []

    async def work(item: int) -> int:
        begun.append(item)
        await asyncio.sleep(0 if item < 3 else 0.02)
        if item == 1:
            raise ModelError("no")
        if item == 2:
            raise BudgetError("spent")
        return item

    found = asyncio.run(each(range(8), 2, work))
    assert found[0] == 0
    assert isinstance(found[1], ModelError)
    assert [str(e) for e in found if isinstance(e, BudgetError)] == ["spent"] * (8 - len(begun) + 1)
    assert [n for n in begun if n > 2] == [n for n, e in enumerate(found) if n > 2 and not isinstance(e, PgragError)]
    assert len(begun) <= 4


def test_a_lane_that_fails_lets_the_others_end_what_they_do() -> None:
    ended: list[str] = []

    async def lane(failed: asyncio.Event) -> None:
        if not ended:
            ended.append("")
            await asyncio.sleep(0)
            raise DatabaseError("gone")
        await asyncio.sleep(0.02)
        assert failed.is_set()
        ended.append("done")

    with pytest.raises(DatabaseError, match="gone"):
        asyncio.run(in_lanes(2, lane))
    assert ended == ["", "done"]


def test_lanes_that_are_cancelled_are_waited_for() -> None:
    ended: list[int] = []

    async def lane(_: asyncio.Event) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0.01)
            ended.append(1)

    async def main() -> None:
        task = asyncio.create_task(in_lanes(3, lane))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
    assert ended == [1, 1, 1]
