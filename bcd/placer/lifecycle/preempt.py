"""Makes room for a reservation that fits nowhere: spot reservations yield (spec 7.7).

All in the transaction that asks. Whoever has started keeps the devices for the pool's grace, and
the new window begins behind that; whoever has not is released at once. Nobody is displaced in
vain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from bcd.model.ids import NodeId, ReservationId
from bcd.model.reservation import ConditionType, State, Window
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.decide import is_preempting, kept_or_new
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.lifecycle.victims import Room, choose_victims, without
from bcd.placer.placement.allowed import demand_in
from bcd.placer.placement.booking import Placed, Placements
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.earliest import earliest, next_end
from bcd.placer.placement.search import Where, count_fitting
from bcd.placer.placement.shadow import kept_from
from bcd.placer.placement.timeline import FOREVER
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.placer.placement.vain import Asked
from bcd.store import allocations, occupancy, quotas, reservations
from bcd.store.allocations import Allocation
from bcd.store.pools import PoolLock
from bcd.store.reservations import StoredReservation

_CONSIDERED = 256
_STARTED = frozenset({State.BINDING, State.ACTIVE})


class _InVain(Exception):
    """Undoes a savepoint: it did not help."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who yields, until when those stay that have started, and when the new window begins."""

    victims: tuple[StoredReservation, ...]
    cut_ms: int
    begin_ms: int


def make_room(
    hand: Hand,
    placements: Placements,
    row: StoredReservation,
    refused: Unschedulable,
    avoid: frozenset[NodeId],
    *,
    rehearse: bool,
) -> Placed | Unschedulable:
    """Place a reservation that was refused where spot reservations yield, or refuse it still.

    Where it would fit by itself as soon as that, nobody is disturbed. What was in vain is not tried
    again before that could have changed.
    """
    held = hand.held
    ahead_ms = row.request.start if (row.request.start or 0) > held.now_ms else None
    demand = demand_in(held.pool, row)
    asked = Asked(demand, row.request.duration_ms, ahead_ms, avoid, refused.kept)
    if placements.in_vain.holds(held, asked, refused):
        return refused
    plan = _plan(hand, placements, row, refused, avoid)
    if plan is not None:
        later = replace(row, request=msgspec.structs.replace(row.request, start=plan.begin_ms))
        look = partial(placements.place, hand.tx, held, later, avoid, rehearse=rehearse)
        placed = _displacing(hand, row, plan, look)
        if placed is not None:
            return placed
    until_ms = _in_vain_until(hand, placements, row, demand)
    placements.in_vain.note(held, asked, refused, until_ms)
    return refused


def _in_vain_until(
    hand: Hand, placements: Placements, row: StoredReservation, demand: Demand
) -> int:
    """When the same look could find something although nothing changed.

    As time goes on, the windows looked at begin later: what begins in them only stands in the way,
    and fewer can yield before them. More is free in one only once its begin has passed an end.
    """
    held = hand.held
    view = placements.view(hand.tx, held)
    wanted_ms, _, behind_ms = _moments(held, row.request.start or 0)
    ends = ((next_end(view, demand, begin_ms), begin_ms) for begin_ms in (wanted_ms, behind_ms))
    moments = [held.now_ms + end_ms - begin_ms for end_ms, begin_ms in ends if end_ms is not None]
    return min(moments, default=FOREVER)


def make_room_for_repair(
    hand: Hand,
    placements: Placements,
    row: StoredReservation,
    lost: Sequence[Allocation],
    refused: Unschedulable,
) -> Placed | Unschedulable:
    """Repair a placed reservation where spot reservations yield, or refuse it still.

    Its window stays as it is: only those yield who can be gone by then.
    """
    assert row.during is not None
    plan = None if row.request.spot else _repair_plan(hand, placements, row, row.during, lost)
    if plan is None:
        return refused
    look = partial(placements.repair, hand.tx, hand.held, row, lost)
    return _displacing(hand, row, plan, look) or refused


def _displacing(
    hand: Hand,
    row: StoredReservation,
    plan: _Plan,
    look: Callable[[], Placed | Unschedulable],
) -> Placed | None:
    """What ``look`` finds once the plan's victims have yielded; None, and they have not, else."""
    held = hand.held
    before = (held.seq, held.token)
    quotas.lock_for_room(hand.tx, held.pool.id, row.tenant_id, held.now_ms)
    try:
        with hand.tx.savepoint():
            for victim in plan.victims:
                _displace(hand, victim, plan.cut_ms)
            outcome = look()
            if not isinstance(outcome, Placed):
                raise _InVain
            return replace(outcome, displaced=tuple(victim.id for victim in plan.victims))
    except _InVain:
        held.seq, held.token = before
        return None


def starts_with_room(
    hand: Hand, placements: Placements, row: StoredReservation, refused: Unschedulable
) -> Sequence[int]:
    """Starts before the one at which a refused reservation fits by itself, worth a try; ascending.

    At each it would fit if every spot reservation that can yield by then were gone.
    """
    if row.request.spot:
        return ()
    found = {
        _first_without(hand, placements, row, candidates, begin_ms)
        for begin_ms, candidates in _chances(hand, row, row.request.start or 0).in_turn
        if candidates
    }
    nearest = refused.earliest_ms
    return sorted(
        start_ms for start_ms in found if start_ms and (nearest is None or start_ms < nearest)
    )


def _first_without(
    hand: Hand,
    placements: Placements,
    row: StoredReservation,
    candidates: Sequence[StoredReservation],
    begin_ms: int,
) -> int | None:
    tx, held = hand.tx, hand.held
    view = placements.view(tx, held)
    demand = demand_in(held.pool, row)
    duration_ms = row.request.duration_ms + held.pool.policy.turnaround_ms
    gone = {one.id for one in candidates}
    occupied = occupancy.with_spot(tx, held.pool.id, Window(begin_ms, FOREVER))
    with kept_from(tx, held, view, row) as shadow:
        before = [view.nodes[node_id] for node_id in occupied if node_id in view.nodes]
        kept = None if shadow is None else reservations.get(tx, shadow.reservation_id)
        for node in before:
            node_id = node.facts.id
            taken = occupied[node_id]
            left = without(Room(node.facts, taken.devices, taken.amounts), gone)
            if shadow is not None and kept is not None and node_id in shadow.members:
                atom_ids = shadow.members[node_id]
                left = left.with_booking(atom_ids, kept.resources, shadow.start_ms, shadow.end_ms)
            view.put(left)
        try:
            return earliest(view, demand, begin_ms, duration_ms)
        finally:
            for node in before:
                view.put(node)


@dataclass(frozen=True, slots=True)
class _Chances:
    """Whom to ask in turn, and when the new window would begin then.

    First those whom nobody will miss yet, then also those who have started: they stay until
    ``cut_ms``.
    """

    cut_ms: int
    in_turn: tuple[tuple[int, list[StoredReservation]], ...]


def _chances(hand: Hand, row: StoredReservation, start_ms: int) -> _Chances:
    held = hand.held
    wanted_ms, cut_ms, behind_ms = _moments(held, start_ms)
    spot = [
        one
        for one in reservations.spot_in(hand.tx, held.pool.id, wanted_ms, _CONSIDERED)
        if one.id != row.id and not is_preempting(one.conditions)
    ]
    ahead = [one for one in spot if one.state not in _STARTED]
    return _Chances(cut_ms, ((wanted_ms, ahead), (behind_ms, spot)))


def _moments(held: PoolLock, start_ms: int) -> tuple[int, int, int]:
    """When the window begins at best, when those who have started end, and when it begins then."""
    policy = held.pool.policy
    wanted_ms = max(held.now_ms, start_ms)
    cut_ms = max(held.now_ms + policy.spot.grace_ms, wanted_ms - policy.turnaround_ms)
    return wanted_ms, cut_ms, max(wanted_ms, cut_ms + policy.turnaround_ms)


def _plan(
    hand: Hand,
    placements: Placements,
    row: StoredReservation,
    refused: Unschedulable,
    avoid: frozenset[NodeId],
) -> _Plan | None:
    chances = _chances(hand, row, row.request.start or 0)
    demand = demand_in(hand.held.pool, row)
    for begin_ms, candidates in chances.in_turn:
        if refused.earliest_ms is not None and refused.earliest_ms <= begin_ms:
            return None
        duration_ms = row.request.duration_ms + hand.held.pool.policy.turnaround_ms
        window = Window(begin_ms, begin_ms + duration_ms)
        chosen = _chosen(hand, placements, demand, candidates, window, avoid)
        if chosen:
            victims = tuple(one for one in candidates if one.id in chosen)
            return _Plan(victims, chances.cut_ms, begin_ms)
    return None


def _repair_plan(
    hand: Hand,
    placements: Placements,
    row: StoredReservation,
    during: Window,
    lost: Sequence[Allocation],
) -> _Plan | None:
    """Who yields so that the lost members fit beside the others in the reservation's window."""
    policy = hand.held.pool.policy
    demand = demand_in(hand.held.pool, row).of(len(lost))
    window = Window(during.start_ms, during.end_ms + policy.turnaround_ms)
    gone = {allocation.id for allocation in lost}
    kept = frozenset(a.node_id for a in allocations.live(hand.tx, row.id) if a.id not in gone)
    chances = _chances(hand, row, during.start_ms)
    for begin_ms, candidates in chances.in_turn:
        if begin_ms > during.start_ms:
            return None
        chosen = _chosen(hand, placements, demand, candidates, window, kept, never=kept)
        if chosen:
            victims = tuple(one for one in candidates if one.id in chosen)
            return _Plan(victims, chances.cut_ms, begin_ms)
    return None


def _chosen(
    hand: Hand,
    placements: Placements,
    demand: Demand,
    candidates: list[StoredReservation],
    window: Window,
    avoid: frozenset[NodeId],
    never: frozenset[NodeId] = frozenset(),
) -> frozenset[ReservationId] | None:
    if not candidates:
        return None
    view = placements.view(hand.tx, hand.held)
    occupied = occupancy.with_spot(hand.tx, hand.held.pool.id, window)
    rooms = [
        Room(view.nodes[node_id].facts, taken.devices, taken.amounts)
        for node_id, taken in sorted(occupied.items())
        if node_id in view.nodes and node_id not in avoid
    ]
    where = Where(start_ms=window.start_ms, end_ms=window.end_ms, now_ms=hand.held.now_ms)
    others = replace(where, exclude=never.union(occupied))
    elsewhere = count_fitting(view, demand, others, demand.gang_size)
    ages = {one.id: one.seq for one in candidates}
    return choose_victims(rooms, ages, demand, where, elsewhere)


def _displace(hand: Hand, row: StoredReservation, cut_ms: int) -> None:
    if row.state not in _STARTED:
        apply.preempt(hand, row)
        return
    condition = kept_or_new(
        row.conditions,
        ConditionType.PREEMPTING,
        "DevicesNeeded",
        "the devices are needed by a reservation that is not spot; save your work, this one ends"
        " with its window",
        hand.held.now_ms,
    )
    apply.shorten(hand, row, cut_ms, Trigger.PREEMPTING, (*row.conditions, condition))
