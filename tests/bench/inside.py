"""Looks into a create: how much of its CPU is placement, how many statements and commits it has."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Concatenate

from bcd.placer.placement.booking import Placements
from bcd.store.database import Database, P, Row, T, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What one create takes: CPU of this process in ms, and numbers."""

    cpu_ms: float
    placement_ms: float
    search_ms: float
    statements: float
    transactions: float
    placed: float

    def __str__(self) -> str:
        return (
            f"{self.cpu_ms:.2f} ms CPU, of it placement {self.placement_ms:.2f}"
            f" (search {self.search_ms:.2f}); {self.statements:.1f} statements in"
            f" {self.transactions:.1f} transactions; {self.placed:.0%} placed"
        )


class TimedTransaction:
    """Counts statements and adds up the CPU that they take in this thread."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.statements = 0
        self.cpu_ns = 0

    @property
    def for_update(self) -> str:
        return self._tx.for_update

    @property
    def skip_locked(self) -> str:
        return self._tx.skip_locked

    def _timed(self, call: Callable[[], T]) -> T:
        began = time.thread_time_ns()
        try:
            return call()
        finally:
            self.statements += 1
            self.cpu_ns += time.thread_time_ns() - began

    def all(self, sql: str, **values: object) -> Sequence[Row]:
        return self._timed(lambda: self._tx.all(sql, **values))

    def one(self, sql: str, **values: object) -> Row | None:
        return self._timed(lambda: self._tx.one(sql, **values))

    def run(self, sql: str, **values: object) -> int:
        return self._timed(lambda: self._tx.run(sql, **values))

    def many(self, sql: str, rows: Sequence[Mapping[str, object]]) -> int:
        return self._timed(lambda: self._tx.many(sql, rows))

    def savepoint(self) -> AbstractContextManager[None]:
        return self._tx.savepoint()

    def now_ms(self) -> int:
        return self._tx.now_ms()

    def new_id(self, prefix: str) -> str:
        return self._tx.new_id(prefix)

    def wake(self, topic: str, key: str = "") -> None:
        self._tx.wake(topic, key)


class TimedDatabase(Database):
    """A database whose transactions are counted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.engine, self.wakes = database.engine, database.wakes
        self.reset()

    def reset(self) -> None:
        """Count from now on."""
        self.statements = 0
        self.transactions = 0

    async def write(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._database.write(lambda tx: self._counted(work, tx, *args, **kwargs))

    async def read(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._database.read(lambda tx: self._counted(work, tx, *args, **kwargs))

    def _counted(
        self,
        work: Callable[Concatenate[Transaction, P], T],
        tx: Transaction,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        timed = TimedTransaction(tx)
        result = work(timed, *args, **kwargs)
        self.statements += timed.statements
        self.transactions += 1
        return result

    async def close(self) -> None:
        await self._database.close()


class TimedPlacements(Placements):
    """Adds up the CPU of placing, and of the statements within."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Add up from now on."""
        self.cpu_ms = 0.0
        self.statements_ms = 0.0

    def place(self, tx: Transaction, *args: Any, **kwargs: Any) -> Any:
        """See Placements."""
        assert isinstance(tx, TimedTransaction)
        began, before = time.thread_time_ns(), tx.cpu_ns
        try:
            return super().place(tx, *args, **kwargs)
        finally:
            self.cpu_ms += (time.thread_time_ns() - began) / 1e6
            self.statements_ms += (tx.cpu_ns - before) / 1e6
