"""What persons are asked about their agents' requests: seen and decided by the person alone."""

from collections.abc import Callable
from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.confirmation import Confirmation, ConfirmationState
from bcd.model.errors import InvalidInput, NotFound
from bcd.model.ids import ConfirmationId, is_type_id
from bcd.placer.api.edge import Context, Edge
from bcd.placer.api.paging import cut_messages
from bcd.placer.lifecycle import confirming
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.pki.command import CommandSigner
from bcd.store import confirmations, pools, reservations
from bcd.store.confirmations import Filter
from bcd.store.database import Database, Transaction
from bcd.store.reservations import StoredReservation
from bcd.wire.compute.v1 import confirmations_pb2 as pb
from bcd.wire.compute.v1 import confirmations_pb2_grpc
from bcd.wire.reservation import encode_request

_DEFAULT_PAGE = 50
_MAX_PAGE = 200

Change = Callable[[Hand, StoredReservation, Confirmation], None]


@dataclass(frozen=True, slots=True)
class ConfirmationCalls:
    """The four calls, for verified callers."""

    database: Database
    signer: CommandSigner

    async def get(
        self, caller: Caller, request: pb.GetConfirmationRequest
    ) -> pb.GetConfirmationResponse:
        """One of the person's confirmations."""
        found = await self._own(caller, request.tenant_id, request.confirmation_id)
        return pb.GetConfirmationResponse(confirmation=_encode(found))

    async def list(
        self, caller: Caller, request: pb.ListConfirmationsRequest
    ) -> pb.ListConfirmationsResponse:
        """A page of them, newest first; an agent has none."""
        limit = request.limit if request.HasField("limit") else _DEFAULT_PAGE
        if not 1 <= limit <= _MAX_PAGE:
            raise InvalidInput("limit", f"must be 1 to {_MAX_PAGE}")
        if request.state and request.state not in tuple(ConfirmationState):
            raise InvalidInput("state", f"must be one of {', '.join(ConfirmationState)}")
        if request.cursor and not is_type_id("conf", request.cursor):
            raise InvalidInput("cursor", "must be the last id of the page before")
        if caller.actor or request.tenant_id not in caller.tenants:
            return pb.ListConfirmationsResponse()
        wanted = Filter(tenant_id=request.tenant_id, owner=caller.owner, state=request.state)
        after = ConfirmationId(request.cursor) if request.cursor else None
        found = await self.database.read(confirmations.page, wanted, after, limit + 1)
        encoded = [_encode(confirmation) for confirmation in found]
        shown, following = cut_messages(encoded, limit, lambda one: one.id)
        return pb.ListConfirmationsResponse(confirmations=shown, next_cursor=following)

    async def approve(
        self, caller: Caller, request: pb.ApproveConfirmationRequest
    ) -> pb.ApproveConfirmationResponse:
        """Let the agent's next try pass, once; raises InvalidState when it is too late."""
        seen = await self._own(caller, request.tenant_id, request.confirmation_id)
        after = await self.database.write(self._decide, seen, confirming.approve)
        return pb.ApproveConfirmationResponse(confirmation=_encode(after))

    async def reject(
        self, caller: Caller, request: pb.RejectConfirmationRequest
    ) -> pb.RejectConfirmationResponse:
        """Deny the reservation for ever; raises InvalidState when it is too late."""
        seen = await self._own(caller, request.tenant_id, request.confirmation_id)
        after = await self.database.write(self._decide, seen, confirming.reject)
        return pb.RejectConfirmationResponse(confirmation=_encode(after))

    async def _own(self, caller: Caller, tenant_id: str, confirmation_id: str) -> Confirmation:
        """What the person himself may know of; anything else is not found."""
        missing = NotFound(
            f"there is no confirmation {confirmation_id[:64]} that waits for you",
            confirmationId=confirmation_id[:64],
        )
        known = is_type_id("conf", confirmation_id) and tenant_id in caller.tenants
        if caller.actor or not known:
            raise missing
        found = await self.database.read(confirmations.get, ConfirmationId(confirmation_id))
        if found is None or (found.owner, found.tenant_id) != (caller.owner, tenant_id):
            raise missing
        return found

    def _decide(self, tx: Transaction, seen: Confirmation, change: Change) -> Confirmation:
        hand = Hand(tx, pools.lock(tx, seen.pool_id), self.signer)
        row = reservations.lock(tx, seen.reservation_id)
        asked = confirmations.get(tx, seen.id)
        assert row is not None
        assert asked is not None
        change(hand, row, asked)
        after = confirmations.get(tx, seen.id)
        assert after is not None
        return after


def _encode(confirmation: Confirmation) -> pb.Confirmation:
    return pb.Confirmation(
        id=confirmation.id,
        tenant_id=confirmation.tenant_id,
        reservation_id=confirmation.reservation_id,
        state=confirmation.state,
        action=confirmation.action,
        actor=confirmation.actor,
        owner_identity_id=confirmation.owner,
        request=encode_request(confirmation.request),
        reason=confirmation.reason,
        created=confirmation.created_ms,
        expires=confirmation.expires_ms,
        decided=confirmation.decided_ms,
    )


class ConfirmationsServicer(confirmations_pb2_grpc.ConfirmationsServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: ConfirmationCalls) -> None:
        self._edge = edge
        self._calls = calls

    async def GetConfirmation(  # noqa: N802 - the service's name
        self, request: pb.GetConfirmationRequest, context: Context
    ) -> pb.GetConfirmationResponse:
        return await self._edge.serve(self._calls.get, request, context)

    async def ListConfirmations(  # noqa: N802
        self, request: pb.ListConfirmationsRequest, context: Context
    ) -> pb.ListConfirmationsResponse:
        return await self._edge.serve(self._calls.list, request, context)

    async def ApproveConfirmation(  # noqa: N802
        self, request: pb.ApproveConfirmationRequest, context: Context
    ) -> pb.ApproveConfirmationResponse:
        return await self._edge.serve(self._calls.approve, request, context)

    async def RejectConfirmation(  # noqa: N802
        self, request: pb.RejectConfirmationRequest, context: Context
    ) -> pb.RejectConfirmationResponse:
        return await self._edge.serve(self._calls.reject, request, context)
