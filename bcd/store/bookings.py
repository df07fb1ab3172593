"""Bookings: which device is taken when. That no two overlap is a rule of the database."""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bcd.model.ids import AllocationId, NodeId, ReservationId
from bcd.store.atoms import Atom
from bcd.store.database import Overlap, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBooking:
    """An allocation's devices on one node; the range includes the pool's turnaround."""

    allocation_id: AllocationId
    reservation_id: ReservationId
    node_id: NodeId
    atoms: tuple[Atom, ...]
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Interval:
    """A booked range of one atom."""

    atom_id: int
    start_ms: int
    end_ms: int


def book(tx: Transaction, booking: NewBooking) -> bool:
    """Book every device or none; False when somebody else has one of them then.

    Rows go in by ascending atom, so that two bookings never wait for each other crosswise.
    """
    ordered = sorted(booking.atoms, key=lambda atom: atom.id)
    values: dict[str, object] = {
        "allocation_id": booking.allocation_id,
        "reservation_id": booking.reservation_id,
        "node_id": booking.node_id,
        "start_ms": booking.start_ms,
        "end_ms": booking.end_ms,
    }
    for place, atom in enumerate(ordered):
        values |= {f"atom_{place}": atom.id, f"gpu_{place}": atom.gpu_id}
        values[f"mode_{place}"] = atom.mode
    try:
        booked = tx.run(_insertion(len(ordered)), **values)
    except Overlap:
        booked = 0
    if booked == len(ordered):
        return True
    tx.run(
        "DELETE FROM bookings WHERE reservation_id = :reservation_id AND allocation_id = :id",
        reservation_id=booking.reservation_id,
        id=booking.allocation_id,
    )
    return False


@functools.cache
def _insertion(count: int) -> str:
    rows = ", ".join(
        "(:allocation_id, :reservation_id, :node_id,"
        f" :atom_{place}, :gpu_{place}, :mode_{place}, :start_ms, :end_ms)"
        for place in range(count)
    )
    return (
        "INSERT INTO bookings (allocation_id, reservation_id, node_id, atom_id, gpu_id, mode,"
        f" start_ms, end_ms) VALUES {rows} ON CONFLICT DO NOTHING"
    )


def live_on(
    tx: Transaction, node_ids: Sequence[NodeId], now_ms: int
) -> Mapping[NodeId, Sequence[Interval]]:
    """Bookings that end after now, by node; for many nodes ask ``live_in_pool``."""
    found: dict[NodeId, Sequence[Interval]] = {}
    for node_id in node_ids:
        rows = tx.all(
            "SELECT atom_id, start_ms, end_ms FROM bookings"
            " WHERE node_id = :node_id AND end_ms > :now_ms",
            node_id=node_id,
            now_ms=now_ms,
        )
        found[node_id] = [Interval(r["atom_id"], r["start_ms"], r["end_ms"]) for r in rows]
    return found


def live_in_pool(tx: Transaction, pool_id: str, now_ms: int) -> Mapping[NodeId, Sequence[Interval]]:
    """Bookings of a pool that end after now, by node; nodes without any are absent."""
    found: defaultdict[NodeId, list[Interval]] = defaultdict(list)
    rows = tx.all(
        "SELECT b.node_id, b.atom_id, b.start_ms, b.end_ms FROM bookings b"
        " JOIN nodes n ON n.id = b.node_id WHERE n.pool_id = :pool_id AND b.end_ms > :now_ms",
        pool_id=pool_id,
        now_ms=now_ms,
    )
    for row in rows:
        found[row["node_id"]].append(Interval(row["atom_id"], row["start_ms"], row["end_ms"]))
    return found


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has an atom now; the reservation may be a maintenance window's."""

    reservation_id: ReservationId
    tenant_id: str


def holders(tx: Transaction, node_id: NodeId, now_ms: int) -> Mapping[int, Holder]:
    """Which reservation has each atom of a node now."""
    rows = tx.all(
        "SELECT b.atom_id, b.reservation_id, r.tenant_id FROM bookings b"
        " JOIN reservations r ON r.id = b.reservation_id WHERE b.node_id = :node_id"
        " AND b.start_ms <= :now_ms AND b.end_ms > :now_ms",
        node_id=node_id,
        now_ms=now_ms,
    )
    return {row["atom_id"]: Holder(row["reservation_id"], row["tenant_id"]) for row in rows}


def booked_on(
    tx: Transaction, node_id: NodeId, start_ms: int, end_ms: int
) -> Sequence[ReservationId]:
    """The reservations that have some device of a node at some time in the window, by id."""
    rows = tx.all(
        "SELECT DISTINCT reservation_id FROM bookings WHERE node_id = :node_id"
        " AND start_ms < :end_ms AND end_ms > :start_ms ORDER BY reservation_id",
        node_id=node_id,
        start_ms=start_ms,
        end_ms=end_ms,
    )
    return [row["reservation_id"] for row in rows]


def end_at(
    tx: Transaction, reservation_id: ReservationId, now_ms: int, gap_ms: int
) -> Sequence[NodeId]:
    """End a reservation's bookings now; returns the nodes on which something was freed.

    Current ones are truncated, ``gap_ms`` (the pool's turnaround) after now; future ones, and
    those that would have no length, are deleted.
    """
    until_ms = now_ms + gap_ms
    rows = tx.all(
        "SELECT DISTINCT node_id FROM bookings WHERE reservation_id = :reservation_id"
        " AND (end_ms > :until_ms OR start_ms >= :now_ms) ORDER BY node_id",
        reservation_id=reservation_id,
        until_ms=until_ms,
        now_ms=now_ms,
    )
    if not rows:
        return ()
    tx.run(
        "DELETE FROM bookings WHERE reservation_id = :reservation_id AND start_ms >= :now_ms",
        reservation_id=reservation_id,
        now_ms=now_ms,
    )
    tx.run(
        "UPDATE bookings SET end_ms = :until_ms"
        " WHERE reservation_id = :reservation_id AND end_ms > :until_ms",
        reservation_id=reservation_id,
        until_ms=until_ms,
    )
    return [row["node_id"] for row in rows]
