"""The database's clock, moved by hand on either engine."""

import time
from pathlib import Path

import psycopg

from bcd.store.database import Database
from bcd.store.open import open_database
from bcd.store.sqlite import SqliteDatabase


class DatabaseClock:
    """Tells the real time until ``set`` or ``advance`` takes it over; stands still from then on."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._now_ms: int | None = None

    def read(self) -> int:
        """Epoch milliseconds."""
        return time.time_ns() // 1_000_000 if self._now_ms is None else self._now_ms

    def advance(self, ms: int) -> None:
        """Move the clock forward."""
        self.set(self.read() + ms)

    def set(self, now_ms: int) -> None:
        """Show ``now_ms``; a time in the past is a clock that stepped back."""
        self._now_ms = now_ms
        if not self._url.startswith("sqlite:"):
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(
                    "CREATE OR REPLACE FUNCTION compute_now() RETURNS bigint LANGUAGE sql VOLATILE"
                    f" AS $$ SELECT {now_ms}::bigint $$".encode()
                )

    def open(self) -> Database:
        """Open the database so that it reads this clock."""
        if self._url.startswith("sqlite:"):
            return SqliteDatabase(Path(self._url.removeprefix("sqlite:///")), clock=self.read)
        return open_database(self._url)
