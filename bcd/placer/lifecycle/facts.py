"""Reads what a decision about a reservation looks at: its members, their nodes and devices."""

from collections.abc import Mapping, Sequence

from bcd.model.errors import NotFound
from bcd.model.reservation import State
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.decide import AllocationFacts, Facts
from bcd.placer.placement.demand import demand_of
from bcd.store import allocations, atoms, nodes
from bcd.store.allocations import Allocation, AllocationState
from bcd.store.atoms import Atom
from bcd.store.database import Transaction
from bcd.store.nodes import Node
from bcd.store.reservations import StoredReservation


def facts_of(
    hand: Hand,
    row: StoredReservation,
    members: Sequence[Allocation],
    failures: Mapping[str, str],
) -> Facts:
    """The facts about a placed, binding or active reservation.

    Nodes and devices are looked at only where they matter: before the start, where a repair can
    still be made, and while it is active. ``failures`` are reasons of failed binds by allocation.
    """
    assert row.during is not None
    ahead = row.state is State.PLACED and hand.held.now_ms < row.during.start_ms
    if ahead:
        members = allocations.live(hand.tx, row.id)
    return Facts(
        state=row.state,
        during=row.during,
        attempts=row.attempts,
        bind_deadline_ms=row.bind_deadline_ms,
        lease_until_ms=row.lease_until_ms,
        conditions=row.conditions,
        allocations=tuple(
            _ahead(hand.tx, row, member)
            if ahead
            else _member(hand.tx, row.state, member, failures.get(member.id, ""))
            for member in members
        ),
    )


def _member(tx: Transaction, state: State, member: Allocation, failure: str) -> AllocationFacts:
    active = state is State.ACTIVE
    return AllocationFacts(
        id=member.id,
        node_id=member.node_id,
        bound=member.state is AllocationState.BOUND,
        lost=member.state is AllocationState.LOST,
        failure=failure,
        reachable=not active or nodes.get(tx, member.node_id).reachable,
        unhealthy=tuple(_ailing(atom) for atom in _devices(tx, member) if atom.health != "healthy")
        if active
        else (),
    )


def _ahead(tx: Transaction, row: StoredReservation, member: Allocation) -> AllocationFacts:
    lasting, passing = _unable(tx, row, member)
    return AllocationFacts(
        id=member.id,
        node_id=member.node_id,
        bound=False,
        lost=False,
        failure="",
        reachable=True,
        unhealthy=(),
        unable=lasting or passing,
        passing=not lasting,
    )


def _unable(tx: Transaction, row: StoredReservation, member: Allocation) -> tuple[str, str]:
    """Why a member could not be served if it started now: for good, and for the time being."""
    try:
        node = nodes.current(tx, member.node_id)
    except NotFound:
        return f"{member.node_id} is gone", ""
    # A cordon keeps new bookings off a node and none that it has; draining moves those too.
    if node.draining:
        return f"{node.id} is draining", ""
    if not node.trusted:
        return f"{node.id} is not trusted", ""
    return "", _away(tx, row, member, node)


def _away(tx: Transaction, row: StoredReservation, member: Allocation, node: Node) -> str:
    if not node.reachable:
        return f"{node.id} does not answer"
    if not node.ready:
        return f"{node.id} is not ready"
    present = nodes.system_labels(tx, [node.id])[node.id]
    missing = sorted(demand_of(row.request, row.resources).labels - present)
    if missing:
        return f"{node.id} lacks label {', '.join(missing)}"
    devices = _devices(tx, member)
    if len(devices) < len(member.devices):
        return f"{node.id} has no longer every device"
    return ", ".join(_ailing(atom) for atom in devices if not atom.bookable)


def _devices(tx: Transaction, member: Allocation) -> Sequence[Atom]:
    held = {(device.id, device.device_class) for device in member.devices}
    return [
        atom for atom in atoms.on_node(tx, member.node_id) if (atom.uuid, atom.device_class) in held
    ]


def _ailing(atom: Atom) -> str:
    if atom.health == "healthy":
        return f"{atom.uuid} cannot be booked any more"
    return f"{atom.uuid} is {atom.health} ({atom.health_reason or 'no reason given'})"
