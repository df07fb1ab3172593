"""Lanes: work of one kind goes one after another, and what is waiting shares one transaction.

Writers that want one lock wait for each other anyway. In a lane they wait in this process, where
waiting is cheap, and for all that wait the server begins, commits and tells others once.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from bcd.store.database import StoreUnavailable
from bcd.store.jobs import Job, Work, answer

_GROUP = 16


class Lanes:
    """Runs work on an executor's threads, no two of one lane at the same time.

    ``transact`` runs a work in a transaction of its own, in the calling thread.
    """

    def __init__(self, executor: Executor, transact: Callable[[Work], Any]) -> None:
        self._executor = executor
        self._transact = transact
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Job]] = {}

    async def run(self, lane: str, work: Work) -> Any:
        """Run ``work`` after what came before it in its lane; returns its result once committed.

        Where work that shares the transaction raises, each of them runs again in one of its own.
        """
        job = Job.of(work)
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
            answer(group)
            try:  # others want the thread too
                self._executor.submit(self._run, lane)
            except RuntimeError:  # closing: what was taken in is finished
                continue
            return

    def _next(self, lane: str) -> Sequence[Job]:
        """What is to share the next transaction; nothing more where the lane ends."""
        with self._lock:
            waiting = self._waiting[lane]
            group = [waiting.popleft() for _ in range(min(_GROUP, len(waiting)))]
            if not group:
                del self._waiting[lane]
        return group

    def _commit(self, group: Sequence[Job]) -> None:
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
