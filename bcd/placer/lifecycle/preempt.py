"""Makes room for a reservation that fits nowhere: spot reservations yield (spec 7.7).

All in the transaction that asks. Whoever has started keeps the devices for the pool's grace, and
the new window begins behind that; whoever has not is released at once. Nobody is displaced in
vain.
"""

from dataclasses import dataclass, replace

import msgspec

from bcd.model.ids import NodeId, ReservationId
from bcd.model.reservation import ConditionType, State, Window
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.decide import is_preempting, kept_or_new
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.lifecycle.victims import Room, choose_victims
from bcd.placer.placement.booking import Placed, Placements
from bcd.placer.placement.demand import demand_of
from bcd.placer.placement.search import Where, count_fitting
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store import occupancy, reservations
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

    Where it would fit by itself as soon as that, nobody is disturbed.
    """
    plan = _plan(hand, placements, row, refused, avoid)
    if plan is None:
        return refused
    held = hand.held
    before = (held.seq, held.token)
    asked = replace(row, request=msgspec.structs.replace(row.request, start=plan.begin_ms))
    try:
        with hand.tx.savepoint():
            for victim in plan.victims:
                _displace(hand, victim, plan.cut_ms)
            outcome = placements.place(hand.tx, held, asked, avoid, rehearse=rehearse)
            if not isinstance(outcome, Placed):
                raise _InVain
            return outcome
    except _InVain:
        held.seq, held.token = before
        return refused


def _plan(
    hand: Hand,
    placements: Placements,
    row: StoredReservation,
    refused: Unschedulable,
    avoid: frozenset[NodeId],
) -> _Plan | None:
    """First whom nobody will miss yet, then those who have started."""
    held, policy = hand.held, hand.held.pool.policy
    wanted_ms = max(held.now_ms, row.request.start or 0)
    cut_ms = max(held.now_ms + policy.spot.grace_ms, wanted_ms - policy.turnaround_ms)
    behind_ms = max(wanted_ms, cut_ms + policy.turnaround_ms)
    spot = [
        one
        for one in reservations.spot_in(hand.tx, held.pool.id, wanted_ms, _CONSIDERED)
        if one.id != row.id and not is_preempting(one.conditions)
    ]
    ahead = [one for one in spot if one.state not in _STARTED]
    for begin_ms, candidates in ((wanted_ms, ahead), (behind_ms, spot)):
        if refused.earliest_ms is not None and refused.earliest_ms <= begin_ms:
            return None
        duration_ms = row.request.duration_ms + policy.turnaround_ms
        window = Window(begin_ms, begin_ms + duration_ms)
        chosen = _chosen(hand, placements, row, candidates, window, avoid)
        if chosen:
            victims = tuple(one for one in candidates if one.id in chosen)
            return _Plan(victims, cut_ms, begin_ms)
    return None


def _chosen(
    hand: Hand,
    placements: Placements,
    row: StoredReservation,
    candidates: list[StoredReservation],
    window: Window,
    avoid: frozenset[NodeId],
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
    demand = demand_of(row.request, row.resources, hand.held.pool.policy.sharing.mode)
    others = replace(where, exclude=frozenset(occupied))
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
