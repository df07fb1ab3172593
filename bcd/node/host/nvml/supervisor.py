"""Keeps one NVML child alive, asks it, and replaces it when it hangs, ends or is outdated.

One thread does it all. Others hand it questions and wait, for no longer than a deadline. A life of
a child ends with a failure, which the ``Sink`` hears, or because the driver was replaced.
"""

import contextlib
import logging
import os
import queue
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from bcd.node.host.nvml import messages
from bcd.node.host.nvml.process import Abandoned, ChildProcess, Launch, Lost
from bcd.node.host.nvml.stamp import driver_stamp

log = logging.getLogger(__name__)

A = TypeVar("A", messages.Ready, messages.Reading, messages.Pong, messages.Counts)

# A question that is open for so many seconds, without a call that ended, may be a hang that begins.
_LATE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """Seconds: for one call, for the start of NVML, between readings, and between new children.

    Every ``ping`` NVML is asked whether it answers, so that a hang is known that much and a
    deadline after it began. ``gap`` lies between two readings that events ask for, so that a storm
    of them is one.
    """

    deadline: float = 10.0
    init: float = 60.0
    probe: float = 60.0
    first_backoff: float = 1.0
    max_backoff: float = 30.0
    ping: float = 4.0
    gap: float = 0.5


class Sink(Protocol):
    """Hears what the supervisor learns, in its thread."""

    def ready(self, ready: messages.Ready) -> None:
        """A new child has started NVML."""
        ...

    def reading(self, reading: messages.Reading) -> bool:
        """All GPUs; True asks for a new child before the next reading."""
        ...

    def event(self, event: messages.Event) -> bool:
        """Something happened to a GPU; True asks for a reading now."""
        ...

    def failed(self, failure: messages.Failure) -> None:
        """NVML cannot be used now."""
        ...

    def idle(self) -> None:
        """Called every few seconds while NVML answers."""
        ...


@dataclass(slots=True)
class _Job:
    """A question of another thread."""

    request: messages.Count
    done: threading.Event = field(default_factory=threading.Event)
    busy: tuple[str, ...] | None = None


class Supervisor:
    """``start`` begins, ``close`` ends; ``count`` may be called from any other thread."""

    def __init__(
        self, root: Path, launch: Launch, periods: Periods, ignored: tuple[str, ...], sink: Sink
    ) -> None:
        self._root = root
        self._launch = launch
        self._periods = periods
        self._ignored = ignored
        self._sink = sink
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._serving = False
        self._told = threading.Condition()
        self._open_since: float | None = None
        self._answered_at = self._unanswered_at = 0.0
        self._again = False
        self._crashes = 0
        self._backoff = periods.first_backoff
        self._abandoned = Abandoned()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._open = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)

    def start(self) -> None:
        """Begin; the first child starts now."""
        self._thread.start()

    def close(self) -> None:
        """End the child and the thread; returns within a deadline, whatever NVML does."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(self._periods.deadline)
        with self._open:
            ends, self._wake_write = (self._wake_write, self._wake_read), -1
        if not self._thread.is_alive():
            for end in ends:
                os.close(end)

    def count(self, ids: tuple[str, ...]) -> frozenset[str]:
        """Devices with a compute process now; none when NVML does not say so in a deadline.

        Then ``answers`` is False until NVML says something again.
        """
        if not ids or self._closing.is_set():
            return frozenset()
        job = _Job(messages.Count(ids=ids, ignored=self._ignored))
        if self._serving:
            self._jobs.put(job)
            self._wake()
            job.done.wait(self._periods.deadline)
        if job.busy is None:
            self._unanswered_at = time.monotonic()
            return frozenset()
        return frozenset(job.busy)

    def answers(self) -> bool:
        """Whether the last question was answered, and none has been open for long.

        One that has may only be slow, as calls to a GPU that sleeps are: it is waited for, for no
        longer than a deadline.
        """
        with self._told:
            in_time = self._told.wait_for(lambda: not self._late(), self._periods.deadline)
            return in_time and self._answered_at >= self._unanswered_at

    def _late(self) -> bool:
        since = self._open_since
        return since is not None and time.monotonic() - since > _LATE_S

    def _opened(self, since: float | None) -> None:
        """Since when a question is open, or a call of it runs; None when none is."""
        with self._told:
            self._open_since = since
            self._told.notify_all()

    def _wake(self) -> None:
        with self._open, contextlib.suppress(BlockingIOError):  # full of wakes already
            if self._wake_write >= 0:
                os.write(self._wake_write, b"w")

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._next_life()
            except Exception as error:  # a fault of ours must not end the looking for good
                log.error("looking at the GPUs failed; it begins anew", exc_info=error)
                self._closing.wait(self._periods.max_backoff)
        self._refuse_jobs()
        self._abandoned.settle(min(1.0, self._periods.deadline / 2))

    def _next_life(self) -> None:
        failure = self._life()
        self._refuse_jobs()
        if failure is None or self._closing.is_set():
            return
        self._crashes = self._crashes + 1 if failure.code == messages.ENDED else 0
        # Ending once is an accident: nobody need hear of it.
        if self._crashes != 1:
            self._sink.failed(failure)
        self._rest(failure.library)

    def _life(self) -> messages.Failure | None:
        """One child from its start to its end; None when it was only outdated."""
        if self._abandoned.full():
            text = f"{len(self._abandoned)} NVML processes hang in the driver and cannot be ended"
            return messages.Failure(code=messages.HANGS, text=text)
        try:
            child = ChildProcess(self._launch)
        except OSError as error:
            text = f"the NVML process cannot be started ({error.strerror or error})"
            return messages.Failure(code=messages.ENDED, text=text)
        try:
            self._tend(child)
        except Lost as lost:
            if self._open_since is not None:
                self._unanswered_at = time.monotonic()
            return lost.failure
        finally:
            self._serving = False
            self._opened(None)
            self._abandoned.add(child)
        return None

    def _tend(self, child: ChildProcess) -> None:
        """Ask until the child is outdated; raises Lost."""
        born = time.monotonic()
        ready = self._answer(child, messages.Ready, self._periods.init)
        self._sink.ready(ready)
        stamp = driver_stamp(self._root, ready.library)
        probe_at = ping_at = again_at = 0.0
        outdated = False
        while not self._closing.is_set():
            self._serve_jobs(child)
            now = time.monotonic()
            if now >= probe_at and outdated:
                return
            if now >= probe_at or (self._again and now >= again_at):
                self._again = False
                reading = self._ask(child, messages.Read(ignored=self._ignored), messages.Reading)
                outdated = self._sink.reading(reading)
                self._serving = True
                if now >= probe_at:
                    probe_at = now + self._periods.probe
                ping_at = time.monotonic() + self._periods.ping
                again_at = time.monotonic() + self._periods.gap
                if now - born >= self._periods.probe:
                    self._crashes, self._backoff = 0, self._periods.first_backoff
            elif now >= ping_at:
                self._ask(child, messages.Ping(), messages.Pong)
                self._sink.idle()
                self._abandoned.reap()
                ping_at = time.monotonic() + self._periods.ping
                if driver_stamp(self._root, ready.library) != stamp:
                    return
            else:
                self._listen(child, min(probe_at, ping_at, again_at if self._again else ping_at))

    def _listen(self, child: ChildProcess, until: float) -> None:
        """Until the time, an event, or a question of another thread."""
        self._hear(child.receive(until, self._wake_read))
        self._drain()

    def _hear(self, answer: messages.Answer | None) -> None:
        match answer:
            case messages.Event():
                self._again |= self._sink.event(answer)
            case messages.Failure():
                raise Lost(answer)

    def _serve_jobs(self, child: ChildProcess) -> None:
        while not self._jobs.empty():
            job = self._jobs.get()
            job.busy = self._ask(child, job.request, messages.Counts).busy
            job.done.set()

    def _ask(self, child: ChildProcess, request: messages.Request, kind: type[A]) -> A:
        self._opened(time.monotonic())
        child.send(request)
        answer = self._answer(child, kind, self._periods.deadline)
        self._answered_at = time.monotonic()
        self._opened(None)
        return answer

    def _answer(self, child: ChildProcess, kind: type[A], allowed: float) -> A:
        """The answer of a kind; every call that the child begins has the time to itself."""
        began, call = time.monotonic(), "the start of the NVML process"
        while not self._closing.is_set():
            answer = child.receive(began + allowed, self._wake_read)
            if isinstance(answer, kind):
                return answer
            if isinstance(answer, messages.Progress):
                began, call = time.monotonic(), answer.call
                if self._open_since is not None:
                    self._opened(began)
                continue
            self._hear(answer)
            self._drain()
            overdue = time.monotonic() - began - allowed
            # What lies in the pipe is heard first, but a flood of events is no answer.
            if overdue >= (0 if answer is None else allowed):
                text = f"{call} has not returned for {allowed:g} s"
                raise Lost(messages.Failure(code=messages.HANGS, text=text))
        raise Lost(messages.Failure(code=messages.ENDED, text="the daemon stops"))

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _refuse_jobs(self) -> None:
        while not self._jobs.empty():
            self._jobs.get().done.set()

    def _rest(self, library: str) -> None:
        """Wait before the next child, longer each time; a new driver ends the wait."""
        stamp = driver_stamp(self._root, library)
        until = time.monotonic() + self._backoff
        self._backoff = min(2 * self._backoff, self._periods.max_backoff)
        while not self._closing.is_set() and driver_stamp(self._root, library) == stamp:
            left = until - time.monotonic()
            if left <= 0:
                return
            self._refuse_jobs()
            self._closing.wait(min(left, self._periods.ping, 1.0))
