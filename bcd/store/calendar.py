"""What is booked on a node in a stretch of time, the past included, and for whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bcd.model.ids import NodeId, ReservationId
from bcd.model.reservation import Resources, Window
from bcd.store.database import Transaction
from bcd.store.hosts import HostInterval
from bcd.store.reservations import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A booking of one atom; ``gpu_id`` and ``mode`` say which GPU it takes and how."""

    atom_id: int
    gpu_id: int
    mode: int
    start_ms: int
    end_ms: int
    reservation_id: ReservationId
    tenant_id: str
    kind: Kind


def devices_on(tx: Transaction, node_id: NodeId, during: Window, limit: int) -> Sequence[Taken]:
    """At most ``limit`` bookings of a node that touch the stretch, by start."""
    rows = tx.all(
        "SELECT b.atom_id, b.gpu_id, b.mode, b.start_ms, b.end_ms, b.reservation_id, r.tenant_id,"
        " r.kind FROM bookings b JOIN reservations r ON r.id = b.reservation_id"
        " WHERE b.node_id = :node_id AND b.end_ms > :start_ms AND b.start_ms < :end_ms"
        " ORDER BY b.start_ms, b.atom_id LIMIT :limit",
        node_id=node_id,
        start_ms=during.start_ms,
        end_ms=during.end_ms,
        limit=limit,
    )
    return [
        Taken(
            atom_id=row["atom_id"],
            gpu_id=row["gpu_id"],
            mode=row["mode"],
            start_ms=row["start_ms"],
            end_ms=row["end_ms"],
            reservation_id=row["reservation_id"],
            tenant_id=row["tenant_id"],
            kind=Kind(row["kind"]),
        )
        for row in rows
    ]


def amounts_on(tx: Transaction, node_id: NodeId, during: Window) -> Sequence[HostInterval]:
    """The amounts of a node's host that are booked in the stretch."""
    rows = tx.all(
        "SELECT start_ms, end_ms, vcpu, memory_gib, hugepages_1gi FROM host_bookings"
        " WHERE node_id = :node_id AND end_ms > :start_ms AND start_ms < :end_ms",
        node_id=node_id,
        start_ms=during.start_ms,
        end_ms=during.end_ms,
    )
    return [
        HostInterval(
            row["start_ms"],
            row["end_ms"],
            Resources(
                vcpu=row["vcpu"],
                memory_gib=row["memory_gib"],
                hugepages_1gi=row["hugepages_1gi"],
            ),
        )
        for row in rows
    ]


def gpus_on(tx: Transaction, node_id: NodeId) -> Mapping[int, str]:
    """The UUIDs of a node's physical GPUs by id."""
    rows = tx.all("SELECT id, uuid FROM gpus WHERE node_id = :node_id", node_id=node_id)
    return {row["id"]: row["uuid"] for row in rows}
