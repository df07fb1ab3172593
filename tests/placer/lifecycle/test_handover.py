"""How holds are handed to their nodes (spec 6.5, 10.3, 10.5, 12.4)."""

from dataclasses import replace

import pytest

from bcd.model.assignment import (
    AssignedDevice,
    Assignment,
    Limits,
    Sharing,
    SharingMode,
    slice_name,
)
from bcd.model.device import DeviceClass
from bcd.model.pool import SharingMode as Sharing_
from bcd.model.pool import SharingPolicy
from bcd.model.reservation import Reservation, State
from bcd.model.units import GIB
from bcd.placer.lifecycle.slots import sharing_of
from bcd.store import inventories, nodes
from tests.clock import DatabaseClock
from tests.placer.world import CAPABILITIES, FakeNode, World, bound, dgx, host_of


async def assignment_of(world: World, node: FakeNode) -> Assignment:
    (assignment,) = (await world.desired(node)).assignments
    return assignment


async def bound_by(world: World, node: FakeNode, made: Reservation, parent: str) -> Reservation:
    (allocation,) = await world.live(made.id)
    outcome = replace(bound(allocation), cgroup_parent=parent)
    await world.send(node, node.seal(node.report(allocation, outcome)), allocation.id)
    await world.work()
    return await world.view(made.id)


async def test_a_node_is_told_the_limits_that_its_hold_booked(world: World) -> None:
    node = await world.add_node(dgx("a"))
    await world.create(2)
    await world.work()
    assert (await assignment_of(world, node)).limits == Limits(
        cpu_millis=15_000, memory_bytes=255 * GIB, hugepages_1gi=0, cpus="2-31", mems="0"
    )


async def test_limits_stay_whatever_becomes_of_the_host_and_the_policy(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    active = await world.active(node, count=2)
    before = (await assignment_of(world, node)).limits
    await world.set_policy(hostReserve={"vcpu": 20, "memoryGiB": 100})
    await world.send_inventory(node, dgx("a"), host_of(48, 512))
    other = await world.create(1, key="other")
    await world.work()
    both = {a.allocation_id: a.limits for a in (await world.desired(node)).assignments}
    (first,) = await world.live(active.id)
    (second,) = await world.live(other.id)
    assert both[first.id] == before
    assert both[second.id] is not None
    assert both[second.id] != before


async def test_a_hold_that_books_nothing_of_the_host_has_neither_limits_nor_slice(
    world: World,
) -> None:
    node = await world.add_node(dgx("a"), host=replace(host_of(), memory_bytes=0))
    made = await world.create(2)
    await world.work()
    assert (await assignment_of(world, node)).limits is None
    (allocation,) = await world.live(made.id)
    after = await bound_by(world, node, made, slice_name(allocation.id))
    assert (after.state, after.bindings) == (State.BINDING, ())
    after = await bound_by(world, node, made, "")
    assert after.state is State.ACTIVE
    assert after.bindings[0].cgroup_parent == ""


@pytest.mark.parametrize("parent", ["", "bcd-alloc-alloc_x.slice", "system.slice"])
async def test_a_hold_with_limits_counts_only_with_its_own_slice(world: World, parent: str) -> None:
    node = await world.add_node(dgx("a"))
    made = await world.create(2)
    await world.work()
    assert (await bound_by(world, node, made, parent)).state is State.BINDING
    events = await world.events(made.id)
    assert events[-1].type == "reservation.binding-rejected"
    (allocation,) = await world.live(made.id)
    after = await bound_by(world, node, made, slice_name(allocation.id))
    assert after.state is State.ACTIVE
    assert after.bindings[0].cgroup_parent == slice_name(allocation.id)


async def test_a_hold_for_the_kubelet_is_counted_and_has_no_slice(world: World) -> None:
    node = await world.add_node(dgx("a"))
    await world.database.write(
        nodes.replace_capabilities, node.id, (*CAPABILITIES, "binding.kubernetes")
    )
    await world.set_policy(kubernetes=True)
    made = await world.create(2, binding="kubernetes")
    await world.work()
    assignment = await assignment_of(world, node)
    assert assignment.binding == "kubernetes"
    assert assignment.limits == Limits(cpu_millis=15_000, memory_bytes=255 * GIB, hugepages_1gi=0)
    after = await bound_by(world, node, made, "")
    assert (after.state, after.bindings[0].cgroup_parent) == (State.ACTIVE, "")


async def test_a_node_whose_inventory_cannot_be_read_leaves_its_cpus_open(world: World) -> None:
    node = await world.add_node(dgx("a"))
    await world.create(2)
    assert await world.database.write(inventories.store, node.id, node.epoch, "bad", b"\xff")
    await world.work()
    limits = (await assignment_of(world, node)).limits
    assert limits is not None
    assert (limits.cpu_millis, limits.cpus, limits.mems) == (15_000, "", "")


# Slots.


def slots(gpu: str, *numbers: int) -> tuple[AssignedDevice, ...]:
    return tuple(AssignedDevice(f"{gpu}::{n}", DeviceClass.SLOT) for n in numbers)


MPS = SharingPolicy(mode=Sharing_.MPS)
TIME = SharingPolicy(mode=Sharing_.TIME_SLICE)


def test_slots_share_as_the_pool_does() -> None:
    assert sharing_of(slots("G", 0), MPS, ()) == Sharing(SharingMode.MPS, 10)
    assert sharing_of(slots("G", 3), TIME, ()) == Sharing(SharingMode.TIME_SLICE, 4)
    assert sharing_of((AssignedDevice("G", DeviceClass.GPU),), MPS, ()) is None


def test_a_gpu_is_shared_in_one_way_until_its_last_hold_ends() -> None:
    before = Sharing(SharingMode.MPS, 4)
    other = (slots("G", 0), before)
    assert sharing_of(slots("G", 1), TIME, [other]) == before
    assert sharing_of(slots("H", 1), TIME, [other]) == Sharing(SharingMode.TIME_SLICE, 4)
    whole = ((AssignedDevice("G", DeviceClass.GPU),), None)
    assert sharing_of(slots("G", 1), MPS, [whole]) == Sharing(SharingMode.MPS, 10)


def test_slots_booked_while_there_were_more_are_counted() -> None:
    assert sharing_of(slots("G", 2, 7), TIME, ()) == Sharing(SharingMode.TIME_SLICE, 8)
    unshared = SharingPolicy()
    assert sharing_of(slots("G", 2), unshared, ()) == Sharing(SharingMode.TIME_SLICE, 4)
