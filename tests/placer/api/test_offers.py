"""Offers: who sees an offered pool, what may be booked there, and what counts (spec 1.5, 5.2)."""

from typing import Any

import pytest

from bcd.model.errors import Reason
from bcd.store import quotas
from bcd.wire.compute.v1 import admin_pb2, reservations_pb2
from bcd.wire.compute.v1 import offers_pb2 as pb
from tests.placer import records
from tests.placer.api.conftest import Client, Site, creation, is_refusal
from tests.placer.world import TENANT, dgx

GUEST = "other"


def limit(resource: str, amount: int) -> pb.OfferLimit:
    return pb.OfferLimit(resource=resource, limit=amount)


async def offer(admin: Client, tenant: str = GUEST, **limits: int) -> pb.Offer:
    request = pb.SetOfferRequest(
        pool_id=admin.pool_id,
        tenant_id=tenant,
        limits=[limit(resource.replace("_", "."), amount) for resource, amount in limits.items()],
    )
    made: pb.Offer = (await admin.call(admin.offers.SetOffer, request)).offer
    return made


async def withdraw(admin: Client) -> None:
    request = pb.WithdrawOfferRequest(pool_id=admin.pool_id, tenant_id=GUEST)
    await admin.call(admin.offers.WithdrawOffer, request)


async def book(client: Client, key: str = "k", count: int = 1) -> reservations_pb2.Reservation:
    return await client.create(key, count, tenant_id=GUEST)


async def refused(client: Client, key: str, count: int = 1) -> Any:
    request = creation(client.pool_id, key, count, tenant_id=GUEST)
    return await client.refused(client.reservations.CreateReservation, request)


async def release(client: Client, reservation_id: str) -> None:
    request = reservations_pb2.ReleaseReservationRequest(
        tenant_id=GUEST, reservation_id=reservation_id
    )
    await client.call(client.reservations.ReleaseReservation, request)


async def used(client: Client) -> dict[str, int]:
    """What the guest's offers say is used, by resource."""
    request = pb.ListOffersRequest(tenant_id=GUEST)
    found = (await client.call(client.offers.ListOffers, request)).offers
    return {entry.resource: entry.used for one in found for entry in one.limits}


async def quota(site: Site) -> tuple[int, int] | None:
    """(ceiling, used) of the guest's GPUs."""
    for entry in await site.world.database.read(quotas.of_tenant, GUEST):
        if entry.resource == "gpu":
            return entry.ceiling, entry.used
    return None


async def test_an_offered_pool_is_seen_and_booked_and_no_other(
    site: Site, admin: Client, stranger: Client
) -> None:
    await site.world.add_node(dgx("a"))
    listing = admin_pb2.ListPoolsRequest(tenant_id=GUEST)
    getting = admin_pb2.GetPoolRequest(tenant_id=GUEST, pool_id=admin.pool_id)
    assert is_refusal(await refused(stranger, "early"), Reason.NOT_FOUND)
    assert is_refusal(await stranger.refused(stranger.pools.GetPool, getting), Reason.NOT_FOUND)
    assert list((await stranger.call(stranger.pools.ListPools, listing)).pools) == []
    await offer(admin, gpu=2)
    (seen,) = (await stranger.call(stranger.pools.ListPools, listing)).pools
    assert (seen.id, seen.tenant_id) == (admin.pool_id, TENANT)
    assert (await stranger.call(stranger.pools.GetPool, getting)).pool == seen
    assert (await book(stranger)).state == "placed"
    third = site.client("eve", tenants=("third",))
    listing.tenant_id = getting.tenant_id = "third"
    assert list((await third.call(third.pools.ListPools, listing)).pools) == []
    assert is_refusal(await third.refused(third.pools.GetPool, getting), Reason.NOT_FOUND)


async def test_an_offers_limit_is_all_that_a_tenant_without_quota_needs(
    site: Site, admin: Client, stranger: Client
) -> None:
    await site.world.add_node(dgx("a"))
    await offer(admin, gpu=3)
    first = await book(stranger, "first", 2)
    over = await refused(stranger, "over", 2)
    assert is_refusal(over, Reason.QUOTA_EXCEEDED, resource="gpu", limit="3", used="2", asked="2")
    assert "limit of the pool's offer" in over.message
    assert await used(stranger) == {"gpu": 2}
    await release(stranger, first.id)
    assert await used(stranger) == {"gpu": 0}
    assert (await book(stranger, "over", 2)).state == "placed"
    assert await quota(site) is None
    await records.assert_quota_adds_up(site.world.database)


async def test_what_an_offer_does_not_name_needs_a_quota(
    site: Site, admin: Client, stranger: Client
) -> None:
    await site.world.add_node(dgx("a"))
    await offer(admin, gpu_mig=7)
    assert is_refusal(
        await refused(stranger, "k"), Reason.QUOTA_EXCEEDED, resource="gpu", limit="0"
    )
    await site.world.grant("gpu", 1, GUEST)
    assert (await book(stranger)).state == "placed"
    assert await quota(site) == (1, 1)
    await records.assert_quota_adds_up(site.world.database)


async def test_where_there_is_a_quota_too_both_count(
    site: Site, admin: Client, stranger: Client
) -> None:
    await site.world.add_node(dgx("a"))
    await site.world.grant("gpu", 3, GUEST)
    await offer(admin, gpu=2)
    first = await book(stranger, "first", 2)
    assert is_refusal(await refused(stranger, "by offer"), Reason.QUOTA_EXCEEDED, limit="2")
    await offer(admin, gpu=8)
    assert is_refusal(
        await refused(stranger, "by quota", 2), Reason.QUOTA_EXCEEDED, limit="3", used="2"
    )
    assert (await quota(site), await used(stranger)) == ((3, 2), {"gpu": 2})
    await release(stranger, first.id)
    assert (await quota(site), await used(stranger)) == ((3, 0), {"gpu": 0})
    await records.assert_quota_adds_up(site.world.database)


async def test_a_quota_that_comes_later_is_not_charged_for_what_was_there(
    site: Site, admin: Client, stranger: Client
) -> None:
    await site.world.add_node(dgx("a"))
    await offer(admin, gpu=8)
    first = await book(stranger, "first", 2)
    await site.world.grant("gpu", 4, GUEST)
    await book(stranger, "second", 3)
    assert (await quota(site), await used(stranger)) == ((4, 3), {"gpu": 5})
    await release(stranger, first.id)
    assert (await quota(site), await used(stranger)) == ((4, 3), {"gpu": 3})
    await records.assert_quota_adds_up(site.world.database)


async def test_the_owner_books_under_its_quota_alone(
    site: Site, admin: Client, alice: Client, stranger: Client
) -> None:
    await site.world.add_node(dgx("a"))
    await offer(admin, gpu=1)
    assert (await alice.create("own", 4)).state == "placed"
    assert await used(stranger) == {"gpu": 0}


async def test_a_withdrawn_offer_keeps_what_runs_and_stops_the_rest(
    site: Site, admin: Client, stranger: Client
) -> None:
    await site.world.add_node(dgx("a"))
    await offer(admin, gpu=4)
    kept = await book(stranger, "kept", 3)
    await withdraw(admin)
    assert is_refusal(await refused(stranger, "new"), Reason.NOT_FOUND, poolId=admin.pool_id)
    assert (await book(stranger, "kept", 3)).id == kept.id
    request = reservations_pb2.GetReservationRequest(tenant_id=GUEST, reservation_id=kept.id)
    found = await stranger.call(stranger.reservations.GetReservation, request)
    assert found.reservation.state in ("placed", "binding")
    await offer(admin, gpu=4)
    assert await used(stranger) == {"gpu": 3}
    assert is_refusal(await refused(stranger, "new", 2), Reason.QUOTA_EXCEEDED, used="3")
    await release(stranger, kept.id)
    assert (await book(stranger, "new", 2)).state == "placed"


async def test_nobody_learns_of_another_tenants_reservations_on_a_shared_node(
    site: Site, admin: Client, alice: Client, stranger: Client
) -> None:
    await site.world.add_node(dgx("a", 3))
    await offer(admin, gpu=1)
    own, theirs = await alice.create(), await book(stranger)

    async def shown(client: Client, tenant: str) -> list[tuple[str, bool]]:
        request = admin_pb2.ListNodesRequest(tenant_id=tenant)
        (node,) = (await client.call(client.nodes.ListNodes, request)).nodes
        one = admin_pb2.GetNodeRequest(tenant_id=tenant, node_id=node.id)
        assert (await client.call(client.nodes.GetNode, one)).node == node
        return sorted((device.reservation_id, device.held) for device in node.devices)

    assert await shown(alice, TENANT) == [("", False), ("", True), (own.id, True)]
    assert await shown(stranger, GUEST) == [("", False), ("", True), (theirs.id, True)]
    everything = await shown(admin, "")
    assert everything == sorted([("", False), (own.id, True), (theirs.id, True)])


async def test_a_node_of_a_pool_that_is_not_offered_does_not_exist(
    site: Site, admin: Client, stranger: Client
) -> None:
    node = await site.world.add_node(dgx("a"))
    request = admin_pb2.GetNodeRequest(tenant_id=GUEST, node_id=node.id)
    assert is_refusal(await stranger.refused(stranger.nodes.GetNode, request), Reason.NOT_FOUND)
    await offer(admin)
    assert (await stranger.call(stranger.nodes.GetNode, request)).node.id == node.id
    await withdraw(admin)
    assert is_refusal(await stranger.refused(stranger.nodes.GetNode, request), Reason.NOT_FOUND)


async def test_each_side_sees_its_offers(
    site: Site, admin: Client, alice: Client, stranger: Client
) -> None:
    made = await offer(admin, gpu=1, gpu_mig=7)
    assert [entry.resource for entry in made.limits] == ["gpu", "gpu.mig"]
    third = await offer(admin, "third")

    async def listed(client: Client, **request: Any) -> list[pb.Offer]:
        asked = pb.ListOffersRequest(**request)
        return list((await client.call(client.offers.ListOffers, asked)).offers)

    assert await listed(stranger, tenant_id=GUEST) == [made]
    assert await listed(stranger, tenant_id=GUEST, pool_id=admin.pool_id) == [made]
    assert await listed(alice, tenant_id=TENANT) == [made, third]
    assert await listed(admin) == [made, third]
    foreign = pb.ListOffersRequest(tenant_id=TENANT)
    assert (await stranger.refused(stranger.offers.ListOffers, foreign)).reason is (
        Reason.ACCESS_DENIED
    )
    nobody = site.client("eve", tenants=("fourth",))
    hidden = pb.ListOffersRequest(tenant_id="fourth", pool_id=admin.pool_id)
    assert is_refusal(await nobody.refused(nobody.offers.ListOffers, hidden), Reason.NOT_FOUND)
    assert await listed(nobody, tenant_id="fourth") == []


async def test_offers_come_in_pages(site: Site, admin: Client) -> None:
    guests = ["a", "b/c", "x" * 256]
    made = [await offer(admin, guest) for guest in guests]
    request = pb.ListOffersRequest(limit=1)
    seen: list[pb.Offer] = []
    while True:
        page = await admin.call(admin.offers.ListOffers, request)
        seen += page.offers
        if not page.next_cursor:
            break
        request.cursor = page.next_cursor
    assert seen == made
    wrong = pb.ListOffersRequest(cursor="x")
    refusal = await admin.refused(admin.offers.ListOffers, wrong)
    assert is_refusal(refusal, Reason.INVALID_INPUT, field="cursor")


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"tenant_id": ""}, Reason.INVALID_INPUT, "tenantId"),
        ({"tenant_id": TENANT}, Reason.INVALID_INPUT, "tenantId"),
        ({"limits": [limit("gpu", -1)]}, Reason.INVALID_INPUT, "limits[0].limit"),
        (
            {"limits": [limit("gpu", 1), limit("disk", 1)]},
            Reason.INVALID_INPUT,
            "limits[1].resource",
        ),
        (
            {"limits": [limit("gpu", 1), limit("gpu", 2)]},
            Reason.INVALID_INPUT,
            "limits[1].resource",
        ),
        (
            {"limits": [pb.OfferLimit(resource="gpu", limit=1, used=1)]},
            Reason.INVALID_INPUT,
            "limits[0].used",
        ),
    ],
    ids=str,
)
async def test_an_offer_made_wrongly_is_refused_by_its_field(
    site: Site, admin: Client, changes: dict[str, Any], reason: Reason, field: str
) -> None:
    sound: dict[str, Any] = {"pool_id": admin.pool_id, "tenant_id": GUEST}
    refusal = await admin.refused(admin.offers.SetOffer, pb.SetOfferRequest(**sound | changes))
    assert is_refusal(refusal, reason, field=field)


async def test_what_is_not_there_is_neither_offered_nor_withdrawn(
    site: Site, admin: Client
) -> None:
    missing = pb.SetOfferRequest(pool_id="pool_none", tenant_id=GUEST)
    assert is_refusal(await admin.refused(admin.offers.SetOffer, missing), Reason.NOT_FOUND)
    never = pb.WithdrawOfferRequest(pool_id=admin.pool_id, tenant_id=GUEST)
    assert is_refusal(await admin.refused(admin.offers.WithdrawOffer, never), Reason.NOT_FOUND)
