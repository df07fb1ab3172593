"""Nodes through the API: drained, trusted, labelled, removed, in pages (spec 1.3, 15.1)."""

from typing import Any

import pytest

from bcd.model.errors import Reason
from bcd.model.ids import NodeId
from bcd.placer.capacity.inventory import InventoryKeeper
from bcd.signing import keys
from bcd.store import certificates, nodes
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1 import maintenance_pb2
from tests.placer.api.conftest import HOUR_MS, Client, Site, is_refusal
from tests.placer.world import TENANT, FakeNode, dgx

NOBODY = "node_00000000000000000000000000"
CHANGES: dict[str, Any] = {
    "CordonNode": pb.CordonNodeRequest,
    "DrainNode": pb.DrainNodeRequest,
    "TrustNode": pb.TrustNodeRequest,
    "LabelNode": pb.LabelNodeRequest,
    "RevokeNode": pb.RevokeNodeRequest,
    "RemoveNode": pb.RemoveNodeRequest,
    "GetNode": pb.GetNodeRequest,
}


async def change(admin: Client, name: str, node: FakeNode, **values: Any) -> pb.Node:
    request = CHANGES[name](node_id=node.id, **values)
    changed: pb.Node = (await admin.call(getattr(admin.nodes, name), request)).node
    return changed


async def get(client: Client, node: FakeNode) -> pb.Node:
    request = pb.GetNodeRequest(tenant_id=TENANT, node_id=node.id)
    found: pb.Node = (await client.call(client.nodes.GetNode, request)).node
    return found


def of_operators(node: pb.Node) -> dict[str, str]:
    """The labels that operators gave it."""
    return {label.key: label.value for label in node.labels if label.source == "operator"}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_node_that_is_not_there_is_not_found(site: Site, admin: Client, name: str) -> None:
    method = getattr(admin.nodes, name)
    refused = await admin.refused(method, CHANGES[name](node_id=NOBODY))
    assert is_refusal(refused, Reason.NOT_FOUND, nodeId=NOBODY)
    refused = await admin.refused(method, CHANGES[name](node_id="../x"))
    assert is_refusal(refused, Reason.INVALID_INPUT, field="nodeId")


async def test_a_draining_node_takes_no_bookings_until_it_is_uncordoned(
    site: Site, admin: Client, alice: Client
) -> None:
    node = await site.world.add_node(dgx("a"))
    kept = await alice.create("kept")
    drained = await change(admin, "DrainNode", node)
    assert (drained.draining, drained.cordoned, drained.schedulable) == (True, True, False)
    assert (await alice.create("waits")).state == "pending"
    assert await site.stored(kept.id) in ("placed", "binding")
    cordoned = await change(admin, "CordonNode", node, cordoned=True)
    assert (cordoned.draining, cordoned.cordoned) == (True, True)
    back = await change(admin, "CordonNode", node)
    assert (back.draining, back.cordoned, back.schedulable) == (False, False, True)
    assert (await alice.create("next")).state == "placed"


async def test_a_cordoned_node_is_not_draining(site: Site, admin: Client) -> None:
    node = await site.world.add_node(dgx("a"))
    cordoned = await change(admin, "CordonNode", node, cordoned=True)
    assert (cordoned.cordoned, cordoned.draining) == (True, False)


async def test_a_node_without_trust_takes_no_bookings_and_keeps_its_certificates(
    site: Site, admin: Client, alice: Client
) -> None:
    node = await site.world.add_node(dgx("a"))
    distrusted = await change(admin, "TrustNode", node)
    assert (distrusted.trusted, distrusted.schedulable) == (False, False)
    waiting = await alice.create("waits")
    assert waiting.state == "pending"
    assert "rejected 1" in waiting.conditions[0].message
    (record,) = await site.world.database.read(
        certificates.by_key, keys.key_id(node.key.public_key())
    )
    assert not record.revoked
    trusted = await change(admin, "TrustNode", node, trusted=True)
    assert (trusted.trusted, trusted.schedulable) == (True, True)
    assert (await alice.create("next")).state == "placed"


async def test_labels_are_set_replaced_and_removed(site: Site, admin: Client) -> None:
    node = await site.world.add_node(dgx("a"))
    labelled = await change(admin, "LabelNode", node, set={"rack": "r1", "block": "b"})
    assert of_operators(labelled) == {"block": "b", "rack": "r1"}
    changed = await change(
        admin, "LabelNode", node, set={"rack": "r2"}, remove=["block", "never-there"]
    )
    assert of_operators(changed) == {"rack": "r2"}
    assert [x for x in changed.labels if x.source == "system"] == [
        x for x in labelled.labels if x.source == "system"
    ]


async def test_operators_touch_no_label_of_the_system(site: Site, admin: Client) -> None:
    """Only those of source system count, and operators cannot make any (spec 1.3, 6.4)."""
    node = await site.world.add_node(dgx("a"))
    key = "bc.dev/cap.devices.limits"
    await site.world.database.write(nodes.replace_capabilities, node.id, ["devices.limits"])
    for values in ({"set": {key: "0"}}, {"remove": [key]}, {"set": {"bc.dev/mine": "1"}}):
        request = pb.LabelNodeRequest(node_id=node.id, **values)
        refused = await admin.refused(admin.nodes.LabelNode, request)
        assert refused.reason is Reason.INVALID_INPUT
        assert "system" in refused.message
    (label,) = (await change(admin, "LabelNode", node)).labels
    assert (label.key, label.value, label.source) == (key, "1", "system")


@pytest.mark.parametrize(
    "values",
    [
        {"set": {"": "x"}},
        {"set": {"k" * 257: "x"}},
        {"set": {"k": "v" * 257}},
        {"set": {"k\n": "v"}},
        {"set": {"k": "\x1b[2J"}},
        {"remove": ["ok", ""]},
        {"set": {f"k{i}": "v" for i in range(65)}},
    ],
    ids=lambda values: str(values)[:30],
)
async def test_labels_out_of_bounds_are_refused_and_none_is_set(
    site: Site, admin: Client, values: dict[str, Any]
) -> None:
    node = await site.world.add_node(dgx("a"))
    request = pb.LabelNodeRequest(node_id=node.id, **values)
    refused = await admin.refused(admin.nodes.LabelNode, request)
    assert refused.reason is Reason.INVALID_INPUT
    assert of_operators(await get(admin, node)) == {}


async def test_a_removed_node_is_gone_from_everywhere(
    site: Site, admin: Client, alice: Client
) -> None:
    node = await site.world.add_node(dgx("a"))
    stays = await site.world.add_node(dgx("b", 1))
    ended = await alice.create("ended", 8)
    await site.world.end_if_live(ended.id)  # type: ignore[arg-type]
    joining = pb.CreateJoinTokenRequest(node_id=node.id)
    await admin.call(admin.credentials.CreateJoinToken, joining)
    await change(admin, "LabelNode", node, set={"rack": "r"})
    await admin.call(admin.nodes.RemoveNode, pb.RemoveNodeRequest(node_id=node.id))
    for client in (alice, admin):
        listed = await client.call(client.nodes.ListNodes, pb.ListNodesRequest(tenant_id=TENANT))
        assert [entry.id for entry in listed.nodes] == [stays.id]
    for name, kind in CHANGES.items():
        refused = await admin.refused(getattr(admin.nodes, name), kind(node_id=node.id))
        assert is_refusal(refused, Reason.NOT_FOUND, nodeId=node.id)
    refused = await admin.refused(admin.credentials.CreateJoinToken, joining)
    assert refused.reason is Reason.NOT_FOUND
    tokens = await admin.call(admin.credentials.ListJoinTokens, pb.ListJoinTokensRequest())
    assert list(tokens.tokens) == []
    (record,) = await site.world.database.read(
        certificates.by_key, keys.key_id(node.key.public_key())
    )
    assert record.revoked
    hosts = await site.world.rows("SELECT node_id FROM host_capacity")
    assert [row["node_id"] for row in hosts] == [stays.id]
    (pool,) = (await alice.call(alice.pools.ListPools, pb.ListPoolsRequest(tenant_id=TENANT))).pools
    assert (pool.nodes, pool.gpus) == (1, 1)
    waiting = await alice.create("waits", 8)
    assert "devices rejected 1" in waiting.conditions[0].message
    assert "state" not in waiting.conditions[0].message


async def test_a_node_with_bookings_is_not_removed(
    site: Site, admin: Client, alice: Client
) -> None:
    node = await site.world.add_node(dgx("a"))
    made = await alice.create()
    request = pb.RemoveNodeRequest(node_id=node.id)
    refused = await admin.refused(admin.nodes.RemoveNode, request)
    assert is_refusal(refused, Reason.INVALID_STATE, nodeId=node.id, reservations=made.id)
    assert (await get(alice, node)).schedulable
    await site.world.end_if_live(made.id)  # type: ignore[arg-type]
    window = maintenance_pb2.AddMaintenanceRequest(
        node_id=node.id, start=site.clock.read() + HOUR_MS, duration_ms=HOUR_MS
    )
    added = (await admin.call(admin.maintenance.AddMaintenance, window)).window
    refused = await admin.refused(admin.nodes.RemoveNode, request)
    assert is_refusal(refused, Reason.INVALID_STATE, reservations=added.id)
    removing = maintenance_pb2.RemoveMaintenanceRequest(id=added.id)
    await admin.call(admin.maintenance.RemoveMaintenance, removing)
    await admin.call(admin.nodes.RemoveNode, request)


async def test_what_a_removed_node_still_sends_brings_it_not_back(
    site: Site, admin: Client, alice: Client
) -> None:
    node = await site.world.add_node(dgx("a"))
    await admin.call(admin.nodes.RemoveNode, pb.RemoveNodeRequest(node_id=node.id))
    await site.world.connect(node)
    await site.world.send_inventory(node, dgx("a", 4))
    assert (await alice.create("waits")).state == "pending"
    assert list((await alice.call(alice.nodes.ListNodes, _all())).nodes) == []


async def test_which_node_has_a_gpu_already_is_told_to_administrators_alone(
    site: Site, admin: Client, alice: Client
) -> None:
    first, second = await site.world.add_node(dgx("a", 1)), await site.world.add_node(dgx("a", 1))
    for client in (admin, alice):
        node = await get(client, second)
        (condition,) = node.conditions
        assert condition.reason == "HeldByAnotherNode"
        assert (first.id in condition.message) == (client is admin)
        assert [device.bookable for device in node.devices] == [False]
    await admin.call(admin.nodes.RemoveNode, pb.RemoveNodeRequest(node_id=first.id))
    await InventoryKeeper(site.world.database).apply_pass()
    (device,) = (await get(alice, second)).devices
    assert device.bookable


def _all(**changes: Any) -> pb.ListNodesRequest:
    return pb.ListNodesRequest(tenant_id=TENANT, **changes)


async def test_nodes_come_in_pages_by_id(site: Site, alice: Client) -> None:
    made = [(await site.world.add_node(dgx(str(i), 1))).id for i in range(5)]
    seen: list[NodeId] = []
    request, sizes = _all(limit=2), []
    while True:
        page = await alice.call(alice.nodes.ListNodes, request)
        seen += [node.id for node in page.nodes]
        sizes.append(len(page.nodes))
        if not page.next_cursor:
            break
        request.cursor = page.next_cursor
    assert (seen, sizes) == (sorted(made), [2, 2, 1])
    assert len((await alice.call(alice.nodes.ListNodes, _all())).nodes) == 5
    for limit in (0, 201):
        refused = await alice.refused(alice.nodes.ListNodes, _all(limit=limit))
        assert is_refusal(refused, Reason.INVALID_INPUT, field="limit")
