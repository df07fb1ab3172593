"""Holds of another node id: never dropped, never booked over, and named with the way back."""

from dataclasses import replace

import pytest

from bcd.model.device import Device, DeviceClass, Health, HealthState
from bcd.model.report import Bound, FailureReason
from bcd.node.converge import plan
from bcd.node.observe import observe
from bcd.node.others import bookable, holds_of_others
from bcd.node.plan import Place
from bcd.node.ports import GpuSnapshot
from bcd.signing.keyfile import CREDENTIALS
from tests.node.fake_gateway import FakeGateway
from tests.node.memory import DEVICES, MIG, SHARED, SLOTS, WHOLE
from tests.node.passes import PLACE, Node, bound, conditions, failure, releases, state
from tests.node.world import Site, alloc_id, assignment, limits, node_id, running

HELD = assignment(1, WHOLE[0], MIG[0], limits=limits(memory_gib=200))
MAIN = f"bcd-{alloc_id(1)}.json"


def left(*, node: Node | None = None) -> Node:
    """A node on whose disk HELD stands, made under another id."""
    node = node or Node()
    node.run(state(HELD))
    files = node.world.cdi.files
    for name, content in files.items():
        files[name] = (content or b"").replace(node_id().encode(), node_id(9).encode())
    node.world.env.files = {
        id_: (content or b"").replace(node_id().encode(), node_id(9).encode())
        for id_, content in node.world.env.files.items()
    }
    (node.folder / "outbox.bin").unlink()
    node.restart()
    return node


def test_it_stays_as_it_is_and_nothing_is_reported_of_it() -> None:
    node = left()
    before = node.world.state()
    for desired in (None, state()):
        assert node.run(desired).steps == ()
        assert conditions(node) == ["HoldOfAnotherNode"]
    assert node.world.state() == before
    assert (node.outcomes, releases(node), node.reports.outbox.pending()) == ({}, [], [])


def test_the_condition_names_allocation_files_and_the_way_back() -> None:
    node = left()
    (condition,) = node.run(state()).conditions
    assert condition.subject == alloc_id(1)
    assert f"better-compute token join --node {node_id(9)}" in condition.message
    for path in (f"/etc/cdi/{MAIN}", f"/run/bcd/allocations/{alloc_id(1)}.env"):
        assert path in condition.message


@pytest.mark.parametrize("device", [WHOLE[0], MIG[0]])
def test_a_bind_onto_one_of_its_devices_is_refused_as_in_use(device: Device) -> None:
    node = left()
    node.run(state(assignment(2, device), assignment(3, WHOLE[1])))
    assert failure(node, 2) == FailureReason.DEVICE_IN_USE
    assert bound(node, 3)
    assert MAIN in node.world.cdi.files


def test_its_memory_is_taken() -> None:
    node = left()
    node.run(state(assignment(2, WHOLE[1], limits=limits(memory_gib=100))))
    assert failure(node, 2) == FailureReason.RESOURCES_EXHAUSTED


@pytest.mark.parametrize("busy", [True, False])
def test_its_memory_is_taken_even_when_none_of_its_files_can_be_read(busy: bool) -> None:
    node = left()
    stamp = f'{{"BCD_NODE_ID={node_id(9)}'.encode()
    node.world.cdi.files = dict.fromkeys(node.world.cdi.files, stamp)
    node.world.env.files = {}
    if busy:
        node.world.slices.busy.add(alloc_id(1))
    node.run(state(assignment(2, WHOLE[1], limits=limits(memory_gib=100))))
    assert conditions(node) == ["HoldOfAnotherNode"]
    assert failure(node, 2) == FailureReason.RESOURCES_EXHAUSTED
    node.run(state(assignment(2, WHOLE[1], limits=limits(memory_gib=10))))
    assert bound(node, 2)


def test_it_never_ends_a_hold_of_our_own_that_stands() -> None:
    node = Node()
    node.run(state(assignment(2, WHOLE[0])))
    standing = dict(node.world.cdi.files)
    node.world.cdi.files |= left().world.cdi.files
    node.run(state(assignment(2, WHOLE[0])))
    assert bound(node, 2)
    assert standing.items() <= node.world.cdi.files.items()


def test_a_file_that_was_damaged_is_still_not_ours_to_remove() -> None:
    node = left()
    node.world.cdi.files[MAIN] = (node.world.cdi.files[MAIN] or b"")[:-20]
    assert node.run(state()).steps == ()
    node.run(state(assignment(2, WHOLE[0])))  # its devices are known from its env file
    assert failure(node, 2) == FailureReason.DEVICE_IN_USE


def test_what_is_assigned_to_us_is_ours_and_written_again() -> None:
    node = left()
    node.settle(state(HELD))
    assert bound(node, 1)
    assert node_id().encode() in (node.world.cdi.files[MAIN] or b"")


def test_it_goes_on_as_a_hold_when_the_host_joins_again_as_its_node() -> None:
    node = left()
    made = plan(state(HELD), observe(node.world.ports(), node.reports), replace_place(9))
    assert made.steps == ()
    assert isinstance(made.outcomes[alloc_id(1)], Bound)


def replace_place(number: int) -> Place:
    return replace(PLACE, node_id=node_id(number))


def test_its_devices_and_what_shares_their_gpus_are_not_bookable() -> None:
    node = left(node=Node())
    node.world.cdi.files |= {
        name: (content or b"").replace(node_id().encode(), node_id(9).encode())
        for name, content in slot_hold().world.cdi.files.items()
    }
    sick = replace(MIG[0], health=Health(HealthState.UNHEALTHY, "Xid 79"))
    devices = tuple(sick if device.id == sick.id else device for device in DEVICES)
    found = holds_of_others(node.world.cdi.read().own, node.world.env.read(), node_id())
    told = bookable(GpuSnapshot(devices=devices), found)
    health = {(d.id, d.device_class): d.health for d in told}
    taken = Health(HealthState.UNHEALTHY, f"in a hold of {node_id(9)}")
    assert health.pop((sick.id, DeviceClass.MIG)) == sick.health
    marked = {key for key, found_ in health.items() if found_ == taken}
    assert marked == {(d.id, d.device_class) for d in (WHOLE[0], SLOTS[0], SHARED)}


def slot_hold() -> Node:
    node = Node()
    node.run(state(assignment(4, SLOTS[0])))
    return node


async def test_a_host_enrolled_anew_keeps_what_its_former_self_handed_over(
    site: Site, gateway: FakeGateway
) -> None:
    gpu, free = site.devices()[:2]
    gateway.want(site.node_id, assignment(1, gpu), generation=1)
    async with running(site.open()):
        await gateway.until(lambda: bool(gateway.said(Bound)))
    for name in (CREDENTIALS, "desired.bin"):
        (site.state / name).rename(site.state / f"{name}.old")
    anew = Site(site.root, gateway, node_id(2))
    gateway.want(anew.node_id, assignment(2, gpu), assignment(3, free), generation=1)
    daemon = anew.open()
    async with running(daemon):
        await gateway.until(lambda: any(ack.errors for ack in gateway.acks))
        await gateway.until(lambda: anew.node_id in gateway.inventories)
    assert [error.reason for error in gateway.acks[-1].errors] == [FailureReason.DEVICE_IN_USE]
    assert anew.specs() == [f"bcd-{alloc_id(n)}.json" for n in (1, 3)]
    assert anew.envs() == [f"{alloc_id(n)}.env" for n in (1, 3)]
    assert [condition.type for condition in daemon.conditions] == ["HoldOfAnotherNode"]
    sick = [d.id for d in gateway.inventories[anew.node_id].devices if d.health.reason]
    assert sick == [gpu.id]
