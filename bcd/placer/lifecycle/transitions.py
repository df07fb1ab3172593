"""Every legal move of a reservation, with its event and its next moment. Pure.

Nothing else changes a state. Terminal states have no way out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from bcd.model.errors import InvalidState
from bcd.model.reservation import OperationState, State, Window
from bcd.model.units import MINUTE_MS, SECOND_MS

BIND_TIMEOUT_MS = 5 * MINUTE_MS
RECHECK_MS = 15 * MINUTE_MS
MAX_ATTEMPTS = 3
REPAIR_AHEAD_MS = 15 * MINUTE_MS
REPAIR_RETRY_MS = 30 * SECOND_MS


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
    LAPSED = "lapsed"
    PREEMPTED = "preempted"
    RELEASED = "released"
    CANCELLED = "cancelled"
    REPAIRED = "repaired"
    EXTENDED = "extended"
    RENEWED = "renewed"
    PREEMPTING = "preempting"
    REASSIGNED = "reassigned"


@dataclass(frozen=True, slots=True)
class Move:
    """Where a trigger leads; ``event`` is the last part of the event's type, empty for none.

    ``reason`` is the event's reason where the kind of event has one; without an ``operation`` the
    reservation keeps the one it has.
    """

    to: State
    event: str
    operation: OperationState | None
    reason: str = ""


_RUNNING = OperationState.RUNNING
_OK = OperationState.SUCCEEDED
_NOT_OK = OperationState.FAILED
_WAITING = (State.PENDING,)
_STARTED = (State.BINDING, State.ACTIVE)
_LIVE = (State.PLACED, *_STARTED)

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
    (State.PLACED, Trigger.REPAIRED): Move(State.PLACED, "repaired", None),
    **{(s, Trigger.LAPSED): Move(State.RELEASED, "released", _OK, "lease-lapsed") for s in _LIVE},
    **{(s, Trigger.PREEMPTED): Move(State.RELEASED, "released", _OK, "preempted") for s in _LIVE},
    **{(s, Trigger.PREEMPTING): Move(s, "preempting", None) for s in _STARTED},
    **{(s, Trigger.EXTENDED): Move(s, "extended", None) for s in _LIVE},
    **{(s, Trigger.RENEWED): Move(s, "", None) for s in _LIVE},
    **{(s, Trigger.REASSIGNED): Move(s, "reassigned", None) for s in (*_WAITING, *_LIVE)},
}


def move_of(state: State, trigger: Trigger) -> Move:
    """The move that a trigger makes from a state; raises InvalidState where there is none."""
    move = MOVES.get((state, trigger))
    if move is None:
        releasable = trigger is Trigger.CANCELLED and (state, Trigger.RELEASED) in MOVES
        instead = "; release it instead" if releasable else ""
        raise InvalidState(
            f"a reservation that is {state} cannot be {trigger}{instead}", state=state
        )
    return move


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """What a reservation waits for; ``damaged`` is a placed one whose repair found nothing yet."""

    during: Window | None
    bind_deadline_ms: int | None = None
    lease_until_ms: int | None = None
    damaged: bool = False


def next_wake_ms(state: State, moments: Moments, now_ms: int) -> int | None:
    """When a reservation must be looked at again, None for never.

    A pending one waits for its pool's own moment. ``bind_deadline_ms`` of one that awaits a
    confirmation is the confirmation's.
    """
    during = moments.during
    if state is State.AWAITING_CONFIRMATION:
        return moments.bind_deadline_ms
    if during is None or state not in _LIVE:
        return None
    wake_ms = during.end_ms
    if moments.lease_until_ms is not None:
        wake_ms = min(wake_ms, moments.lease_until_ms)
    match state:
        case State.PLACED:
            return min(wake_ms, _before_start(during.start_ms, moments.damaged, now_ms))
        case State.BINDING if moments.bind_deadline_ms is not None:
            return min(wake_ms, moments.bind_deadline_ms)
        case State.ACTIVE:
            return min(wake_ms, now_ms + RECHECK_MS)
        case _:
            return wake_ms


def _before_start(start_ms: int, damaged: bool, now_ms: int) -> int:
    """The start, and before it the moment of the last repair; what is damaged is tried again."""
    last_repair_ms = start_ms - REPAIR_AHEAD_MS
    if now_ms < last_repair_ms:
        return min(last_repair_ms, now_ms + RECHECK_MS) if damaged else last_repair_ms
    ahead_ms = max(start_ms, now_ms)
    return min(ahead_ms, now_ms + REPAIR_RETRY_MS) if damaged and now_ms < start_ms else ahead_ms
