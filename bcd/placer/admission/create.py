"""One create: draft, decision, charge, placement; two transactions around the decision.

The draft's version ties them together: what was decided on is what is placed, or it is decided
again. Nobody holds a lock while the policy runs.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bcd.model.caller import Caller
from bcd.model.errors import AccessDenied, Conflict, QuotaExceeded, Unavailable
from bcd.model.ids import ReservationId
from bcd.model.reservation import Reservation, Resources, State
from bcd.placer.admission.attributes import Place, attributes_of
from bcd.placer.admission.policy import Action, Decision, Denied, Policy
from bcd.placer.admission.quota import charges
from bcd.placer.admission.request import Create, parse_create, request_hash, reservation_id
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.pki.command import CommandSigner
from bcd.placer.placement.booking import Placements
from bcd.store import offers, pools, quotas, reservations
from bcd.store.database import Database, Transaction
from bcd.store.pools import Pool
from bcd.store.quotas import Refused
from bcd.store.reservations import Draft, StoredReservation

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Answered:
    """What a create came to: the reservation, or the refusal that is its lasting outcome."""

    reservation: Reservation | None = None
    denied: Denied | None = None


class _DryRun(Exception):
    """Carries the answer out of a transaction that is rolled back."""

    def __init__(self, answer: Answered) -> None:
        super().__init__()
        self.answer = answer


class Admission:
    """Creates reservations. Callers of one key wait for each other, so it is decided once."""

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
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()

    async def create(
        self, caller: Caller, document: Mapping[str, Any]
    ) -> tuple[Create, Reservation]:
        """Create, or find what the same key made before; raises a BcdError for every refusal."""
        create = parse_create(document)
        if create.tenant_id not in caller.tenants:
            raise AccessDenied(
                f"the token is not for tenant {create.tenant_id}", tenantId=create.tenant_id
            )
        draft = _draft(caller, create)
        if create.dry_run:
            return create, await self._dry_run(caller, draft)
        async with self._alone(draft.id):
            for _ in range(_ATTEMPTS):
                answer = await self._attempt(caller, draft)
                if answer is not None:
                    return create, _granted(answer, draft.id)
        raise Unavailable(f"{draft.id} keeps changing; try again", reservationId=draft.id)

    @asynccontextmanager
    async def _alone(self, key: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._waiting[key] += 1
        try:
            async with lock:
                yield
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key], self._locks[key]

    async def _attempt(self, caller: Caller, draft: Draft) -> Answered | None:
        """One round; None when the draft changed while it was decided on."""
        pool, row, known = await self._database.write(_open_draft, draft)
        if known is not None:
            return known
        decision = self._decide(caller, draft, pool)
        return await self._database.write(self._settle, draft, row.version, decision)

    def _decide(self, caller: Caller, draft: Draft, pool: Pool) -> Decision:
        place = Place(pool.region, pool.models)
        attributes = attributes_of(draft.tenant_id, draft.owner, place, draft.request)
        return self._policy.decide(caller, Action.CREATE, attributes)

    def _settle(
        self,
        tx: Transaction,
        draft: Draft,
        version: int,
        decision: Decision,
        *,
        rehearse: bool = False,
    ) -> Answered | None:
        """Transaction 2. A refused charge raises, which leaves the draft a draft."""
        hand = Hand(tx, pools.lock(tx, draft.request.pool_id), self._signer)
        row = reservations.lock(tx, draft.id)
        if row is None or row.state is not State.DRAFT or row.version != version:
            return None
        if isinstance(decision, Denied):
            apply.move(hand, row, Trigger.DENIED)
            return Answered(denied=decision)
        offer = offers.terms(tx, hand.held.pool, row.tenant_id)
        refused = quotas.charge(tx, row.id, row.tenant_id, charges(row.request), offer)
        if refused is not None:
            raise _over_quota(refused)
        outcome = self._placements.place(tx, hand.held, row, rehearse=rehearse)
        after = apply.place(hand, row, outcome)
        return Answered(reservations.view(tx, after))

    async def _dry_run(self, caller: Caller, draft: Draft) -> Reservation:
        pool = await self._database.read(_visible_pool, draft)
        decision = self._decide(caller, draft, pool)
        try:
            await self._database.write(self._rehearse, draft, decision)
        except _DryRun as rehearsed:
            return _granted(rehearsed.answer, draft.id)
        raise AssertionError("a rehearsal always ends in a roll-back")

    def _rehearse(self, tx: Transaction, draft: Draft, decision: Decision) -> None:
        """Both transactions at once, rolled back.

        Under the pool's lock from the start: else the draft could be placed between the two.
        """
        pools.lock(tx, draft.request.pool_id)
        _, row, known = _open_draft(tx, draft)
        if known is None:
            known = self._settle(tx, draft, row.version, decision, rehearse=True)
        assert known is not None
        raise _DryRun(known)


def _draft(caller: Caller, create: Create) -> Draft:
    return Draft(
        id=reservation_id(create.tenant_id, caller, create.idempotency_key),
        tenant_id=create.tenant_id,
        pool_id=create.request.pool_id,
        owner=caller.owner,
        identity=caller.identity,
        idempotency_key=create.idempotency_key,
        request_hash=request_hash(create.request),
        request=create.request,
        host_share=Resources(),
        resources=Resources(),
    )


def _visible_pool(tx: Transaction, draft: Draft) -> Pool:
    """The pool; raises NotFound unless it is the tenant's own or offered to it.

    What was admitted before an offer was withdrawn is still found by its key.
    """
    pool = pools.get(tx, draft.request.pool_id)
    known = reservations.get(tx, draft.id)
    if known is None or known.state is State.DRAFT:
        offers.terms(tx, pool, draft.tenant_id)
    return pool


def _open_draft(tx: Transaction, draft: Draft) -> tuple[Pool, StoredReservation, Answered | None]:
    """Transaction 1: write the draft or read what is there.

    The request is compared before the state, so that a refused key tells of its misuse too.
    """
    pool = _visible_pool(tx, draft)
    added = reservations.add_draft(tx, draft)
    if added is not None:
        return pool, added, None
    row = reservations.get(tx, draft.id)
    assert row is not None
    if row.request_hash != draft.request_hash:
        raise Conflict(
            "the idempotency key was used for another request; use a new key",
            reservationId=row.id,
        )
    if row.state is State.DENIED:
        return pool, row, Answered(denied=Denied(("the earlier decision on this idempotency key",)))
    if row.state is State.DRAFT:
        return pool, row, None
    return pool, row, Answered(reservations.view(tx, row))


def _granted(answer: Answered, draft_id: ReservationId) -> Reservation:
    if answer.denied is not None:
        raise AccessDenied(
            f"the policy refuses this reservation: {answer.denied.sentence}",
            reservationId=draft_id,
            caps=",".join(answer.denied.caps),
        )
    assert answer.reservation is not None
    return answer.reservation


def _over_quota(refused: Refused) -> QuotaExceeded:
    ceiling = "limit of the pool's offer" if refused.offered else "quota"
    return QuotaExceeded(
        f"{refused.resource}: the {ceiling} is {refused.ceiling}, {refused.used} are used and"
        f" {refused.asked} were asked for; release something or ask for a larger {ceiling}",
        resource=refused.resource,
        limit=str(refused.ceiling),
        used=str(refused.used),
        asked=str(refused.asked),
    )
