"""The gateway's loops: woken by change and by a tick, one failed pass never stopping the next."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from bcd.store.database import StoreUnavailable

logger = logging.getLogger(__name__)


async def repeat(
    work: Callable[[], Awaitable[None]], due: asyncio.Event, interval_s: float, name: str
) -> None:
    """Run ``work`` whenever it is due, and every ``interval_s`` anyway, until cancelled.

    The pass boundary: whatever a pass raises is logged, and the next pass starts afresh.
    """
    while True:
        try:
            async with asyncio.timeout(interval_s):
                await due.wait()
        except TimeoutError:
            pass
        due.clear()
        try:
            await work()
        except StoreUnavailable as error:
            logger.warning("pass waits", extra={"loop": name, "problem": error.message})
        except Exception:
            logger.exception("pass failed", extra={"loop": name})
