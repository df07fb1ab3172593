"""Rules that other schedulers were reported to break, each on its own (see tests/reports.toml)."""

from bcd.model.reservation import State
from bcd.placer.lifecycle.transitions import Trigger
from bcd.store import nodes
from tests.clock import DatabaseClock
from tests.placer.records import assert_no_overlap, assert_quota_adds_up
from tests.placer.world import World, dgx

HOUR_MS = 3_600_000


async def test_overlapping_windows_of_one_owner_are_all_usable_on_devices_of_their_own(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    now_ms = clock.read()
    made = [
        await world.create(2, key=f"k{i}", duration="3h", start=now_ms + i * HOUR_MS)
        for i in (1, 2, 3)
    ]
    for _ in made:
        clock.advance(HOUR_MS)
        await world.connect(node)
        await world.work()
        await world.bind(node)
    views = [await world.view(reservation.id) for reservation in made]
    assert [view.state for view in views] == [State.ACTIVE] * 3
    names = [name for view in views for name in view.bindings[0].cdi_devices]
    assert len(set(names)) == 6
    await assert_no_overlap(world.database)


async def test_an_inventory_that_is_empty_for_a_moment_ends_and_moves_nothing(
    world: World,
) -> None:
    """Spec 9.3: whatever a node seems to have lost, a hold that runs there stays."""
    node = await world.add_node(dgx("a"))
    other = await world.add_node(dgx("b"))
    active = await world.active(node, other, count=8)
    (before,) = await world.live(active.id)
    holder = node if before.node_id == node.id else other
    devices = holder.devices
    await world.send_inventory(holder, ())
    await world.work()
    during = await world.view(active.id)
    assert during.state is State.ACTIVE
    assert [condition.type for condition in during.conditions] == ["DeviceUnhealthy"]
    await world.send_inventory(holder, devices)
    await world.work()
    after = await world.view(active.id)
    assert (after.state, after.conditions) == (State.ACTIVE, ())
    assert await world.live(active.id) == [before]
    assert await world.assigned(holder) == [before.id]


async def test_a_refund_needs_neither_the_policy_nor_the_node_as_they_were(world: World) -> None:
    """Spec 5.1: what was charged is what is given back, whatever became of the pool."""
    node = await world.add_node(dgx("a"))
    active = await world.active(node, count=4)
    waiting = await world.create(8, key="waiting")
    assert await world.used() == 12
    await world.send_inventory(node, ())
    await world.database.write(nodes.set_trusted, node.id, False)
    await world.set_policy(turnaroundMs=HOUR_MS, sharing={"mode": "mps"})
    await world.end(active.id, Trigger.RELEASED)
    assert await world.used() == 8
    await world.end(waiting.id, Trigger.CANCELLED)
    assert await world.used() == 0
    await assert_quota_adds_up(world.database)
