"""A loop that runs a pass when it is woken and at every tick; no failing pass or item stops it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from bcd.model.errors import Unavailable
from bcd.store.database import Database

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Loop:
    """Runs ``pass_once`` on wake-ups of the topics and at least every ``tick_s`` seconds.

    ``pass_once`` returns how many seconds the loop may rest at most, or None for a whole tick. It
    is the pass boundary: whatever it raises is logged, and the next pass observes again.
    """

    def __init__(
        self,
        name: str,
        database: Database,
        topics: Sequence[str],
        pass_once: Callable[[], Awaitable[float | None]],
        tick_s: float,
    ) -> None:
        self._name = name
        self._database = database
        self._topics = topics
        self._pass_once = pass_once
        self._tick_s = tick_s
        self._woken = asyncio.Event()

    def wake(self, _key: str = "") -> None:
        """Run a pass soon."""
        self._woken.set()

    async def run(self) -> None:
        """Loop until cancelled."""
        stops = [self._database.wakes.listen(topic, self.wake) for topic in self._topics]
        try:
            while True:
                self._woken.clear()
                rest_s = await self._one_pass()
                if not self._woken.is_set():
                    await self._rest(max(0.0, min(rest_s, self._tick_s)))
        finally:
            for stop in stops:
                stop()

    async def _one_pass(self) -> float:
        done = await _attempt("pass", self._pass_once(), loop=self._name)
        if done is None:
            return min(self._tick_s, 1.0)
        (rest_s,) = done
        return self._tick_s if rest_s is None else rest_s

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return


async def each(
    what: str, items: Iterable[T], work: Callable[[T], Awaitable[object]], *, at_once: int = 1
) -> Sequence[T]:
    """Do the work of a pass item by item; one that fails is logged and stops no other.

    Returns those that failed.
    """
    turn = asyncio.Semaphore(at_once)

    async def attempt(item: T) -> bool:
        async with turn:
            return await _attempt(what, work(item), item=item) is not None

    items = list(items)
    done = await asyncio.gather(*(attempt(item) for item in items))
    return [item for item, fine in zip(items, done, strict=True) if not fine]


async def _attempt(what: str, work: Awaitable[T], **fields: object) -> tuple[T] | None:
    """The result, or None for a failure, which is logged with the fields."""
    try:
        return (await work,)
    except Unavailable as error:  # the database, mostly; one line says it all
        logger.warning("%s waits", what, extra={**fields, "problem": error.message})
    except Exception:
        logger.exception("%s failed; the next pass observes again", what, extra=fields)
    return None
