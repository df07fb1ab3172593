"""The machine's clocks."""

import asyncio
import time


class SystemClock:
    """Implements the ``Clock`` port."""

    def wall_ms(self) -> int:
        """Epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never step."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait; zero and less yield once."""
        await asyncio.sleep(max(seconds, 0))
