"""Maintenance windows as they stand in the database: reservations of a kind of their own.

Each has one allocation, which only ties its bookings to the node and never gets there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bcd.model.errors import InvalidInput, NotFound
from bcd.model.ids import NodeId, PoolId, ReservationId
from bcd.model.reservation import Request, Window
from bcd.store.database import Row, Transaction

_REQUEST = msgspec.json.Decoder(Request)
_WINDOWS = (
    "SELECT r.id, r.pool_id, a.node_id, r.start_ms, r.end_ms, r.request FROM reservations r"
    " JOIN allocations a ON a.reservation_id = r.id WHERE r.kind = 'maintenance'"
)
REASON = "reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """When a node is kept free, and why."""

    id: ReservationId
    pool_id: PoolId
    node_id: NodeId
    during: Window
    reason: str


def _maintenance(row: Row) -> Maintenance:
    return Maintenance(
        id=row["id"],
        pool_id=row["pool_id"],
        node_id=row["node_id"],
        during=Window(row["start_ms"], row["end_ms"]),
        reason=_REQUEST.decode(row["request"]).labels.get(REASON, ""),
    )


def get(tx: Transaction, window_id: ReservationId) -> Maintenance:
    """Read a window, also one that is over; raises NotFound."""
    row = tx.one(f"{_WINDOWS} AND r.id = :id", id=window_id)
    if row is None:
        raise NotFound(f"there is no maintenance window {window_id[:64]}", id=window_id[:64])
    return _maintenance(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which windows a list shows; empty strings filter nothing."""

    pool_id: str = ""
    node_id: str = ""


def page(tx: Transaction, wanted: Filter, after: str, limit: int) -> Sequence[Maintenance]:
    """At most ``limit`` windows that are not over, by start, behind the one with the id ``after``.

    Raises InvalidInput when there is no such window: an empty page would look like the last one.
    """
    last = tx.one(f"{_WINDOWS} AND r.id = :after", after=after) if after else None
    if after and last is None:
        raise InvalidInput("cursor", "names no maintenance window; list without one")
    rows = tx.all(
        f"{_WINDOWS} AND r.state IN ('placed', 'binding', 'active')"
        " AND (:pool_id = '' OR r.pool_id = :pool_id)"
        " AND (:node_id = '' OR a.node_id = :node_id)"
        " AND (r.start_ms > :start_ms OR (r.start_ms = :start_ms AND r.id > :after))"
        " ORDER BY r.start_ms, r.id LIMIT :limit",
        pool_id=wanted.pool_id,
        node_id=wanted.node_id,
        start_ms=-1 if last is None else last["start_ms"],
        after=after,
        limit=limit,
    )
    return [_maintenance(row) for row in rows]
