"""Each host's capacity follows its applied inventory and its pool's policy (spec 6.1, 1.4)."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from bcd.model.device import Device, DeviceClass, Health, HealthState
from bcd.model.host import PerGpu
from bcd.model.reservation import State
from bcd.placer.capacity.hosts import HostsKeeper
from bcd.placer.capacity.inventory import InventoryKeeper
from bcd.store import atoms, hosts, inventories, nodes, shares
from bcd.store.atoms import Atom
from bcd.store.hosts import HostCapacity
from bcd.wire.inventory import encode_inventory
from tests.clock import DatabaseClock
from tests.placer.placement.machines import mig_host
from tests.placer.world import FakeNode, World, dgx, gpu, host_of, inventory_of

CAPACITY = HostCapacity(
    vcpu=62,
    memory_gib=1020,
    hugepages_2mi=0,
    hugepages_1gi=0,
    gpus=8,
    allocatable_vcpu=62,
    allocatable_memory_gib=1020,
)


async def capacity_of(world: World, node: FakeNode) -> HostCapacity | None:
    return await world.database.read(hosts.capacity_of, node.id)


async def least(world: World) -> PerGpu | None:
    return await world.database.read(shares.least, world.pool_id)


async def changes(world: World) -> int:
    (row,) = await world.rows("SELECT change_seq FROM pools")
    return int(row["change_seq"])


async def slots_of(world: World, node: FakeNode) -> dict[str, Atom]:
    found = await world.database.read(atoms.on_node, node.id)
    return {atom.uuid: atom for atom in found if atom.device_class is DeviceClass.SLOT}


async def test_a_host_can_be_booked_as_soon_as_its_first_inventory_is_applied(
    world: World,
) -> None:
    node = await world.add_node(dgx("a"))
    assert await capacity_of(world, node) == CAPACITY
    assert await least(world) == PerGpu(Fraction(62, 8), Fraction(1020, 8))


async def test_the_smallest_share_of_either_kind_is_kept(world: World) -> None:
    await world.add_node(dgx("a"), host=host_of(64, 1024))
    await world.add_node(dgx("b", 4), host=host_of(16, 2048))
    await world.add_node((), host=host_of(4, 8))
    assert await least(world) == PerGpu(Fraction(14, 4), Fraction(1020, 8))
    other = await world.add_pool("other")
    assert await world.database.read(shares.least, other) is None


async def test_a_new_inventory_changes_them_at_once(world: World) -> None:
    node = await world.add_node(dgx("a"))
    await world.send_inventory(node, dgx("a", 4), host_of(32, 512))
    after = await capacity_of(world, node)
    assert after is not None
    assert (after.vcpu, after.memory_gib, after.gpus) == (30, 508, 4)
    assert await least(world) == PerGpu(Fraction(30, 4), Fraction(508, 4))


@pytest.mark.parametrize("name", ["online_cpus", "isolated_cpus"])
async def test_a_cpulist_beyond_bounds_is_told_of_and_never_sold(world: World, name: str) -> None:
    """Spec 6.6: an oversized list reads as empty."""
    node = await world.add_node(dgx("a", 1))
    message = encode_inventory(inventory_of(dgx("a", 1)))
    setattr(message.host, name, ",".join(str(cpu) for cpu in range(0, 8190, 2)) + ",1" * 20_000)
    body = message.SerializeToString()
    assert await world.database.write(inventories.store, node.id, node.epoch, "h", body)
    await InventoryKeeper(world.database).apply_pass()
    (condition,) = (await world.database.read(nodes.get, node.id)).conditions
    assert "read as empty" in condition.message
    after = await capacity_of(world, node)
    assert (after is None) == (name == "online_cpus")


async def test_a_host_that_does_not_say_loses_its_row_and_books_none(world: World) -> None:
    node = await world.add_node(dgx("a"))
    await world.send_inventory(node, dgx("a"), replace(host_of(), memory_bytes=0))
    assert await capacity_of(world, node) is None
    assert await least(world) is None


async def test_an_inventory_that_cannot_be_used_leaves_the_row(world: World) -> None:
    node = await world.add_node(dgx("a"))
    assert await world.database.write(inventories.store, node.id, node.epoch, "bad", b"\xff")
    await InventoryKeeper(world.database).apply_pass()
    await HostsKeeper(world.database).sync_pass()
    assert await capacity_of(world, node) == CAPACITY


# The loop.


async def test_a_policy_that_changed_is_followed_by_every_host(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    keeper = HostsKeeper(world.database)
    await keeper.sync_pass()
    await world.work()
    before = await changes(world)
    await world.set_policy(hostReserve={"vcpu": 8, "memoryGiB": 24}, ratio={"vcpu": "1.5"})
    await keeper.sync_pass()
    assert await capacity_of(world, node) == replace(
        CAPACITY,
        vcpu=84,
        memory_gib=1000,
        allocatable_vcpu=56,
        allocatable_memory_gib=1000,
    )
    assert await least(world) == PerGpu(Fraction(7, 1), Fraction(125, 1))
    assert await changes(world) > before
    due = await world.rows("SELECT key FROM work WHERE wake_ms <= :now", now=clock.read())
    assert world.pool_id in {row["key"] for row in due}


async def test_memory_that_a_stored_policy_sells_twice_is_booked_once(world: World) -> None:
    node = await world.add_node(dgx("a"))
    keeper = HostsKeeper(world.database)
    await keeper.sync_pass()
    stored = '{"ratio":{"vcpu":"2","memoryGiB":"2"}}'
    await world.database.write(lambda tx: tx.run("UPDATE pools SET policy = :p", p=stored))
    await keeper.sync_pass()
    assert await capacity_of(world, node) == replace(CAPACITY, vcpu=2 * CAPACITY.vcpu)


async def test_a_pass_over_hosts_that_are_in_step_changes_nothing(world: World) -> None:
    await world.add_node(dgx("a"))
    await world.add_node(mig_host("m"))
    await world.set_policy(sharing={"mode": "time-slice"})
    keeper = HostsKeeper(world.database)
    await keeper.sync_pass()
    before = await changes(world)
    for again in (keeper, HostsKeeper(world.database)):
        await again.sync_pass()
    assert await changes(world) == before


@pytest.mark.parametrize(
    "spoilt", ["DELETE FROM host_capacity", "UPDATE host_capacity SET vcpu = 9"]
)
async def test_a_row_that_is_not_as_it_should_be_is_put_right(world: World, spoilt: str) -> None:
    """So is that of a host which an older program made ready."""
    node = await world.add_node(dgx("a"))
    keeper = HostsKeeper(world.database)
    await keeper.sync_pass()
    await world.database.write(lambda tx: tx.run(spoilt))
    await keeper.sync_pass()
    assert await capacity_of(world, node) == CAPACITY


async def test_one_host_that_cannot_be_read_does_not_stop_the_others(world: World) -> None:
    first, second = await world.add_node(dgx("a")), await world.add_node(dgx("b"))
    await world.database.write(lambda tx: tx.run("DELETE FROM host_capacity"))
    await world.database.write(
        lambda tx: tx.run(
            "UPDATE atoms SET nvlink_peers = 'broken' WHERE node_id = :id", id=first.id
        )
    )
    await HostsKeeper(world.database).sync_pass()
    assert await capacity_of(world, second) == CAPACITY


# Slots.


@pytest.mark.parametrize(
    ("sharing", "replicas"),
    [({"mode": "time-slice"}, 4), ({"mode": "mps"}, 10), ({"mode": "mps", "replicas": 3}, 3)],
)
async def test_a_shared_gpu_has_as_many_slots_as_the_policy_says(
    world: World, sharing: dict[str, Any], replicas: int
) -> None:
    await world.set_policy(sharing=sharing)
    node = await world.add_node([gpu("G0", 1), replace(gpu("G1"), mig_enabled=True)])
    found = await slots_of(world, node)
    assert list(found) == [f"G0::{n}" for n in range(replicas)]
    for atom in found.values():
        assert (atom.mode, atom.numa_node, atom.model) == (2, 1, "NVIDIA H100 80GB HBM3")
        assert atom.bookable
    (whole,) = [a for a in await world.database.read(atoms.on_node, node.id) if a.uuid == "G0"]
    assert {atom.gpu_id for atom in found.values()} == {whole.gpu_id}
    assert whole.bookable


async def test_slots_are_as_healthy_as_their_gpu(world: World) -> None:
    await world.set_policy(sharing={"mode": "time-slice"})
    node = await world.add_node([gpu("G0")])
    sick = Health(HealthState.UNHEALTHY, "Xid 79")
    await world.send_inventory(node, [replace(gpu("G0"), health=sick)])
    assert {(a.bookable, a.health) for a in (await slots_of(world, node)).values()} == {
        (False, "unhealthy")
    }


async def test_fewer_slots_leave_the_others_on_record_for_who_has_them(world: World) -> None:
    await world.set_policy(sharing={"mode": "time-slice", "replicas": 6})
    node = await world.add_node([gpu("G0")])
    keeper = HostsKeeper(world.database)
    await world.set_policy(sharing={"mode": "time-slice", "replicas": 2})
    await keeper.sync_pass()
    found = await slots_of(world, node)
    assert [uuid for uuid, atom in found.items() if atom.bookable] == ["G0::0", "G0::1"]
    assert {atom.health for atom in found.values()} == {"healthy"}
    assert len(found) == 6
    await world.set_policy()
    await keeper.sync_pass()
    assert not any(atom.bookable for atom in (await slots_of(world, node)).values())
    await world.set_policy(sharing={"mode": "mps", "replicas": 6})
    await keeper.sync_pass()
    assert all(atom.bookable for atom in (await slots_of(world, node)).values())


async def test_a_node_of_a_thousand_gpus_has_no_more_slots_than_can_be_kept(world: World) -> None:
    await world.set_policy(sharing={"mode": "mps", "replicas": 64})
    node = await world.add_node([gpu(f"G{i}") for i in range(40)])
    assert len(await slots_of(world, node)) == 1024


# Devices that somebody else computes on.


def busy(devices: tuple[Device, ...]) -> list[Device]:
    return [replace(devices[0], in_use=True), *devices[1:]]


async def test_a_foreign_process_shows_on_the_node_until_it_is_gone(
    world: World, clock: DatabaseClock
) -> None:
    """Spec 16.3b."""
    clock.advance(0)
    node = await world.add_node(busy(dgx("a", 2)))
    (condition,) = (await world.database.read(nodes.get, node.id)).conditions
    assert (condition.type, condition.reason) == ("DeviceInUse", "ForeignProcess")
    assert "GPU-a-0" in condition.message
    assert "GPU-a-1" not in condition.message
    clock.advance(60_000)
    await world.send_inventory(node, [*busy(dgx("a", 2)), gpu("more")])
    (again,) = (await world.database.read(nodes.get, node.id)).conditions
    assert again.last_transition_time == condition.last_transition_time
    await world.send_inventory(node, dgx("a", 2))
    assert (await world.database.read(nodes.get, node.id)).conditions == ()


async def test_a_device_that_a_foreign_process_has_takes_no_booking_until_it_is_free(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(busy(dgx("a", 2)))
    made = await world.create(1)
    (allocation,) = await world.live(made.id)
    assert [device.id for device in allocation.devices] == ["GPU-a-1"]
    waiting = await world.create(1, key="waiting")
    assert waiting.state is State.PENDING
    await world.send_inventory(node, dgx("a", 2))
    await world.work()
    assert (await world.view(waiting.id)).state is State.BINDING


async def test_slots_of_a_gpu_do_not_wait_for_each_others_processes(world: World) -> None:
    await world.set_policy(sharing={"mode": "time-slice"})
    node = await world.add_node([replace(gpu("G0"), in_use=True)])
    assert all(atom.bookable for atom in (await slots_of(world, node)).values())


async def test_who_has_a_device_keeps_it_whoever_computes_there(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a", 2))
    active = await world.active(node, count=2)
    await world.send_inventory(node, busy(dgx("a", 2)))
    await world.work()
    after = await world.view(active.id)
    assert (after.state, after.conditions) == (State.ACTIVE, ())
