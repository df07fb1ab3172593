"""Loops: woken by change and by time, and stopped by nothing that goes wrong."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bcd.placer.loops import Loop, each
from bcd.store.database import Database, StoreUnavailable

HOUR_S = 3_600.0


@asynccontextmanager
async def running(
    database: Database, pass_once: Callable[[], Awaitable[float | None]], tick_s: float
) -> AsyncIterator[None]:
    task = asyncio.create_task(Loop("test", database, ["topic"], pass_once, tick_s).run())
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert database.wakes._listeners["topic"] == []


class Passes:
    """Counts passes, and lets a test wait for a number of them."""

    def __init__(self, rest_s: float | None = None, *, failing: int = 0) -> None:
        self.count = 0
        self._rest_s = rest_s
        self._failing = failing
        self._more = asyncio.Condition()

    async def once(self) -> float | None:
        self.count += 1
        async with self._more:
            self._more.notify_all()
        if self.count <= self._failing:
            raise RuntimeError("broken pass")
        return self._rest_s

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(10), self._more:
            await self._more.wait_for(lambda: self.count >= count)


async def wake(database: Database) -> None:
    await database.write(lambda tx: tx.wake("topic", "k"))


async def test_a_loop_passes_at_its_start_and_whenever_it_is_woken(database: Database) -> None:
    passes = Passes()
    async with running(database, passes.once, HOUR_S):
        await passes.reach(1)
        for count in (2, 3, 4):
            await wake(database)
            await passes.reach(count)


async def test_a_loop_passes_again_when_its_time_is_up(database: Database) -> None:
    passes = Passes()
    async with running(database, passes.once, 0.01):
        await passes.reach(3)


async def test_a_pass_may_ask_for_a_shorter_rest_but_not_for_a_longer(
    database: Database,
) -> None:
    for rest_s, tick_s in ((0.01, HOUR_S), (HOUR_S, 0.01), (-5.0, HOUR_S)):
        passes = Passes(rest_s)
        async with running(database, passes.once, tick_s):
            await passes.reach(3)


async def test_a_failing_pass_is_logged_and_followed_by_the_next(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    passes = Passes(failing=2)
    with caplog.at_level(logging.ERROR):
        async with running(database, passes.once, 0.01):
            await passes.reach(4)
    assert len([record for record in caplog.records if record.exc_info]) == 2


async def test_a_database_that_is_away_is_one_line_without_a_traceback(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    passes = Passes()

    async def away_once() -> float | None:
        await passes.once()
        if passes.count == 1:
            raise StoreUnavailable("the database went away")
        return None

    async with running(database, away_once, 0.01):
        await passes.reach(2)
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert record.__dict__["problem"] == "the database went away"


async def test_a_wake_during_a_pass_is_not_lost(database: Database) -> None:
    passes = Passes()

    async def slow_first() -> float | None:
        if passes.count == 0:
            await wake(database)
            await wake(database)
        return await passes.once()

    async with running(database, slow_first, HOUR_S):
        await passes.reach(2)


@pytest.mark.parametrize("at_once", [1, 3])
async def test_no_more_items_are_worked_on_than_may_be_at_once(at_once: int) -> None:
    order, busy, most = [], 0, 0

    async def work(item: int) -> None:
        nonlocal busy, most
        order.append(item)
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0)
        busy -= 1

    assert await each("working", range(7), work, at_once=at_once) == []
    assert (order, most) == (list(range(7)), at_once)


async def test_each_item_gets_its_work_though_others_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = []

    async def work(item: int) -> None:
        if item % 2:
            raise ValueError(item)
        done.append(item)

    with caplog.at_level(logging.ERROR):
        failed = await each("working", range(5), work)
    assert (done, failed) == ([0, 2, 4], [1, 3])
    assert caplog.text.count("working failed") == 2
