"""SQLite: one file, one process, one writer thread that commits for many at once.

Each request runs in a SAVEPOINT of a shared transaction; answers go out after the one COMMIT,
which with ``synchronous=FULL`` is on disk then. Readers have connections of their own and see
the last commit. Two processes writing one file would starve each other: the file is locked.
"""

import asyncio
import contextlib
import fcntl
import os
import queue
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate

from bcd.model.errors import BadConfiguration
from bcd.model.ids import type_id
from bcd.store.database import (
    ConstraintViolated,
    Database,
    Overlap,
    P,
    Row,
    SteadyClock,
    StoreUnavailable,
    T,
    Transaction,
    Wakes,
)
from bcd.store.jobs import Job, answer
from bcd.store.migrate import VERSION_TABLE, pending

_GROUP = 64
_READERS = 2
_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA wal_autocheckpoint=4000",
    "PRAGMA busy_timeout=5000",
    "PRAGMA cache_size=-65536",
)


# Another start may find these gone.
_PASSING_ERRORS = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
# The file or its disk, not the statement.
_FILE_ERRORS = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_READONLY,
    }
)


def _system_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class SqliteTransaction:
    """See Transaction."""

    for_update = ""
    skip_locked = ""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], int]) -> None:
        self._connection = connection
        self._clock = clock
        self._depth = 0
        self.wakes: list[tuple[str, str]] = []

    def all(self, sql: str, **values: object) -> Sequence[Row]:
        return self._execute(sql, values).fetchall()

    def one(self, sql: str, **values: object) -> Row | None:
        row: Row | None = self._execute(sql, values).fetchone()
        return row

    def run(self, sql: str, **values: object) -> int:
        return self._execute(sql, values).rowcount

    def many(self, sql: str, rows: Sequence[Mapping[str, object]]) -> int:
        if not rows:
            return 0
        try:
            return self._connection.executemany(sql, rows).rowcount
        except sqlite3.IntegrityError as error:
            raise _translated(error) from error

    def _execute(self, sql: str, values: Mapping[str, object]) -> sqlite3.Cursor:
        try:
            return self._connection.execute(sql, values)
        except sqlite3.IntegrityError as error:
            raise _translated(error) from error

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        self._depth += 1
        name = f"s{self._depth}"
        self._connection.execute(f"SAVEPOINT {name}")
        kept = len(self.wakes)
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute(f"ROLLBACK TO {name}")
                self._connection.execute(f"RELEASE {name}")
            del self.wakes[kept:]
            raise
        else:
            self._connection.execute(f"RELEASE {name}")
        finally:
            self._depth -= 1

    def now_ms(self) -> int:
        return self._clock()

    def new_id(self, prefix: str) -> str:
        return type_id(prefix, self.now_ms(), secrets.token_bytes(10))

    def wake(self, topic: str, key: str = "") -> None:
        if (topic, key) not in self.wakes:
            self.wakes.append((topic, key))


def _translated(error: sqlite3.IntegrityError) -> Exception:
    text = str(error)
    return Overlap(text) if text.startswith("overlap:") else ConstraintViolated(text)


class SqliteDatabase(Database):
    """See Database. Opens, migrates and locks the file; raises BadConfiguration."""

    engine = "sqlite"

    def __init__(self, path: Path, *, clock: Callable[[], int] = _system_clock_ms) -> None:
        self.wakes = Wakes()
        self._path = path
        steady = SteadyClock()
        self._clock = lambda: steady.steady_ms(clock())
        self._lock_file = _lock(path)
        self._connections: list[sqlite3.Connection] = []
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._local = threading.local()
        try:
            self._writer = self._open()
            _check(self._writer)
            _migrate(self._writer)
        except sqlite3.Error as error:
            self._let_go()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING_ERRORS:
                raise StoreUnavailable(f"{path}: cannot be used now ({error})") from error
            raise BadConfiguration(
                f"{path}: cannot be used as a database ({error}); restore it from a backup"
            ) from error
        except BaseException:
            self._let_go()
            raise
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store-read")
        self._thread = threading.Thread(target=self._write_loop, name="store-write", daemon=True)
        self._thread.start()
        self._closed = False

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, cached_statements=512
        )
        self._connections.append(connection)
        connection.row_factory = sqlite3.Row
        connection.create_function("compute_now", 0, self._clock)
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        return connection

    async def write(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._closed:
            raise StoreUnavailable("the database is closed")
        job = Job.of(lambda tx: work(tx, *args, **kwargs))
        self._jobs.put(job)
        result: T = await job.future
        return result

    async def read(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._closed:
            raise StoreUnavailable("the database is closed")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._readers, lambda: self._read(lambda tx: work(tx, *args, **kwargs))
        )

    def _read(self, work: Callable[[Transaction], T]) -> T:
        try:
            connection = self._reader()
            connection.execute("BEGIN")
            try:
                return work(SqliteTransaction(connection, self._clock))
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except sqlite3.DatabaseError as error:
            raise _plainly(error) from error

    def _reader(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._open()
            connection.execute("PRAGMA query_only=ON")
            self._local.connection = connection
        return connection

    def _write_loop(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            group = [job]
            last = False
            while len(group) < _GROUP:
                try:
                    more = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    last = True
                    break
                group.append(more)
            self._commit_group(group)
            if last:
                return

    def _commit_group(self, group: Sequence[Job]) -> None:
        group = [job for job in group if not job.future.cancelled()]
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for job in group:
                self._run_job(job)
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
            for job in group:
                job.wakes.clear()
                job.error = StoreUnavailable(f"the database did not commit: {error}")
                job.error.__cause__ = error
        self.wakes.fire([wake for job in group for wake in job.wakes])
        answer(group)

    def _run_job(self, job: Job) -> None:
        tx = SqliteTransaction(self._writer, self._clock)
        try:
            with tx.savepoint():
                job.result = job.work(tx)
                job.wakes = tx.wakes
        except BaseException as error:  # whatever it is, it belongs to the caller
            if not self._writer.in_transaction:  # SQLite gave the whole transaction up
                raise sqlite3.OperationalError(str(error)) from error
            job.error = _plainly(error) if isinstance(error, sqlite3.DatabaseError) else error

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._readers.shutdown)
        self._let_go()

    def _let_go(self) -> None:
        for connection in self._connections:
            connection.close()
        os.close(self._lock_file)


def _plainly(error: sqlite3.DatabaseError) -> Exception:
    """The error itself for a wrong statement, StoreUnavailable for a file that gave way."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return StoreUnavailable(f"the database failed: {error}") if code in _FILE_ERRORS else error


def _lock(path: Path) -> int:
    """Keep other processes off the file, and other users; the lock goes with the process."""
    try:
        _make_private(path)
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BadConfiguration(
            f"{path}: cannot be opened ({error.strerror}); create its folder and give this "
            "program's user the right to write there"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StoreUnavailable(
            f"{path}: is in use by another process; a SQLite file belongs to one placer: stop "
            "the other one, or use PostgreSQL"
        ) from error
    return descriptor


def _make_private(path: Path) -> None:
    """Make the file where it is missing, for this user only; a device or pipe is left alone."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadConfiguration(f"{path}: is not a plain file; name another database")
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _check(connection: sqlite3.Connection) -> None:
    problem = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    if problem != "ok":
        raise sqlite3.DatabaseError(" ".join(problem.split()))


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute(VERSION_TABLE)
    row = connection.execute("SELECT version FROM schema_version").fetchone()
    version = row["version"] if row else 0
    for migration in pending("sqlite", version):
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{migration.sql}\n"
            f"DELETE FROM schema_version; INSERT INTO schema_version VALUES ({migration.version});"
            "COMMIT;"
        )
