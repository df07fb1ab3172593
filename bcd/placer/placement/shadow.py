"""Keeps younger requests from starving the oldest one that does not fit yet (spec 7.5).

As backfill schedulers do: the oldest pending reservation of a pool that could ever fit has a shadow
booking, its earliest window on certain devices as far as the bookings of now tell. To everything
younger those devices are taken then; what is over before, or goes elsewhere, passes.

The bound: the shadow's start never moves later by anybody else's placement or extension, so that
the oldest gets its place by then. Only what is neither moves it: a node or device that goes out of
service, a repair, which is owed. The next oldest is protected from then on, so that every
reservation has its turn after those before it.

The shadow is a row of the database: placers that tie differently keep the same devices, also after
a restart. It is looked for anew when it cannot stand any more, and when its reservation could
start at once or, tried again, sooner.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from bcd.model.ids import ReservationId
from bcd.model.reservation import State
from bcd.placer.placement.allowed import barred, demand_in
from bcd.placer.placement.earliest import earliest
from bcd.placer.placement.search import Where, count_fitting, find
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.placer.placement.view import PoolView
from bcd.store import queue, reservations, shadows
from bcd.store.database import Transaction
from bcd.store.pools import PoolLock
from bcd.store.reservations import StoredReservation
from bcd.store.shadows import Shadow

# Where nobody's shadow stands so many are asked, the oldest. Whoever comes behind them and could
# fit has a shadow from its own next try on.
_ASKED = 8

ANY_SEQ = 1 << 62  # behind everybody who waits
T = TypeVar("T")
# Names a shadow: what a search was shown depends on it.
Kept = tuple[ReservationId, int]


def beside(
    tx: Transaction,
    held: PoolLock,
    view: PoolView,
    row: StoredReservation,
    look: Callable[[Kept | None], T | Unschedulable],
) -> T | Unschedulable:
    """What ``look`` finds in the view beside what is kept for an older one.

    Where nothing is, and nothing found, this one is kept its earliest place from now on.
    """
    with kept_from(tx, held, view, row) as shadow:
        found = look(None if shadow is None else (shadow.reservation_id, shadow.start_ms))
    if shadow is None and isinstance(found, Unschedulable):
        _keep_for(tx, held, view, row, found)
    return found


@contextmanager
def kept_from(
    tx: Transaction, held: PoolLock, view: PoolView, row: StoredReservation
) -> Iterator[Shadow | None]:
    """Within, the view shows as taken what is kept from this one, which is the shadow given."""
    kept = kept_of(tx, held, view, row.seq)
    if kept is None:
        yield None
        return
    owner, shadow = kept
    before = {node_id: view.nodes[node_id] for node_id in shadow.members}
    for node_id, atom_ids in shadow.members.items():
        window = (shadow.start_ms, shadow.end_ms)
        view.put(before[node_id].with_booking(atom_ids, owner.resources, *window))
    try:
        yield shadow
    finally:
        for node_id, node in before.items():
            view.put(node.with_facts(view.nodes[node_id].facts))


def kept_of(
    tx: Transaction, held: PoolLock, view: PoolView, before_seq: int
) -> tuple[StoredReservation, Shadow] | None:
    """The reservation of those older than that ``seq`` that something is kept for, and what."""
    oldest = queue.pending_before(tx, held.pool.id, before_seq, 1)
    if not oldest:
        return None
    known = shadows.get(tx, held.pool.id)
    if known is not None:
        owner = (
            oldest[0] if _is_of(known, oldest[0]) else reservations.get(tx, known.reservation_id)
        )
        waits = owner is not None and owner.state is State.PENDING and owner.seq < before_seq
        if owner is not None and waits and _holds(tx, held, view, owner, known):
            return owner, known
    for waiting in queue.pending_before(tx, held.pool.id, before_seq, _ASKED):
        best = _earliest_shadow(tx, held, view, waiting)
        if best is not None:
            shadows.put(tx, held.pool.id, best)
            return waiting, best
    return None


def _keep_for(
    tx: Transaction,
    held: PoolLock,
    view: PoolView,
    row: StoredReservation,
    refused: Unschedulable,
) -> None:
    """Write the shadow of one that was just refused, unless that stands and is the earliest."""
    known = shadows.get(tx, held.pool.id)
    if known is not None and _is_of(known, row) and _stands(held, view, row, known):
        sooner = refused.earliest_ms is not None and refused.earliest_ms < known.start_ms
        if not sooner:
            return
    best = _earliest_shadow(tx, held, view, row)
    if best is not None:
        shadows.put(tx, held.pool.id, best)


def _is_of(shadow: Shadow, row: StoredReservation) -> bool:
    return shadow.reservation_id == row.id


def _holds(
    tx: Transaction, held: PoolLock, view: PoolView, owner: StoredReservation, shadow: Shadow
) -> bool:
    """Whether it is this one's shadow, stands, and the owner could not start at once.

    What is free right now is nobody else's, even if it could be given back in time. Nothing is
    kept for one that the pool no longer allows.
    """
    if not _is_of(shadow, owner) or not _stands(held, view, owner, shadow):
        return False
    if barred(tx, held.pool, owner) is not None:
        return False
    now_ms = held.now_ms
    if shadow.start_ms == now_ms:
        return True
    demand = demand_in(held.pool, owner)
    at_once = Where(start_ms=now_ms, end_ms=now_ms + shadow.end_ms - shadow.start_ms)
    return count_fitting(view, demand, at_once, demand.gang_size) < demand.gang_size


def _stands(held: PoolLock, view: PoolView, owner: StoredReservation, shadow: Shadow) -> bool:
    """Whether the reservation could still start there and then."""
    if shadow.start_ms < held.now_ms:
        return False
    for node_id, atom_ids in shadow.members.items():
        node = view.nodes.get(node_id)
        if node is None or not node.facts.schedulable:
            return False
        free = node.free(shadow.start_ms, shadow.end_ms)
        places = {atom_id: at for at, atom_id in enumerate(node.facts.atom_ids)}
        if not all(atom_id in places and free >> places[atom_id] & 1 for atom_id in atom_ids):
            return False
        if node.lacks(owner.resources, shadow.start_ms, shadow.end_ms):
            return False
    return True


def _earliest_shadow(
    tx: Transaction, held: PoolLock, view: PoolView, owner: StoredReservation
) -> Shadow | None:
    """Where and when it would start first; None when it fits not even into an idle pool.

    Nor for a spot one, which yields to others and keeps nothing from them, nor for one whose start
    is still ahead: it asked for that time and no other. Nor where the pool no longer allows it.
    """
    if owner.request.spot or (owner.request.start or 0) > held.now_ms:
        return None
    if barred(tx, held.pool, owner) is not None:
        return None
    demand = demand_in(held.pool, owner)
    duration_ms = owner.request.duration_ms + held.pool.policy.turnaround_ms
    idle_ms = max(held.now_ms, view.horizon_ms)
    idle = Where(start_ms=idle_ms, end_ms=idle_ms + duration_ms)
    if count_fitting(view, demand, idle, demand.gang_size) < demand.gang_size:
        return None
    start_ms = earliest(view, demand, held.now_ms, duration_ms)
    if start_ms is None:  # too many bookings to look at them all: when they are all over, then
        start_ms = idle_ms
    end_ms = start_ms + duration_ms
    where = Where(start_ms=start_ms, end_ms=end_ms, now_ms=held.now_ms)
    found = find(view, demand, where)
    if found is None:
        return None
    return Shadow(
        reservation_id=owner.id,
        start_ms=start_ms,
        end_ms=end_ms,
        members={one.node_id: tuple(i for ids in one.atom_ids for i in ids) for one in found},
    )
