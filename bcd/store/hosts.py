"""Host resources: what each host can give, and which amounts of it are booked when.

Amounts are sums, which no rule of the database can hold: they are guarded here, under the pool's
lock.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bcd.model.ids import AllocationId, NodeId, ReservationId
from bcd.model.reservation import Resources
from bcd.store.database import Row, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCapacity:
    """What a host's inventory leaves to be booked; ``gpus`` are its physical GPUs."""

    vcpu: int
    memory_gib: int
    hugepages_2mi: int
    hugepages_1gi: int
    gpus: int


@dataclass(frozen=True, slots=True)
class HostInterval:
    """Amounts of one host that are booked for a window."""

    start_ms: int
    end_ms: int
    resources: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHostBooking:
    """An allocation's amounts on its node; the range includes the pool's turnaround."""

    allocation_id: AllocationId
    reservation_id: ReservationId
    node_id: NodeId
    start_ms: int
    end_ms: int
    resources: Resources


def _capacity(row: Row) -> HostCapacity:
    return HostCapacity(
        vcpu=row["vcpu"],
        memory_gib=row["memory_gib"],
        hugepages_2mi=row["hugepages_2mi"],
        hugepages_1gi=row["hugepages_1gi"],
        gpus=row["gpus"],
    )


def capacity_of(tx: Transaction, node_id: NodeId) -> HostCapacity | None:
    """What one host can give; None for a host without a row, which books none."""
    row = tx.one("SELECT * FROM host_capacity WHERE node_id = :id", id=node_id)
    return None if row is None else _capacity(row)


def capacity_in_pool(tx: Transaction, pool_id: str) -> Mapping[NodeId, HostCapacity]:
    """What the hosts of a pool can give; hosts without a row are absent."""
    rows = tx.all(
        "SELECT c.* FROM host_capacity c JOIN nodes n ON n.id = c.node_id"
        " WHERE n.pool_id = :pool_id",
        pool_id=pool_id,
    )
    return {row["node_id"]: _capacity(row) for row in rows}


def set_capacity(tx: Transaction, node_id: NodeId, capacity: HostCapacity) -> bool:
    """Record what a host can give; returns whether that is news. Call under the pool's lock."""
    if capacity_of(tx, node_id) == capacity:
        return False
    tx.run(
        "INSERT INTO host_capacity (node_id, vcpu, memory_gib, hugepages_2mi, hugepages_1gi, gpus)"
        " VALUES (:node_id, :vcpu, :memory_gib, :hugepages_2mi, :hugepages_1gi, :gpus)"
        " ON CONFLICT (node_id) DO UPDATE SET vcpu = excluded.vcpu,"
        " memory_gib = excluded.memory_gib, hugepages_2mi = excluded.hugepages_2mi,"
        " hugepages_1gi = excluded.hugepages_1gi, gpus = excluded.gpus",
        node_id=node_id,
        vcpu=capacity.vcpu,
        memory_gib=capacity.memory_gib,
        hugepages_2mi=capacity.hugepages_2mi,
        hugepages_1gi=capacity.hugepages_1gi,
        gpus=capacity.gpus,
    )
    return True


def _interval(row: Row) -> HostInterval:
    amounts = Resources(
        vcpu=row["vcpu"], memory_gib=row["memory_gib"], hugepages_1gi=row["hugepages_1gi"]
    )
    return HostInterval(row["start_ms"], row["end_ms"], amounts)


def live_on(
    tx: Transaction, node_ids: Sequence[NodeId], now_ms: int
) -> Mapping[NodeId, Sequence[HostInterval]]:
    """Booked amounts that end after now, by node; for many nodes ask ``live_in_pool``."""
    found: dict[NodeId, Sequence[HostInterval]] = {}
    for node_id in node_ids:
        rows = tx.all(
            "SELECT * FROM host_bookings WHERE node_id = :node_id AND end_ms > :now_ms",
            node_id=node_id,
            now_ms=now_ms,
        )
        found[node_id] = [_interval(row) for row in rows]
    return found


def live_in_pool(
    tx: Transaction, pool_id: str, now_ms: int
) -> Mapping[NodeId, Sequence[HostInterval]]:
    """Booked amounts of a pool that end after now, by node; nodes without any are absent."""
    found: defaultdict[NodeId, list[HostInterval]] = defaultdict(list)
    rows = tx.all(
        "SELECT b.* FROM host_bookings b JOIN nodes n ON n.id = b.node_id"
        " WHERE n.pool_id = :pool_id AND b.end_ms > :now_ms",
        pool_id=pool_id,
        now_ms=now_ms,
    )
    for row in rows:
        found[row["node_id"]].append(_interval(row))
    return found


def book(tx: Transaction, booking: NewHostBooking) -> bool:
    """Book the amounts unless at some instant of the window the host could not give them.

    The sum changes only where bookings start: the window's own start and every start within it
    are looked at. Call under the pool's lock.
    """
    amounts = booking.resources
    booked = tx.run(
        "INSERT INTO host_bookings (allocation_id, reservation_id, node_id, start_ms, end_ms,"
        " vcpu, memory_gib, hugepages_1gi)"
        " SELECT :allocation_id, :reservation_id, :node_id, :start_ms, :end_ms,"
        " :vcpu, :memory_gib, :hugepages_1gi FROM host_capacity c WHERE c.node_id = :node_id"
        " AND NOT EXISTS (SELECT 1 FROM"
        " (SELECT CAST(:start_ms AS BIGINT) AS at_ms UNION SELECT start_ms FROM host_bookings"
        " WHERE node_id = :node_id AND start_ms > :start_ms AND start_ms < :end_ms) AS moments"
        " LEFT JOIN host_bookings b ON b.node_id = :node_id"
        " AND b.start_ms <= moments.at_ms AND b.end_ms > moments.at_ms GROUP BY moments.at_ms"
        " HAVING coalesce(sum(b.vcpu), 0) + :vcpu > c.vcpu"
        " OR coalesce(sum(b.memory_gib), 0) + :memory_gib > c.memory_gib"
        " OR coalesce(sum(b.hugepages_1gi), 0) + :hugepages_1gi > c.hugepages_1gi)",
        allocation_id=booking.allocation_id,
        reservation_id=booking.reservation_id,
        node_id=booking.node_id,
        start_ms=booking.start_ms,
        end_ms=booking.end_ms,
        vcpu=amounts.vcpu,
        memory_gib=amounts.memory_gib,
        hugepages_1gi=amounts.hugepages_1gi,
    )
    return booked == 1


def drop(tx: Transaction, allocation_id: AllocationId, reservation_id: ReservationId) -> None:
    """Take back what was just booked for an allocation that came to nothing."""
    tx.run(
        "DELETE FROM host_bookings WHERE reservation_id = :reservation_id"
        " AND allocation_id = :allocation_id",
        reservation_id=reservation_id,
        allocation_id=allocation_id,
    )
