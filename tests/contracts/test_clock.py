"""What every ``Clock`` does: the machine's, and the one that tests move by hand."""

import asyncio

import pytest

from bcd.node.host.clock import SystemClock
from bcd.node.ports import Clock
from tests.node.clock import HandClock


@pytest.fixture(params=[SystemClock, HandClock])
def clock(request: pytest.FixtureRequest) -> Clock:
    made: Clock = request.param()
    return made


async def pass_time(clock: Clock, seconds: float) -> None:
    if isinstance(clock, HandClock):
        await clock.advance(seconds)
    else:
        await asyncio.sleep(seconds)


async def test_time_goes_forward_on_both_hands(clock: Clock) -> None:
    wall, steady = clock.wall_ms(), clock.monotonic()
    await pass_time(clock, 0.02)
    assert clock.wall_ms() >= wall + 15
    assert clock.monotonic() >= steady + 0.015


async def test_sleepers_wake_in_the_order_of_their_times(clock: Clock) -> None:
    woken: list[float] = []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (0.06, 0.02, 0.04)]
    await asyncio.sleep(0)
    await pass_time(clock, 0.1)
    await asyncio.gather(*tasks)
    assert woken == [0.02, 0.04, 0.06]


async def test_no_time_at_all_yields_only(clock: Clock) -> None:
    async with asyncio.timeout(1):
        await clock.sleep(0)
        await clock.sleep(-1)


async def test_a_sleeper_can_be_cancelled(clock: Clock) -> None:
    task = asyncio.create_task(clock.sleep(3_600))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await pass_time(clock, 0.01)
