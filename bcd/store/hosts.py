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
    """What a host's inventory leaves to be booked; ``gpus`` are its physical GPUs.

    ``vcpu`` and ``memory_gib`` are after the pool's ratio, the ``allocatable`` ones before it.
    """

    vcpu: int
    memory_gib: int
    hugepages_2mi: int
    hugepages_1gi: int
    gpus: int
    allocatable_vcpu: int = 0
    allocatable_memory_gib: int = 0


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
        allocatable_vcpu=row["allocatable_vcpu"],
        allocatable_memory_gib=row["allocatable_memory_gib"],
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
        "INSERT INTO host_capacity (node_id, vcpu, memory_gib, hugepages_2mi, hugepages_1gi, gpus,"
        " allocatable_vcpu, allocatable_memory_gib)"
        " VALUES (:node_id, :vcpu, :memory_gib, :hugepages_2mi, :hugepages_1gi, :gpus,"
        " :allocatable_vcpu, :allocatable_memory_gib)"
        " ON CONFLICT (node_id) DO UPDATE SET vcpu = excluded.vcpu,"
        " memory_gib = excluded.memory_gib, hugepages_2mi = excluded.hugepages_2mi,"
        " hugepages_1gi = excluded.hugepages_1gi, gpus = excluded.gpus,"
        " allocatable_vcpu = excluded.allocatable_vcpu,"
        " allocatable_memory_gib = excluded.allocatable_memory_gib",
        node_id=node_id,
        vcpu=capacity.vcpu,
        memory_gib=capacity.memory_gib,
        hugepages_2mi=capacity.hugepages_2mi,
        hugepages_1gi=capacity.hugepages_1gi,
        gpus=capacity.gpus,
        allocatable_vcpu=capacity.allocatable_vcpu,
        allocatable_memory_gib=capacity.allocatable_memory_gib,
    )
    return True


def remove_capacity(tx: Transaction, node_id: NodeId) -> bool:
    """The host can give nothing any more; returns whether it could. Call under the pool's lock."""
    return bool(tx.run("DELETE FROM host_capacity WHERE node_id = :id", id=node_id))


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


# The moments of a window at which a host could not give amounts beside what is booked there. The
# sum grows only where bookings start: the window's own start and every start within it are looked
# at. ``c`` is the host's row of host_capacity.
_FULL = (
    " FROM (SELECT CAST(:start_ms AS BIGINT) AS at_ms UNION SELECT start_ms FROM host_bookings"
    " WHERE node_id = :node_id AND start_ms > :start_ms AND start_ms < :end_ms) AS moments"
    " LEFT JOIN host_bookings b ON b.node_id = :node_id"
    " AND b.start_ms <= moments.at_ms AND b.end_ms > moments.at_ms GROUP BY moments.at_ms"
    " HAVING coalesce(sum(b.vcpu), 0) + :vcpu > c.vcpu"
    " OR coalesce(sum(b.memory_gib), 0) + :memory_gib > c.memory_gib"
    " OR coalesce(sum(b.hugepages_1gi), 0) + :hugepages_1gi > c.hugepages_1gi"
)
_LIVE = (
    " WHERE reservation_id = :reservation_id AND allocation_id IN"
    " (SELECT id FROM allocations WHERE reservation_id = :reservation_id AND state <> 'ended')"
)


def book(tx: Transaction, booking: NewHostBooking) -> bool:
    """Book the amounts unless at some instant of the window the host could not give them.

    Call under the pool's lock.
    """
    booked = tx.run(
        "INSERT INTO host_bookings (allocation_id, reservation_id, node_id, start_ms, end_ms,"
        " vcpu, memory_gib, hugepages_1gi)"
        " SELECT :allocation_id, :reservation_id, :node_id, :start_ms, :end_ms,"
        " :vcpu, :memory_gib, :hugepages_1gi FROM host_capacity c WHERE c.node_id = :node_id"
        f" AND NOT EXISTS (SELECT 1{_FULL})",
        allocation_id=booking.allocation_id,
        reservation_id=booking.reservation_id,
        node_id=booking.node_id,
        start_ms=booking.start_ms,
        end_ms=booking.end_ms,
        **_amounts(booking.resources),
    )
    return booked == 1


def _amounts(resources: Resources) -> dict[str, int]:
    return {
        "vcpu": resources.vcpu,
        "memory_gib": resources.memory_gib,
        "hugepages_1gi": resources.hugepages_1gi,
    }


def drop(tx: Transaction, allocation_id: AllocationId, reservation_id: ReservationId) -> None:
    """Take back an allocation's amounts, as though they had never been booked."""
    tx.run(
        "DELETE FROM host_bookings WHERE reservation_id = :reservation_id"
        " AND allocation_id = :allocation_id",
        reservation_id=reservation_id,
        allocation_id=allocation_id,
    )


def end_at(tx: Transaction, reservation_id: ReservationId, now_ms: int, gap_ms: int) -> None:
    """End a reservation's amounts now, as ``bookings.end_at`` does its devices."""
    tx.run(
        "DELETE FROM host_bookings WHERE reservation_id = :reservation_id AND start_ms >= :now_ms",
        reservation_id=reservation_id,
        now_ms=now_ms,
    )
    tx.run(
        "UPDATE host_bookings SET end_ms = :until_ms"
        " WHERE reservation_id = :reservation_id AND end_ms > :until_ms",
        reservation_id=reservation_id,
        until_ms=now_ms + gap_ms,
    )


def full_from(tx: Transaction, reservation_id: ReservationId, end_ms: int) -> int | None:
    """The first moment before ``end_ms`` at which a reservation's hosts could no longer give.

    Looked at from the end of what its live allocations have booked. None when they could for all
    the time. Call under the pool's lock.
    """
    first: int | None = None
    mine = tx.all(
        f"SELECT * FROM host_bookings{_LIVE} AND end_ms < :end_ms ORDER BY node_id",
        reservation_id=reservation_id,
        end_ms=end_ms,
    )
    for row in mine:
        interval = _interval(row)
        found = tx.one(
            f"SELECT (SELECT moments.at_ms{_FULL} ORDER BY moments.at_ms LIMIT 1) AS at_ms"
            " FROM host_capacity c WHERE c.node_id = :node_id",
            node_id=row["node_id"],
            start_ms=interval.end_ms,
            end_ms=end_ms,
            **_amounts(interval.resources),
        )
        full_ms = interval.end_ms if found is None else found["at_ms"]
        if full_ms is not None and (first is None or full_ms < first):
            first = full_ms
    return first


def extend(tx: Transaction, reservation_id: ReservationId, end_ms: int) -> None:
    """Let the amounts of a reservation's live allocations end later. Ask ``full_from`` before."""
    tx.run(
        f"UPDATE host_bookings SET end_ms = :end_ms{_LIVE} AND end_ms < :end_ms",
        reservation_id=reservation_id,
        end_ms=end_ms,
    )
