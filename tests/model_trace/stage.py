"""Empty databases for one history after another, with a clock that the history sets."""

import asyncio
import shutil
import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path

import psycopg

from bcd.store.database import Database
from bcd.store.open import open_database
from bcd.store.sqlite import SqliteDatabase
from tests.model_trace.recording import (
    RecordedDatabase,
    record_postgresql,
    record_sqlite,
)

FIRST_MS = 1_900_000_000_000


class Stage(ABC):
    """One engine's databases. The clock only goes forward, over all histories."""

    now = FIRST_MS

    @abstractmethod
    def clear(self) -> None:
        """Make the database empty for the next history."""

    @abstractmethod
    def _open(self) -> Database:
        """Open the real database."""

    def advance(self, ms: int) -> None:
        """Move the database's clock forward."""
        self.now += ms

    def open(self) -> RecordedDatabase:
        """The database, recorded."""
        return RecordedDatabase(self._open())

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""


class SqliteStage(Stage):
    """A file, copied anew from a template."""

    def __init__(self, folder: Path) -> None:
        self._template, self._path = folder / "template.db", folder / "trace.db"
        asyncio.run(_migrate(self._template))
        with sqlite3.connect(self._template) as connection:
            record_sqlite(connection)
        connection.close()

    def clear(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        shutil.copy(self._template, self._path)

    def _open(self) -> Database:
        return SqliteDatabase(self._path, clock=lambda: self.now)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)


async def _migrate(path: Path) -> None:
    await SqliteDatabase(path).close()


class PostgresqlStage(Stage):
    """A database of a server, emptied each time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._beside = psycopg.connect(url, autocommit=True)
        record_postgresql(self._beside)
        rows = self._beside.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            " AND tablename NOT IN ('schema_version', 'control', 'trace_clock')"
        ).fetchall()
        deletes = "".join(f"DELETE FROM {name};" for (name,) in rows)
        self._empty = f"SET LOCAL session_replication_role = replica; {deletes}"
        self.advance(0)

    def clear(self) -> None:
        with self._beside.transaction():
            self._beside.execute(self._empty.encode())

    def advance(self, ms: int) -> None:
        super().advance(ms)
        self._beside.execute("UPDATE trace_clock SET now = %s", (self.now,))

    def _open(self) -> Database:
        return open_database(self._url)

    def close(self) -> None:
        self._beside.close()
