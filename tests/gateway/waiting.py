"""Waiting for something that happens elsewhere, within a bound."""

import asyncio
from collections.abc import Awaitable, Callable

WAIT_S = 15.0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask until the answer is yes; raises TimeoutError after WAIT_S."""
    async with asyncio.timeout(WAIT_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
