"""Reads a system's database from outside, while its programs run or after they were killed."""

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row


def query(url: str, sql: str) -> Sequence[Mapping[str, Any]]:
    """Rows of a SELECT on either engine."""
    if url.startswith("sqlite:///"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql)]
    with psycopg.connect(url, row_factory=dict_row) as connection:
        return connection.execute(sql.encode()).fetchall()


def event_names(url: str, reservation_id: str) -> list[str]:
    """The last parts of a reservation's event types, in order."""
    rows = query(
        url, f"SELECT type FROM events WHERE subject = 'reservation/{reservation_id}' ORDER BY seq"
    )
    return [row["type"].removeprefix("reservation.") for row in rows]


def overlaps(url: str) -> Sequence[Mapping[str, Any]]:
    """Pairs of bookings that have one device, or one GPU in two modes, at the same time."""
    return query(
        url,
        "SELECT a.id, b.id AS other FROM bookings a JOIN bookings b ON a.id < b.id"
        " AND (a.atom_id = b.atom_id OR (a.gpu_id = b.gpu_id AND a.mode <> b.mode))"
        " AND a.start_ms < b.end_ms AND b.start_ms < a.end_ms",
    )


def quota_drift(url: str) -> Sequence[Mapping[str, Any]]:
    """Quotas whose use is not the sum of the charges."""
    return query(
        url,
        "SELECT q.tenant_id, q.resource, q.used, coalesce(sum(c.amount), 0) AS charged"
        " FROM quotas q LEFT JOIN quota_charges c"
        " ON c.tenant_id = q.tenant_id AND c.resource = q.resource"
        " GROUP BY q.tenant_id, q.resource, q.used"
        " HAVING q.used <> coalesce(sum(c.amount), 0)",
    )


def is_idle(url: str) -> bool:
    """Whether nothing is due, and no worker has anything in hand."""
    now_ms = time.time_ns() // 1_000_000
    due = f"wake_ms <= {now_ms} OR lock_until_ms > {now_ms}"
    return not query(url, f"SELECT key FROM work WHERE {due}")


def signed_names(url: str, reservation_id: str) -> list[str]:
    """The CDI names in the binding that the signed report gave."""
    rows = query(
        url,
        "SELECT binding FROM allocations WHERE binding IS NOT NULL"
        f" AND reservation_id = '{reservation_id}'",
    )
    return [name for row in rows for name in json.loads(row["binding"])["cdiDevices"]]
