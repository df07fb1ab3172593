"""Maintenance windows: a whole node kept free for a time (spec 15.1).

A window is a reservation row of kind ``maintenance`` with ordinary bookings, so that the database's
one rule against overlaps keeps reservations out, and every view of a pool sees the time taken
without knowing of windows. It goes through the same states (placed, at its start binding and at
once active, at its end released) and tells the same events. Two things differ: it has no charges,
and its allocation is over from the beginning, so that no node is ever told to hold the devices
and nothing that repairs, re-places or preempts allocations looks at it.

Booked is one mode of each GPU: the whole GPU, which keeps its instances and slots free too, also
those that a later layout adds. A GPU that is reported without its whole device is booked by the
devices of one mode that it has; one added to the node later is not covered.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from bcd.model.assignment import AssignedDevice
from bcd.model.caller import Caller
from bcd.model.errors import Conflict, InvalidInput, InvalidState
from bcd.model.ids import AllocationId, NodeId, ReservationId
from bcd.model.reservation import DeviceAsk, Request, Resources, State, Window
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.transitions import Trigger
from bcd.store import allocations, atoms, bookings, maintenance, nodes, pools, reservations, work
from bcd.store.allocations import Allocation, AllocationState
from bcd.store.atoms import Atom
from bcd.store.bookings import NewBooking
from bcd.store.maintenance import REASON, Maintenance
from bcd.store.reservations import Draft, Kind, StoredReservation

_MAX_NAMED = 16
_STANDING = frozenset({State.PLACED, State.BINDING, State.ACTIVE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A window to add; ``start_ms`` is None for now."""

    node_id: NodeId
    start_ms: int | None
    duration_ms: int
    reason: str
    caller: Caller


def add(hand: Hand, wanted: Wanted) -> Maintenance:
    """Book every device of a node for a time, under its pool's lock.

    Raises InvalidInput for a start that has passed, InvalidState for a node without devices, and
    Conflict listing the reservations that are in the way.
    """
    tx, now_ms = hand.tx, hand.held.now_ms
    start_ms = now_ms if wanted.start_ms is None else wanted.start_ms
    if start_ms < now_ms:
        raise InvalidInput("start", "has passed; leave it out to begin now")
    window = Window(start_ms, start_ms + wanted.duration_ms)
    node = nodes.current(tx, wanted.node_id)
    chosen = whole_node(atoms.on_node(tx, node.id))
    if not chosen:
        raise InvalidState(f"node {node.id} has no devices to keep free", nodeId=node.id)
    _refuse_overlap(hand, node.id, window)
    row = reservations.add_draft(tx, _draft(hand, wanted, chosen), Kind.MAINTENANCE)
    assert row is not None
    _book(hand, row, node.id, window, chosen)
    extra = {"nodeIds": [node.id], "start": window.start_ms, "end": window.end_ms}
    apply.move(hand, row, Trigger.PLACED, extra, during=window, conditions=())
    return maintenance.get(tx, row.id)


def remove(hand: Hand, window_id: ReservationId) -> None:
    """End a window now, or drop one that has not begun; one that is over stays as it is."""
    row = reservations.lock(hand.tx, window_id)
    if row is None or row.state not in _STANDING:
        return
    freed = bookings.end_at(hand.tx, row.id, hand.held.now_ms, 0)
    pools.note_changes(hand.tx, hand.held, freed)
    apply.move(hand, row, Trigger.RELEASED, bind_deadline_ms=None)
    work.poke(hand.tx, row.pool_id, hand.held.now_ms)


def whole_node(own: Sequence[Atom]) -> tuple[Atom, ...]:
    """For each physical GPU its whole device, or where there is none the devices of one mode."""
    modes: dict[int, int] = {}
    for atom in own:
        modes[atom.gpu_id] = min(atom.mode, modes.get(atom.gpu_id, atom.mode))
    return tuple(atom for atom in own if atom.mode == modes[atom.gpu_id])


def _refuse_overlap(hand: Hand, node_id: NodeId, window: Window) -> None:
    booked = bookings.booked_on(hand.tx, node_id, window.start_ms, window.end_ms)
    if not booked:
        return
    shown = tuple(booked)[:_MAX_NAMED]
    more = f" and {len(booked) - _MAX_NAMED} more" if len(booked) > _MAX_NAMED else ""
    until_ms = max(booked.values())
    until = datetime.fromtimestamp(-(-until_ms // 1000), UTC)
    raise Conflict(
        f"node {node_id} is booked then by {', '.join(shown)}{more}, the last of them until"
        f" {until:%Y-%m-%d %H:%M:%S} UTC; drain the node first, which moves what has not started,"
        " choose another time, or have their owners release them",
        nodeId=node_id,
        reservations=",".join(shown),
        until=str(until_ms),
    )


def _draft(hand: Hand, wanted: Wanted, chosen: Sequence[Atom]) -> Draft:
    pool = hand.held.pool
    window_id = hand.tx.new_id("maint")
    counts = Counter(atom.device_class for atom in chosen)
    return Draft(
        id=ReservationId(window_id),
        tenant_id=pool.tenant_id,
        pool_id=pool.id,
        owner=wanted.caller.owner,
        identity=wanted.caller.identity,
        idempotency_key=window_id,
        request_hash="",
        request=Request(
            pool_id=pool.id,
            devices=tuple(DeviceAsk(device_class=kind, count=n) for kind, n in counts.items()),
            duration=f"{wanted.duration_ms}ms",
            labels={REASON: wanted.reason} if wanted.reason else {},
        ),
        host_share=Resources(),
        resources=Resources(),
    )


def _book(
    hand: Hand, row: StoredReservation, node_id: NodeId, window: Window, chosen: Sequence[Atom]
) -> None:
    allocation = Allocation(
        id=AllocationId(hand.tx.new_id("alloc")),
        reservation_id=row.id,
        node_id=node_id,
        state=AllocationState.ENDED,
        until_ms=window.end_ms,
        devices=tuple(AssignedDevice(atom.uuid, atom.device_class) for atom in chosen),
    )
    allocations.add(hand.tx, allocation)
    booking = NewBooking(
        allocation_id=allocation.id,
        reservation_id=row.id,
        node_id=node_id,
        atoms=tuple(chosen),
        start_ms=window.start_ms,
        end_ms=window.end_ms,
    )
    if not bookings.book(hand.tx, booking):
        raise Conflict(f"node {node_id} was booked just now; try again", nodeId=node_id)
    pools.note_changes(hand.tx, hand.held, [node_id])
