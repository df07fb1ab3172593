"""Waits for what another task or process does, without guessing how long that takes."""

import asyncio
from collections.abc import Callable

_DEADLINE_S = 20.0


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until the condition holds; raises TimeoutError after 20 seconds."""
    async with asyncio.timeout(_DEADLINE_S):
        for _ in iter(lambda: bool(condition()), True):
            await asyncio.sleep(0)
