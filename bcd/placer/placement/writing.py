"""Writes a plan's rows: allocations, their devices and their host resources. All or nothing.

Called under the pool's lock. What was written before the database refused something is deleted
again, which is rare; a savepoint around each plan would cost every one of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from bcd.model.assignment import AssignedDevice
from bcd.model.ids import AllocationId, NodeId, ReservationId
from bcd.model.reservation import Window
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.search import Found
from bcd.store import allocations, bookings, hosts, labels, pools
from bcd.store.allocations import Allocation, AllocationState
from bcd.store.atoms import Atom
from bcd.store.bookings import NewBooking
from bcd.store.database import Transaction
from bcd.store.hosts import NewHostBooking
from bcd.store.labels import NodeLabels
from bcd.store.pools import PoolLock


class LostRace(Exception):
    """The database knows better than the view; nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be booked for whom: the window, the booked range with the turnaround, on whom."""

    reservation_id: ReservationId
    demand: Demand
    window: Window
    booked: Window
    members: tuple[tuple[NodeId, tuple[Atom, ...]], ...]


def write(tx: Transaction, held: PoolLock, plan: Plan) -> tuple[Allocation, ...]:
    """Write every member's rows; raises LostRace where the database refuses one."""
    made = _allocations(tx, plan)
    if not _booked(tx, plan, made):
        for allocation in made:
            hosts.drop(tx, allocation.id, allocation.reservation_id)
            bookings.drop(tx, allocation.id, allocation.reservation_id)
            allocations.drop(tx, allocation.id)
        raise LostRace
    pools.note_changes(tx, held, [node_id for node_id, _ in plan.members])
    return made


def _booked(tx: Transaction, plan: Plan, made: Sequence[Allocation]) -> bool:
    """Write the rows of new allocations; False where the database refuses one."""
    for allocation in made:
        allocations.add(tx, allocation)
    parts = zip(made, plan.members, strict=True)
    devices = [_booking(allocation, chosen, plan) for allocation, (_, chosen) in parts]
    if not bookings.book(tx, *devices):
        return False
    if not plan.demand.resources:
        return True
    return all(hosts.book(tx, _host_booking(allocation, plan)) for allocation in made)


def still_able(tx: Transaction, plan: Plan) -> bool:
    """Whether every node has the labels that the plan counts on, as committed by now.

    Gateways write them without the pool's lock: a daemon may have been replaced by an older one.
    """
    if not plan.demand.labels:
        return True
    found = labels.on_nodes(tx, [node_id for node_id, _ in plan.members])
    none = NodeLabels()
    return all(plan.demand.labels <= found.get(node_id, none).system for node_id, _ in plan.members)


def members_of(
    own: Mapping[NodeId, tuple[Atom, ...]], found: Sequence[Found]
) -> tuple[tuple[NodeId, tuple[Atom, ...]], ...]:
    """The atoms of each member, in the order of the request's entries; ``own`` has all by node."""
    return tuple(
        (one.node_id, atoms_of(own[one.node_id], chain.from_iterable(one.atom_ids)))
        for one in found
    )


def atoms_of(own: Sequence[Atom], atom_ids: Iterable[int]) -> tuple[Atom, ...]:
    """A node's atoms with these ids, in their order."""
    by_id = {atom.id: atom for atom in own}
    return tuple(by_id[atom_id] for atom_id in atom_ids)


def _allocations(tx: Transaction, plan: Plan) -> tuple[Allocation, ...]:
    """New allocations in the order of their ids and of the plan's members."""
    ids = sorted(tx.new_id("alloc") for _ in plan.members)
    return tuple(
        Allocation(
            id=AllocationId(id_),
            reservation_id=plan.reservation_id,
            node_id=node_id,
            state=AllocationState.BOOKED,
            until_ms=plan.window.end_ms,
            devices=tuple(AssignedDevice(atom.uuid, atom.device_class) for atom in chosen),
        )
        for id_, (node_id, chosen) in zip(ids, plan.members, strict=True)
    )


def _booking(allocation: Allocation, chosen: tuple[Atom, ...], plan: Plan) -> NewBooking:
    return NewBooking(
        allocation_id=allocation.id,
        reservation_id=allocation.reservation_id,
        node_id=allocation.node_id,
        atoms=chosen,
        start_ms=plan.booked.start_ms,
        end_ms=plan.booked.end_ms,
    )


def _host_booking(allocation: Allocation, plan: Plan) -> NewHostBooking:
    return NewHostBooking(
        allocation_id=allocation.id,
        reservation_id=allocation.reservation_id,
        node_id=allocation.node_id,
        start_ms=plan.booked.start_ms,
        end_ms=plan.booked.end_ms,
        resources=plan.demand.resources,
    )
