"""Tells systemd that the daemon lives, also while a pass takes its time.

A pass runs in a worker thread and may wait for a disk or a driver, while the event loop answers
and pings. Work that takes longer than ``HUNG_S`` counts as hung: the pings end and systemd starts
the daemon anew, which costs no hold. The bound is generous, because a restart in the middle of
slow binds only begins them again: three times the control plane's deadline for one bind.
"""

import contextlib
from collections.abc import Iterator

from bcd.node.ports import Clock
from bcd.sdnotify import notify, watchdog_seconds

HUNG_S = 900.0


class Watchdog:
    """``run`` beside the daemon's loop, which says with ``work`` when it waits for a thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """What happens in here may hang."""
        self._since = self._clock.monotonic()
        try:
            yield
        finally:
            self._since = None

    async def run(self) -> None:
        """Ping three times a period, for ever; returns at once where systemd does not watch."""
        period = watchdog_seconds()
        while period is not None:
            if self._since is None or self._clock.monotonic() - self._since < HUNG_S:
                notify("WATCHDOG=1")
            await self._clock.sleep(period / 3)
