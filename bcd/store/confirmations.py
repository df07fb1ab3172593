"""Confirmations: what persons are asked about their agents' requests, and what they said.

The lock on a reservation's row covers its confirmation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bcd.model.confirmation import Confirmation, ConfirmationState
from bcd.model.errors import InvalidInput
from bcd.model.ids import ConfirmationId, ReservationId
from bcd.model.reservation import Request
from bcd.store.database import Row, Transaction
from bcd.store.reservations import StoredReservation

_REQUEST = msgspec.json.Decoder(Request)
_SELECT = (
    "SELECT c.*, r.tenant_id, r.pool_id, r.request FROM confirmations c"
    " JOIN reservations r ON r.id = c.reservation_id"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a person is to be asked from ``asked_ms`` to ``expires_ms``; ``reason`` says why."""

    action: str
    actor: str
    reason: str
    asked_ms: int
    expires_ms: int


def _confirmation(row: Row) -> Confirmation:
    return Confirmation(
        id=row["id"],
        reservation_id=row["reservation_id"],
        tenant_id=row["tenant_id"],
        pool_id=row["pool_id"],
        action=row["action"],
        owner=row["owner"],
        actor=row["actor"],
        request=_REQUEST.decode(row["request"]),
        request_hash=row["request_hash"],
        reason=row["reason"],
        state=ConfirmationState(row["state"]),
        created_ms=row["created_ms"],
        expires_ms=row["expires_ms"],
        decided_ms=row["decided_ms"],
    )


def ask(tx: Transaction, row: StoredReservation, question: Question) -> Confirmation:
    """Ask the owner of a locked reservation, which must have no confirmation yet."""
    tx.run(
        "INSERT INTO confirmations (id, reservation_id, request_hash, action, owner, actor, reason,"
        " state, created_ms, expires_ms) VALUES (:id, :reservation_id, :request_hash, :action,"
        " :owner, :actor, :reason, 'waiting', :asked_ms, :expires_ms)",
        id=tx.new_id("conf"),
        reservation_id=row.id,
        request_hash=row.request_hash,
        action=question.action,
        owner=row.owner,
        actor=question.actor,
        reason=question.reason,
        asked_ms=question.asked_ms,
        expires_ms=question.expires_ms,
    )
    asked = of_reservation(tx, row.id)
    assert asked is not None
    return asked


def get(tx: Transaction, confirmation_id: ConfirmationId) -> Confirmation | None:
    """Read one."""
    row = tx.one(f"{_SELECT} WHERE c.id = :id", id=confirmation_id)
    return None if row is None else _confirmation(row)


def of_reservation(tx: Transaction, reservation_id: ReservationId) -> Confirmation | None:
    """The one that a reservation waits or waited for, None when it never needed any."""
    row = tx.one(f"{_SELECT} WHERE c.reservation_id = :id", id=reservation_id)
    return None if row is None else _confirmation(row)


def set_state(tx: Transaction, reservation_id: ReservationId, state: ConfirmationState) -> None:
    """Write what became of a locked reservation's confirmation, if it has one."""
    tx.run(
        "UPDATE confirmations SET state = :state, decided_ms = compute_now()"
        " WHERE reservation_id = :id",
        id=reservation_id,
        state=state.value,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Whose confirmations a list shows; an empty state shows all of them."""

    tenant_id: str
    owner: str
    state: str = ""


def page(
    tx: Transaction, wanted: Filter, after: ConfirmationId | None, limit: int
) -> Sequence[Confirmation]:
    """Newest first, at most ``limit`` that are older than ``after``.

    Raises InvalidInput when the person has no such confirmation: an empty page would look like the
    last one.
    """
    before_seq = 1 << 62
    if after is not None:
        row = tx.one(
            "SELECT seq FROM confirmations WHERE id = :id AND owner = :owner",
            id=after,
            owner=wanted.owner,
        )
        if row is None:
            raise InvalidInput("cursor", "names no confirmation of yours; list without one")
        before_seq = row["seq"]
    rows = tx.all(
        f"{_SELECT} WHERE c.owner = :owner AND r.tenant_id = :tenant_id AND c.seq < :before_seq"
        " AND (:state = '' OR c.state = :state) ORDER BY c.seq DESC LIMIT :limit",
        owner=wanted.owner,
        tenant_id=wanted.tenant_id,
        state=wanted.state,
        before_seq=before_seq,
        limit=limit,
    )
    return [_confirmation(row) for row in rows]
