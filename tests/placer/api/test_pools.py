"""Pools through the API: their whole policy, updates, deletion, pages (spec 1.5, 15.1)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bcd.model.assignment import Sharing, SharingMode
from bcd.model.errors import Reason
from bcd.model.ids import PoolId
from bcd.store import atoms, desired_states, pools
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1 import reservations_pb2 as rpb
from bcd.wire.compute.v1.reservations_pb2 import ListReservationsRequest
from tests.placer.api.conftest import Client, Site, is_refusal
from tests.placer.waiting import until
from tests.placer.world import TENANT, FakeNode, dgx, gpu

WHOLE = pb.PoolPolicy(
    turnaround_ms=60_000,
    placer="inline",
    per_gpu=pb.HostAmounts(vcpu=12, memory_gib=96),
    ratio=pb.HostRatio(vcpu=1.125, memory_gib=0.5),
    host_reserve=pb.HostAmounts(vcpu=4, memory_gib=16),
    sharing=pb.Sharing(mode="mps", replicas=6),
    kubernetes=True,
    tenant_root=False,
    spot=pb.Spot(grace_seconds=30),
)
DEFAULTS = pb.PoolPolicy(
    turnaround_ms=0,
    placer="inline",
    per_gpu=pb.HostAmounts(),
    ratio=pb.HostRatio(vcpu=1, memory_gib=1),
    host_reserve=pb.HostAmounts(vcpu=2, memory_gib=4),
    sharing=pb.Sharing(mode="none"),
    kubernetes=False,
    tenant_root=False,
    spot=pb.Spot(grace_seconds=120),
)


async def create(admin: Client, name: str = "new", **changes: Any) -> pb.Pool:
    plain: dict[str, Any] = {"name": name, "tenant_id": TENANT, "region": "eu-2"}
    request = pb.CreatePoolRequest(**plain | changes)
    made: pb.Pool = (await admin.call(admin.pools.CreatePool, request)).pool
    return made


async def update(admin: Client, pool_id: str, *reset: str, **policy: Any) -> pb.Pool:
    request = pb.UpdatePoolRequest(pool_id=pool_id, policy=pb.PoolPolicy(**policy), reset=reset)
    changed: pb.Pool = (await admin.call(admin.pools.UpdatePool, request)).pool
    return changed


async def reached(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait for the placer's loops to bring it about."""
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def get(client: Client, pool_id: str, tenant: str = TENANT) -> pb.Pool:
    request = pb.GetPoolRequest(tenant_id=tenant, pool_id=pool_id)
    found: pb.Pool = (await client.call(client.pools.GetPool, request)).pool
    return found


async def test_a_pool_without_a_policy_has_the_defaults(site: Site, admin: Client) -> None:
    made = await create(admin)
    assert made.policy == DEFAULTS
    assert await get(admin, made.id, "") == made


async def test_a_whole_policy_is_kept_as_it_was_given(site: Site, admin: Client) -> None:
    made = await create(admin, policy=WHOLE)
    assert made.policy == WHOLE
    stored = await site.world.database.read(pools.get, PoolId(made.id))
    assert (str(stored.policy.ratio.vcpu), str(stored.policy.ratio.memory_gib)) == ("1.125", "0.5")


async def test_an_update_changes_what_it_names_and_nothing_else(site: Site, admin: Client) -> None:
    made = await create(admin, policy=WHOLE)
    changed = await update(admin, made.id, per_gpu=pb.HostAmounts(vcpu=8), kubernetes=False)
    expected = pb.PoolPolicy()
    expected.CopyFrom(WHOLE)
    expected.per_gpu.vcpu, expected.kubernetes = 8, False
    assert changed.policy == expected
    assert (await get(admin, made.id)).policy == expected
    assert (await update(admin, made.id)).policy == expected


async def test_a_field_goes_back_to_its_default(site: Site, admin: Client) -> None:
    made = await create(admin, policy=WHOLE)
    names = [field.json_name for field in pb.PoolPolicy.DESCRIPTOR.fields]
    assert (await update(admin, made.id, *names)).policy == DEFAULTS
    share = pb.HostAmounts(memory_gib=7)
    assert (await update(admin, made.id, "perGpu", per_gpu=share)).policy.per_gpu == share
    wrong = pb.UpdatePoolRequest(pool_id=made.id, reset=["perGpu", "x"])
    refused = await admin.refused(admin.pools.UpdatePool, wrong)
    assert is_refusal(refused, Reason.INVALID_INPUT, field="reset[1]")


@pytest.mark.parametrize(
    ("policy", "reason", "field"),
    [
        ({"per_gpu": pb.HostAmounts(vcpu=-1)}, Reason.INVALID_INPUT, "perGpu.vcpu"),
        ({"per_gpu": pb.HostAmounts(memory_gib=65_537)}, Reason.INVALID_INPUT, "perGpu.memoryGiB"),
        ({"host_reserve": pb.HostAmounts(vcpu=4097)}, Reason.INVALID_INPUT, "hostReserve.vcpu"),
        ({"ratio": pb.HostRatio(vcpu=0)}, Reason.INVALID_INPUT, "ratio.vcpu"),
        ({"ratio": pb.HostRatio(vcpu=-1.5)}, Reason.INVALID_INPUT, "ratio.vcpu"),
        ({"ratio": pb.HostRatio(vcpu=1.0001)}, Reason.INVALID_INPUT, "ratio.vcpu"),
        ({"ratio": pb.HostRatio(vcpu=100.001)}, Reason.INVALID_INPUT, "ratio.vcpu"),
        ({"ratio": pb.HostRatio(memory_gib=float("nan"))}, Reason.INVALID_INPUT, "ratio.memoryGiB"),
        ({"ratio": pb.HostRatio(memory_gib=float("inf"))}, Reason.INVALID_INPUT, "ratio.memoryGiB"),
        ({"ratio": pb.HostRatio(memory_gib=1e-320)}, Reason.INVALID_INPUT, "ratio.memoryGiB"),
        ({"ratio": pb.HostRatio(memory_gib=1.001)}, Reason.INVALID_INPUT, "ratio.memoryGiB"),
        ({"ratio": pb.HostRatio(memory_gib=100)}, Reason.INVALID_INPUT, "ratio.memoryGiB"),
        ({"sharing": pb.Sharing(mode="x")}, Reason.INVALID_INPUT, "sharing.mode"),
        ({"sharing": pb.Sharing(replicas=0)}, Reason.INVALID_INPUT, "sharing.replicas"),
        ({"spot": pb.Spot(grace_seconds=3601)}, Reason.INVALID_INPUT, "spot.graceSeconds"),
    ],
    ids=str,
)
async def test_a_policy_out_of_bounds_is_refused_by_its_field(
    site: Site, admin: Client, policy: dict[str, Any], reason: Reason, field: str
) -> None:
    given = pb.PoolPolicy(**policy)
    making = pb.CreatePoolRequest(name="n", tenant_id=TENANT, region="eu", policy=given)
    refused = await admin.refused(admin.pools.CreatePool, making)
    assert is_refusal(refused, reason, field=f"policy.{field}")
    changing = pb.UpdatePoolRequest(pool_id=admin.pool_id, policy=given)
    refused = await admin.refused(admin.pools.UpdatePool, changing)
    assert is_refusal(refused, reason, field=f"policy.{field}")
    assert (await get(admin, admin.pool_id)).policy == DEFAULTS


async def test_a_shared_pools_gpus_are_booked_by_the_slot(
    site: Site, admin: Client, alice: Client
) -> None:
    """Spec 1.4, 16.4: as soon as the policy says so, and each slot with its part of the host."""
    node = await site.world.add_node([gpu("G0")])
    await site.world.grant("gpu.slot", 8)
    await update(admin, admin.pool_id, sharing=pb.Sharing(mode="mps", replicas=4))

    async def has_slots() -> bool:
        found = await site.world.database.read(atoms.on_node, node.id)
        return sum(atom.device_class == "gpu.slot" for atom in found) == 4

    await reached(has_slots)
    asked = [rpb.DeviceRequest(**{"class": "gpu.slot"}, count=3)]
    made = await alice.create(devices=asked)
    assert made.host_share == rpb.Resources(vcpu=46, memory_gib=765)
    await reached(lambda: site.world.assigned(node))
    (assignment,) = (await site.world.desired(node)).assignments
    assert assignment.sharing == Sharing(SharingMode.MPS, 4)
    assert [device.cdi_name for device in assignment.devices] == [
        f"bcd.dev/gpu.slot=G0::{n}" for n in range(3)
    ]
    asked[0].count = 1
    last = await alice.create("last", devices=asked)
    assert last.state == "placed"
    assert (await alice.create("whole")).state == "pending"


async def test_a_changed_turnaround_holds_for_the_next_booking(
    site: Site, admin: Client, alice: Client
) -> None:
    await site.world.add_node(dgx("a", 2))
    before = await alice.create("before")
    await update(admin, admin.pool_id, turnaround_ms=60_000)
    after = await alice.create("after")
    rows = await site.world.rows("SELECT reservation_id, end_ms FROM bookings")
    ends = {row["reservation_id"]: row["end_ms"] for row in rows}
    assert ends[before.id] == before.during.end
    assert ends[after.id] == after.during.end + 60_000


async def test_a_changed_host_reserve_reaches_the_nodes_that_have_holds(
    site: Site, admin: Client, alice: Client
) -> None:
    world = site.world
    one, other = await world.add_node(dgx("a")), await world.add_node(dgx("b"))
    await alice.create()

    async def held() -> list[FakeNode]:
        return [node for node in (one, other) if await world.assigned(node)]

    await reached(held)
    (busy,) = await held()
    before = await world.desired(busy)
    await update(admin, admin.pool_id, host_reserve=pb.HostAmounts(vcpu=6))
    after = await world.desired(busy)
    assert (before.host_reserve.vcpu, after.host_reserve.vcpu) == (2, 6)
    assert after.generation == before.generation + 1
    (idle,) = {one.id, other.id} - {busy.id}
    assert await world.database.read(desired_states.get, idle) is None
    await update(admin, admin.pool_id, kubernetes=True)
    assert await world.desired(busy) == after


async def test_an_update_looks_at_what_waits_again(
    site: Site, admin: Client, alice: Client
) -> None:
    """Every node counts as changed, and those who follow the policy hear of it."""
    node = await site.world.add_node(dgx("a"))
    heard: list[str] = []
    site.world.database.wakes.listen("pool", heard.append)
    before = await site.world.rows("SELECT change_seq FROM pools")
    await update(admin, admin.pool_id, turnaround_ms=1)
    rows = await site.world.rows(
        "SELECT node_id, what FROM pool_changes WHERE seq > :seq ORDER BY seq",
        seq=before[0]["change_seq"],
    )
    assert (rows[0]["node_id"], rows[0]["what"]) == (node.id, "node")
    await until(lambda: admin.pool_id in heard)


async def test_an_empty_pool_is_deleted_and_its_name_is_free(
    site: Site, admin: Client, alice: Client
) -> None:
    made = await create(admin)
    joining = pb.CreateJoinTokenRequest(pool_id=made.id)
    await admin.call(admin.credentials.CreateJoinToken, joining)
    await admin.call(admin.pools.DeletePool, pb.DeletePoolRequest(pool_id=made.id))
    for client, method, request in (
        (alice, alice.pools.GetPool, pb.GetPoolRequest(tenant_id=TENANT, pool_id=made.id)),
        (admin, admin.pools.GetPool, pb.GetPoolRequest(pool_id=made.id)),
        (admin, admin.pools.UpdatePool, pb.UpdatePoolRequest(pool_id=made.id)),
        (admin, admin.pools.DeletePool, pb.DeletePoolRequest(pool_id=made.id)),
        (admin, admin.nodes.ListNodes, pb.ListNodesRequest(pool_id=made.id)),
        (admin, admin.credentials.CreateJoinToken, joining),
    ):
        assert is_refusal(await client.refused(method, request), Reason.NOT_FOUND)
    found = (await admin.call(admin.pools.ListPools, pb.ListPoolsRequest())).pools
    assert [pool.name for pool in found] == ["pool"]
    tokens = await admin.call(admin.credentials.ListJoinTokens, pb.ListJoinTokensRequest())
    assert list(tokens.tokens) == []
    assert (await create(admin)).id != made.id


async def test_a_pool_with_nodes_or_reservations_is_not_deleted(
    site: Site, admin: Client, alice: Client
) -> None:
    node = await site.world.add_node(dgx("a"))
    deleting = pb.DeletePoolRequest(pool_id=admin.pool_id)
    refused = await admin.refused(admin.pools.DeletePool, deleting)
    assert refused.reason is Reason.INVALID_STATE
    assert "nodes" in refused.message
    await admin.call(admin.nodes.RemoveNode, pb.RemoveNodeRequest(node_id=node.id))
    waiting = await alice.create()
    refused = await admin.refused(admin.pools.DeletePool, deleting)
    assert refused.reason is Reason.INVALID_STATE
    assert "reservations" in refused.message
    await site.world.end_if_live(waiting.id)  # type: ignore[arg-type]
    await admin.call(admin.pools.DeletePool, deleting)
    everything = ListReservationsRequest(tenant_id=TENANT, scope="all")
    mine = await alice.call(alice.reservations.ListReservations, everything)
    assert [entry.id for entry in mine.reservations] == [waiting.id]


async def test_pools_come_in_pages_by_name(site: Site, admin: Client, alice: Client) -> None:
    for name in ("c", "a", "b"):
        await create(admin, name)
    request = pb.ListPoolsRequest(tenant_id=TENANT, limit=2)
    names: list[list[str]] = []
    while True:
        page = await alice.call(alice.pools.ListPools, request)
        names.append([pool.name for pool in page.pools])
        if not page.next_cursor:
            break
        request.cursor = page.next_cursor
    assert names == [["a", "b"], ["c", "pool"]]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
        ({"limit": -1}, "limit"),
        ({"cursor": "pool_none"}, "cursor"),
        ({"cursor": "x" * 600}, "cursor"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_page_asked_for_wrongly_is_refused_by_its_field(
    site: Site, alice: Client, changes: dict[str, Any], field: str
) -> None:
    request = pb.ListPoolsRequest(tenant_id=TENANT, **changes)
    refused = await alice.refused(alice.pools.ListPools, request)
    assert is_refusal(refused, Reason.INVALID_INPUT, field=field)


async def test_another_tenants_pool_is_no_cursor_and_tells_nothing_of_its_name(
    site: Site, alice: Client, stranger: Client
) -> None:
    known = await alice.call(alice.pools.ListPools, pb.ListPoolsRequest(tenant_id=TENANT))
    words = []
    for cursor in (known.pools[0].id, "pool_none"):
        request = pb.ListPoolsRequest(tenant_id="other", cursor=cursor)
        refused = await stranger.refused(stranger.pools.ListPools, request)
        assert is_refusal(refused, Reason.INVALID_INPUT, field="cursor")
        words.append(refused.message)
    assert words[0] == words[1]
