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
from bcd.placer.lifecycle.victims import Room, choose_victims, could_serve
from bcd.placer.placement.booking import Placed, Placements
from bcd.placer.placement.demand import demand_of
from bcd.placer.placement.node import NodeFacts
from bcd.placer.placement.search import Where, count_fitting
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store import allocations, occupancy, reservations
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
    node_ids = {
        allocation.node_id for one in candidates for allocation in allocations.live(hand.tx, one.id)
    }
    where = Where(
        start_ms=window.start_ms,
        end_ms=window.end_ms,
        now_ms=hand.held.now_ms,
        exclude=frozenset(node_ids),
    )
    demand = demand_of(row.request, row.resources)
    among = replace(where, exclude=frozenset())
    rooms = [
        _room(hand, view.nodes[node_id].facts, window)
        for node_id in sorted(node_ids - avoid)
        if node_id in view.nodes and could_serve(view.nodes[node_id].facts, demand, among)
    ]
    elsewhere = count_fitting(view, demand, where, demand.gang_size)
    return choose_victims(rooms, {one.id: one.seq for one in candidates}, demand, among, elsewhere)


def _room(hand: Hand, facts: NodeFacts, window: Window) -> Room:
    return Room(
        facts,
        occupancy.devices_on(hand.tx, facts.id, window),
        occupancy.amounts_on(hand.tx, facts.id, window),
    )


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
