"""What a pool could give, asked through the API (spec 7.6, 15.1)."""

from typing import Any

from bcd.wire.compute.v1 import capacity_pb2 as pb
from bcd.wire.compute.v1 import reservations_pb2
from tests.placer.api.conftest import HOUR_MS, Client, Site
from tests.placer.records import tables
from tests.placer.world import TENANT, dgx


def asked(client: Client, count: int = 1, **changes: Any) -> pb.PreviewCapacityRequest:
    """A preview of whole GPUs for an hour."""
    device = reservations_pb2.DeviceRequest(**{"class": "gpu"}, count=count)
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


async def test_what_fits_is_told_with_its_node_window_and_host_and_changes_nothing(
    site: Site, alice: Client
) -> None:
    site.clock.advance(0)
    node = await site.world.add_node(dgx("a", 8))
    before = await tables(site.world.database)
    told = await preview(alice, 4)
    assert await tables(site.world.database) == before
    now_ms = site.clock.read()
    assert (told.fits, list(told.node_ids), told.displaced) == (True, [node.id], 0)
    assert (told.window.start, told.window.end) == (now_ms, now_ms + HOUR_MS)
    assert (told.earliest_start, told.reason, list(told.rejected)) == (now_ms, "", [])
    made = await alice.create(count=4)
    assert made.host_share == told.host_share == told.resources
