"""One extend: a hold on the slot, a decision on the whole duration, every booking's end or none.

Two transactions around the decision, as a create has. The hold is what ties them together: it is
a nonce of the server's, so that of two extends only the one whose duration was decided on is
applied, and each clears only what it staged itself.
"""

import asyncio
import secrets
from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.errors import (
    AccessDenied,
    BcdError,
    Conflict,
    InvalidInput,
    InvalidState,
    Unavailable,
)
from bcd.model.ids import ReservationId
from bcd.model.reservation import Reservation, Window
from bcd.model.units import MAX_DURATION_MS
from bcd.placer.admission.attributes import Place, attributes_of
from bcd.placer.admission.policy import Action, Allowed, Policy
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.decide import is_preempting
from bcd.placer.lifecycle.transitions import Trigger, move_of
from bcd.placer.pki.command import CommandSigner
from bcd.placer.placement.booking import AvailableUntil, Placements
from bcd.store import extend_holds, offers, pools, reservations
from bcd.store.database import Database, Transaction
from bcd.store.extend_holds import HOLD_MS
from bcd.store.reservations import StoredReservation

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Longer:
    """What is asked for: a new end in epoch milliseconds, or so much more; exactly one is set."""

    until_ms: int | None = None
    by_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Extension:
    """What an extend came to; ``available_until_ms`` is set where another booking is in the way."""

    reservation: Reservation
    extended: bool
    available_until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Staged:
    """What was decided on: the reservation as it was, and the end that it would get."""

    row: StoredReservation
    during: Window
    place: Place


class Extensions:
    """Extends reservations that hold devices or will hold them."""

    def __init__(
        self,
        database: Database,
        policy: Policy,
        placements: Placements,
        signer: CommandSigner,
    ) -> None:
        self._database = database
        self._policy = policy
        self._placements = placements
        self._signer = signer

    async def extend(
        self, caller: Caller, reservation_id: ReservationId, longer: Longer
    ) -> Extension:
        """Move the end of a reservation that exists; raises a BcdError for every refusal.

        A pool that is no longer offered to the tenant is not found: what runs there runs out.
        Whatever goes wrong, also a caller who goes away, gives the slot back.
        """
        hold = secrets.token_hex(16)
        for _ in range(_ATTEMPTS):
            outcome = await self._attempt(caller, reservation_id, longer, hold)
            if outcome is not None:
                return outcome
        raise Unavailable(
            f"{reservation_id} keeps changing; try again", reservationId=reservation_id
        )

    async def _attempt(
        self, caller: Caller, reservation_id: ReservationId, longer: Longer, hold: str
    ) -> Extension | None:
        """One round; None when the reservation changed while it was decided on."""
        staging = asyncio.ensure_future(self._database.write(_stage, reservation_id, longer, hold))
        applied = False
        try:
            staged = await asyncio.shield(staging)
            if isinstance(staged, Extension):
                return staged
            self._permit(caller, staged)
            outcome = await self._database.write(self._apply, staged, hold)
            applied = outcome is not None
            return outcome
        finally:
            if not applied:
                await asyncio.shield(self._abandon(staging, reservation_id, hold))

    def _permit(self, caller: Caller, staged: _Staged) -> None:
        row, during = staged.row, staged.during
        request = row.asking_ms(during.end_ms - during.start_ms)
        attributes = attributes_of(row.tenant_id, row.owner, staged.place, request, row.resources)
        decision = self._policy.decide(caller, Action.EXTEND, attributes)
        if not isinstance(decision, Allowed):
            raise AccessDenied(
                f"the policy refuses this extension: {decision.sentence}",
                reservationId=row.id,
                caps=",".join(decision.caps),
            )

    def _apply(self, tx: Transaction, staged: _Staged, hold: str) -> Extension | None:
        """Transaction 2; gives the slot back itself where it comes to an answer."""
        before = staged.row
        hand = Hand(tx, pools.lock(tx, before.pool_id), self._signer)
        row = reservations.lock(tx, before.id)
        assert row is not None
        duration_ms = staged.during.end_ms - staged.during.start_ms
        if extend_holds.staged_ms(tx, row.id, hold) != duration_ms:
            raise _in_flight(row)
        _refuse_over(row, hand.held.now_ms)
        offers.terms(tx, hand.held.pool, row.tenant_id)
        if (row.during, row.owner) != (before.during, before.owner):
            return None
        outcome = self._placements.extend(tx, hand.held, row, staged.during.end_ms)
        extend_holds.clear(tx, row.id, hold)
        if isinstance(outcome, AvailableUntil):
            return Extension(reservations.view(tx, row), False, outcome.end_ms)
        after = apply.extend(hand, row, staged.during.end_ms)
        return Extension(reservations.view(tx, after), True)

    async def _abandon(
        self,
        staging: asyncio.Future[_Staged | Extension],
        reservation_id: ReservationId,
        hold: str,
    ) -> None:
        """Give the slot back once it is sure that nobody takes it any more under this hold."""
        await asyncio.wait([staging])
        if not staging.cancelled():
            staging.exception()  # whoever waited was told, unless they went away
        await self._database.write(extend_holds.clear, reservation_id, hold)


def _stage(
    tx: Transaction, reservation_id: ReservationId, longer: Longer, hold: str
) -> _Staged | Extension:
    """Transaction 1: take the slot with the duration to be decided on; no pool's lock is held."""
    row = reservations.get(tx, reservation_id)
    assert row is not None
    _refuse_over(row, tx.now_ms())
    assert row.during is not None
    until_ms = longer.until_ms
    end_ms = row.during.end_ms + (longer.by_ms or 0) if until_ms is None else until_ms
    if end_ms <= row.during.end_ms:
        return Extension(reservations.view(tx, row), False)
    duration_ms = end_ms - row.during.start_ms
    if duration_ms > MAX_DURATION_MS:
        field = "by" if until_ms is None else "until"
        raise InvalidInput(field, "would make the reservation longer than ten years")
    pool = pools.get(tx, row.pool_id)
    offers.terms(tx, pool, row.tenant_id)
    if not extend_holds.take(tx, row.id, hold, duration_ms):
        raise _in_flight(row)
    during = Window(row.during.start_ms, end_ms)
    return _Staged(row, during, Place(pool.region, pool.models, pool.policy.sharing))


def _refuse_over(row: StoredReservation, now_ms: int) -> None:
    """Raises InvalidState for what has no bookings, or only until its next look."""
    move_of(row.state, Trigger.EXTENDED)
    apply.refuse_over(row, now_ms)
    if is_preempting(row.conditions):
        raise InvalidState(
            f"{row.id} is being preempted and cannot be extended; reserve anew", state=row.state
        )


def _in_flight(row: StoredReservation) -> BcdError:
    return Conflict(
        f"another extend of {row.id} is under way; try again in a minute",
        reservationId=row.id,
        reason="extend-in-flight",
        retryAfterSeconds=str(HOLD_MS // 1000),
    )
