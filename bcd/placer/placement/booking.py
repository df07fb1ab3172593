"""Keeps a view of each pool in step with the database, plans on it, and books guarded rows.

Everything here runs under the pool's lock. A view is brought up to date from the pool's log of
changes, so that it also sees what the open transaction, or another placer, did; after a roll-back
the log's token no longer matches and the view is read anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bcd.model.assignment import AssignedDevice
from bcd.model.device import DeviceClass
from bcd.model.errors import Unavailable
from bcd.model.ids import AllocationId, NodeId, PoolId, ReservationId
from bcd.model.reservation import DeviceAsk, Request, Window
from bcd.placer.placement.search import Found, find
from bcd.placer.placement.shape import Slot, shape_of
from bcd.placer.placement.unschedulable import Unschedulable, explain
from bcd.placer.placement.view import NodeFacts, NodeView, PoolView
from bcd.store import allocations, atoms, bookings, nodes, pools
from bcd.store.allocations import Allocation, AllocationState
from bcd.store.atoms import Atom
from bcd.store.bookings import Interval, NewBooking
from bcd.store.database import Transaction
from bcd.store.pools import PoolLock
from bcd.store.reservations import StoredReservation

_ATTEMPTS = 3
_MAX_REFUSED = 1024


@dataclass(frozen=True, slots=True)
class Placed:
    """The window that was booked, and the new allocations, one for each node."""

    window: Window
    allocations: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class _Refused:
    """What a search came to, and until when it cannot come to anything else."""

    outcome: Unschedulable
    holds_until_ms: int


@dataclass(slots=True)
class _Cached:
    """``refused`` is about the view as it is: requests that wait ask the same again and again."""

    view: PoolView
    atoms: dict[NodeId, tuple[Atom, ...]]
    seq: int
    token: str
    refused: dict[tuple[tuple[DeviceAsk, ...], int], _Refused] = field(default_factory=dict)


class Placements:
    """Plans and books; one for a placer's process."""

    def __init__(self) -> None:
        self._pools: dict[PoolId, _Cached] = {}

    def place(
        self,
        tx: Transaction,
        held: PoolLock,
        row: StoredReservation,
        avoid: frozenset[NodeId] = frozenset(),
        *,
        rehearse: bool = False,
    ) -> Placed | Unschedulable:
        """Book the request on the best node, from now on or from its start if that is still ahead.

        Nodes in ``avoid`` are taken only if no others would do.

        What is booked is taken into the view at once. Should the transaction be rolled back, the
        log of changes gives that away, and the view is read anew; ``rehearse`` tells beforehand.
        Raises Unavailable when the database refuses what the view says is free, again and again.
        """
        request = row.request
        start_ms = max(held.now_ms, request.start or 0)
        window = Window(start_ms, start_ms + request.duration_ms)
        booked_end_ms = window.end_ms + held.pool.policy.turnaround_ms
        for _ in range(_ATTEMPTS):
            cached = self._refresh(tx, held)
            known = cached.refused.get((request.devices, booked_end_ms - start_ms))
            if known is not None and start_ms < known.holds_until_ms:
                return known.outcome
            found = find(cached.view, request.devices, start_ms, booked_end_ms, avoid=avoid)
            if found is None and avoid:
                found = find(cached.view, request.devices, start_ms, booked_end_ms)
            if found is None:
                return _explained(cached, request, start_ms, booked_end_ms - start_ms)
            chosen = _chosen(cached.atoms[found.node_id], found)
            allocation = _allocation(tx, row.id, found.node_id, window, chosen)
            booked = (start_ms, booked_end_ms)
            if self._book(tx, held, allocation, chosen, booked):
                if not rehearse:
                    _take_in(cached, held, allocation.node_id, chosen, booked)
                return Placed(window, (allocation,))
            self._pools.pop(held.pool.id, None)
        raise Unavailable(
            f"pool {held.pool.id} changes faster than it can be read; try again",
            poolId=held.pool.id,
        )

    def _book(
        self,
        tx: Transaction,
        held: PoolLock,
        allocation: Allocation,
        chosen: Sequence[Atom],
        booked: tuple[int, int],
    ) -> bool:
        allocations.add(tx, allocation)
        booking = NewBooking(
            allocation_id=allocation.id,
            reservation_id=allocation.reservation_id,
            node_id=allocation.node_id,
            atoms=tuple(chosen),
            start_ms=booked[0],
            end_ms=booked[1],
        )
        if not bookings.book(tx, booking):
            allocations.set_state(tx, allocation.id, AllocationState.ENDED)
            return False
        pools.note_changes(tx, held, [allocation.node_id])
        return True

    def _refresh(self, tx: Transaction, held: PoolLock) -> _Cached:
        pool_id = held.pool.id
        # Out of the way until it is whole again: a transaction that fails while it is being
        # brought up to date must not leave it half changed under its old number.
        cached = self._pools.pop(pool_id, None)
        if cached is not None and (cached.seq, cached.token) != (held.seq, held.token):
            changed = pools.changes_since(tx, pool_id, cached.seq, cached.token)
            cached = None if changed is None else _updated(tx, cached, changed, held.now_ms)
        if cached is None:
            cached = _load(tx, pool_id, held.now_ms)
        cached.seq, cached.token = held.seq, held.token
        self._pools[pool_id] = cached
        return cached


def _take_in(
    cached: _Cached,
    held: PoolLock,
    node_id: NodeId,
    chosen: Sequence[Atom],
    booked: tuple[int, int],
) -> None:
    node = cached.view.nodes[node_id]
    atom_ids = [atom.id for atom in chosen]
    cached.view.put(node.with_booking(atom_ids, *booked))
    cached.refused.clear()
    cached.seq, cached.token = held.seq, held.token


def _explained(cached: _Cached, request: Request, start_ms: int, duration_ms: int) -> Unschedulable:
    """Why nothing fits. While nothing changes, it fits no sooner than at the nearest time."""
    outcome = explain(cached.view, request.devices, start_ms, duration_ms)
    holds_until_ms = start_ms + 1 if outcome.earliest_ms is None else outcome.earliest_ms
    if len(cached.refused) >= _MAX_REFUSED:
        cached.refused.clear()
    cached.refused[(request.devices, duration_ms)] = _Refused(outcome, holds_until_ms)
    return outcome


def _load(tx: Transaction, pool_id: PoolId, now_ms: int) -> _Cached:
    by_node: dict[NodeId, list[Atom]] = {}
    for atom in atoms.in_pool(tx, pool_id):
        by_node.setdefault(atom.node_id, []).append(atom)
    live = bookings.live_in_pool(tx, pool_id, now_ms)
    found = nodes.in_pool(tx, pool_id)
    labels = nodes.system_labels(tx, [node.id for node in found])
    cached = _Cached(PoolView(), {}, 0, "")
    for node in found:
        own = tuple(by_node.get(node.id, ()))
        cached.atoms[node.id] = own
        facts = _facts(node, own, labels[node.id])
        cached.view.put(_node_view(facts, live.get(node.id, ())))
    return cached


def _updated(
    tx: Transaction, cached: _Cached, changed: Mapping[NodeId, pools.Change], now_ms: int
) -> _Cached:
    live = bookings.live_on(tx, tuple(changed), now_ms)
    for node_id, what in changed.items():
        known = cached.view.nodes.get(node_id)
        if what == "node" or known is None:
            node = nodes.get(tx, node_id)
            if node.removed:
                cached.view.drop(node_id)
                continue
            own = tuple(atoms.on_node(tx, node_id))
            labels = nodes.system_labels(tx, [node_id])[node_id]
            cached.atoms[node_id] = own
            facts = _facts(node, own, labels)
        else:
            facts = known.facts
        cached.view.put(_node_view(facts, live[node_id]))
    cached.refused.clear()
    return cached


def _node_view(facts: NodeFacts, live: Sequence[Interval]) -> NodeView:
    return NodeView(facts, ((i.atom_id, i.start_ms, i.end_ms) for i in live))


def _facts(node: nodes.Node, own: Sequence[Atom], labels: frozenset[str]) -> NodeFacts:
    return NodeFacts(
        id=node.id,
        ready=node.ready,
        reachable=node.reachable,
        cordoned=node.cordoned,
        trusted=node.trusted,
        labels=labels,
        shape=shape_of(_slots(own)),
        bookable=sum(1 << place for place, atom in enumerate(own) if atom.bookable),
        atom_ids=tuple(atom.id for atom in own),
    )


def _slots(own: Sequence[Atom]) -> tuple[Slot, ...]:
    # By first appearance, so that equal hosts get equal shapes.
    gpus = {gpu_id: i for i, gpu_id in enumerate(dict.fromkeys(a.gpu_id for a in own))}
    return tuple(
        Slot(
            device_class=atom.device_class,
            model=atom.model,
            profile=atom.profile,
            numa=atom.numa_node,
            gpu=gpus[atom.gpu_id],
            links=sum(1 << place for place, other in enumerate(own) if _linked(atom, other)),
        )
        for atom in own
    )


def _linked(one: Atom, other: Atom) -> bool:
    """Whether two whole GPUs see each other by NVLink, directly or through one switch fabric."""
    if one is other or {one.device_class, other.device_class} != {DeviceClass.GPU}:
        return False
    if one.nvlink_domain and one.nvlink_domain == other.nvlink_domain:
        return True
    return other.uuid in one.nvlink_peers and one.uuid in other.nvlink_peers


def _chosen(own: Sequence[Atom], found: Found) -> tuple[Atom, ...]:
    by_id = {atom.id: atom for atom in own}
    return tuple(by_id[atom_id] for ids in found.atom_ids for atom_id in ids)


def _allocation(
    tx: Transaction,
    reservation_id: ReservationId,
    node_id: NodeId,
    window: Window,
    chosen: Sequence[Atom],
) -> Allocation:
    return Allocation(
        id=AllocationId(tx.new_id("alloc")),
        reservation_id=reservation_id,
        node_id=node_id,
        state=AllocationState.BOOKED,
        until_ms=window.end_ms,
        devices=tuple(AssignedDevice(atom.uuid, atom.device_class) for atom in chosen),
    )
