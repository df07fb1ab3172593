"""Inventories: kept as received when they are what they say they are, else the old one stays."""

import asyncio
import contextlib
from dataclasses import replace

import grpc
import pytest

from bcd.gateway.server import Gateway
from bcd.model.device import Device, DeviceClass
from bcd.model.host import HostFacts, Inventory, NumaNode
from bcd.store import inventories
from bcd.wire.inventory import content_hash, encode_inventory
from bcd.wire.node.v1 import gateway_pb2, inventory_pb2
from tests.gateway.conftest import Connect, Site
from tests.gateway.node import TestNode
from tests.gateway.waiting import until

GPU = Device(
    id="GPU-0",
    device_class=DeviceClass.GPU,
    model="H100",
    memory_bytes=80 << 30,
    pci_address="0000:1b:00.0",
    numa_node=0,
    gpu="GPU-0",
)
INVENTORY = Inventory(
    HostFacts(
        hostname="host",
        boot_id="boot",
        kernel="6.1",
        driver_version="550",
        cuda_version="12.4",
        online_cpus=frozenset(range(8)),
        isolated_cpus=frozenset(),
        memory_bytes=1 << 40,
        numa_nodes=(NumaNode(0, frozenset(range(8)), 1 << 40),),
    ),
    (GPU,),
)


async def send(node: TestNode, frame: inventory_pb2.Inventory) -> None:
    await node.send(gateway_pb2.ConnectRequest(inventory=frame))


async def stored(site: Site, node: TestNode, content: str) -> None:
    """Wait until the inventory of that hash is on record."""

    async def is_stored() -> bool:
        return await site.database.read(inventories.stored_hash, node.node_id) == content

    await until(is_stored)


async def test_an_inventory_is_kept_as_received(new_node: Connect, site: Site) -> None:
    node = await new_node()
    await node.welcome()
    frame = encode_inventory(INVENTORY)
    await send(node, frame)
    await stored(site, node, frame.hash)
    body = await site.database.read(inventories.body, node.node_id)
    assert body == (frame.hash, frame.SerializeToString())
    assert list(await site.database.read(inventories.unapplied)) == [node.node_id]


async def test_a_newer_inventory_replaces_the_older(
    new_node: Connect, site: Site, gateway: Gateway
) -> None:
    node = await new_node()
    await node.welcome()
    for hostname in ("one", "two", "three"):
        frame = encode_inventory(
            replace(INVENTORY, host=replace(INVENTORY.host, hostname=hostname))
        )
        await send(node, frame)
    await stored(site, node, frame.hash)
    assert gateway.counters["frames_inventory"] == 3


def rehashed(frame: inventory_pb2.Inventory) -> inventory_pb2.Inventory:
    frame.hash = content_hash(frame)
    return frame


def malformed() -> dict[str, inventory_pb2.Inventory]:
    """Frames that no daemon sends, by what is wrong with them."""
    good = encode_inventory(INVENTORY)
    frames = {}
    for name in ("wrong hash", "no hash", "two of one id", "unknown class", "control characters"):
        frames[name] = inventory_pb2.Inventory()
        frames[name].CopyFrom(good)
    frames["wrong hash"].hash = "0" * 64
    frames["no hash"].hash = ""
    frames["two of one id"].devices.add().CopyFrom(good.devices[0])
    rehashed(frames["two of one id"])
    frames["unknown class"].devices[0].device_class = "fpga"
    rehashed(frames["unknown class"])
    frames["control characters"].host.hostname = "nul\0"
    rehashed(frames["control characters"])
    many = inventory_pb2.Inventory()
    for number in range(1025):
        many.devices.add(id=str(number), gpu="g", device_class="gpu")
    frames["too many devices"] = rehashed(many)
    return frames


@pytest.mark.parametrize("problem", malformed())
async def test_a_malformed_inventory_is_dropped_and_the_session_goes_on(
    new_node: Connect, site: Site, gateway: Gateway, problem: str
) -> None:
    node = await new_node()
    await node.welcome()
    await send(node, malformed()[problem])
    frame = encode_inventory(INVENTORY)
    await send(node, frame)
    await stored(site, node, frame.hash)
    assert gateway.counters["inventories_rejected"] == 1
    assert gateway.connected == 1


async def test_a_cpulist_out_of_bounds_is_kept_for_the_placer_to_report(
    new_node: Connect, site: Site
) -> None:
    """The node gets a condition that says so; its GPUs stay bookable."""
    node = await new_node()
    await node.welcome()
    frame = encode_inventory(INVENTORY)
    frame.host.online_cpus = "0-99999"
    await send(node, rehashed(frame))
    await stored(site, node, frame.hash)


async def test_a_flood_of_inventories_ends_the_session(
    new_node: Connect, site: Site, gateway: Gateway
) -> None:
    node = await new_node()
    await node.welcome()
    frame = encode_inventory(INVENTORY)
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for _ in range(1000):
            await send(node, frame)

    async def is_gone() -> bool:
        return gateway.connected == 0

    await until(is_gone)
    assert gateway.counters["goaway_overloaded"] == 1
    assert gateway.counters["frames_inventory"] < 100


async def test_an_inventory_with_every_change_of_a_busy_minute_is_taken(
    new_node: Connect, site: Site
) -> None:
    node = await new_node()
    await node.welcome()
    for number in range(60):
        host = replace(INVENTORY.host, hostname=str(number))
        frame = encode_inventory(replace(INVENTORY, host=host))
        await send(node, frame)
    await stored(site, node, frame.hash)
