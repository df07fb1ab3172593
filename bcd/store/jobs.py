"""Work that one thread does for callers on event loops, several at a time."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from bcd.store.database import Transaction

Work = Callable[[Transaction], Any]


@dataclass(slots=True)
class Job:
    """One caller's work, and what came of it.

    ``place`` is where it goes among others, ``wakes`` are for after the commit.
    """

    work: Work
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    place: str = ""
    result: Any = None
    error: BaseException | None = None
    wakes: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, work: Work, place: str = "") -> Self:
        """A job for whoever runs now; wait for its ``future``."""
        loop = asyncio.get_running_loop()
        return cls(work, loop.create_future(), loop, place)

    def deliver(self) -> None:
        """Tell the caller; on its own loop."""
        if self.future.done():
            return  # the caller went away; what was committed stays
        if isinstance(self.error, StopIteration):  # which no future takes
            self.future.set_exception(RuntimeError("a transaction raised StopIteration"))
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


def answer(jobs: Sequence[Job]) -> None:
    """Tell every caller what came of its work, from any thread."""
    for loop in {job.loop for job in jobs}:
        mine = [job for job in jobs if job.loop is loop]
        with contextlib.suppress(RuntimeError):  # the loop is gone, and so are the callers
            loop.call_soon_threadsafe(_deliver, mine)


def _deliver(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.deliver()
