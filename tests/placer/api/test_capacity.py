"""What a pool could give, asked through the API (spec 7.6, 15.1)."""

import contextlib
from typing import Any

import pytest

from bcd.model.errors import InvalidInput, Reason
from bcd.model.units import MAX_DURATION_MS
from bcd.placer.admission.preview import Previews
from bcd.placer.placement.booking import Placed
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.wire.compute.v1 import capacity_pb2 as pb
from bcd.wire.compute.v1 import offers_pb2
from bcd.wire.compute.v1 import reservations_pb2 as rpb
from tests.clock import DatabaseClock
from tests.placer.api.conftest import HOUR_MS, Client, Site, creation
from tests.placer.records import tables
from tests.placer.world import ALICE, TENANT, World, dgx

# Clocks are moved on before they stand still: ahead of whatever was told before.
MINUTE_MS = 60_000


def asked(client: Client, count: int = 1, **changes: Any) -> pb.PreviewCapacityRequest:
    """A preview of whole GPUs for an hour."""
    device = rpb.DeviceRequest(**{"class": "gpu"}, count=count)
    return pb.PreviewCapacityRequest(
        **{
            "tenant_id": TENANT,
            "pool_id": client.pool_id,
            "devices": [device],
            "duration": "1h",
        }
        | changes
    )


async def preview(client: Client, count: int = 1, **changes: Any) -> pb.PreviewCapacityResponse:
    answer: pb.PreviewCapacityResponse = await client.call(
        client.capacity.PreviewCapacity, asked(client, count, **changes)
    )
    return answer


async def test_what_fits_is_told_with_its_node_window_and_host(site: Site, alice: Client) -> None:
    site.clock.advance(MINUTE_MS)
    node = await site.world.add_node(dgx("a", 8))
    told = await preview(alice, 4)
    now_ms = site.clock.read()
    assert (told.fits, list(told.node_ids), told.displaced) == (True, [node.id], 0)
    assert (told.window.start, told.window.end) == (now_ms, now_ms + HOUR_MS)
    assert (told.earliest_start, told.reason, list(told.rejected)) == (now_ms, "", [])
    assert told.host_share.vcpu == told.resources.vcpu > 0
    more = await preview(alice, 4, resources=rpb.Resources(vcpu=60))
    assert (more.host_share, more.resources.vcpu) == (told.host_share, 60)


async def test_what_does_not_fit_is_told_why_from_when_on_and_for_how_long_less_would(
    site: Site, alice: Client
) -> None:
    site.clock.advance(MINUTE_MS)
    await site.world.add_node(dgx("a", 2))
    running = await alice.create("now", 2)
    now_ms = site.clock.read()
    told = await preview(alice)
    assert (told.fits, list(told.node_ids), told.HasField("window")) == (False, [], False)
    assert told.reason == "none of 1 nodes fits: devices rejected 1 (the closest has 0 of 1 free)"
    nearest = "the closest has 0 of 1 free"
    assert list(told.rejected) == [pb.FilterCount(filter="devices", nodes=1, nearest=nearest)]
    assert (told.earliest_start, told.longest_free_ms) == (running.during.end, 0)
    ahead = await alice.create("ahead", 2, start=now_ms + 10 * HOUR_MS)
    told = await preview(alice, start=now_ms + 9 * HOUR_MS, duration="90m")
    assert (told.fits, told.longest_free_ms) == (False, HOUR_MS)
    assert told.earliest_start == ahead.during.end
    never = await preview(alice, 3)
    assert (never.fits, never.HasField("earliest_start")) == (False, False)
    forever = await preview(alice, start=now_ms + 20 * HOUR_MS)
    assert (forever.fits, forever.longest_free_ms) == (True, MAX_DURATION_MS)


async def test_what_is_kept_for_an_older_request_is_not_promised_to_a_younger(
    site: Site, alice: Client
) -> None:
    """Spec 7.5: the preview sees the shadow as a create does."""
    site.clock.advance(MINUTE_MS)
    await site.world.add_node(dgx("a", 4))
    running = await alice.create("half", 2, duration="2h")
    assert (await preview(alice, 2, duration="1d")).fits
    assert (await alice.create("whole", 4)).state == "pending"
    told = await preview(alice, 2, duration="1d")
    assert (told.fits, told.longest_free_ms) == (False, 2 * HOUR_MS)
    assert told.earliest_start == running.during.end + HOUR_MS
    assert (await preview(alice, 2, duration="2h")).fits


async def test_who_would_have_to_yield_is_counted_and_does_not(site: Site, alice: Client) -> None:
    """Spec 7.7."""
    site.clock.advance(MINUTE_MS)
    await site.world.add_node(dgx("a", 2))
    later_ms = site.clock.read() + HOUR_MS
    yielding = [
        (await alice.create(name, spot=True, start=later_ms, duration="1d")).id for name in "ab"
    ]
    told = await preview(alice, 2, start=later_ms)
    assert (told.fits, told.displaced, told.longest_free_ms) == (True, 2, 0)
    assert [await site.stored(one) for one in yielding] == ["placed", "placed"]
    spot = await preview(alice, 2, start=later_ms, spot=True)
    assert (spot.fits, spot.displaced) == (False, 0)


async def test_the_earliest_start_is_that_at_which_those_left_would_yield(
    site: Site, alice: Client
) -> None:
    """A firm one has a device for two hours, a spot one the other for a day."""
    site.clock.advance(MINUTE_MS)
    await site.world.add_node(dgx("a", 2))
    firm = await alice.create("firm", duration="2h")
    await alice.create("spot", spot=True, duration="1d")
    told = await preview(alice, 2)
    assert (told.fits, told.earliest_start) == (False, firm.during.end)
    yielding = await preview(alice, 2, spot=True)
    assert yielding.earliest_start == site.clock.read() + 24 * HOUR_MS


async def test_neither_quota_nor_policy_is_asked(site: Site, alice: Client) -> None:
    await site.world.add_node(dgx("a", 8))
    await site.world.grant("gpu", 0)
    assert (await preview(alice, 8)).fits


async def test_a_preview_writes_to_no_table(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    await world.add_node(dgx("a", 2))
    await world.active(*world.nodes, key="spot", spot=True, duration="1d")
    await world.create(3, key="waits")
    await world.create(1, key="firm", duration="2h")
    previews = Previews(world.database, world.placements, world.signer)
    before = await tables(world.database)
    found = []
    for count, changes in ((1, {}), (2, {}), (3, {}), (1, {"spot": True}), (1, {"start": 1 << 40})):
        document = world.document(count, **changes) | {"duration": "3h"}
        del document["idempotencyKey"]
        with contextlib.suppress(InvalidInput):
            found.append((await previews.preview(ALICE, document)).outcome)
        assert await tables(world.database) == before
    assert {type(one) for one in found} == {Placed, Unschedulable}
    assert any(isinstance(one, Placed) and one.displaced for one in found)


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant_id": "other"},
        {"tenant_id": ""},
        {"pool_id": "pool_00000000000000000000000000"},
        {"pool_id": "x"},
        {"devices": []},
        {"devices": [rpb.DeviceRequest(**{"class": "tpu"}, count=1)]},
        {"devices": [rpb.DeviceRequest(**{"class": "gpu"}, count=0)]},
        {"devices": [rpb.DeviceRequest(**{"class": "gpu"}, count=1, model="a\nb")]},
        {"duration": "0"},
        {"duration": "soon"},
        {"start": 1},
        {"start": 1 << 60},
        {"binding": "kubernetes"},
        {"binding": "instance"},
        {"binding": "node"},
        {"node": rpb.NodeProfile(profile_id="p")},
        {"gang": rpb.Gang(size=1025)},
        {"resources": rpb.Resources(vcpu=-1)},
    ],
    ids=str,
)
async def test_a_preview_is_refused_as_the_create_would_be(
    alice: Client, changes: dict[str, Any]
) -> None:
    refused = await alice.refused(alice.capacity.PreviewCapacity, asked(alice, **changes))
    create = creation(**{"pool_id": alice.pool_id} | changes)
    expected = await alice.refused(alice.reservations.CreateReservation, create)
    assert (refused.reason, refused.message) == (expected.reason, expected.message)
    assert refused.details == expected.details


async def test_a_pool_is_previewed_by_those_it_is_offered_to_alone(
    site: Site, admin: Client, stranger: Client
) -> None:
    await site.world.add_node(dgx("a", 1))
    own = asked(stranger, tenant_id="other")
    refused = await stranger.refused(stranger.capacity.PreviewCapacity, own)
    assert refused.reason is Reason.NOT_FOUND
    offer = offers_pb2.SetOfferRequest(pool_id=admin.pool_id, tenant_id="other")
    await admin.call(admin.offers.SetOffer, offer)
    assert (await preview(stranger, tenant_id="other")).fits
