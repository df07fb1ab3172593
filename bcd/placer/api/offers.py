"""Offers: seen by both sides, made and withdrawn by administrators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.errors import InvalidInput, NotFound
from bcd.model.texts import check_text
from bcd.placer.api.edge import Context, Edge, require_admin
from bcd.placer.api.paging import cut, page_of
from bcd.placer.api.pools import lock_pool, require_sight, seen_pool
from bcd.placer.api.quotas import check_limit
from bcd.store import offers, work
from bcd.store.database import Database, Transaction
from bcd.store.offers import Offer
from bcd.wire.compute.v1 import offers_pb2 as pb
from bcd.wire.compute.v1 import offers_pb2_grpc

_SEPARATOR = "/"  # in no pool's id


@dataclass(frozen=True, slots=True)
class OfferCalls:
    """Calls about offers, for verified callers."""

    database: Database

    async def set_offer(self, caller: Caller, request: pb.SetOfferRequest) -> pb.SetOfferResponse:
        """Offer a pool to a tenant, or change what it may have there."""
        require_admin(caller)
        tenant_id = check_text("tenantId", request.tenant_id)
        limits = _limits(request.limits)
        offer = await self.database.write(_put, request.pool_id, tenant_id, limits)
        return pb.SetOfferResponse(offer=offer)

    async def list_offers(
        self, caller: Caller, request: pb.ListOffersRequest
    ) -> pb.ListOffersResponse:
        """A page of the offers to a tenant and of its pools; an administrator may see all."""
        require_sight(caller, request.tenant_id)
        cursor, limit = page_of(request)
        after = _position(cursor)
        found = await self.database.read(
            _page, request.tenant_id, request.pool_id, after, limit + 1
        )
        shown, following = cut(found, limit, _cursor)
        return pb.ListOffersResponse(offers=shown, next_cursor=following)

    async def withdraw_offer(
        self, caller: Caller, request: pb.WithdrawOfferRequest
    ) -> pb.WithdrawOfferResponse:
        """Take an offer back; what is placed under it stays, what waits goes on waiting."""
        require_admin(caller)
        await self.database.write(_withdraw, request.pool_id, request.tenant_id)
        return pb.WithdrawOfferResponse()


def _limits(given: Sequence[pb.OfferLimit]) -> Mapping[str, int]:
    limits: dict[str, int] = {}
    for position, entry in enumerate(given):
        path = f"limits[{position}]."
        check_limit(entry.resource, entry.limit, path)
        if entry.resource in limits:
            raise InvalidInput(f"{path}resource", "stands there twice")
        if entry.used:
            raise InvalidInput(f"{path}used", "cannot be set")
        limits[entry.resource] = entry.limit
    return limits


def _put(tx: Transaction, pool_id: str, tenant_id: str, limits: Mapping[str, int]) -> pb.Offer:
    held = lock_pool(tx, pool_id)
    if held.pool.tenant_id == tenant_id:
        raise InvalidInput("tenantId", "owns the pool already")
    offer = offers.put(tx, held.pool.id, tenant_id, limits)
    work.poke(tx, held.pool.id, held.now_ms)
    return _encode(tx, offer)


def _withdraw(tx: Transaction, pool_id: str, tenant_id: str) -> None:
    held = lock_pool(tx, pool_id)
    if not offers.withdraw(tx, held.pool.id, tenant_id):
        raise NotFound(
            f"pool {held.pool.id} is not offered to {tenant_id[:64]}", poolId=held.pool.id
        )
    work.poke(tx, held.pool.id, held.now_ms)  # what waits under it keeps nothing from others


def _page(
    tx: Transaction, tenant_id: str, pool_id: str, after: tuple[str, str], limit: int
) -> Sequence[pb.Offer]:
    if pool_id:
        seen_pool(tx, tenant_id, pool_id)
    return [_encode(tx, offer) for offer in offers.page(tx, tenant_id, pool_id, after, limit)]


def _cursor(offer: pb.Offer) -> str:
    return f"{offer.pool_id}{_SEPARATOR}{offer.tenant_id}"


def _position(cursor: str) -> tuple[str, str]:
    pool_id, separator, tenant_id = cursor.partition(_SEPARATOR)
    if cursor and not separator:
        raise InvalidInput("cursor", "must be the next cursor of the page before")
    return pool_id, tenant_id


def _encode(tx: Transaction, offer: Offer) -> pb.Offer:
    return pb.Offer(
        pool_id=offer.pool_id,
        tenant_id=offer.tenant_id,
        limits=[
            pb.OfferLimit(resource=resource, limit=limit, used=offers.used(tx, offer, resource))
            for resource, limit in sorted(offer.limits.items())
        ],
        created=offer.created_ms,
    )


class OffersServicer(offers_pb2_grpc.OffersServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: OfferCalls) -> None:
        self._edge = edge
        self._calls = calls

    async def SetOffer(  # noqa: N802 - the service's name
        self, request: pb.SetOfferRequest, context: Context
    ) -> pb.SetOfferResponse:
        return await self._edge.serve(self._calls.set_offer, request, context)

    async def ListOffers(  # noqa: N802
        self, request: pb.ListOffersRequest, context: Context
    ) -> pb.ListOffersResponse:
        return await self._edge.serve(self._calls.list_offers, request, context)

    async def WithdrawOffer(  # noqa: N802
        self, request: pb.WithdrawOfferRequest, context: Context
    ) -> pb.WithdrawOfferResponse:
        return await self._edge.serve(self._calls.withdraw_offer, request, context)
