"""Who may stage a longer duration for a reservation: one extend at a time (spec 14.3).

The hold is a nonce of the server's; its age is that of the database's clock.
"""

from bcd.model.ids import ReservationId
from bcd.store.database import Transaction

HOLD_MS = 60_000


def take(tx: Transaction, reservation_id: ReservationId, hold: str, duration_ms: int) -> bool:
    """Take the slot, or stage another duration in one's own; False while somebody else has it.

    A hold of more than a minute is taken over.
    """
    taken = tx.one(
        "INSERT INTO extend_holds (reservation_id, hold, taken_ms, duration_ms)"
        " VALUES (:id, :hold, compute_now(), :duration_ms)"
        " ON CONFLICT (reservation_id) DO UPDATE SET hold = excluded.hold,"
        " taken_ms = excluded.taken_ms, duration_ms = excluded.duration_ms"
        " WHERE extend_holds.hold = excluded.hold"
        " OR extend_holds.taken_ms < excluded.taken_ms - :hold_ms RETURNING hold",
        id=reservation_id,
        hold=hold,
        duration_ms=duration_ms,
        hold_ms=HOLD_MS,
    )
    return taken is not None


def staged_ms(tx: Transaction, reservation_id: ReservationId, hold: str) -> int | None:
    """The duration that this hold staged; None once it no longer has the slot. Locks the slot."""
    row = tx.one(
        "SELECT duration_ms FROM extend_holds"
        f" WHERE reservation_id = :id AND hold = :hold{tx.for_update}",
        id=reservation_id,
        hold=hold,
    )
    return None if row is None else int(row["duration_ms"])


def clear(tx: Transaction, reservation_id: ReservationId, hold: str) -> None:
    """Give the slot back, unless somebody else has it by now."""
    tx.run(
        "DELETE FROM extend_holds WHERE reservation_id = :id AND hold = :hold",
        id=reservation_id,
        hold=hold,
    )
