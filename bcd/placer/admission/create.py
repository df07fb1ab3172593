"""One create: draft, decision, charge, placement; two transactions around the decision.

A pool with a queued placer takes the request in and leaves the placement to its queue, and so does
one that had such a placer until what was queued has been decided.

The draft's version ties them together: what was decided on is what is placed, or it is decided
again. Nobody holds a lock while the policy runs. A draft that awaits a person's confirmation is
decided again at each try, with that person's word as it is on record.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from bcd.model.caller import Caller
from bcd.model.errors import (
    AccessDenied,
    BcdError,
    Conflict,
    QuotaExceeded,
    Unavailable,
)
from bcd.model.ids import ReservationId
from bcd.model.pool import PlacerKind
from bcd.model.reservation import Request, Reservation, State
from bcd.placer.admission import unused
from bcd.placer.admission.attributes import Place, attributes_of
from bcd.placer.admission.confirmation import (
    LIFETIME_MS,
    denied_before,
    denied_key,
    required,
    word_on,
    would_be_required,
)
from bcd.placer.admission.policy import Action, Confirmation, Decision, Denied, Policy
from bcd.placer.admission.quota import charges
from bcd.placer.admission.request import (
    Create,
    check_start,
    parse_create,
    request_hash,
    reservation_id,
)
from bcd.placer.admission.share import NONE, booked, host_share
from bcd.placer.lifecycle import apply, confirming
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.seek import seek
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.pki.command import CommandSigner
from bcd.placer.placement import allowed
from bcd.placer.placement.booking import Placements
from bcd.store import (
    confirmations,
    offers,
    pools,
    queue,
    quotas,
    refusals,
    reservations,
    shares,
)
from bcd.store.confirmations import Question
from bcd.store.database import Database, Lane, Transaction
from bcd.store.pools import Pool
from bcd.store.quotas import Refused
from bcd.store.reservations import Draft, StoredReservation

_ATTEMPTS = 5
_UNDECIDED = frozenset({State.DRAFT, State.AWAITING_CONFIRMATION})


@dataclass(frozen=True, slots=True)
class Answered:
    """What a create came to: the reservation, or the refusal, raised after the commit."""

    reservation: Reservation | None = None
    refusal: BcdError | None = None


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What was decided on a draft of that version, for the agent ``actor``, empty for a person.

    ``models`` are those of the pool that the policy saw.
    """

    version: int
    decision: Decision
    actor: str
    models: frozenset[str]


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
        confirmation_lifetime_ms: int = LIFETIME_MS,
    ) -> None:
        self._confirmation_lifetime_ms = confirmation_lifetime_ms
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
        draft = draft_of(caller, create.tenant_id, create.request, create.idempotency_key)
        if create.dry_run:
            return create, await self._dry_run(caller, draft)
        async with self._alone(draft.id):
            for _ in range(_ATTEMPTS):
                answer = await self._attempt(caller, draft)
                if answer is not None and isinstance(answer.refusal, QuotaExceeded):
                    raise await self._bounded(draft) or answer.refusal
                if answer is not None:
                    return create, _granted(answer)
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
        # No pool's lock: two of one key wait for each other, and so go in the order of the keys.
        lane = Lane(f"{draft.pool_id} drafts", draft.id)
        pool, row, known = await self._database.write_in(lane, open_draft, draft)
        if known is not None:
            return known
        word = Confirmation.NONE
        if row.state is not State.DRAFT:
            word = await self._database.read(word_on, row)
        verdict = self._verdict(caller, row, pool, word)
        return await self._database.write_in(_lane(row), self._settle, draft, verdict)

    async def _bounded(self, draft: Draft) -> QuotaExceeded | None:
        """Drop a draft that is left without a charge, where there are too many; says so then."""
        if not await self._database.read(_one_too_many, draft):
            return None
        return await self._database.write(unused.drop, draft)

    def _verdict(
        self, caller: Caller, asked: Draft | StoredReservation, pool: Pool, word: Confirmation
    ) -> _Verdict:
        place = Place(pool.region, pool.models, pool.policy.sharing)
        attributes = attributes_of(
            asked.tenant_id, asked.owner, place, asked.request, asked.resources
        )
        decision = self._policy.decide(caller, Action.CREATE, attributes, word)
        version = asked.version if isinstance(asked, StoredReservation) else 0
        return _Verdict(version, decision, caller.actor, frozenset(pool.models))

    def _settle(
        self, tx: Transaction, draft: Draft, verdict: _Verdict, *, rehearse: bool = False
    ) -> Answered | None:
        """Transaction 2. A refused charge leaves the draft as it is."""
        hand = Hand(tx, pools.lock(tx, draft.request.pool_id), self._signer)
        row = reservations.lock(tx, draft.id)
        if row is None or row.state not in _UNDECIDED or row.version != verdict.version:
            return None
        row, expired = confirming.expire_if_due(hand, row)
        if expired:
            return Answered(reservations.view(tx, row))
        if isinstance(verdict.decision, Denied):
            return self._refuse(hand, row, verdict.decision, verdict.actor, rehearse=rehearse)
        row = replace(row, models=verdict.models)
        offer = allowed.terms(tx, hand.held.pool, row.tenant_id, row.request)
        asked = charges(row.request, row.resources, row.host_share)
        if not row.request.spot:
            quotas.lock_for_room(tx, row.pool_id, row.tenant_id, hand.held.now_ms)
        refused = quotas.charge(tx, row.id, row.tenant_id, asked, offer)
        if refused is not None:
            quotas.refund(tx, row.id)  # of others that it is charged, those before this one
            return Answered(refusal=_over_quota(refused))
        if not rehearse and _waits_its_turn(hand):
            return Answered(reservations.view(tx, apply.enqueue(hand, row)))
        outcome = seek(hand, self._placements, row, rehearse=rehearse)
        after = apply.place(hand, row, outcome)
        return Answered(reservations.view(tx, after))

    def _refuse(
        self, hand: Hand, row: StoredReservation, denied: Denied, actor: str, *, rehearse: bool
    ) -> Answered:
        """Deny it for ever, or let it wait for the person for whom the agent acts."""
        if not denied.confirmable:
            if row.state is State.DRAFT and unused.exceeded(hand.tx, row, hand.held.now_ms):
                return Answered(refusal=unused.drop(hand.tx, row))
            apply.move(hand, row, Trigger.DENIED)
            return Answered(refusal=_denied(denied, row.id))
        asked = confirmations.of_reservation(hand.tx, row.id)
        if asked is None and rehearse:
            return Answered(refusal=would_be_required(denied))
        if asked is None and unused.exceeded(hand.tx, row, hand.held.now_ms):
            return Answered(refusal=unused.drop(hand.tx, row))
        if asked is None:
            question = Question(
                action=Action.CREATE,
                actor=actor,
                reason=replace(denied, confirmable=False).sentence,
                asked_ms=hand.held.now_ms,
                expires_ms=hand.held.now_ms + self._confirmation_lifetime_ms,
            )
            asked = confirming.require(hand, row, question)
        return Answered(refusal=required(asked))

    async def _dry_run(self, caller: Caller, draft: Draft) -> Reservation:
        pool, asked, word = await self._database.read(_asked, draft)
        verdict = self._verdict(caller, asked, pool, word)
        try:
            await self._database.write(self._rehearse, draft, verdict)
        except _DryRun as rehearsed:
            return _granted(rehearsed.answer)
        raise AssertionError("a rehearsal always ends in a roll-back")

    def _rehearse(self, tx: Transaction, draft: Draft, verdict: _Verdict) -> None:
        """Both transactions at once, rolled back.

        Under the pool's lock from the start: else the draft could be placed between the two.
        """
        pools.lock(tx, draft.request.pool_id)
        _, row, known = open_draft(tx, draft)
        if known is None:
            verdict = replace(verdict, version=row.version)
            known = self._settle(tx, draft, verdict, rehearse=True)
        assert known is not None
        raise _DryRun(known)


def _one_too_many(tx: Transaction, draft: Draft) -> bool:
    return unused.exceeded(tx, draft, tx.now_ms())


def draft_of(caller: Caller, tenant_id: str, request: Request, idempotency_key: str) -> Draft:
    """The draft of a request, its share not worked out yet.

    Raises AccessDenied unless the caller acts for the tenant.
    """
    if tenant_id not in caller.tenants:
        raise AccessDenied(f"the token is not for tenant {tenant_id}", tenantId=tenant_id)
    return Draft(
        id=reservation_id(tenant_id, caller, idempotency_key),
        tenant_id=tenant_id,
        pool_id=request.pool_id,
        owner=caller.owner,
        identity=caller.identity,
        idempotency_key=idempotency_key,
        request_hash=request_hash(request),
        request=request,
        host_share=NONE,
        resources=NONE,
    )


def _visible_pool(tx: Transaction, draft: Draft) -> tuple[Pool, Draft]:
    """The pool, and the draft with the host resources that it books of each of its nodes now.

    Raises NotFound unless the pool is the tenant's own or offered to it. What was admitted before
    an offer was withdrawn is still found by its key.
    """
    pool, least = shares.with_pool(tx, draft.request.pool_id)
    if pool.deleted or pool.tenant_id != draft.tenant_id:
        known = reservations.get(tx, draft.id)
        unknown = known is None and refusals.hash_of(tx, draft.id) is None
        if unknown or (known is not None and known.state in _UNDECIDED):
            offers.terms(tx, pool, draft.tenant_id)
    share = host_share(draft.request, pool.policy, least)
    return pool, replace(draft, host_share=share, resources=booked(draft.request, share))


def _asked(tx: Transaction, draft: Draft) -> tuple[Pool, Draft | StoredReservation, Confirmation]:
    """What a rehearsal decides on: the row of the key, or what it would be, and a person's word."""
    pool, resolved = _visible_pool(tx, draft)
    row = reservations.get(tx, draft.id)
    if row is None:
        return pool, resolved, Confirmation.NONE
    return pool, row, word_on(tx, row)


def open_draft(tx: Transaction, draft: Draft) -> tuple[Pool, StoredReservation, Answered | None]:
    """Transaction 1: write the draft or read what is there.

    The request is compared before the state, so that a refused key tells of its misuse too.
    """
    pool, resolved = _visible_pool(tx, draft)
    row: StoredReservation | None = None
    while row is None:  # an old draft may be swept between the two
        added = reservations.add_draft(tx, resolved)
        if added is not None:
            allowed.refuse(pool, draft.tenant_id, draft.request)
            check_start(draft.request, added.created_ms)
            return pool, added, None
        row = reservations.get(tx, draft.id)
        if row is None and (swept := refusals.hash_of(tx, draft.id)) is not None:
            _compare(draft, swept)
            raise denied_key(draft.id)
    _compare(draft, row.request_hash)
    if row.state is State.DENIED:
        return pool, row, Answered(refusal=denied_before(row))
    if row.state in _UNDECIDED:
        allowed.refuse(pool, draft.tenant_id, draft.request)
        return pool, row, None
    return pool, row, Answered(reservations.view(tx, row))


def _waits_its_turn(hand: Hand) -> bool:
    """Whether the pool's queue places it: always, or because others in it came before.

    Those were queued before the pool's placer became inline, and nobody is to overtake them.
    """
    pool = hand.held.pool
    if pool.policy.placer is PlacerKind.QUEUED:
        return True
    if not pool.left_queued:
        return False
    if queue.any_queued(hand.tx, pool.id):
        return True
    pools.queue_is_done(hand.tx, pool.id)
    return False


def _lane(row: StoredReservation) -> Lane:
    """Whose placements may share a transaction: those that lock the same quotas in the same order.

    Two pools that locked two tenants' quotas, or two quotas of one, crosswise would wait for each
    other.
    """
    charged = sorted(charges(row.request, row.resources, row.host_share))
    kind = "spot" if row.request.spot else "firm"
    return Lane(" ".join((row.pool_id, row.tenant_id, kind, *charged)))


def _compare(draft: Draft, request_hash: str) -> None:
    if request_hash != draft.request_hash:
        raise Conflict(
            "the idempotency key was used for another request; use a new key",
            reservationId=draft.id,
        )


def _granted(answer: Answered) -> Reservation:
    if answer.refusal is not None:
        raise answer.refusal
    assert answer.reservation is not None
    return answer.reservation


def _denied(denied: Denied, reservation_id: ReservationId) -> AccessDenied:
    return AccessDenied(
        f"the policy refuses this reservation: {denied.sentence}",
        reservationId=reservation_id,
        caps=",".join(denied.caps),
    )


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
