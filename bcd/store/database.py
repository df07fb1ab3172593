"""The contract of both engines: transactions, the database's clock, wake-ups."""

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from bcd.model.errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")
Row = Mapping[str, Any]
Listener = Callable[[str], None]


class Overlap(Exception):
    """A booking that a rule of the database refused: somebody else has the device then."""


class ConstraintViolated(Exception):
    """A row that the schema refused: its parent is not there, its key is taken, a check failed."""


class StoreUnavailable(Unavailable):
    """The database did not answer, or its answer to a commit was lost: the outcome is unknown."""


class LostEveryRace(StoreUnavailable):
    """Others were always faster, or in the way; nothing was committed."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Work of which much comes at once; see ``Database.write_in``.

    Of what waits, some at a time go in the order of ``place``, otherwise as they came.
    """

    name: str
    place: str = ""


class Transaction(Protocol):
    """One open transaction, used from the executor's thread only.

    Statements use ``:name`` parameters. Rows are mappings by column name. A statement raises
    Overlap or ConstraintViolated when a rule of the database refuses it; outside a savepoint the
    transaction is then lost.
    """

    @property
    def for_update(self) -> str:
        """Locks the rows of a SELECT, where rows can be locked one by one; else nothing.

        Rows that refer to a locked one may still be inserted, so that a lock on a node or a
        reservation never waits for somebody who books on it.
        """

    @property
    def skip_locked(self) -> str:
        """`` FOR UPDATE SKIP LOCKED`` likewise."""

    def all(self, sql: str, **values: object) -> Sequence[Row]:
        """Every row of a query."""

    def one(self, sql: str, **values: object) -> Row | None:
        """The first row of a query or of a RETURNING clause."""

    def run(self, sql: str, **values: object) -> int:
        """Run a change; returns the number of rows that it touched."""

    def many(self, sql: str, rows: Sequence[Mapping[str, object]]) -> int:
        """Run a change once per row of values; returns the rows touched in all."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Undo what happens inside when it raises, and nothing more."""

    def now_ms(self) -> int:
        """The database's clock; within one process it never steps back."""

    def new_id(self, prefix: str) -> str:
        """A new TypeID on the database's clock."""

    def wake(self, topic: str, key: str = "") -> None:
        """Tell listeners of ``topic``, in every process, once this transaction is committed."""


class SteadyClock:
    """Epoch milliseconds that never go back behind a value already given, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ms = 0

    def steady_ms(self, read_ms: int) -> int:
        """The time to give after a clock said ``read_ms``."""
        with self._lock:
            self._last_ms = max(self._last_ms, read_ms)
            return self._last_ms


class Wakes:
    """Who wants to hear of what. A wake-up may be lost: listeners also tick."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, list[Listener]] = defaultdict(list)
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(self, topic: str, listener: Listener) -> Callable[[], None]:
        """Call ``listener(key)`` on this event loop at each wake-up; returns how to stop."""
        self._loop = asyncio.get_running_loop()
        self._listeners[topic].append(listener)

        def stop() -> None:
            with contextlib.suppress(ValueError):
                self._listeners[topic].remove(listener)

        return stop

    def fire(self, wakes: Sequence[tuple[str, str]]) -> None:
        """Deliver wake-ups from any thread."""
        loop = self._loop
        if loop is not None and wakes and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closing at this very moment
                loop.call_soon_threadsafe(self._deliver, tuple(wakes))

    def _deliver(self, wakes: Sequence[tuple[str, str]]) -> None:
        for topic, key in wakes:
            for listener in tuple(self._listeners.get(topic, ())):
                listener(key)


class Database(ABC):
    """A pool of executors over one database."""

    engine: str
    wakes: Wakes

    @abstractmethod
    async def write(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``work(tx, …)`` in a transaction and return its result after the commit.

        What ``work`` raises rolls it back and is raised here. ``work`` may run more than once.
        Raises StoreUnavailable when the database is out of reach.
        """

    async def write_in(
        self,
        lane: Lane,
        work: Callable[Concatenate[Transaction, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """See ``write``; for work of which much comes at once, and would wait for each other.

        It goes one after another, and what waits in a lane may share one transaction, so also the
        outcome where the commit's answer is lost. All of it must lock the same in the same order,
        or in the order of its places.
        """
        return await self.write(work, *args, **kwargs)

    @abstractmethod
    async def read(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``work(tx, …)`` in a read-only transaction on one snapshot."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was accepted and let go of the database."""
