"""The queue of a pool: its pending reservations, those that wait longest first."""

from collections.abc import Sequence

from bcd.model.ids import PoolId, ReservationId
from bcd.store.database import Transaction
from bcd.store.reservations import StoredReservation, stored


def pending_in(tx: Transaction, pool_id: PoolId, limit: int) -> Sequence[ReservationId]:
    """A pool's pending reservations, oldest first."""
    rows = tx.all(
        "SELECT id FROM reservations WHERE pool_id = :pool_id AND state = 'pending'"
        " ORDER BY seq LIMIT :limit",
        pool_id=pool_id,
        limit=limit,
    )
    return [row["id"] for row in rows]


def any_queued(tx: Transaction, pool_id: PoolId) -> bool:
    """Whether a pending reservation of the pool was never looked at by its placer."""
    row = tx.one(
        "SELECT id FROM reservations WHERE pool_id = :pool_id AND state = 'pending'"
        " AND operation = 'running' LIMIT 1",
        pool_id=pool_id,
    )
    return row is not None


def pending_after(
    tx: Transaction, pool_id: PoolId, seq: int, limit: int
) -> Sequence[StoredReservation]:
    """A pool's pending reservations younger than the one with that ``seq``, oldest first.

    Call under the pool's lock, which covers their rows.
    """
    rows = tx.all(
        "SELECT * FROM reservations WHERE pool_id = :pool_id AND state = 'pending'"
        " AND seq > :seq ORDER BY seq LIMIT :limit",
        pool_id=pool_id,
        seq=seq,
        limit=limit,
    )
    return [stored(row) for row in rows]


def pending_before(
    tx: Transaction, pool_id: PoolId, seq: int, limit: int
) -> Sequence[StoredReservation]:
    """A pool's pending reservations older than the one with that ``seq``, oldest first.

    No spot ones, which keep nothing. Call under the pool's lock, which covers their rows.
    """
    rows = tx.all(
        "SELECT * FROM reservations WHERE pool_id = :pool_id AND state = 'pending' AND spot = 0"
        " AND seq < :seq ORDER BY seq LIMIT :limit",
        pool_id=pool_id,
        seq=seq,
        limit=limit,
    )
    return [stored(row) for row in rows]
