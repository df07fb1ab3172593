"""Who has what of the nodes that could be had back: bookings with the reservations behind them."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from bcd.model.ids import NodeId, PoolId, ReservationId
from bcd.model.reservation import Resources, Window
from bcd.store.database import Transaction


@dataclass(frozen=True, slots=True)
class Occupied:
    """What is booked on a node in a window, by whom.

    ``devices`` are (reservation, atom id, start, end), ``amounts`` (reservation, host resources,
    start, end).
    """

    devices: list[tuple[ReservationId, int, int, int]] = field(default_factory=list)
    amounts: list[tuple[ReservationId, Resources, int, int]] = field(default_factory=list)


_WITH_SPOT = (
    "b.node_id IN (SELECT a.node_id FROM reservations r JOIN allocations a"
    " ON a.reservation_id = r.id AND a.state <> 'ended' WHERE r.pool_id = :pool_id AND r.spot = 1"
    " AND r.state IN ('placed', 'binding', 'active'))"
    " AND b.end_ms > :start_ms AND b.start_ms < :end_ms"
)


def with_spot(tx: Transaction, pool_id: PoolId, window: Window) -> Mapping[NodeId, Occupied]:
    """Everything that is booked in the window on nodes that a spot reservation lies on, by node."""
    values = {"pool_id": pool_id, "start_ms": window.start_ms, "end_ms": window.end_ms}
    found: defaultdict[NodeId, Occupied] = defaultdict(Occupied)
    for row in tx.all(
        "SELECT b.node_id, b.reservation_id, b.atom_id, b.start_ms, b.end_ms FROM bookings b"
        f" WHERE {_WITH_SPOT}",
        **values,
    ):
        found[row["node_id"]].devices.append(
            (row["reservation_id"], row["atom_id"], row["start_ms"], row["end_ms"])
        )
    for row in tx.all(
        "SELECT b.node_id, b.reservation_id, b.start_ms, b.end_ms, b.vcpu, b.memory_gib,"
        f" b.hugepages_1gi FROM host_bookings b WHERE {_WITH_SPOT}",
        **values,
    ):
        amounts = Resources(
            vcpu=row["vcpu"], memory_gib=row["memory_gib"], hugepages_1gi=row["hugepages_1gi"]
        )
        found[row["node_id"]].amounts.append(
            (row["reservation_id"], amounts, row["start_ms"], row["end_ms"])
        )
    return found
