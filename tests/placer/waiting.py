"""Waits for what another task or process does, without guessing how long that takes.

``Rival`` is a PostgreSQL session beside the placer's, in the middle of a transaction.
"""

import asyncio
from collections.abc import Callable

import psycopg

from tests.placer.records import Beside

_DEADLINE_S = 20.0

Rival = psycopg.Connection[tuple[object, ...]]


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until the condition holds; raises TimeoutError after 20 seconds."""
    async with asyncio.timeout(_DEADLINE_S):
        for _ in iter(lambda: bool(condition()), True):
            await asyncio.sleep(0)


async def until_locked_out(database_url: str) -> None:
    """Let others run until one of them waits for a lock (PostgreSQL)."""
    beside = Beside(database_url)
    await until(lambda: beside.waiting_for_locks() > 0)
