"""Lanes: work of one kind goes one after another, and what is waiting shares one transaction.

Writers that want one lock wait for each other anyway. In a lane they wait in this process, where
waiting is cheap, and for all that wait the server begins, commits and tells others once. A
transaction takes no more of them in once it has gone on for a while: others want its locks.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

from bcd.store.database import Lane, LostEveryRace, StoreUnavailable, Transaction
from bcd.store.jobs import Job, Work, answer

_GROUP = 16
_TOGETHER_S = 0.1


class Lanes:
    """Runs work on an executor's threads, no two of one lane at the same time.

    ``transact`` runs a work in a transaction of its own, in the calling thread.
    """

    def __init__(self, executor: Executor, transact: Callable[[Work], Any]) -> None:
        self._executor = executor
        self._transact = transact
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Job]] = {}
        self._idle: deque[str] = deque()  # lanes with something to do that no thread is at

    async def run(self, lane: Lane, work: Work) -> Any:
        """Run ``work`` after what came before it in its lane; returns its result once committed.

        Where work that shares the transaction raises, each of them runs again in one of its own.
        A caller who goes away before its turn gets nothing done.
        """
        job = Job.of(work, lane.place)
        with self._lock:
            waiting = self._waiting.get(lane.name)
            if waiting is not None:
                waiting.append(job)
            else:
                self._waiting[lane.name] = deque([job])
                self._idle.append(lane.name)
        if waiting is None:
            self._executor.submit(self._go_on)
        return await job.future

    def _go_on(self) -> None:
        """One transaction of the lane that waits longest, and a further call where more waits."""
        while True:
            with self._lock:
                if not self._idle:
                    return
                lane = self._idle.popleft()
                waiting = self._waiting[lane]
                group = [waiting.popleft() for _ in range(min(_GROUP, len(waiting)))]
            left = self._commit([job for job in group if not job.future.cancelled()])
            with self._lock:
                waiting.extendleft(reversed(left))
                if not waiting:
                    del self._waiting[lane]
                    return
                self._idle.append(lane)
            try:  # others want the thread too
                self._executor.submit(self._go_on)
            except RuntimeError:  # closing: what was taken in is finished
                continue
            return

    def _commit(self, group: Sequence[Job]) -> Sequence[Job]:
        """Do work in one transaction and answer its callers; returns what it did not get to."""
        group = sorted(group, key=lambda job: job.place)
        if len(group) > 1:
            results, error = self._attempt(partial(_in_time, group))
            if error is None:
                done = group[: len(results)]
                for job, result in zip(done, results, strict=True):
                    job.result = result
                answer(done)
                return group[len(done) :]
            if isinstance(error, StoreUnavailable) and not isinstance(error, LostEveryRace):
                for job in group:  # any of it may have committed
                    job.error = error
                answer(group)
                return ()
        for job in group:
            job.result, job.error = self._attempt(job.work)
            answer([job])
        return ()

    def _attempt(self, work: Work) -> tuple[Any, BaseException | None]:
        try:
            return self._transact(work), None
        except BaseException as error:  # whatever it is, it belongs to the caller
            return None, error


def _in_time(group: Sequence[Job], tx: Transaction) -> Sequence[Any]:
    """What came of the first of a group, one at least, until its time was over."""
    until = time.monotonic() + _TOGETHER_S
    results: list[Any] = []
    for job in group:
        if results and time.monotonic() > until:
            break
        results.append(job.work(tx))
    return results
