"""Makes one move of a reservation, with everything that belongs to it, in one transaction.

State, event, next moment, and at the end of a life: refund, freed bookings, the nodes' new
desired states and the pool's waiting reservations. Called under the pool's lock; the order of
locks is pool, quota, reservation, bookings, desired states, work.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bcd.model.reservation import TERMINAL, Condition, ConditionType, State
from bcd.placer.lifecycle.assign import assign
from bcd.placer.lifecycle.transitions import (
    BIND_TIMEOUT_MS,
    Trigger,
    move_of,
    next_wake_ms,
)
from bcd.placer.pki.command import CommandSigner
from bcd.placer.placement.booking import Placed
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store import allocations, bookings, events, pools, quotas, reservations, work
from bcd.store.allocations import ON_NODE, AllocationState
from bcd.store.database import Transaction
from bcd.store.pools import PoolLock
from bcd.store.reservations import StoredReservation

PENDING_RETRY_MS = 30_000
# A node may have handed the devices over before its report has been judged.
_MAY_HAVE_RUN = frozenset({State.BINDING, State.ACTIVE})


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
    if step.to in TERMINAL:
        quotas.refund(hand.tx, row.id)
    after = reservations.save(hand.tx, row, state=step.to, operation=step.operation, **changes)
    if step.to in TERMINAL:
        free(hand, row, gap=row.state in _MAY_HAVE_RUN)
    if step.event:
        data = dict(extra or {}) | ({"reason": step.reason} if step.reason else {})
        emit(hand.tx, after, step.event, data)
    _schedule(hand, after)
    return after


def place(
    hand: Hand, row: StoredReservation, outcome: Placed | Unschedulable, **changes: Any
) -> StoredReservation:
    """Take in what placement found: placed with its window, or pending with the reason."""
    if isinstance(outcome, Placed):
        extra = {
            "nodeIds": [allocation.node_id for allocation in outcome.allocations],
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
            **changes,
        )
    condition = _unschedulable(row, outcome, hand.held.now_ms)
    if row.state is State.PENDING and row.conditions == (condition,):
        return row
    return move(
        hand,
        row,
        Trigger.NO_FIT,
        during=None,
        conditions=(condition,),
        bind_deadline_ms=None,
        **changes,
    )


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
                move(hand, over, Trigger.ENDED, bind_deadline_ms=None)
    after = move(
        hand,
        row,
        Trigger.STARTED,
        bind_deadline_ms=hand.held.now_ms + BIND_TIMEOUT_MS,
    )
    for allocation in mine:
        allocations.set_state(hand.tx, allocation.id, AllocationState.ASSIGNED)
    assign(hand.tx, hand.signer, hand.held.pool.policy, node_ids)
    return after


def emit(tx: Transaction, row: StoredReservation, event: str, data: Mapping[str, Any]) -> None:
    """Write a reservation's event, with its state and pool."""
    full = {"state": row.state.value, "poolId": row.pool_id, **data}
    name = f"reservation.{event}"
    events.emit(tx, f"reservation/{row.id}", name, full, tenant_id=row.tenant_id)


def free(hand: Hand, row: StoredReservation, *, gap: bool) -> None:
    """Give up the current placement: bookings end, allocations leave their nodes.

    With ``gap`` the devices stay booked for the pool's turnaround: a workload may have run there.
    Also where the bookings have ended by themselves: whoever waits for the devices is looked at
    as soon as they, and the gap behind them, are free.
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
    work.poke(hand.tx, row.pool_id, min(now_ms, row.during.end_ms) + gap_ms)


def _schedule(hand: Hand, row: StoredReservation) -> None:
    wake_ms = next_wake_ms(row.state, row.during, row.bind_deadline_ms, hand.held.now_ms)
    if wake_ms is None:
        work.drop(hand.tx, row.id)
    else:
        soon = wake_ms < hand.held.now_ms + work.TICK_MS
        work.schedule(hand.tx, row.id, wake_ms, soon=soon)
    if row.state is State.PENDING:
        work.poke(hand.tx, row.pool_id, hand.held.now_ms + PENDING_RETRY_MS)


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
        reason="NoNodeFits",
        message=message,
        last_transition_time=now_ms,
    )
