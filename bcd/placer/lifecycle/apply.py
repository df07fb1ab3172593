"""Makes one move of a reservation, with everything that belongs to it, in one transaction.

State, event, next moment, and at the end of a life: refund, freed bookings, the nodes' new
desired states and the pool's waiting reservations. Called under the pool's lock; the order of
locks is pool, quota, reservation, bookings, desired states, work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from bcd.model.confirmation import ConfirmationState
from bcd.model.errors import InvalidState
from bcd.model.ids import NodeId
from bcd.model.reservation import TERMINAL, Condition, ConditionType, OperationState, State
from bcd.model.units import SECOND_MS
from bcd.placer.lifecycle.assign import assign
from bcd.placer.lifecycle.decide import is_preempting
from bcd.placer.lifecycle.handover import hand_over
from bcd.placer.lifecycle.transitions import (
    BIND_TIMEOUT_MS,
    Moments,
    Trigger,
    move_of,
    next_wake_ms,
)
from bcd.placer.pki.command import CommandSigner
from bcd.placer.placement.booking import Placed
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store import (
    allocations,
    bookings,
    confirmations,
    events,
    pools,
    quotas,
    reservations,
    work,
)
from bcd.store.allocations import ON_NODE, Allocation, AllocationState
from bcd.store.database import Transaction
from bcd.store.pools import PoolLock
from bcd.store.reservations import StoredReservation

PENDING_RETRY_MS = 30_000
# A node may have handed the devices over before its report has been judged.
_MAY_HAVE_RUN = frozenset({State.BINDING, State.ACTIVE})
# A confirmation ends with the wait for it: whatever the reservation becomes, it counts once.
_CONFIRMATION_AFTER = {
    State.PLACED: ConfirmationState.USED,
    State.PENDING: ConfirmationState.USED,
    State.EXPIRED: ConfirmationState.EXPIRED,
    State.CANCELLED: ConfirmationState.WITHDRAWN,
    State.DENIED: ConfirmationState.WITHDRAWN,
}


@dataclass(frozen=True, slots=True)
class Hand:
    """What every move needs: the open transaction, the pool's lock and the command key."""

    tx: Transaction
    held: PoolLock
    signer: CommandSigner


def move(
    hand: Hand,
    row: StoredReservation,
    trigger: Trigger,
    extra: Mapping[str, Any] | None = None,
    **changes: Any,
) -> StoredReservation:
    """Move a reservation as the table says; raises InvalidState where it has no such move.

    ``extra`` goes into the event's data, ``changes`` are further columns of the row.
    """
    step = move_of(row.state, trigger)
    if row.state is State.AWAITING_CONFIRMATION:
        changes = {"conditions": (), "bind_deadline_ms": None, **changes}
        confirmations.set_state(hand.tx, row.id, _CONFIRMATION_AFTER[step.to])
    if step.to in TERMINAL:
        quotas.refund(hand.tx, row.id)
    operation = step.operation or row.operation
    after = reservations.save(hand.tx, row, state=step.to, operation=operation, **changes)
    if step.to in TERMINAL:
        free(hand, row, gap=row.state in _MAY_HAVE_RUN)
    if step.to in TERMINAL and row.state is State.PENDING:
        work.poke(hand.tx, row.pool_id, hand.held.now_ms)  # something may have been kept for it
    if step.event:
        data = dict(extra or {}) | ({"reason": step.reason} if step.reason else {})
        emit(hand.tx, after, step.event, data)
    schedule(hand, after)
    return after


def enqueue(hand: Hand, row: StoredReservation) -> StoredReservation:
    """Leave an admitted request to the pool's placer, which goes through its queue at once."""
    condition = Condition(
        type=ConditionType.QUEUED.value,
        status="True",
        reason="WaitsForPlacer",
        message="the pool places requests in batches, oldest first; wait, or look again",
        last_transition_time=hand.held.now_ms,
    )
    return move(hand, row, Trigger.QUEUED, conditions=(condition,))


def place(
    hand: Hand, row: StoredReservation, outcome: Placed | Unschedulable, **changes: Any
) -> StoredReservation:
    """Take in what placement found: placed with its window, or pending with the reason.

    A lease runs from the first placement on, and a placement anew does not renew it; nobody can
    renew one while pending, so that it starts over behind that.
    """
    if isinstance(outcome, Placed):
        extra = {
            "nodeIds": _node_ids(outcome.allocations),
            "start": outcome.window.start_ms,
            "end": outcome.window.end_ms,
        }
        return move(
            hand,
            row,
            Trigger.PLACED,
            extra,
            during=outcome.window,
            conditions=(),
            bind_deadline_ms=None,
            lease_until_ms=row.lease_until_ms or lease_from(row, hand.held.now_ms),
            **changes,
        )
    condition = _unschedulable(row, outcome, hand.held.now_ms)
    if row.state is State.PENDING and row.conditions == (condition,):
        return row
    queued = row.state is State.PENDING and row.operation is OperationState.RUNNING
    return move(
        hand,
        row,
        Trigger.QUEUED_NO_FIT if queued else Trigger.NO_FIT,
        during=None,
        conditions=(condition,),
        bind_deadline_ms=None,
        lease_until_ms=None,
        **changes,
    )


def lease_from(row: StoredReservation, now_ms: int) -> int | None:
    """When a lease that begins now runs out; None for a reservation without one."""
    seconds = row.request.lease_seconds
    return None if seconds is None else now_ms + seconds * SECOND_MS


def start(hand: Hand, row: StoredReservation) -> StoredReservation:
    """Hand the assignments of a placed reservation to their nodes.

    Whatever is over there ends first, even if its own turn comes later: no node may be told to
    hold one device for two reservations.
    """
    mine = allocations.live(hand.tx, row.id)
    node_ids = sorted({allocation.node_id for allocation in mine})
    for node_id in node_ids:
        for over in reservations.over_on_node(hand.tx, node_id, hand.held.now_ms):
            if over.id != row.id:
                end(hand, over)
    after = move(
        hand,
        row,
        Trigger.STARTED,
        bind_deadline_ms=hand.held.now_ms + BIND_TIMEOUT_MS,
    )
    hand_over(hand.tx, hand.held.pool.policy, row, mine)
    assign(hand.tx, hand.signer, hand.held.pool.policy, node_ids)
    return after


def end(hand: Hand, row: StoredReservation) -> StoredReservation:
    """The window is over, or what preemption left of it."""
    if not is_preempting(row.conditions):
        return move(hand, row, Trigger.ENDED, bind_deadline_ms=None)
    return preempt(hand, row)


def preempt(hand: Hand, row: StoredReservation) -> StoredReservation:
    """Its devices are somebody else's from now on."""
    emit(hand.tx, row, "preempted", {})
    return move(hand, row, Trigger.PREEMPTED, bind_deadline_ms=None)


def repair(hand: Hand, row: StoredReservation, outcome: Placed) -> StoredReservation:
    """Take in what repair found: some members lie on other nodes, the window is the same."""
    mended = tuple(c for c in row.conditions if c.type != ConditionType.DEGRADED)
    extra = {"nodeIds": _node_ids(outcome.allocations)}
    return move(hand, row, Trigger.REPAIRED, extra, conditions=mended)


def extend(hand: Hand, row: StoredReservation, end_ms: int) -> StoredReservation:
    """Take in that every booking ends later, and tell the nodes that hold the devices."""
    assert row.during is not None
    during = replace(row.during, end_ms=end_ms)
    extra = {"start": during.start_ms, "end": during.end_ms}
    duration_ms = during.end_ms - during.start_ms
    after = move(hand, row, Trigger.EXTENDED, extra, during=during, extended_ms=duration_ms)
    mine = allocations.live(hand.tx, row.id)
    on_nodes = {a.node_id for a in mine if a.state in ON_NODE}
    assign(hand.tx, hand.signer, hand.held.pool.policy, on_nodes)
    return after


def shorten(
    hand: Hand, row: StoredReservation, end_ms: int, why: Trigger, conditions: Sequence[Condition]
) -> StoredReservation:
    """Let a reservation that has started end earlier: bookings, window, what its nodes are told.

    The devices stay booked for the pool's turnaround behind that, which may be less than it was
    when they were booked. One whose window ends before ``end_ms`` keeps it.
    """
    assert row.during is not None
    end_ms = min(end_ms, row.during.end_ms)
    bookings.end_at(hand.tx, row.id, end_ms, hand.held.pool.policy.turnaround_ms)
    mine = allocations.live(hand.tx, row.id)
    allocations.set_until(hand.tx, row.id, end_ms)
    pools.note_changes(hand.tx, hand.held, sorted({a.node_id for a in mine}))
    during = replace(row.during, end_ms=end_ms)
    extra = {"end": end_ms}
    after = move(hand, row, why, extra, during=during, conditions=tuple(conditions))
    on_nodes = {a.node_id for a in mine if a.state in ON_NODE}
    assign(hand.tx, hand.signer, hand.held.pool.policy, on_nodes)
    return after


def renew(hand: Hand, row: StoredReservation) -> StoredReservation:
    """Let the lease run anew from now on; raises InvalidState where there is none to renew."""
    lease_ms = lease_from(row, hand.held.now_ms)
    if lease_ms is None:
        raise InvalidState(
            f"{row.id} has no lease; only what was reserved with one (leaseSeconds) can be renewed",
            state=row.state,
        )
    move_of(row.state, Trigger.RENEWED)
    refuse_over(row, hand.held.now_ms)
    return move(hand, row, Trigger.RENEWED, lease_until_ms=lease_ms)


def refuse_over(row: StoredReservation, now_ms: int) -> None:
    """Raises InvalidState for a live reservation whose window or lease is over.

    It ends with its next look, which is due.
    """
    ends = [row.lease_until_ms, None if row.during is None else row.during.end_ms]
    if any(end_ms is not None and end_ms <= now_ms for end_ms in ends):
        raise InvalidState(f"{row.id} is over; reserve anew", state=row.state)


def _node_ids(placed: Sequence[Allocation]) -> list[NodeId]:
    return [allocation.node_id for allocation in placed]


def emit(tx: Transaction, row: StoredReservation, event: str, data: Mapping[str, Any]) -> None:
    """Write a reservation's event, with its state and pool."""
    full = {"state": row.state.value, "poolId": row.pool_id, **data}
    name = f"reservation.{event}"
    events.emit(tx, f"reservation/{row.id}", name, full, tenant_id=row.tenant_id)


def free(hand: Hand, row: StoredReservation, *, gap: bool) -> None:
    """Give up the current placement: bookings end, allocations leave their nodes.

    With ``gap`` the devices stay booked for the pool's turnaround: a workload may have run there.
    Whoever waits is looked at now, also where the bookings have ended by themselves: a window that
    begins behind the gap may fit already, and for others that look finds when to look again.
    """
    mine = allocations.live(hand.tx, row.id)
    if not mine or row.during is None:
        return
    now_ms = hand.held.now_ms
    gap_ms = hand.held.pool.policy.turnaround_ms if gap else 0
    bookings.end_at(hand.tx, row.id, now_ms, gap_ms)
    pools.note_changes(hand.tx, hand.held, sorted({a.node_id for a in mine}))
    for allocation in mine:
        allocations.set_state(hand.tx, allocation.id, AllocationState.ENDED)
    on_nodes = {a.node_id for a in mine if a.state in ON_NODE}
    assign(hand.tx, hand.signer, hand.held.pool.policy, on_nodes)
    work.poke(hand.tx, row.pool_id, now_ms)


def schedule(hand: Hand, row: StoredReservation) -> None:
    """Set a reservation's next moment, or none once it waits for its pool or has ended."""
    moments = Moments(
        during=row.during,
        bind_deadline_ms=row.bind_deadline_ms,
        lease_until_ms=row.lease_until_ms,
        damaged=any(c.type == ConditionType.DEGRADED for c in row.conditions),
    )
    wake_ms = next_wake_ms(row.state, moments, hand.held.now_ms)
    if wake_ms is None:
        work.drop(hand.tx, row.id)
    else:
        soon = wake_ms < hand.held.now_ms + work.TICK_MS
        work.schedule(hand.tx, row.id, wake_ms, soon=soon)
    if row.state is State.PENDING:
        queued = row.operation is OperationState.RUNNING
        rest_ms = 0 if queued else PENDING_RETRY_MS
        work.bring_forward(hand.tx, row.pool_id, hand.held.now_ms + rest_ms)


def _unschedulable(row: StoredReservation, outcome: Unschedulable, now_ms: int) -> Condition:
    message = outcome.sentence
    if outcome.earliest_ms is not None:
        moment = datetime.fromtimestamp(-(-outcome.earliest_ms // 1000), UTC)
        message += f"; it would fit from {moment:%Y-%m-%d %H:%M:%S} UTC on"
    for condition in row.conditions:
        if condition.type == ConditionType.UNSCHEDULABLE:
            now_ms = condition.last_transition_time
    return Condition(
        type=ConditionType.UNSCHEDULABLE.value,
        status="True",
        reason=outcome.reason,
        message=message,
        last_transition_time=now_ms,
    )
