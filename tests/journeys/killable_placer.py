"""``bcd-placer`` that ends itself by SIGKILL at a chosen statement of the transactions named to it.

``launch`` starts one as a process of its own, forked from one that has imported everything: what
it is killed in takes less time than its imports. FUSE is a file of JSON that it reads at each
transaction: ``works`` are names of functions that transactions run, ``left`` how many statements
and commits of theirs still happen, null for all.
"""

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bcd.cli import placer
from bcd.store.database import Lane, Row, Transaction
from bcd.store.postgresql import PostgresqlDatabase
from bcd.store.sqlite import SqliteDatabase


class _Fuse:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._burnt = 0

    def watches(self, name: str) -> bool:
        """Whether statements of transactions that run this function count."""
        return name in json.loads(self._path.read_text())["works"]

    def burn(self) -> None:
        """One statement or commit further; the last one does not happen."""
        left = json.loads(self._path.read_text())["left"]
        if left is not None and self._burnt >= left:
            os.kill(os.getpid(), signal.SIGKILL)
        self._burnt += left is not None


class _Watched:
    """A transaction whose statements burn the fuse."""

    def __init__(self, tx: Transaction, fuse: _Fuse) -> None:
        self._tx = tx
        self._fuse = fuse
        self.for_update, self.skip_locked = tx.for_update, tx.skip_locked

    def all(self, sql: str, **values: object) -> Sequence[Row]:
        self._fuse.burn()
        return self._tx.all(sql, **values)

    def one(self, sql: str, **values: object) -> Row | None:
        self._fuse.burn()
        return self._tx.one(sql, **values)

    def run(self, sql: str, **values: object) -> int:
        self._fuse.burn()
        return self._tx.run(sql, **values)

    def many(self, sql: str, rows: Sequence[Mapping[str, object]]) -> int:
        self._fuse.burn()
        return self._tx.many(sql, rows)

    def savepoint(self) -> AbstractContextManager[None]:
        return self._tx.savepoint()

    def now_ms(self) -> int:
        return self._tx.now_ms()

    def new_id(self, prefix: str) -> str:
        return self._tx.new_id(prefix)

    def wake(self, topic: str, key: str = "") -> None:
        self._tx.wake(topic, key)


def _with_fuse(write: Callable[..., Any], fuse: _Fuse) -> Callable[..., Any]:
    """A database's ``write`` that burns the fuse in and right after the transactions it is for."""

    async def fused(self: Any, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not fuse.watches(work.__qualname__):
            return await write(self, work, *args, **kwargs)

        def watched(tx: Transaction) -> Any:
            result = work(_Watched(tx, fuse), *args, **kwargs)
            fuse.burn()  # before the commit
            return result

        answer = await write(self, watched)
        fuse.burn()  # after it, before anybody is answered
        return answer

    return fused


def _with_fuse_in(write_in: Callable[..., Any], fuse: _Fuse) -> Callable[..., Any]:
    """A database's ``write_in`` likewise."""

    async def fused(self: Any, lane: Lane, work: Callable[..., Any], *args: Any) -> Any:
        async def write(self: Any, work: Callable[..., Any], *args: Any) -> Any:
            return await write_in(self, lane, work, *args)

        return await _with_fuse(write, fuse)(self, work, *args)

    return fused


def _be_a_placer(fuse: Path, arguments: Sequence[str], log: Path) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in (1, 2):
        os.dup2(output, number)
    burning = _Fuse(fuse)
    for engine in (SqliteDatabase, PostgresqlDatabase):
        engine.write = _with_fuse(engine.write, burning)  # type: ignore[method-assign]
    PostgresqlDatabase.write_in = _with_fuse_in(  # type: ignore[method-assign]
        PostgresqlDatabase.write_in, burning
    )
    sys.argv = ["bcd-placer", *arguments]
    placer.main()


def launch(fuse: Path, arguments: Sequence[str], log: Path) -> BaseProcess:
    """Start a placer with these arguments, whose words go to the end of ``log``.

    It never outlives the tests.
    """
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["__main__", "pytest", __name__])
    process = forks.Process(target=_be_a_placer, args=(fuse, arguments, log), daemon=True)
    process.start()
    return process


def end_forks() -> None:
    """End the process that others are forked from; other tests count the children of this one."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
