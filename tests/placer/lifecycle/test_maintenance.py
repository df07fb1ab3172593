"""A maintenance window's life, and what it keeps apart (spec 7.2, 9.1, 15.1)."""

import pytest

from bcd.model.errors import Conflict
from bcd.model.ids import ReservationId
from bcd.model.reservation import State
from bcd.placer.lifecycle import maintenance
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.maintenance import Wanted
from bcd.store import maintenance as store
from bcd.store import nodes, pools, reservations
from bcd.store.database import Transaction
from bcd.store.maintenance import Filter, Maintenance
from tests.clock import DatabaseClock
from tests.placer import records
from tests.placer.world import ALICE, FakeNode, World, dgx, gpu, mig

HOUR_MS = 3_600_000
INSTANCE = [{"class": "gpu.mig", "count": 1}]


async def add(
    world: World, node: FakeNode, *, after_ms: int = 0, duration_ms: int = HOUR_MS
) -> Maintenance:
    """A window that begins some time from now."""

    def write(tx: Transaction) -> Maintenance:
        held = pools.lock(tx, nodes.get(tx, node.id).pool_id)
        wanted = Wanted(
            node_id=node.id,
            start_ms=held.now_ms + after_ms,
            duration_ms=duration_ms,
            reason="",
            caller=ALICE,
        )
        return maintenance.add(Hand(tx, held, world.signer), wanted)

    return await world.database.write(write)


async def remove(world: World, window: Maintenance) -> None:
    def write(tx: Transaction) -> None:
        held = pools.lock(tx, window.pool_id)
        maintenance.remove(Hand(tx, held, world.signer), window.id)

    await world.database.write(write)


async def state(world: World, window_id: ReservationId) -> State:
    row = await world.database.read(reservations.get, window_id)
    assert row is not None
    return row.state


async def standing(world: World) -> list[ReservationId]:
    found = await world.database.read(store.page, Filter(), "", 10)
    return [window.id for window in found]


async def test_a_window_goes_through_its_life_and_no_node_is_told(
    world: World, clock: DatabaseClock
) -> None:
    node = await world.add_node(dgx("a"))
    window = await add(world, node, after_ms=HOUR_MS)
    await world.work()
    assert await state(world, window.id) is State.PLACED
    clock.advance(HOUR_MS)
    await world.work()
    assert await state(world, window.id) is State.ACTIVE
    assert await world.assigned(node) == []
    assert await standing(world) == [window.id]
    clock.advance(HOUR_MS)
    await world.work()
    assert await state(world, window.id) is State.RELEASED
    assert await standing(world) == []
    assert await world.event_names(window.id) == ["placed", "binding", "active", "released"]
    assert (await world.create(8)).state is State.PLACED
    await records.assert_no_overlap(world.database)


async def test_a_window_in_the_future_leaves_room_for_what_ends_before_it(world: World) -> None:
    node = await world.add_node(dgx("a"))
    await add(world, node, after_ms=2 * HOUR_MS)
    assert (await world.create(8, key="short")).state is State.PLACED
    assert (await world.create(1, key="long", duration="3h")).state is State.PENDING
    await records.assert_quota_adds_up(world.database)


async def test_what_waits_behind_a_window_is_placed_once_it_is_over(
    world: World, clock: DatabaseClock
) -> None:
    node = await world.add_node(dgx("a"))
    await add(world, node)
    waiting = await world.create(8)
    assert waiting.state is State.PENDING
    assert "it would fit from" in waiting.conditions[0].message
    clock.advance(HOUR_MS)
    await world.work()
    assert (await world.view(waiting.id)).state is not State.PENDING


async def test_removing_a_running_window_frees_the_node_at_once(
    world: World, clock: DatabaseClock
) -> None:
    node = await world.add_node(dgx("a"))
    window = await add(world, node)
    await world.work()
    waiting = await world.create(8)
    clock.advance(HOUR_MS // 2)
    await remove(world, window)
    await world.work()
    assert (await world.view(waiting.id)).state is not State.PENDING
    assert await state(world, window.id) is State.RELEASED
    await remove(world, window)
    await records.assert_no_overlap(world.database)


async def test_a_window_that_did_not_begin_leaves_no_booking_when_it_is_removed(
    world: World,
) -> None:
    node = await world.add_node(dgx("a"))
    await remove(world, await add(world, node, after_ms=HOUR_MS))
    assert await records.count(world.database, "SELECT count(*) AS n FROM bookings") == 0
    assert (await world.create(8, duration="3h")).state is State.PLACED


async def test_two_windows_of_a_node_do_not_overlap(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)  # and stand still
    node = await world.add_node(dgx("a"))
    first = await add(world, node)
    with pytest.raises(Conflict, match=first.id):
        await add(world, node, after_ms=HOUR_MS - 1)
    await add(world, node, after_ms=HOUR_MS)


async def test_a_window_covers_instances_and_slots_of_every_layout(world: World) -> None:
    """The whole GPU is booked, bookable or not: a later MIG layout finds it taken."""
    parent = gpu("GPU-a-0")
    node = await world.add_node((parent, mig("MIG-1", "GPU-a-0")))
    await add(world, node)
    assert (await world.create(key="now", devices=INSTANCE)).state is State.PENDING
    await world.send_inventory(node, (parent, mig("MIG-8", "GPU-a-0"), mig("MIG-9", "GPU-a-0")))
    assert (await world.create(key="then", devices=INSTANCE)).state is State.PENDING
    await records.assert_no_overlap(world.database)


async def test_an_instance_in_use_is_in_a_windows_way(world: World) -> None:
    node = await world.add_node((gpu("GPU-a-0"), mig("MIG-1", "GPU-a-0")))
    made = await world.create(devices=INSTANCE)
    with pytest.raises(Conflict, match=made.id):
        await add(world, node)


async def test_a_gpu_known_by_its_instances_only_is_booked_by_them(world: World) -> None:
    node = await world.add_node((mig("MIG-1", "GPU-a-0"), mig("MIG-2", "GPU-a-0")))
    await add(world, node)
    assert await records.count(world.database, "SELECT count(*) AS n FROM bookings") == 2
    assert (await world.create(devices=INSTANCE)).state is State.PENDING
