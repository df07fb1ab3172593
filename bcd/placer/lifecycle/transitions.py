"""Every legal move of a reservation, with its event and its next moment. Pure.

Nothing else changes a state. Terminal states have no way out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from bcd.model.errors import InvalidState
from bcd.model.reservation import TERMINAL, OperationState, State, Window
from bcd.model.units import MINUTE_MS

BIND_TIMEOUT_MS = 5 * MINUTE_MS
RECHECK_MS = 15 * MINUTE_MS
MAX_ATTEMPTS = 3


class Trigger(StrEnum):
    """Why a reservation moves."""

    DENIED = "denied"
    NEEDS_CONFIRMATION = "needs-confirmation"
    NOT_CONFIRMED = "not-confirmed"
    QUEUED = "queued"
    PLACED = "placed"
    NO_FIT = "no-fit"
    QUEUED_NO_FIT = "queued-no-fit"
    STARTED = "started"
    BOUND = "bound"
    GAVE_UP = "gave-up"
    ENDED = "ended"
    RELEASED = "released"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Move:
    """Where a trigger leads; ``event`` is the last part of the event's type, empty for none.

    ``reason`` is the event's reason where the kind of event has one.
    """

    to: State
    event: str
    operation: OperationState
    reason: str = ""


_RUNNING = OperationState.RUNNING
_OK = OperationState.SUCCEEDED
_NOT_OK = OperationState.FAILED

MOVES: Mapping[tuple[State, Trigger], Move] = {
    (State.DRAFT, Trigger.DENIED): Move(State.DENIED, "", _NOT_OK),
    (State.DRAFT, Trigger.PLACED): Move(State.PLACED, "placed", _OK),
    (State.DRAFT, Trigger.NO_FIT): Move(State.PENDING, "pending", _OK),
    (State.DRAFT, Trigger.QUEUED): Move(State.PENDING, "queued", _RUNNING),
    (State.DRAFT, Trigger.NEEDS_CONFIRMATION): Move(
        State.AWAITING_CONFIRMATION, "awaiting-confirmation", _RUNNING
    ),
    (State.AWAITING_CONFIRMATION, Trigger.DENIED): Move(State.DENIED, "", _NOT_OK),
    (State.AWAITING_CONFIRMATION, Trigger.NOT_CONFIRMED): Move(State.EXPIRED, "expired", _NOT_OK),
    (State.AWAITING_CONFIRMATION, Trigger.PLACED): Move(State.PLACED, "placed", _OK),
    (State.AWAITING_CONFIRMATION, Trigger.NO_FIT): Move(State.PENDING, "pending", _OK),
    (State.AWAITING_CONFIRMATION, Trigger.QUEUED): Move(State.PENDING, "queued", _RUNNING),
    (State.AWAITING_CONFIRMATION, Trigger.RELEASED): Move(State.CANCELLED, "cancelled", _OK),
    (State.PENDING, Trigger.PLACED): Move(State.PLACED, "placed", _OK),
    (State.PENDING, Trigger.NO_FIT): Move(State.PENDING, "", _OK),
    (State.PENDING, Trigger.QUEUED_NO_FIT): Move(State.PENDING, "pending", _OK),
    (State.PENDING, Trigger.RELEASED): Move(State.CANCELLED, "cancelled", _OK),
    (State.PENDING, Trigger.CANCELLED): Move(State.CANCELLED, "cancelled", _OK),
    (State.PLACED, Trigger.STARTED): Move(State.BINDING, "binding", _OK),
    (State.PLACED, Trigger.ENDED): Move(State.RELEASED, "released", _OK, "expired"),
    (State.PLACED, Trigger.RELEASED): Move(State.RELEASED, "released", _OK, "release"),
    (State.PLACED, Trigger.CANCELLED): Move(State.CANCELLED, "cancelled", _OK),
    (State.BINDING, Trigger.BOUND): Move(State.ACTIVE, "active", _OK),
    (State.BINDING, Trigger.PLACED): Move(State.PLACED, "placed", _OK),
    (State.BINDING, Trigger.NO_FIT): Move(State.PENDING, "pending", _OK),
    (State.BINDING, Trigger.GAVE_UP): Move(State.FAILED, "failed", _NOT_OK),
    (State.BINDING, Trigger.ENDED): Move(State.RELEASED, "released", _OK, "expired"),
    (State.BINDING, Trigger.RELEASED): Move(State.RELEASED, "released", _OK, "release"),
    (State.ACTIVE, Trigger.ENDED): Move(State.RELEASED, "released", _OK, "expired"),
    (State.ACTIVE, Trigger.RELEASED): Move(State.RELEASED, "released", _OK, "release"),
}


def move_of(state: State, trigger: Trigger) -> Move:
    """The move that a trigger makes from a state; raises InvalidState where there is none."""
    move = MOVES.get((state, trigger))
    if move is None:
        raise InvalidState(f"a reservation that is {state} cannot be {trigger}", state=state)
    return move


def next_wake_ms(
    state: State, during: Window | None, bind_deadline_ms: int | None, now_ms: int
) -> int | None:
    """When a reservation must be looked at again, None for never.

    A pending one waits for its pool's own moment. ``bind_deadline_ms`` of one that awaits a
    confirmation is the confirmation's.
    """
    if state is State.AWAITING_CONFIRMATION:
        return bind_deadline_ms
    if state in TERMINAL or during is None:
        return None
    match state:
        case State.PLACED:
            return min(max(during.start_ms, now_ms), during.end_ms)
        case State.BINDING:
            deadline_ms = during.end_ms if bind_deadline_ms is None else bind_deadline_ms
            return min(deadline_ms, during.end_ms)
        case State.ACTIVE:
            return min(now_ms + RECHECK_MS, during.end_ms)
        case _:
            return None
