"""From a received inventory to bookable devices, whatever is in it."""

from dataclasses import replace

import pytest

from bcd.model.device import Health, HealthState
from bcd.model.reservation import State
from bcd.model.units import HOUR_MS
from bcd.placer.capacity.inventory import InventoryKeeper
from bcd.store import atoms, inventories, nodes
from bcd.store.nodes import Node
from bcd.wire.inventory import encode_inventory
from bcd.wire.node.v1 import inventory_pb2 as pb
from tests.clock import DatabaseClock
from tests.placer.placement.machines import mig_host
from tests.placer.world import FakeNode, World, dgx, gpu, inventory_of, mig

SICK = Health(HealthState.UNHEALTHY, "Xid 79")


async def node_of(world: World, node: FakeNode) -> Node:
    return await world.database.read(nodes.get, node.id)


async def bookable(world: World, node: FakeNode) -> set[str]:
    found = await world.database.read(atoms.on_node, node.id)
    return {atom.uuid for atom in found if atom.bookable}


async def receive(world: World, node: FakeNode, body: bytes, content_hash: str = "h") -> None:
    """Store a frame as the gateway does, and let the loop look at it."""
    assert await world.database.write(inventories.store, node.id, node.epoch, content_hash, body)
    await InventoryKeeper(world.database).apply_pass()


async def test_a_first_inventory_makes_a_node_ready_and_its_devices_bookable(
    world: World,
) -> None:
    node = await world.add_node(dgx("a", 2))
    after = await node_of(world, node)
    assert (after.ready, after.hostname, after.driver_version) == (True, "host", "580.1")
    assert await bookable(world, node) == {"GPU-a-0", "GPU-a-1"}


async def test_only_healthy_devices_and_no_gpu_in_mig_mode_are_bookable(world: World) -> None:
    states = [state for state in HealthState if state is not HealthState.HEALTHY]
    sick = [gpu(f"sick-{state}") for state in states]
    devices = [
        *(replace(d, health=Health(s, "x")) for d, s in zip(sick, states, strict=True)),
        *mig_host("m", 1, 2),
        gpu("well"),
    ]
    node = await world.add_node(devices)
    assert await bookable(world, node) == {"well", "MIG-m-0-0", "MIG-m-0-1"}


async def test_a_device_that_vanished_stays_on_record_and_comes_back_as_itself(
    world: World,
) -> None:
    node = await world.add_node(dgx("a", 2))
    before = await world.database.read(atoms.on_node, node.id)
    await world.send_inventory(node, dgx("a", 2)[:1])
    assert await bookable(world, node) == {"GPU-a-0"}
    await world.send_inventory(node, dgx("a", 2))
    assert await world.database.read(atoms.on_node, node.id) == before


async def test_mig_instances_that_vanished_are_forgotten_unless_they_were_booked(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    (whole,) = mig_host("a", 1, 0)
    node = await world.add_node([whole])

    async def reconfigure(turn: int) -> set[str]:
        """Other instances than before; returns the GPU's and theirs."""
        instances = [mig(f"MIG-{turn}-{i}", whole.id) for i in range(2)]
        await world.send_inventory(node, [whole, *instances])
        return {whole.id, *(instance.id for instance in instances)}

    async def known() -> dict[str, int]:
        return {atom.uuid: atom.id for atom in await world.database.read(atoms.on_node, node.id)}

    await reconfigure(0)
    booked = await world.create(devices=[{"class": "gpu.mig", "count": 1}])
    assert booked.during is not None
    ((held,),) = [one.devices for one in await world.live(booked.id)]
    first = await known()
    for turn in range(1, 5):
        there = await reconfigure(turn)
        assert (await known()).keys() == {held.id, *there}
        on_record = {row["uuid"] for row in await world.rows("SELECT uuid FROM atoms")}
        assert len(on_record - {held.id} - there) <= 2  # those of the turn before
    clock.set(booked.during.end_ms + 2 * HOUR_MS)
    await world.work()
    assert (await known()).keys() == there
    later = await world.create(key="later", devices=[{"class": "gpu.mig", "count": 2}])
    assert later.state is State.PLACED
    await reconfigure(0)
    assert (await known())[held.id] == first[held.id]


async def test_an_inventory_wakes_the_pool_and_the_nodes_reservations(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.set_policy(perGpu={"vcpu": 1, "memoryGiB": 1})
    node = await world.add_node(dgx("a", 1))
    active = await world.active(node)
    waiting = await world.create(1, key="waiting")
    await world.send_inventory(node, dgx("a", 2))
    due = {row["key"] for row in await world.rows(
        "SELECT key FROM work WHERE wake_ms <= :now", now=clock.read())}  # fmt: skip
    assert due == {world.pool_id, active.id}
    await world.work()
    assert (await world.view(waiting.id)).state is State.BINDING


async def test_applying_again_changes_nothing(world: World) -> None:
    node = await world.add_node(dgx("a", 1))
    await world.work()
    before = await world.rows("SELECT change_seq FROM pools")
    await world.send_inventory(node, dgx("a", 1))
    await InventoryKeeper(world.database).apply_pass()
    assert await world.rows("SELECT change_seq FROM pools") == before


def frame(**changes: object) -> bytes:
    message = encode_inventory(inventory_of(dgx("a", 1)))
    for name, value in changes.items():
        setattr(message.devices[0], name, value)
    return message.SerializeToString()


def many(count: int) -> bytes:
    message = encode_inventory(inventory_of([gpu(f"g{i}") for i in range(count)]))
    return message.SerializeToString()


UNSOUND = {
    "no frame": b"\xff\xff\xff",
    "half a frame": many(1)[:-3],
    "memory of 64 bits": frame(memory_bytes=(1 << 64) - 1),
    "an unknown class": frame(device_class="tpu"),
    "no id": frame(id=""),
    "an id with a line end": frame(id="a\nb"),
    "an id with a NUL": frame(id="a\x00b"),
    "an id of a mile": frame(id="x" * 1000),
    "a GPU with a NUL": frame(gpu="\x00"),
    "a model with control characters": frame(model="\x1b[31m"),
    "one id twice": (pb.Inventory(devices=[pb.Device(id="a", gpu="a", device_class="gpu")] * 2)
                     ).SerializeToString(),
    "1025 devices": many(1025),
}  # fmt: skip


@pytest.mark.parametrize("body", UNSOUND.values(), ids=UNSOUND.keys())
async def test_an_unsound_inventory_changes_no_device_and_shows_on_the_node(
    world: World, clock: DatabaseClock, body: bytes
) -> None:
    node = await world.add_node(dgx("a", 2))
    clock.advance(1_000)
    await receive(world, node, body, "bad")
    assert await bookable(world, node) == {"GPU-a-0", "GPU-a-1"}
    (condition,) = (await node_of(world, node)).conditions
    assert (condition.type, condition.status) == ("InventoryProblem", "True")
    first_ms = condition.last_transition_time
    assert condition.message
    assert (await world.create(2)).state is State.PLACED
    clock.advance(60_000)
    await receive(world, node, body, "bad again")
    (condition,) = (await node_of(world, node)).conditions
    assert condition.last_transition_time == first_ms
    await world.send_inventory(node, dgx("a", 1))
    assert (await node_of(world, node)).conditions == ()


async def test_an_unsound_first_inventory_makes_no_node_ready(world: World) -> None:
    node = await world.add_node(dgx("a", 1))
    await world.database.write(lambda tx: tx.run("UPDATE nodes SET ready = 0, inventory_hash = ''"))
    await receive(world, node, b"\xff", "bad")
    assert not (await node_of(world, node)).ready


async def test_a_cpulist_beyond_bounds_reads_as_empty_and_is_told_of(world: World) -> None:
    node = await world.add_node(dgx("a", 1))
    message = encode_inventory(inventory_of(dgx("a", 1)))
    message.host.isolated_cpus = "0-99999"
    await receive(world, node, message.SerializeToString())
    after = await node_of(world, node)
    assert after.ready
    (condition,) = after.conditions
    assert "isolated CPUs read as empty" in condition.message


async def test_one_nodes_inventory_that_cannot_be_applied_does_not_stop_the_others(
    world: World,
) -> None:
    first, second = await world.add_node(dgx("a", 1)), await world.add_node(dgx("b", 1))
    await world.database.write(
        lambda tx: tx.run("UPDATE nodes SET conditions = 'broken' WHERE id = :id", id=first.id)
    )
    for node in (first, second):
        message = encode_inventory(inventory_of(dgx("new", 2)))
        body = message.SerializeToString()
        assert await world.database.write(inventories.store, node.id, node.epoch, "h", body)
    await InventoryKeeper(world.database).apply_pass()
    assert await bookable(world, second) == {"GPU-new-0", "GPU-new-1"}


# Reservations on what changed


async def test_an_active_reservation_keeps_devices_that_fail_or_vanish(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a", 2))
    active = await world.active(node, count=2)
    for devices in (
        [replace(dgx("a", 2)[0], health=SICK), dgx("a", 2)[1]],
        dgx("a", 2)[1:],
    ):
        clock.advance(60_000)
        await world.send_inventory(node, devices)
        await world.work()
        after = await world.view(active.id)
        assert after.state is State.ACTIVE
        assert [c.type for c in after.conditions] == ["DeviceUnhealthy"]
        assert "GPU-a-0" in after.conditions[0].message
        assert after.conditions[0].last_transition_time == clock.read() - 60_000 * (
            len(devices) == 1
        )
    await world.send_inventory(node, dgx("a", 2))
    await world.work()
    assert (await world.view(active.id)).conditions == ()
    assert await world.event_names(active.id) == ["placed", "binding", "active"]
