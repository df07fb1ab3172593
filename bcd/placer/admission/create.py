"""One create: draft, decision, charge, placement; two transactions around the decision.

The draft's version ties them together: what was decided on is what is placed, or it is decided
again. Nobody holds a lock while the policy runs.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from bcd.model.assignment import Binding
from bcd.model.caller import Caller
from bcd.model.errors import (
    AccessDenied,
    Conflict,
    InvalidInput,
    QuotaExceeded,
    Unavailable,
)
from bcd.model.ids import ReservationId
from bcd.model.reservation import Reservation, State
from bcd.placer.admission.attributes import Place, attributes_of
from bcd.placer.admission.policy import Action, Decision, Denied, Policy
from bcd.placer.admission.quota import charges
from bcd.placer.admission.request import (
    Create,
    check_start,
    parse_create,
    refuse_slots,
    request_hash,
    reservation_id,
)
from bcd.placer.admission.share import NONE, booked, host_share
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.seek import seek
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.pki.command import CommandSigner
from bcd.placer.placement.booking import Placements
from bcd.store import offers, pools, quotas, reservations, shares
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
        decision = self._decide(caller, row, pool)
        return await self._database.write(self._settle, draft, row.version, decision)

    def _decide(self, caller: Caller, asked: Draft | StoredReservation, pool: Pool) -> Decision:
        place = Place(pool.region, pool.models, pool.policy.sharing)
        attributes = attributes_of(
            asked.tenant_id, asked.owner, place, asked.request, asked.resources
        )
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
        asked = charges(row.request, row.resources, row.host_share)
        refused = quotas.charge(tx, row.id, row.tenant_id, asked, offer)
        if refused is not None:
            raise _over_quota(refused)
        outcome = seek(hand, self._placements, row, rehearse=rehearse)
        after = apply.place(hand, row, outcome)
        return Answered(reservations.view(tx, after))

    async def _dry_run(self, caller: Caller, draft: Draft) -> Reservation:
        pool, asked = await self._database.read(_asked, draft)
        decision = self._decide(caller, asked, pool)
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
        host_share=NONE,
        resources=NONE,
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


def _resolved(tx: Transaction, pool: Pool, draft: Draft) -> Draft:
    """The draft with the host resources that it books of each node, from the pool as it is now."""
    share = host_share(draft.request, pool.policy, shares.least(tx, pool.id))
    return replace(draft, host_share=share, resources=booked(draft.request, share))


def _asked(tx: Transaction, draft: Draft) -> tuple[Pool, Draft | StoredReservation]:
    """What a rehearsal decides on: the row of the key, or what it would be."""
    pool = _visible_pool(tx, draft)
    return pool, reservations.get(tx, draft.id) or _resolved(tx, pool, draft)


def _refuse_for_pool(pool: Pool, draft: Draft) -> None:
    """Raises InvalidInput for what no placement in this pool could hand over.

    The kubelet gives bound GPUs to any pod of its cluster: that is for the pool's owner only.
    """
    refuse_slots(draft.request, pool.policy.sharing)
    if draft.request.binding is not Binding.KUBERNETES:
        return
    if not pool.policy.kubernetes:
        raise InvalidInput(
            "binding", f"kubernetes needs a pool whose policy allows it; {pool.id} has none"
        )
    if pool.tenant_id != draft.tenant_id:
        raise InvalidInput("binding", "kubernetes is for the pool's owner alone; book a hold")


def _open_draft(tx: Transaction, draft: Draft) -> tuple[Pool, StoredReservation, Answered | None]:
    """Transaction 1: write the draft or read what is there.

    The request is compared before the state, so that a refused key tells of its misuse too.
    """
    pool = _visible_pool(tx, draft)
    added = reservations.add_draft(tx, _resolved(tx, pool, draft))
    if added is not None:
        _refuse_for_pool(pool, draft)
        check_start(draft.request, added.created_ms)
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
        _refuse_for_pool(pool, draft)
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
