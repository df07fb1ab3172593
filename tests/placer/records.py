"""Looks at a whole database from beside the store: every table, overlaps, charges, raw changes."""

import itertools
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from bcd.store.database import Database, Row, Transaction

_TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
    "postgresql": "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'",
}

Tables = Mapping[str, Sequence[str]]


async def tables(database: Database) -> Tables:
    """The rows of every table as text, sorted, by table."""

    def read(tx: Transaction) -> Tables:
        names = sorted(row["name"] for row in tx.all(_TABLES[database.engine]))
        return {
            name: sorted(repr(_plain(row)) for row in tx.all(f"SELECT * FROM {name}"))
            for name in names
        }

    return await database.read(read)


def _plain(row: Row) -> list[tuple[str, Any]]:
    items = dict(row).items()
    return [(key, bytes(v) if isinstance(v, memoryview) else v) for key, v in items]


async def rows(database: Database, sql: str, **values: object) -> Sequence[Row]:
    """The rows of a query."""
    return await database.read(lambda tx: [dict(row) for row in tx.all(sql, **values)])


async def count(database: Database, sql: str, **values: object) -> int:
    """The one number of a query."""
    (row,) = await rows(database, sql, **values)
    return int(next(iter(row.values())))


async def assert_no_overlap(database: Database) -> None:
    """Sweep over all bookings: no device twice, no GPU in two modes at one time."""
    found = await rows(database, "SELECT atom_id, gpu_id, mode, start_ms, end_ms FROM bookings")
    by_atom = defaultdict(list)
    by_gpu = defaultdict(list)
    for row in found:
        assert row["start_ms"] < row["end_ms"]
        by_atom[row["atom_id"]].append((row["start_ms"], row["end_ms"]))
        by_gpu[row["gpu_id"]].append((row["start_ms"], row["end_ms"], row["mode"]))
    for intervals in by_atom.values():
        intervals.sort()
        for (_, end), (start, _) in itertools.pairwise(intervals):
            assert end <= start
    for uses in by_gpu.values():
        for one in uses:
            for other in uses:
                apart = one[1] <= other[0] or other[1] <= one[0]
                assert apart or one[2] == other[2]


async def assert_hosts_hold(database: Database) -> None:
    """Sweep over all amounts: at every start on a host, what is booked is within what it has."""
    capacities = await rows(database, "SELECT * FROM host_capacity")
    found = await rows(database, "SELECT * FROM host_bookings")
    for capacity in capacities:
        mine = [row for row in found if row["node_id"] == capacity["node_id"]]
        for moment in {row["start_ms"] for row in mine}:
            now = [row for row in mine if row["start_ms"] <= moment < row["end_ms"]]
            for name in ("vcpu", "memory_gib", "hugepages_1gi"):
                assert sum(row[name] for row in now) <= capacity[name]
    known = {row["node_id"] for row in capacities}
    assert all(row["node_id"] in known for row in found)


_CHARGED = ("pending", "placed", "binding", "active")


async def assert_quota_adds_up(database: Database) -> None:
    """``used`` is the sum of the charges, and only reservations in the middle of life have any."""
    drift = await rows(
        database,
        "SELECT q.tenant_id, q.resource, q.used, coalesce(sum(c.amount), 0) AS charged"
        " FROM quotas q LEFT JOIN quota_charges c ON c.tenant_id = q.tenant_id"
        " AND c.resource = q.resource AND c.in_quota = 1 GROUP BY q.tenant_id, q.resource, q.used"
        " HAVING q.used <> coalesce(sum(c.amount), 0)",
    )
    assert drift == []
    with_charges = await rows(
        database,
        "SELECT r.state, count(c.resource) AS charges FROM reservations r"
        " LEFT JOIN quota_charges c ON c.reservation_id = r.id WHERE r.kind = 'reservation'"
        " GROUP BY r.id, r.state",
    )
    for row in with_charges:
        assert (row["charges"] > 0) == (row["state"] in _CHARGED), row


class Beside:
    """A connection of its own to the same database, for changes behind the store's back."""

    def __init__(self, url: str) -> None:
        self._url = url

    def execute(self, sql: str) -> None:
        """Run one statement and commit it; fails where something stays locked.

        Both engines wait a little. A placer beside may be writing, and PostgreSQL's own vacuum
        locks a whole table for the moment in which it gives the end of the table back.
        """
        if self._url.startswith("sqlite:"):
            with sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=2) as lite:
                lite.create_function("compute_now", 0, lambda: 0)
                lite.execute(sql)
            return
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("SET lock_timeout = '2s'")
            connection.execute(sql.encode())

    def open_transactions(self) -> int:
        """How many connections have a transaction open, on PostgreSQL.

        Who listens for wake-ups is left out: the server itself opens one there for each.
        """
        return self._connections("xact_start IS NOT NULL AND query NOT LIKE 'LISTEN %'")

    def waiting_for_locks(self) -> int:
        """How many connections wait for a lock, on PostgreSQL."""
        return self._connections("wait_event_type = 'Lock'")

    def connections(self) -> int:
        """How many others are connected, on PostgreSQL."""
        return self._connections("true")

    def _connections(self, condition: str) -> int:
        with psycopg.connect(self._url, autocommit=True) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
                f" AND {condition}".encode()
            ).fetchone()
        assert row is not None
        return int(row[0])

    def assert_nothing_is_open(self) -> None:
        """No transaction is open and no row is locked: everything can be written at once."""
        if self._url.startswith("sqlite:"):
            self.execute("UPDATE pools SET region = region")
            return
        assert self.open_transactions() == 0
        for table in ("pools", "quotas", "reservations"):
            self.execute(f"SELECT 1 FROM {table} FOR UPDATE NOWAIT")
