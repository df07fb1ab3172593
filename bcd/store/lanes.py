"""Lanes: work of one kind goes one after another, and what is waiting shares one transaction.

Writers that want one lock wait for each other anyway. In a lane they wait in this process, where
waiting is cheap, and for all that wait the server begins, commits and tells others once.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from bcd.store.database import StoreUnavailable, Transaction

_GROUP = 16
Work = Callable[[Transaction], Any]
Transact = Callable[[Work], Any]


@dataclass(slots=True)
class _Job:
    work: Work
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    result: Any = None
    error: BaseException | None = None

    def deliver(self) -> None:
        if self.future.done():
            return  # the caller went away; what was committed stays
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Lanes:
    """Runs work on an executor's threads, no two of one lane at the same time.

    ``transact`` runs a work in a transaction of its own, in the calling thread.
    """

    def __init__(self, executor: Executor, transact: Transact) -> None:
        self._executor = executor
        self._transact = transact
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Job]] = {}

    async def run(self, lane: str, work: Work) -> Any:
        """Run ``work`` after what came before it in its lane; returns its result once committed.

        Where work that shares the transaction raises, each of them runs again in one of its own.
        """
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), loop)
        with self._lock:
            waiting = self._waiting.get(lane)
            if waiting is not None:
                waiting.append(job)
            else:
                self._waiting[lane] = deque([job])
        if waiting is None:
            self._executor.submit(self._run, lane)
        return await job.future

    def _run(self, lane: str) -> None:
        while group := self._next(lane):
            self._commit(group)
            for loop in {job.loop for job in group}:
                mine = [job for job in group if job.loop is loop]
                with contextlib.suppress(RuntimeError):  # the loop is gone, and so are the callers
                    loop.call_soon_threadsafe(_deliver, mine)
            try:  # others want the thread too
                self._executor.submit(self._run, lane)
            except RuntimeError:  # closing: what was taken in is finished
                continue
            return

    def _next(self, lane: str) -> Sequence[_Job]:
        """What is to share the next transaction; nothing more where the lane ends."""
        with self._lock:
            waiting = self._waiting[lane]
            group = [waiting.popleft() for _ in range(min(_GROUP, len(waiting)))]
            if not group:
                del self._waiting[lane]
        return group

    def _commit(self, group: Sequence[_Job]) -> None:
        if len(group) > 1:
            results, error = self._attempt(lambda tx: [job.work(tx) for job in group])
            if error is None or isinstance(error, StoreUnavailable):  # it may have committed
                for place, job in enumerate(group):
                    job.result, job.error = None if error else results[place], error
                return
        for job in group:
            job.result, job.error = self._attempt(job.work)

    def _attempt(self, work: Work) -> tuple[Any, BaseException | None]:
        try:
            return self._transact(work), None
        except BaseException as error:  # whatever it is, it belongs to the caller
            return None, error


def _deliver(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.deliver()
