"""Allocations: one node's part of one placement attempt, from booked to ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from bcd.model.assignment import AssignedDevice, Binding, Limits, Sharing
from bcd.model.device import DeviceClass
from bcd.model.ids import AllocationId, NodeId, ReservationId
from bcd.model.reservation import HoldBinding
from bcd.store.database import Row, Transaction


class AllocationState(StrEnum):
    """``lost`` was bound before and is not now; ``ended`` is off the node's desired state."""

    BOOKED = "booked"
    ASSIGNED = "assigned"
    BOUND = "bound"
    LOST = "lost"
    ENDED = "ended"


ON_NODE = frozenset({AllocationState.ASSIGNED, AllocationState.BOUND, AllocationState.LOST})


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """An allocation on record; devices in booked order.

    From its start on: ``limits`` are what the node is told to hold it to, None without host
    resources, ``sharing`` how its slots share their GPU, ``binding`` how it is handed over.
    """

    id: AllocationId
    reservation_id: ReservationId
    node_id: NodeId
    state: AllocationState
    until_ms: int
    devices: tuple[AssignedDevice, ...]
    limits: Limits | None = None
    binding: Binding = Binding.HOLD
    sharing: Sharing | None = None


_COLUMNS = "id, reservation_id, node_id, state, until_ms, devices, limits, handed_as, sharing"
_LIMITS = msgspec.json.Decoder(Limits)
_SHARING = msgspec.json.Decoder(Sharing)


def _allocation(row: Row) -> Allocation:
    devices = msgspec.json.decode(row["devices"], type=list[tuple[str, str]])
    return Allocation(
        id=row["id"],
        reservation_id=row["reservation_id"],
        node_id=row["node_id"],
        state=AllocationState(row["state"]),
        until_ms=row["until_ms"],
        devices=tuple(AssignedDevice(uuid, DeviceClass(name)) for uuid, name in devices),
        limits=None if row["limits"] is None else _LIMITS.decode(row["limits"]),
        binding=Binding(row["handed_as"]),
        sharing=None if row["sharing"] is None else _SHARING.decode(row["sharing"]),
    )


def add(tx: Transaction, allocation: Allocation) -> None:
    """Write a new allocation."""
    devices = [(device.id, device.device_class.value) for device in allocation.devices]
    tx.run(
        "INSERT INTO allocations (id, reservation_id, node_id, state, until_ms, devices,"
        " limits, handed_as, sharing, created_ms) VALUES (:id, :reservation_id, :node_id, :state,"
        " :until_ms, :devices, :limits, :binding, :sharing, compute_now())",
        id=allocation.id,
        reservation_id=allocation.reservation_id,
        node_id=allocation.node_id,
        state=allocation.state.value,
        until_ms=allocation.until_ms,
        devices=msgspec.json.encode(devices).decode(),
        limits=_encoded(allocation.limits),
        binding=allocation.binding.value,
        sharing=_encoded(allocation.sharing),
    )


def _encoded(value: Limits | Sharing | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def set_until(tx: Transaction, reservation_id: ReservationId, until_ms: int) -> None:
    """Record a later end for every live allocation of a reservation."""
    tx.run(
        "UPDATE allocations SET until_ms = :until_ms"
        " WHERE reservation_id = :id AND state <> 'ended'",
        id=reservation_id,
        until_ms=until_ms,
    )


def drop(tx: Transaction, allocation_id: AllocationId) -> None:
    """Take back a new allocation on which nothing is booked, as though it had never been."""
    tx.run("DELETE FROM allocations WHERE id = :id", id=allocation_id)


def hand_over(tx: Transaction, allocation: Allocation) -> None:
    """Record that the node is told of an allocation, and with which limits, binding and sharing.

    They stay as they are until it ends, whatever becomes of the pool's policy: a hold that stands
    must not change.
    """
    tx.run(
        "UPDATE allocations SET state = 'assigned', limits = :limits, handed_as = :binding,"
        " sharing = :sharing WHERE id = :id",
        id=allocation.id,
        limits=_encoded(allocation.limits),
        binding=allocation.binding.value,
        sharing=_encoded(allocation.sharing),
    )


def live(tx: Transaction, reservation_id: ReservationId) -> Sequence[Allocation]:
    """A reservation's allocations that have not ended, by id."""
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM allocations WHERE reservation_id = :id AND state <> 'ended'"
        " ORDER BY id",
        id=reservation_id,
    )
    return [_allocation(row) for row in rows]


def nodes_tried(tx: Transaction, reservation_id: ReservationId) -> frozenset[NodeId]:
    """Every node that a reservation was ever placed on."""
    rows = tx.all(
        "SELECT DISTINCT node_id FROM allocations WHERE reservation_id = :id", id=reservation_id
    )
    return frozenset(row["node_id"] for row in rows)


def on_node(tx: Transaction, node_id: NodeId) -> Sequence[Allocation]:
    """What a node's desired state holds, by id."""
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM allocations WHERE node_id = :id"
        " AND state IN ('assigned', 'bound', 'lost') ORDER BY id",
        id=node_id,
    )
    return [_allocation(row) for row in rows]


def get(tx: Transaction, allocation_id: AllocationId) -> Allocation | None:
    """Read one allocation."""
    row = tx.one(f"SELECT {_COLUMNS} FROM allocations WHERE id = :id", id=allocation_id)
    return None if row is None else _allocation(row)


def set_state(tx: Transaction, allocation_id: AllocationId, state: AllocationState) -> None:
    """Move one allocation."""
    tx.run(
        "UPDATE allocations SET state = :state WHERE id = :id", id=allocation_id, state=state.value
    )


@dataclass(frozen=True, slots=True)
class Evidence:
    """The signed report behind a binding, as received."""

    envelope: bytes
    key_id: str
    signature: bytes


def bind(
    tx: Transaction, allocation_id: AllocationId, binding: HoldBinding, evidence: Evidence
) -> None:
    """The allocation is bound as the signed body says; keeps the evidence."""
    tx.run(
        "UPDATE allocations SET state = 'bound', binding = :binding, bound_report = :report,"
        " bound_sig_kid = :key_id, bound_sig = :signature WHERE id = :id",
        id=allocation_id,
        binding=msgspec.json.encode(binding).decode(),
        report=evidence.envelope,
        key_id=evidence.key_id,
        signature=evidence.signature,
    )
