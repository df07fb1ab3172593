"""The tenants' service: create, get, list, renew, extend, release, cancel; and reassign."""

import asyncio
from dataclasses import dataclass
from functools import partial

from bcd.model.caller import Caller, is_owner
from bcd.model.errors import AccessDenied, InvalidInput, NotFound
from bcd.model.ids import PoolId, ReservationId, is_reservation_id
from bcd.model.reservation import TERMINAL, Reservation, State
from bcd.model.texts import check_text
from bcd.model.units import parse_duration_ms
from bcd.placer.admission.attributes import Place, attributes_of
from bcd.placer.admission.confirmation import word_on
from bcd.placer.admission.create import Admission
from bcd.placer.admission.extend import Extensions, Longer
from bcd.placer.admission.policy import Action, Confirmation, Denied, Policy
from bcd.placer.api.edge import Context, Edge, require_admin
from bcd.placer.api.paging import MAX_PAGE_BYTES
from bcd.placer.api.wait import wait_for_operation
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.reassign import Handover, reassign
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.pki.command import CommandSigner
from bcd.store import pools, reservations
from bcd.store.database import Database, Transaction
from bcd.store.reservations import Filter, StoredReservation
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1 import reservations_pb2_grpc
from bcd.wire.document import to_document
from bcd.wire.reservation import encode_reservation

_DEFAULT_PAGE = 50
_MAX_PAGE = 200
MAX_EPOCH_MS = 1 << 52
_OWNER_RULE = "must be issuer|subject, as ownerIdentityId of a reservation has it"


@dataclass(frozen=True, slots=True)
class ReservationCalls:
    """The service's calls, for verified callers."""

    database: Database
    admission: Admission
    extensions: Extensions
    policy: Policy
    signer: CommandSigner

    async def create(
        self, caller: Caller, request: pb.CreateReservationRequest
    ) -> pb.CreateReservationResponse:
        """Admit a request; waits for a queued one as long as it asks."""
        create, made = await self.admission.create(caller, to_document(request))
        if not create.dry_run:
            made = await wait_for_operation(self.database, made, create.wait_ms)
        return pb.CreateReservationResponse(reservation=encode_reservation(made))

    async def get(
        self, caller: Caller, request: pb.GetReservationRequest
    ) -> pb.GetReservationResponse:
        """One reservation of the caller's tenant."""
        row, view = await self._seen(caller, request.tenant_id, request.reservation_id)
        await self._permit(caller, Action.READ, row)
        return pb.GetReservationResponse(reservation=encode_reservation(view))

    async def list(
        self, caller: Caller, request: pb.ListReservationsRequest
    ) -> pb.ListReservationsResponse:
        """A page, newest first, of what the caller may read."""
        limit = request.limit if request.HasField("limit") else _DEFAULT_PAGE
        wanted = _filter(caller, request, limit)
        after = ReservationId(request.cursor) if request.cursor else None
        found, places = await self.database.read(_page, wanted, after, limit + 1)
        answer = pb.ListReservationsResponse()
        size = 0
        for number, (row, view) in enumerate(found, start=1):
            if self._denied(caller, Action.READ, row, places[row.pool_id]) is None:
                shown = encode_reservation(view)
                answer.reservations.append(shown)
                size += shown.ByteSize()
            if number < len(found) and (number == limit or size > MAX_PAGE_BYTES):
                answer.next_cursor = row.id
                break
            await asyncio.sleep(0)  # others have their turn: a page takes a while
        return answer

    async def renew(
        self, caller: Caller, request: pb.RenewReservationRequest
    ) -> pb.RenewReservationResponse:
        """Let a lease run anew from now on."""
        row, _ = await self._seen(caller, request.tenant_id, request.reservation_id)
        word = Confirmation.NONE
        if caller.identity == row.identity and row.extended_ms is None:
            # What the person was asked about, by the same agent, and no longer.
            word = await self.database.read(partial(word_on, used=True), row)
        await self._permit(caller, Action.EXTEND, row, word)
        view = await self.database.write(self._renew, row)
        return pb.RenewReservationResponse(reservation=encode_reservation(view))

    def _renew(self, tx: Transaction, seen: StoredReservation) -> Reservation:
        hand = Hand(tx, pools.lock(tx, seen.pool_id), self.signer)
        row = reservations.lock(tx, seen.id)
        assert row is not None
        return reservations.view(tx, apply.renew(hand, row))

    async def extend(
        self, caller: Caller, request: pb.ExtendReservationRequest
    ) -> pb.ExtendReservationResponse:
        """Move the end later, of all allocations or none."""
        longer = _longer(request)
        row, _ = await self._seen(caller, request.tenant_id, request.reservation_id)
        outcome = await self.extensions.extend(caller, row.id, longer)
        return pb.ExtendReservationResponse(
            reservation=encode_reservation(outcome.reservation),
            extended=outcome.extended,
            available_until=outcome.available_until_ms,
        )

    async def release(
        self, caller: Caller, request: pb.ReleaseReservationRequest
    ) -> pb.ReleaseReservationResponse:
        """End a reservation now; a terminal one stays as it is."""
        row, _ = await self._seen(caller, request.tenant_id, request.reservation_id)
        await self._permit(caller, Action.RELEASE, row)
        view = await self.database.write(self._end, row, Trigger.RELEASED)
        return pb.ReleaseReservationResponse(reservation=encode_reservation(view))

    async def cancel(
        self, caller: Caller, request: pb.CancelReservationRequest
    ) -> pb.CancelReservationResponse:
        """Withdraw a reservation that has not started; raises InvalidState otherwise."""
        row, _ = await self._seen(caller, request.tenant_id, request.reservation_id)
        await self._permit(caller, Action.RELEASE, row)
        view = await self.database.write(self._end, row, Trigger.CANCELLED)
        return pb.CancelReservationResponse(reservation=encode_reservation(view))

    def _end(self, tx: Transaction, seen: StoredReservation, trigger: Trigger) -> Reservation:
        hand = Hand(tx, pools.lock(tx, seen.pool_id), self.signer)
        row = reservations.lock(tx, seen.id)
        assert row is not None
        if not (trigger is Trigger.RELEASED and row.state in TERMINAL):
            row = apply.move(hand, row, trigger, bind_deadline_ms=None)
        return reservations.view(tx, row)

    async def reassign(
        self, caller: Caller, request: pb.ReassignReservationsRequest
    ) -> pb.ReassignReservationsResponse:
        """Hand an owner's reservations to a successor."""
        require_admin(caller)
        handover = Handover(
            tenant_id=check_text("tenantId", request.tenant_id),
            from_owner=check_text("fromOwner", request.from_owner),
            to_owner=check_text("toOwner", request.to_owner),
            reason=check_text("reason", request.reason, empty=True),
        )
        if handover.from_owner == handover.to_owner:
            raise InvalidInput("toOwner", "must be somebody else")
        if not is_owner(handover.to_owner):
            raise InvalidInput("toOwner", _OWNER_RULE)
        done = await reassign(self.database, self.signer, handover)
        # Only then: what such a name was given by mistake must not stay with it.
        if not done and not is_owner(handover.from_owner):
            raise InvalidInput("fromOwner", _OWNER_RULE)
        return pb.ReassignReservationsResponse(reassigned=done)

    async def _seen(
        self, caller: Caller, tenant_id: str, reservation_id: str
    ) -> tuple[StoredReservation, Reservation]:
        """What the caller may know of; anything else is not found."""
        missing = NotFound(
            f"there is no reservation {reservation_id[:64]}", reservationId=reservation_id[:64]
        )
        if tenant_id not in caller.tenants or not is_reservation_id(reservation_id):
            raise missing
        found = await self.database.read(_find, ReservationId(reservation_id))
        if found is None or found[0].tenant_id != tenant_id or found[0].state is State.DRAFT:
            raise missing
        return found

    async def _permit(
        self,
        caller: Caller,
        action: Action,
        row: StoredReservation,
        word: Confirmation = Confirmation.NONE,
    ) -> None:
        place = await self.database.read(_place, row.pool_id)
        denied = self._denied(caller, action, row, place, word)
        if denied is not None:
            raise AccessDenied(
                f"the policy refuses {action.value} on {row.id}: {denied.sentence}",
                reservationId=row.id,
            )

    def _denied(
        self,
        caller: Caller,
        action: Action,
        row: StoredReservation,
        place: Place,
        word: Confirmation = Confirmation.NONE,
    ) -> Denied | None:
        request = row.asking_ms(row.duration_ms)
        attributes = attributes_of(row.tenant_id, row.owner, place, request, row.resources)
        decision = self.policy.decide(caller, action, attributes, word)
        return decision if isinstance(decision, Denied) else None


def _longer(request: pb.ExtendReservationRequest) -> Longer:
    check_text("idempotencyKey", request.idempotency_key)
    if request.HasField("until") == request.HasField("by"):
        raise InvalidInput("until", "give exactly one of until and by")
    if request.HasField("by"):
        return Longer(by_ms=parse_duration_ms(request.by, "by"))
    if not 0 < request.until <= MAX_EPOCH_MS:
        raise InvalidInput("until", "must be epoch milliseconds")
    return Longer(until_ms=request.until)


def _find(
    tx: Transaction, reservation_id: ReservationId
) -> tuple[StoredReservation, Reservation] | None:
    row = reservations.get(tx, reservation_id)
    return None if row is None else (row, reservations.view(tx, row))


def _page(
    tx: Transaction, wanted: Filter, after: ReservationId | None, limit: int
) -> tuple[list[tuple[StoredReservation, Reservation]], dict[PoolId, Place]]:
    rows = reservations.page(tx, wanted, after, limit)
    places = {pool_id: _place(tx, pool_id) for pool_id in {row.pool_id for row in rows}}
    return [(row, reservations.view(tx, row)) for row in rows], places


def _place(tx: Transaction, pool_id: PoolId) -> Place:
    pool = pools.get(tx, pool_id)
    return Place(pool.region, pool.models, pool.policy.sharing)


def _filter(caller: Caller, request: pb.ListReservationsRequest, limit: int) -> Filter:
    if request.tenant_id not in caller.tenants:
        raise AccessDenied(
            f"the token is not for tenant {request.tenant_id[:64]}",
            tenantId=request.tenant_id[:64],
        )
    if request.scope not in ("", "mine", "all"):
        raise InvalidInput("scope", "must be mine or all")
    if not 1 <= limit <= _MAX_PAGE:
        raise InvalidInput("limit", f"must be 1 to {_MAX_PAGE}")
    if request.state and request.state not in tuple(State):
        raise InvalidInput("state", f"must be one of {', '.join(State)}")
    if request.cursor and not is_reservation_id(request.cursor):
        raise InvalidInput("cursor", "must be the last id of the page before")
    return Filter(
        tenant_id=request.tenant_id,
        owner="" if request.scope == "all" else caller.owner,
        state=request.state,
        pool_id=request.pool_id,
    )


class ReservationsServicer(reservations_pb2_grpc.ReservationsServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: ReservationCalls) -> None:
        self._edge = edge
        self._calls = calls

    async def CreateReservation(  # noqa: N802 - the service's name
        self, request: pb.CreateReservationRequest, context: Context
    ) -> pb.CreateReservationResponse:
        return await self._edge.serve(self._calls.create, request, context)

    async def GetReservation(  # noqa: N802
        self, request: pb.GetReservationRequest, context: Context
    ) -> pb.GetReservationResponse:
        return await self._edge.serve(self._calls.get, request, context)

    async def ListReservations(  # noqa: N802
        self, request: pb.ListReservationsRequest, context: Context
    ) -> pb.ListReservationsResponse:
        return await self._edge.serve(self._calls.list, request, context)

    async def RenewReservation(  # noqa: N802
        self, request: pb.RenewReservationRequest, context: Context
    ) -> pb.RenewReservationResponse:
        return await self._edge.serve(self._calls.renew, request, context)

    async def ExtendReservation(  # noqa: N802
        self, request: pb.ExtendReservationRequest, context: Context
    ) -> pb.ExtendReservationResponse:
        return await self._edge.serve(self._calls.extend, request, context)

    async def ReleaseReservation(  # noqa: N802
        self, request: pb.ReleaseReservationRequest, context: Context
    ) -> pb.ReleaseReservationResponse:
        return await self._edge.serve(self._calls.release, request, context)

    async def CancelReservation(  # noqa: N802
        self, request: pb.CancelReservationRequest, context: Context
    ) -> pb.CancelReservationResponse:
        return await self._edge.serve(self._calls.cancel, request, context)

    async def ReassignReservations(  # noqa: N802
        self, request: pb.ReassignReservationsRequest, context: Context
    ) -> pb.ReassignReservationsResponse:
        return await self._edge.serve(self._calls.reassign, request, context)
