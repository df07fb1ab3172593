"""Who has what of a node in a window: bookings with the reservations behind them."""

from collections.abc import Sequence

from bcd.model.ids import NodeId, ReservationId
from bcd.model.reservation import Resources, Window
from bcd.store.database import Transaction


def devices_on(
    tx: Transaction, node_id: NodeId, window: Window
) -> Sequence[tuple[ReservationId, int, int, int]]:
    """(reservation, atom id, start, end) of every booking that meets the window."""
    rows = tx.all(
        "SELECT reservation_id, atom_id, start_ms, end_ms FROM bookings"
        " WHERE node_id = :node_id AND end_ms > :start_ms AND start_ms < :end_ms",
        node_id=node_id,
        start_ms=window.start_ms,
        end_ms=window.end_ms,
    )
    return [(r["reservation_id"], r["atom_id"], r["start_ms"], r["end_ms"]) for r in rows]


def amounts_on(
    tx: Transaction, node_id: NodeId, window: Window
) -> Sequence[tuple[ReservationId, Resources, int, int]]:
    """(reservation, host resources, start, end) of every booking that meets the window."""
    rows = tx.all(
        "SELECT reservation_id, start_ms, end_ms, vcpu, memory_gib, hugepages_1gi"
        " FROM host_bookings"
        " WHERE node_id = :node_id AND end_ms > :start_ms AND start_ms < :end_ms",
        node_id=node_id,
        start_ms=window.start_ms,
        end_ms=window.end_ms,
    )
    return [
        (
            row["reservation_id"],
            Resources(
                vcpu=row["vcpu"],
                memory_gib=row["memory_gib"],
                hugepages_1gi=row["hugepages_1gi"],
            ),
            row["start_ms"],
            row["end_ms"],
        )
        for row in rows
    ]
