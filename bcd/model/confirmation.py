"""A person's word on what an agent asked for in that person's name (spec 13)."""

from dataclasses import dataclass
from enum import StrEnum

from bcd.model.ids import ConfirmationId, PoolId, ReservationId
from bcd.model.reservation import Request


class ConfirmationState(StrEnum):
    """``used`` is an approval that a reservation was placed or queued on; it is no approval twice.

    ``withdrawn`` is one whose reservation was given up before anybody had decided.
    """

    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    USED = "used"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """One question to a person: may this agent do this to that reservation?

    It is about the request with that hash and no other. ``owner`` is the person, ``actor`` the
    agent, ``reason`` what the policy says is held back. ``decided_ms`` is None while it waits.
    """

    id: ConfirmationId
    reservation_id: ReservationId
    tenant_id: str
    pool_id: PoolId
    action: str
    owner: str
    actor: str
    request: Request
    request_hash: str
    reason: str
    state: ConfirmationState
    created_ms: int
    expires_ms: int
    decided_ms: int | None
