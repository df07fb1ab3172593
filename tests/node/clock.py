"""A clock that tests move by hand; it implements the daemon's ``Clock`` port."""

import asyncio
import heapq
import itertools
import time


class HandClock:
    """Wall and steady time stand still until ``advance``; sleepers wake in the order of time."""

    def __init__(self, wall_ms: int | None = None) -> None:
        self._wall_ms = time.time_ns() // 1_000_000 if wall_ms is None else wall_ms
        self._now = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float, *, settle_s: float = 0.0) -> None:
        """Move both clocks; after each sleeper the loop gets ``settle_s`` of real time to act."""
        end = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, woken = heapq.heappop(self._sleepers)
            if woken.done():
                continue
            self._move(at)
            woken.set_result(None)
            await asyncio.sleep(settle_s)
        self._move(end)
        await asyncio.sleep(settle_s)

    def jump(self, wall_ms: int) -> None:
        """Set the wall clock alone, as a person or NTP would."""
        self._wall_ms = wall_ms

    def _move(self, to: float) -> None:
        if to > self._now:
            self._wall_ms += round((to - self._now) * 1000)
            self._now = to
