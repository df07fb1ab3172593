"""Waits for a person's word on what an agent asked for (spec 13).

A confirmation ends with its reservation's wait: used when it is placed or queued, expired at the
deadline, rejected for ever. Everything here runs under the pool's lock on a locked reservation.
"""

from datetime import UTC, datetime

from bcd.model.confirmation import Confirmation, ConfirmationState
from bcd.model.errors import InvalidState
from bcd.model.reservation import Condition, ConditionType, State
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.transitions import Trigger
from bcd.store import confirmations, reservations
from bcd.store.confirmations import Question
from bcd.store.reservations import StoredReservation


def require(hand: Hand, row: StoredReservation, question: Question) -> Confirmation:
    """Ask the person; the draft waits for the answer, without a charge."""
    asked = confirmations.ask(hand.tx, row, question)
    apply.move(
        hand,
        row,
        Trigger.NEEDS_CONFIRMATION,
        {"confirmationId": asked.id, "expiresAt": asked.expires_ms},
        conditions=(_condition(hand, "True", "Waiting", sentence(asked)),),
        bind_deadline_ms=asked.expires_ms,
    )
    return asked


def sentence(asked: Confirmation) -> str:
    """What to do about one that waits: who, with which command, and until when."""
    return (
        f"{person_of(asked)} must confirm what {asked.actor} asks for ({asked.reason}):"
        f" better-compute confirm approve {asked.id}, before {_utc(asked.expires_ms)};"
        " then ask again with the same key"
    )


def person_of(asked: Confirmation) -> str:
    """The subject of the person's identity."""
    return asked.owner.partition("|")[2]


def expire_if_due(hand: Hand, row: StoredReservation) -> tuple[StoredReservation, bool]:
    """End a wait whose deadline has passed, approved or not; returns the row and whether it did."""
    deadline_ms = row.bind_deadline_ms
    if row.state is not State.AWAITING_CONFIRMATION or deadline_ms is None:
        return row, False
    if hand.held.now_ms < deadline_ms:
        return row, False
    words = f"it was not confirmed and asked for again before {_utc(deadline_ms)}; use a new key"
    condition = _condition(hand, "False", "Expired", words)
    return apply.move(hand, row, Trigger.NOT_CONFIRMED, conditions=(condition,)), True


def approve(hand: Hand, row: StoredReservation, asked: Confirmation) -> None:
    """Let the agent's next try pass, once; again is no change. Raises InvalidState when it is late.

    The reservation's version grows, so that a try that was decided before is decided again.
    """
    if asked.state is ConfirmationState.APPROVED:
        return
    _refuse_unless_open(hand, asked)
    confirmations.set_state(hand.tx, row.id, ConfirmationState.APPROVED)
    words = (
        f"{person_of(asked)} confirmed it: {asked.actor} must ask again with the same key before"
        f" {_utc(asked.expires_ms)}"
    )
    conditions = (_condition(hand, "False", "Approved", words),)
    reservations.save(hand.tx, row, conditions=conditions)


def reject(hand: Hand, row: StoredReservation, asked: Confirmation) -> None:
    """Deny the reservation for ever; again is no change. Raises InvalidState when it is late.

    A person may think better of an approval that the agent has not used yet.
    """
    if asked.state is ConfirmationState.REJECTED:
        return
    _refuse_unless_open(hand, asked)
    condition = _condition(hand, "False", "Rejected", f"{person_of(asked)} rejected it")
    apply.move(hand, row, Trigger.DENIED, conditions=(condition,))
    confirmations.set_state(hand.tx, row.id, ConfirmationState.REJECTED)


def _refuse_unless_open(hand: Hand, asked: Confirmation) -> None:
    state = asked.state
    if state in (ConfirmationState.WAITING, ConfirmationState.APPROVED):
        if hand.held.now_ms < asked.expires_ms:
            return
        state = ConfirmationState.EXPIRED
    raise InvalidState(
        f"{asked.id} is {state} and cannot be decided any more; ask {asked.actor} to make a new"
        " request",
        confirmationId=asked.id,
        state=state,
    )


def _condition(hand: Hand, status: str, reason: str, message: str) -> Condition:
    return Condition(
        type=ConditionType.CONFIRMATION_REQUIRED.value,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=hand.held.now_ms,
    )


def _utc(epoch_ms: int) -> str:
    return f"{datetime.fromtimestamp(epoch_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
