"""PostgreSQL: a small pool of threads with a connection each, and LISTEN/NOTIFY.

Deadlocks and serialization failures mean "lost the race": the transaction runs again, a few
times. A connection that breaks before COMMIT was sent is replaced and the transaction run again;
one that breaks during COMMIT leaves the outcome unknown, and the caller is told so. A server that
became a standby, is full or is broken counts as away: the next connection may find another one.
"""

import asyncio
import contextlib
import logging
import os
import random
import secrets
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bcd.model.errors import BadConfiguration
from bcd.model.ids import type_id
from bcd.store.connection import Connection, break_off, connect, connect_bounded, is_away
from bcd.store.database import (
    ConstraintViolated,
    Database,
    Lane,
    LostEveryRace,
    Overlap,
    P,
    Row,
    SteadyClock,
    StoreUnavailable,
    T,
    Transaction,
    Wakes,
)
from bcd.store.dialect import numbered_statement, postgresql_schema
from bcd.store.lanes import Lanes
from bcd.store.migrate import VERSION_TABLE, newest_version, pending

logger = logging.getLogger(__name__)

_WRITERS = 4
_READERS = 2
_ATTEMPTS = 8
_LISTEN_WAIT_S = 5.0
_CLOSE_GRACE_S = 5.0
_CHANNEL = "bcd"
_MIGRATION_LOCK = 0x626364
GATEWAY_ROLE = "bcd_gateway"

_LOST_RACE = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


class PostgresqlTransaction:
    """See Transaction."""

    for_update = " FOR NO KEY UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"

    def __init__(self, connection: Connection, clock: SteadyClock) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._clock = clock
        self._depth = 0
        self.wakes: list[tuple[str, str]] = []

    def all(self, sql: str, **values: object) -> Sequence[Row]:
        return self._execute(sql, values).fetchall()

    def one(self, sql: str, **values: object) -> Row | None:
        return self._execute(sql, values).fetchone()

    def run(self, sql: str, **values: object) -> int:
        return self._execute(sql, values).rowcount

    def many(self, sql: str, rows: Sequence[Mapping[str, object]]) -> int:
        if len(rows) <= 1:
            return self.run(sql, **rows[0]) if rows else 0
        statement, names = numbered_statement(sql)
        try:
            self._cursor.executemany(statement, [[row[name] for name in names] for row in rows])
        except psycopg.IntegrityError as error:
            raise _translated(error) from error
        return self._cursor.rowcount

    def _execute(self, sql: str, values: Mapping[str, object]) -> psycopg.Cursor[dict[str, Any]]:
        statement, names = numbered_statement(sql)
        try:
            return self._cursor.execute(statement, [values[name] for name in names])
        except psycopg.IntegrityError as error:
            raise _translated(error) from error

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        # Not psycopg's transaction(): as the first statement it would commit on its own.
        self._depth += 1
        name = f"s{self._depth}"
        self._command(f"SAVEPOINT {name}")
        kept = len(self.wakes)
        try:
            yield
        except BaseException:
            with contextlib.suppress(psycopg.OperationalError):  # the first error says more
                self._command(f"ROLLBACK TO {name}")
                self._command(f"RELEASE {name}")
            del self.wakes[kept:]
            raise
        else:
            self._command(f"RELEASE {name}")
        finally:
            self._depth -= 1

    def _command(self, sql: str) -> None:
        self._cursor.execute(sql.encode(), prepare=False)

    def now_ms(self) -> int:
        row = self._cursor.execute("SELECT compute_now() AS now").fetchone()
        assert row is not None
        return self._clock.steady_ms(row["now"])

    def new_id(self, prefix: str) -> str:
        # Ids only have to sort roughly by time, which is not worth asking the server.
        return type_id(prefix, time.time_ns() // 1_000_000, secrets.token_bytes(10))

    def wake(self, topic: str, key: str = "") -> None:
        if (topic, key) not in self.wakes:
            self.wakes.append((topic, key))

    def send_wakes(self) -> None:
        """Queue the notifications; the server sends them at COMMIT."""
        if self.wakes:
            self._cursor.execute(
                "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload",
                (_CHANNEL, [f"{topic} {key}" for topic, key in self.wakes]),
            )


def _translated(error: psycopg.IntegrityError) -> Exception:
    if isinstance(error, psycopg.errors.ExclusionViolation):
        return Overlap(str(error))
    return ConstraintViolated(str(error))


class PostgresqlDatabase(Database):
    """See Database. ``migrate`` is False for a program that may not change the schema."""

    engine = "postgresql"

    def __init__(self, url: str, *, migrate: bool = True) -> None:
        self.wakes = Wakes()
        self._url = url
        self._clock = SteadyClock()
        self._local = threading.local()
        self._open: set[Connection] = set()
        self._closed = threading.Event()
        self._listening = threading.Event()
        _prepare_schema(url, migrate=migrate)
        self._ending, self._end = os.pipe()
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="store-write")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store-read")
        self._lanes = Lanes(self._writers, lambda work: self._transact(work, False))
        self._listener = threading.Thread(target=self._listen, name="store-listen", daemon=True)
        self._listener.start()
        self._listening.wait(_LISTEN_WAIT_S)

    async def write(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._submit(
            self._writers, lambda: self._transact(lambda tx: work(tx, *args, **kwargs), False)
        )

    async def write_in(
        self,
        lane: Lane,
        work: Callable[Concatenate[Transaction, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if self._closed.is_set():
            raise StoreUnavailable("the database is closed")
        result: T = await self._lanes.run(lane, lambda tx: work(tx, *args, **kwargs))
        return result

    async def read(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._submit(
            self._readers, lambda: self._transact(lambda tx: work(tx, *args, **kwargs), True)
        )

    async def _submit(self, executor: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        if self._closed.is_set():
            raise StoreUnavailable("the database is closed")
        return await asyncio.get_running_loop().run_in_executor(executor, call)

    def _transact(self, work: Callable[[Transaction], T], read_only: bool) -> T:
        for attempt in range(_ATTEMPTS):
            connection = self._connection(read_only)
            tx = PostgresqlTransaction(connection, self._clock)
            try:
                result = work(tx)
                if not read_only:
                    tx.send_wakes()
            except _LOST_RACE:
                self._rollback(connection)
                time.sleep(random.uniform(0, 0.02 * 2**attempt))  # noqa: S311
                continue
            except psycopg.Error as error:
                if not is_away(error):
                    self._rollback(connection)
                    raise
                self._drop()
                if attempt or self._closed.is_set():
                    raise StoreUnavailable(f"the database went away: {error}") from error
                continue
            except BaseException:
                self._rollback(connection)
                raise
            try:
                connection.commit()
            except psycopg.Error as error:
                self._drop()
                if isinstance(error, _LOST_RACE):
                    continue
                raise StoreUnavailable(f"the database did not commit: {error}") from error
            return result
        raise LostEveryRace(f"the transaction lost every one of {_ATTEMPTS} races")

    def _rollback(self, connection: Connection) -> None:
        try:
            connection.rollback()
        except psycopg.Error:
            self._drop()

    def _connection(self, read_only: bool) -> Connection:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None or connection.closed:
            if self._closed.is_set():
                raise StoreUnavailable("the database is closed")
            connection = connect_bounded(self._url)
            if read_only:
                connection.read_only = True
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._local.connection = connection
            self._open.add(connection)
        return connection

    def _drop(self) -> None:
        connection: Connection | None = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            self._open.discard(connection)
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                with connect(self._url) as connection:
                    connection.autocommit = True
                    connection.execute(f"LISTEN {_CHANNEL}")
                    self._listening.set()
                    self._forward(connection)
            except (psycopg.Error, StoreUnavailable):
                logger.warning("lost the wake-up connection; the ticks carry on")
                self._closed.wait(1.0)

    def _forward(self, connection: Connection) -> None:
        ready = select.poll()  # the descriptor may be too high for select()
        ready.register(connection.fileno(), select.POLLIN)
        ready.register(self._ending, select.POLLIN)
        while not self._closed.is_set():
            ready.poll()
            told = [notify.payload.partition(" ") for notify in connection.notifies(timeout=0)]
            self.wakes.fire([(topic, key) for topic, _, key in told])

    async def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        os.write(self._end, b".")
        joins = (self._writers.shutdown, self._readers.shutdown, self._listener.join)
        ending = [asyncio.create_task(asyncio.to_thread(join)) for join in joins]
        _, stuck = await asyncio.wait(ending, timeout=_CLOSE_GRACE_S)
        if stuck:
            logger.warning("the database does not answer; closing its connections")
            for connection in tuple(self._open):
                break_off(connection)
            await asyncio.wait(stuck)
        os.close(self._end)
        os.close(self._ending)
        for connection in tuple(self._open):
            connection.close()


def _prepare_schema(url: str, *, migrate: bool) -> None:
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # The error repeats a part of the URL, which may be its password. Later ones do not.
        raise BadConfiguration(
            "database: is no PostgreSQL URL; write postgresql://user@host/name, and what is no"
            " letter, digit or one of -._~ percent-encoded"
        ) from error
    try:
        with connect(url) as connection:
            if migrate:
                _migrate(connection)
            else:
                _check_version(connection)
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"the database went away: {error}") from error
    except psycopg.Error as error:
        raise BadConfiguration(f"the database's schema cannot be used: {error}") from error


def _migrate(connection: Connection) -> None:
    connection.execute("SELECT pg_advisory_xact_lock($1)", (_MIGRATION_LOCK,))
    connection.execute(VERSION_TABLE)
    row = connection.execute("SELECT version FROM schema_version").fetchone()
    todo = pending("postgresql", row["version"] if row else 0)
    if todo:
        _create_gateway_role(connection)
    for migration in todo:
        connection.execute(postgresql_schema(migration.sql).encode())
        connection.execute("DELETE FROM schema_version")
        connection.execute("INSERT INTO schema_version VALUES ($1)", (migration.version,))
    connection.commit()


def _create_gateway_role(connection: Connection) -> None:
    known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = $1", (GATEWAY_ROLE,))
    if known.fetchone() is None:
        try:
            with connection.transaction():
                connection.execute(f"CREATE ROLE {GATEWAY_ROLE} NOLOGIN".encode())
        except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            return  # another database of this server was migrated at the same moment
        except psycopg.errors.InsufficientPrivilege as error:
            raise BadConfiguration(
                f"the role {GATEWAY_ROLE} does not exist and this user may not create it: "
                f"as a superuser, run CREATE ROLE {GATEWAY_ROLE} NOLOGIN"
            ) from error


def _check_version(connection: Connection) -> None:
    table = connection.execute("SELECT to_regclass('schema_version') AS name").fetchone()
    row = None
    if table is not None and table["name"] is not None:
        row = connection.execute("SELECT version FROM schema_version").fetchone()
    version = row["version"] if row else 0
    newest = newest_version("postgresql")
    if version < newest:
        raise StoreUnavailable(
            f"the database has schema version {version}, this program needs {newest}: start the"
            " placer of the same release"
        )
    if version > newest:
        raise BadConfiguration(
            f"the database has schema version {version}, this program knows {newest}: install the"
            " release of the placer here"
        )
