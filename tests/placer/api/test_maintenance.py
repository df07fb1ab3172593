"""Maintenance windows through the API: added, refused, listed, removed (spec 15.1)."""

from typing import Any

import pytest

from bcd.model.errors import Reason
from bcd.wire.compute.v1 import admin_pb2, reservations_pb2
from bcd.wire.compute.v1 import maintenance_pb2 as pb
from tests.placer.api.conftest import HOUR_MS, Client, Site, is_refusal
from tests.placer.world import TENANT, dgx


async def add(admin: Client, node_id: str, **changes: Any) -> pb.MaintenanceWindow:
    plain: dict[str, Any] = {"node_id": node_id, "duration_ms": HOUR_MS, "reason": "new fans"}
    request = pb.AddMaintenanceRequest(**plain | changes)
    made: pb.MaintenanceWindow = (
        await admin.call(admin.maintenance.AddMaintenance, request)
    ).window
    return made


async def listed(admin: Client, **wanted: Any) -> list[pb.MaintenanceWindow]:
    request = pb.ListMaintenanceRequest(**wanted)
    return list((await admin.call(admin.maintenance.ListMaintenance, request)).windows)


async def test_a_window_keeps_reservations_off_the_node_until_it_is_removed(
    site: Site, admin: Client, alice: Client
) -> None:
    node = await site.world.add_node(dgx("a", 2))
    window = await add(admin, node.id)
    assert (window.node_id, window.pool_id, window.reason) == (node.id, admin.pool_id, "new fans")
    assert window.end - window.start == HOUR_MS
    assert (await alice.create("waits")).state == "pending"
    await admin.call(admin.maintenance.RemoveMaintenance, pb.RemoveMaintenanceRequest(id=window.id))
    assert await listed(admin) == []
    assert (await alice.create("placed")).state == "placed"


async def test_reservations_in_the_way_are_named(site: Site, admin: Client, alice: Client) -> None:
    node = await site.world.add_node(dgx("a", 2))
    made = await alice.create()
    request = pb.AddMaintenanceRequest(node_id=node.id, duration_ms=HOUR_MS)
    refused = await admin.refused(admin.maintenance.AddMaintenance, request)
    until = str(made.during.end)
    assert is_refusal(refused, Reason.CONFLICT, reservations=made.id, nodeId=node.id, until=until)
    assert made.id in refused.message
    assert await listed(admin) == []
    later = await add(admin, node.id, start=made.during.end)
    assert later.start == made.during.end


async def test_windows_are_listed_by_their_start_for_a_pool_or_a_node(
    site: Site, admin: Client
) -> None:
    one, two = await site.world.add_node(dgx("a")), await site.world.add_node(dgx("b"))
    soon_ms = site.clock.read() + HOUR_MS
    late = await add(admin, one.id, start=soon_ms + HOUR_MS)
    soon = await add(admin, two.id, start=soon_ms)
    assert await listed(admin) == [soon, late]
    assert await listed(admin, pool_id=admin.pool_id) == [soon, late]
    assert await listed(admin, node_id=one.id) == [late]
    assert await listed(admin, pool_id="pool_none") == []


async def test_windows_come_in_pages(site: Site, admin: Client) -> None:
    node = await site.world.add_node(dgx("a", 1))
    start_ms = site.clock.read() + HOUR_MS
    made = [await add(admin, node.id, start=start_ms + i * HOUR_MS) for i in range(3)]
    request = pb.ListMaintenanceRequest(limit=2)
    first = await admin.call(admin.maintenance.ListMaintenance, request)
    request.cursor = first.next_cursor
    last = await admin.call(admin.maintenance.ListMaintenance, request)
    assert ([*first.windows, *last.windows], last.next_cursor) == (made, "")
    request.cursor = "maint_none"
    refused = await admin.refused(admin.maintenance.ListMaintenance, request)
    assert is_refusal(refused, Reason.INVALID_INPUT, field="cursor")


async def test_a_window_is_nobodys_reservation(site: Site, admin: Client, alice: Client) -> None:
    node = await site.world.add_node(dgx("a", 1))
    window = await add(admin, node.id)
    everything = reservations_pb2.ListReservationsRequest(tenant_id=TENANT, scope="all")
    answer = await alice.call(alice.reservations.ListReservations, everything)
    assert list(answer.reservations) == []
    for name in ("GetReservation", "ReleaseReservation", "CancelReservation"):
        asked = getattr(reservations_pb2, f"{name}Request")(
            tenant_id=TENANT, reservation_id=window.id
        )
        refused = await alice.refused(getattr(alice.reservations, name), asked)
        assert refused.reason is Reason.NOT_FOUND
    nodes = admin_pb2.ListNodesRequest(tenant_id=TENANT)
    (shown,) = (await alice.call(alice.nodes.ListNodes, nodes)).nodes
    assert [device.held for device in shown.devices] == [True]
    (pool,) = (
        await alice.call(alice.pools.ListPools, admin_pb2.ListPoolsRequest(tenant_id=TENANT))
    ).pools
    assert (pool.gpus, pool.gpus_free) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"node_id": "x"}, Reason.INVALID_INPUT, "nodeId"),
        ({"duration_ms": 0}, Reason.INVALID_INPUT, "durationMs"),
        ({"duration_ms": -1}, Reason.INVALID_INPUT, "durationMs"),
        ({"duration_ms": 1 << 62}, Reason.INVALID_INPUT, "durationMs"),
        ({"start": -1}, Reason.INVALID_INPUT, "start"),
        ({"start": 1}, Reason.INVALID_INPUT, "start"),
        ({"start": 1 << 62}, Reason.INVALID_INPUT, "start"),
        ({"reason": "a\nb"}, Reason.INVALID_INPUT, "reason"),
    ],
    ids=str,
)
async def test_a_window_asked_for_wrongly_is_refused_by_its_field(
    site: Site, admin: Client, changes: dict[str, Any], reason: Reason, field: str
) -> None:
    node = await site.world.add_node(dgx("a", 1))
    sound: dict[str, Any] = {"node_id": node.id, "duration_ms": HOUR_MS}
    request = pb.AddMaintenanceRequest(**sound | changes)
    refused = await admin.refused(admin.maintenance.AddMaintenance, request)
    assert is_refusal(refused, reason, field=field)


async def test_what_is_not_there_gets_no_window_and_loses_none(site: Site, admin: Client) -> None:
    nothing = "00000000000000000000000000"
    missing = pb.AddMaintenanceRequest(node_id=f"node_{nothing}", duration_ms=1)
    refused = await admin.refused(admin.maintenance.AddMaintenance, missing)
    assert refused.reason is Reason.NOT_FOUND
    unknown = pb.RemoveMaintenanceRequest(id=f"maint_{nothing}")
    refused = await admin.refused(admin.maintenance.RemoveMaintenance, unknown)
    assert refused.reason is Reason.NOT_FOUND
    bare = await site.world.add_node(())
    empty = pb.AddMaintenanceRequest(node_id=bare.id, duration_ms=1)
    refused = await admin.refused(admin.maintenance.AddMaintenance, empty)
    assert refused.reason is Reason.INVALID_STATE
