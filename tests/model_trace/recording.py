"""A database that writes down every committed change of a row, and can stop at any statement.

Triggers write each change into a table of its own, in the transaction of the change, so that what
was rolled back leaves no trace. A fuse stops the program at a chosen statement or just after a
commit, as a crash would.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Concatenate

import psycopg

from bcd.store.database import Database, Lane, P, Row, T, Transaction

TABLES = (
    "reservations", "allocations", "bookings", "host_bookings", "events", "quotas",
    "quota_charges", "extend_holds", "shadows",
)  # fmt: skip
_MARK = "INSERT INTO trace_log (kind, op) VALUES ('commit', '')"
_TAKES_LOCK = re.compile(r"UPDATE pools\b|FROM pools\b.*FOR (NO KEY )?UPDATE")
_BOOKS = re.compile(
    r"(INSERT INTO|UPDATE|DELETE FROM) (bookings|host_bookings|allocations|quota_charges)\b"
    r"|UPDATE reservations\b"
)


class Crashed(BaseException):
    """The program ended here."""


class Fuse:
    """Counts statements; the last one that it has does not happen, and nothing does after it."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.blown = False

    def burn(self) -> None:
        """One step further; raises Crashed at the end."""
        if self.blown:
            raise Crashed
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.blown = True
                raise Crashed


class _Watched:
    """A transaction whose statements burn the fuse, and which books only under the pool's lock."""

    def __init__(self, tx: Transaction, fuse: Fuse) -> None:
        self._tx = tx
        self._fuse = fuse
        self._locked = False
        self.for_update = tx.for_update
        self.skip_locked = tx.skip_locked

    def _step(self, sql: str) -> None:
        self._fuse.burn()
        if _TAKES_LOCK.search(sql):
            self._locked = True
        assert self._locked or not _BOOKS.match(sql), f"without the pool's lock: {sql}"

    def all(self, sql: str, **values: object) -> Sequence[Row]:
        self._step(sql)
        return self._tx.all(sql, **values)

    def one(self, sql: str, **values: object) -> Row | None:
        self._step(sql)
        return self._tx.one(sql, **values)

    def run(self, sql: str, **values: object) -> int:
        self._step(sql)
        return self._tx.run(sql, **values)

    def many(self, sql: str, rows: Sequence[Mapping[str, object]]) -> int:
        self._step(sql)
        return self._tx.many(sql, rows)

    def savepoint(self) -> AbstractContextManager[None]:
        return self._tx.savepoint()

    def now_ms(self) -> int:
        return self._tx.now_ms()

    def new_id(self, prefix: str) -> str:
        return self._tx.new_id(prefix)

    def wake(self, topic: str, key: str = "") -> None:
        self._tx.wake(topic, key)


class FusedDatabase(Database):
    """The real database with a fuse in it, which several databases may share."""

    def __init__(self, inner: Database, fuse: Fuse | None = None) -> None:
        self._inner = inner
        self.engine = inner.engine
        self.wakes = inner.wakes
        self.fuse = fuse or Fuse()

    async def write(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        result = await self._inner.write(self._watched(work, *args, **kwargs))
        self.fuse.burn()
        return result

    async def write_in(
        self,
        lane: Lane,
        work: Callable[Concatenate[Transaction, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        result = await self._inner.write_in(lane, self._watched(work, *args, **kwargs))
        self.fuse.burn()
        return result

    def _watched(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[Transaction], T]:
        def watched(tx: Transaction) -> T:
            result = work(_Watched(tx, self.fuse), *args, **kwargs)
            self._finish(tx)
            return result

        return watched

    def _finish(self, tx: Transaction) -> None:
        """What comes last in a transaction."""

    async def read(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._inner.read(work, *args, **kwargs)

    async def close(self) -> None:
        await self._inner.close()


class RecordedDatabase(FusedDatabase):
    """One that marks the end of every transaction in the record."""

    def _finish(self, tx: Transaction) -> None:
        tx.run(_MARK)


@dataclass(frozen=True, slots=True)
class Change:
    """One row's change: ``before`` is empty for a new row, ``after`` for one that went."""

    table: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def commits_after(tx: Transaction, number: int) -> tuple[int, list[list[Change]]]:
    """What each transaction changed since entry ``number`` of the record; and the newest entry."""
    open_: dict[int, list[Change]] = {}
    done: list[list[Change]] = []
    rows = tx.all("SELECT * FROM trace_log WHERE n > :number ORDER BY n", number=number)
    for row in rows:
        if row["kind"] == "commit":
            done.append(open_.pop(row["tx"], []))
            continue
        before, after = (json.loads(row[side] or "{}") for side in ("before", "after"))
        open_.setdefault(row["tx"], []).append(Change(row["kind"], before, after))
    assert not open_, open_
    return (rows[-1]["n"] if rows else number), [changes for changes in done if changes]


def record_sqlite(connection: sqlite3.Connection) -> None:
    """Install the record in a SQLite file."""
    connection.execute(
        "CREATE TABLE trace_log (n INTEGER PRIMARY KEY AUTOINCREMENT, tx INTEGER DEFAULT 0,"
        " kind TEXT, op TEXT, before TEXT, after TEXT)"
    )
    for table in TABLES:
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        names = [column[1] for column in columns if column[2] != "BLOB"]
        old, new = (
            "json_object(" + ", ".join(f"'{name}', {side}.{name}" for name in names) + ")"
            for side in ("OLD", "NEW")
        )
        for op, before, after in (
            ("INSERT", "NULL", new), ("UPDATE", old, new), ("DELETE", old, "NULL"),
        ):  # fmt: skip
            connection.execute(
                f"CREATE TRIGGER trace_{table}_{op} AFTER {op} ON {table} BEGIN INSERT INTO"
                f" trace_log (kind, op, before, after) VALUES ('{table}', '{op}', {before},"
                f" {after}); END"
            )


def record_postgresql(connection: psycopg.Connection[Any]) -> None:
    """Install the record in a PostgreSQL database, and a clock that a row sets."""
    connection.execute(
        "CREATE TABLE trace_log (n BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,"
        " tx BIGINT DEFAULT txid_current(), kind TEXT, op TEXT, before TEXT, after TEXT)"
    )
    connection.execute(
        "CREATE FUNCTION trace() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO trace_log (kind, op, before, after) VALUES (TG_TABLE_NAME, TG_OP,"
        " CASE WHEN TG_OP = 'INSERT' THEN NULL ELSE row_to_json(OLD)::text END,"
        " CASE WHEN TG_OP = 'DELETE' THEN NULL ELSE row_to_json(NEW)::text END);"
        " RETURN NULL; END $$"
    )
    for table in TABLES:
        connection.execute(
            f"CREATE TRIGGER trace_{table} AFTER INSERT OR UPDATE OR DELETE ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION trace()".encode()
        )
    # What survives a crash of the server is tested elsewhere.
    connection.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off',"
        " current_database()); END $$"
    )
    connection.execute("CREATE TABLE trace_clock (now BIGINT NOT NULL)")
    connection.execute("INSERT INTO trace_clock VALUES (0)")
    connection.execute(
        "CREATE OR REPLACE FUNCTION compute_now() RETURNS bigint LANGUAGE sql VOLATILE AS"
        " $$ SELECT now FROM trace_clock $$"
    )
