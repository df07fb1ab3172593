"""Bookings: which device is taken when. That no two overlap is a rule of the database."""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bcd.model.ids import AllocationId, NodeId, ReservationId
from bcd.store import hosts
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


# Of one INSERT; engines bound the number of parameters.
_MAX_ROWS = 128


def book(tx: Transaction, *members: NewBooking) -> bool:
    """Book every device of all members or none; False when somebody else has one of them then.

    Rows go in by ascending atom, so that two bookings never wait for each other crosswise.
    """
    rows = sorted(
        ((atom, member) for member in members for atom in member.atoms),
        key=lambda row: row[0].id,
    )
    for first in range(0, len(rows), _MAX_ROWS):
        if not _insert(tx, rows[first : first + _MAX_ROWS]):
            for member in members:
                drop(tx, member.allocation_id, member.reservation_id)
            return False
    return True


def _insert(tx: Transaction, rows: Sequence[tuple[Atom, NewBooking]]) -> bool:
    values: dict[str, object] = {}
    for place, (atom, member) in enumerate(rows):
        values[f"allocation_{place}"] = member.allocation_id
        values[f"reservation_{place}"] = member.reservation_id
        values[f"node_{place}"] = member.node_id
        values[f"atom_{place}"] = atom.id
        values[f"gpu_{place}"] = atom.gpu_id
        values[f"mode_{place}"] = atom.mode
        values[f"start_{place}"] = member.start_ms
        values[f"end_{place}"] = member.end_ms
    try:
        return tx.run(_insertion(len(rows)), **values) == len(rows)
    except Overlap:
        return False


@functools.cache
def _insertion(count: int) -> str:
    rows = ", ".join(
        f"(:allocation_{place}, :reservation_{place}, :node_{place}, :atom_{place},"
        f" :gpu_{place}, :mode_{place}, :start_{place}, :end_{place})"
        for place in range(count)
    )
    return (
        "INSERT INTO bookings (allocation_id, reservation_id, node_id, atom_id, gpu_id, mode,"
        f" start_ms, end_ms) VALUES {rows} ON CONFLICT DO NOTHING"
    )


def drop(tx: Transaction, allocation_id: AllocationId, reservation_id: ReservationId) -> None:
    """Take back an allocation's devices, as though they had never been booked."""
    tx.run(
        "DELETE FROM bookings WHERE reservation_id = :reservation_id AND allocation_id = :id",
        reservation_id=reservation_id,
        id=allocation_id,
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
) -> Mapping[ReservationId, int]:
    """The reservations that have some device of a node at some time in the window, by id.

    With each, until when it has it, the pool's turnaround included.
    """
    rows = tx.all(
        "SELECT reservation_id, max(end_ms) AS until_ms FROM bookings WHERE node_id = :node_id"
        " AND start_ms < :end_ms AND end_ms > :start_ms"
        " GROUP BY reservation_id ORDER BY reservation_id",
        node_id=node_id,
        start_ms=start_ms,
        end_ms=end_ms,
    )
    return {row["reservation_id"]: row["until_ms"] for row in rows}


def end_at(
    tx: Transaction, reservation_id: ReservationId, now_ms: int, gap_ms: int
) -> Sequence[NodeId]:
    """End a reservation's bookings now, host resources included.

    Returns the nodes on which something was freed.

    Current ones are truncated, ``gap_ms`` (the pool's turnaround) after now; future ones, and
    those that would have no length, are deleted.
    """
    until_ms = now_ms + gap_ms
    hosts.end_at(tx, reservation_id, now_ms, gap_ms)
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


_LIVE = (
    "m.reservation_id = :reservation_id AND m.end_ms < :end_ms AND m.allocation_id IN"
    " (SELECT id FROM allocations WHERE reservation_id = :reservation_id AND state <> 'ended')"
)


def taken_from(tx: Transaction, reservation_id: ReservationId, end_ms: int) -> int | None:
    """The first moment before ``end_ms`` at which somebody else has what a reservation has now.

    Looked at from the end of what its live allocations have booked: the same devices, and their
    GPUs in another mode. None when nobody has. Call under the pool's lock.
    """
    row = tx.one(
        "SELECT min(start_ms) AS start_ms FROM ("
        "SELECT min(o.start_ms) AS start_ms FROM bookings m JOIN bookings o"
        " ON o.atom_id = m.atom_id AND o.start_ms >= m.end_ms AND o.start_ms < :end_ms"
        f" WHERE {_LIVE} UNION ALL "
        "SELECT min(o.start_ms) AS start_ms FROM bookings m JOIN bookings o"
        " ON o.gpu_id = m.gpu_id AND o.mode <> m.mode"
        " AND o.start_ms >= m.end_ms AND o.start_ms < :end_ms"
        f" WHERE {_LIVE}) AS later",
        reservation_id=reservation_id,
        end_ms=end_ms,
    )
    return None if row is None or row["start_ms"] is None else int(row["start_ms"])


def extend(tx: Transaction, reservation_id: ReservationId, end_ms: int) -> bool:
    """Let the devices of a reservation's live allocations end later, all or none.

    False when the database refuses: then somebody has one of them. Call under the pool's lock.
    """
    try:
        with tx.savepoint():
            tx.run(
                f"UPDATE bookings AS m SET end_ms = :end_ms WHERE {_LIVE}",
                reservation_id=reservation_id,
                end_ms=end_ms,
            )
    except Overlap:
        return False
    return True
