"""What a create has to do with confirmations: the person's word, and the refusals (spec 13)."""

from bcd.model.confirmation import Confirmation as Asked
from bcd.model.confirmation import ConfirmationState
from bcd.model.errors import AccessDenied, ConfirmationRequired
from bcd.model.ids import ReservationId
from bcd.model.reservation import ConditionType
from bcd.model.units import MINUTE_MS
from bcd.placer.admission.policy import Action, Confirmation, Denied
from bcd.placer.lifecycle.confirming import sentence
from bcd.store import confirmations
from bcd.store.database import Transaction
from bcd.store.reservations import StoredReservation

LIFETIME_MS = 30 * MINUTE_MS


def word_on(tx: Transaction, row: StoredReservation, *, used: bool = False) -> Confirmation:
    """What the person said of this very request of this very agent; the caller has no say in it.

    A word that a create has ``used`` counts only for what changes nothing of what it was given for.
    """
    asked = confirmations.of_reservation(tx, row.id)
    counts = {ConfirmationState.APPROVED} | ({ConfirmationState.USED} if used else set())
    if asked is None or asked.state not in counts:
        return Confirmation.NONE
    bound_to = (asked.action, asked.request_hash, f"{asked.owner}|{asked.actor}")
    if bound_to != (Action.CREATE, row.request_hash, row.identity):
        return Confirmation.NONE
    return Confirmation.APPROVED


def required(asked: Asked) -> ConfirmationRequired:
    """The refusal while a person has not decided; the same key asks again."""
    return ConfirmationRequired(
        sentence(asked),
        reservationId=asked.reservation_id,
        confirmationId=asked.id,
        expiresAt=str(asked.expires_ms),
    )


def would_be_required(denied: Denied) -> ConfirmationRequired:
    """What a rehearsal of such a request comes to; it asks nobody."""
    return ConfirmationRequired(f"a person would be asked to confirm this: {denied.sentence}")


def denied_before(row: StoredReservation) -> AccessDenied:
    """A refused key stays refused: by the policy, or by the person who was asked."""
    for condition in row.conditions:
        if condition.type == ConditionType.CONFIRMATION_REQUIRED:
            message = f"{condition.message}; use a new key for another request"
            return AccessDenied(message, reservationId=row.id, caps="")
    return denied_key(row.id)


def denied_key(reservation_id: ReservationId) -> AccessDenied:
    """What a key hears that the policy refused, also when the reservation is not kept any more."""
    return AccessDenied(
        "the policy refuses this reservation: forbidden by the earlier decision on this"
        " idempotency key",
        reservationId=reservation_id,
        caps="",
    )
