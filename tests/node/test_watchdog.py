"""What systemd hears while work takes its time, and when it takes too long."""

import asyncio

import pytest

from bcd.node import watchdog
from bcd.node.watchdog import HUNG_S, Watchdog
from tests.node.clock import HandClock


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(watchdog, "notify", said.append)
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    return said


async def test_pings_go_on_while_work_takes_long_and_end_when_it_hangs(heard: list[str]) -> None:
    clock = HandClock()
    watched = Watchdog(clock)
    running = asyncio.create_task(watched.run())
    await asyncio.sleep(0)  # it begins
    with watched.work():
        await clock.advance(HUNG_S - 1)
        assert len(heard) == HUNG_S // 10
        await clock.advance(1_000)
        assert len(heard) == HUNG_S // 10
    await clock.advance(10)
    assert len(heard) == HUNG_S // 10 + 1
    running.cancel()


async def test_nobody_watches_and_nobody_is_told(
    heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC")
    await Watchdog(HandClock()).run()
    assert heard == []
