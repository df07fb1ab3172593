"""Lost members get other devices for the same window; healthy ones stay as they are."""

from dataclasses import replace

from bcd.model.device import Health, HealthState
from bcd.model.reservation import Resources
from bcd.placer.placement.booking import Placed, Placements
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store.allocations import AllocationState
from tests.clock import DatabaseClock
from tests.placer.placement.machines import ask
from tests.placer.placement.placing import HOUR_MS, by_node, placed, repair
from tests.placer.placement.test_host_amounts import add_host
from tests.placer.records import assert_hosts_hold, assert_no_overlap, rows, tables
from tests.placer.world import World, dgx

ALL = (ask(4),)
WELL = Health(HealthState.HEALTHY)
SICK = Health(HealthState.UNHEALTHY, "Xid 79")


async def test_only_the_lost_member_moves(world: World) -> None:
    for name in "abcd":
        await add_host(world, name)
    made, before = await placed(
        world, devices=ALL, gang=3, start=HOUR_MS, resources=Resources(vcpu=4)
    )
    lost, kept = before[1], {before[0], before[2]}
    free = next(n.id for n in world.nodes if n.id not in by_node(before))
    outcome = await repair(world, made, lost.node_id)
    assert isinstance(outcome, Placed)
    assert kept < set(outcome.allocations)
    (new,) = set(outcome.allocations) - kept
    assert new.node_id == free
    assert new.until_ms == lost.until_ms
    assert list(await world.live(made)) == sorted(outcome.allocations, key=lambda a: a.id)
    for table in ("bookings", "host_bookings"):
        found = await rows(world.database, f"SELECT * FROM {table}")
        assert {row["node_id"] for row in found} == set(by_node(outcome.allocations))
        assert len({(row["start_ms"], row["end_ms"]) for row in found}) == 1
    (state,) = await rows(world.database, f"SELECT state FROM allocations WHERE id = '{lost.id}'")
    assert state["state"] == AllocationState.ENDED


async def test_a_repair_that_finds_nothing_changes_nothing(world: World) -> None:
    for name in "ab":
        await add_host(world, name)
    made, before = await placed(
        world, devices=ALL, gang=2, start=HOUR_MS, resources=Resources(vcpu=4)
    )
    sick = next(node for node in world.nodes if node.id == before[0].node_id)
    await world.send_inventory(sick, [replace(device, health=SICK) for device in sick.devices])
    image = await tables(world.database)
    outcome = await repair(world, made, sick.id)
    assert isinstance(outcome, Unschedulable)
    assert outcome.rejected == {"devices": 1}, "the healthy member's node is out of the question"
    after = await tables(world.database)
    assert {name: image[name] for name in ("bookings", "host_bookings", "allocations")} == {
        name: after[name] for name in ("bookings", "host_bookings", "allocations")
    }
    await world.send_inventory(sick, [replace(device, health=WELL) for device in sick.devices])
    for placements in (world.placements, Placements()):
        world.placements = placements
        outcome = await repair(world, made, sick.id)
        assert isinstance(outcome, Placed)
        assert set(by_node(outcome.allocations)) == set(by_node(before))


async def test_a_lost_member_may_stay_on_its_node_with_other_devices(world: World) -> None:
    """What it gives up itself counts as free: seven of eight, one of them sick."""
    node = await world.add_node(dgx("a"))
    made, _ = await placed(world, devices=(ask(7),), start=HOUR_MS)
    devices = [replace(d, health=SICK) if i == 3 else d for i, d in enumerate(node.devices)]
    await world.send_inventory(node, devices)
    outcome = await repair(world, made, node.id)
    assert isinstance(outcome, Placed)
    names = by_node(outcome.allocations)[node.id]
    assert len(names) == 7
    assert "GPU-a-3" not in names
    await assert_no_overlap(world.database)


async def test_another_node_goes_before_the_lost_members_own(world: World) -> None:
    for name in "ab":
        await world.add_node(dgx(name))
    made, (before,) = await placed(world, start=HOUR_MS)
    outcome = await repair(world, made, before.node_id)
    assert isinstance(outcome, Placed)
    assert before.node_id not in by_node(outcome.allocations)


async def test_after_a_repair_the_view_is_that_of_a_placer_that_just_started(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    for name in "abc":
        await add_host(world, name)
    made, before = await placed(world, devices=ALL, gang=2, start=HOUR_MS)
    assert isinstance(await repair(world, made, before[0].node_id), Placed)
    _, one = await placed(world, devices=ALL, start=HOUR_MS)
    assert set(by_node(one)) == {before[0].node_id}
    await assert_no_overlap(world.database)
    await assert_hosts_hold(world.database)
