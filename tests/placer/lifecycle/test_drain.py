"""A draining node: what has not started moves elsewhere, what runs stays (spec 1.3, 9.3)."""

import pytest

from bcd.model.reservation import Reservation, State
from bcd.placer.lifecycle.transitions import REPAIR_AHEAD_MS
from bcd.store import nodes, pools, reservations, work
from bcd.store.database import Transaction
from tests.clock import DatabaseClock
from tests.placer import records
from tests.placer.lifecycle.test_maintenance import add, standing
from tests.placer.world import FakeNode, World, dgx

HOUR_MS = 3_600_000
GRACE_MS = 120_000


async def set_out(world: World, node: FakeNode, *, drained: bool) -> None:
    """Drain or uncordon a node as the API does."""

    def write(tx: Transaction) -> None:
        held = pools.lock(tx, nodes.get(tx, node.id).pool_id)
        if drained:
            nodes.drain(tx, node.id)
        else:
            nodes.set_cordoned(tx, node.id, False)
        pools.note_changes(tx, held, [node.id], "node")
        for reservation_id in reservations.on_node(tx, node.id):
            work.poke(tx, reservation_id, held.now_ms)

    await world.database.write(write)
    await world.work()


async def ahead(world: World, clock: DatabaseClock, key: str = "ahead") -> Reservation:
    return await world.create(4, key=key, start=clock.read() + HOUR_MS, duration="2h")


async def places(world: World, made: Reservation) -> set[str]:
    return {allocation.node_id for allocation in await world.live(made.id)}


async def test_what_has_not_started_moves_and_what_runs_stays(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    old = await world.add_node(dgx("a"))
    running = await world.active(old, count=4, key="running")
    waiting = await ahead(world, clock)
    assert await places(world, waiting) == {old.id}
    new = await world.add_node(dgx("b"))
    await set_out(world, old, drained=True)
    moved = await world.view(waiting.id)
    assert (moved.state, moved.during) == (State.PLACED, waiting.during)
    assert await places(world, waiting) == {new.id}
    assert await world.event_names(waiting.id) == ["placed", "repaired"]
    assert await world.view(running.id) == running
    assert await places(world, running) == {old.id}
    await records.assert_no_overlap(world.database)


async def test_what_fits_nowhere_else_stays_and_says_so_until_it_is_uncordoned(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    waiting = await ahead(world, clock)
    await set_out(world, node, drained=True)
    (condition,) = (await world.view(waiting.id)).conditions
    assert condition.type == "Degraded"
    assert "is draining" in condition.message
    assert await places(world, waiting) == {node.id}
    await set_out(world, node, drained=False)
    assert (await world.view(waiting.id)).conditions == ()


async def test_a_cordon_alone_moves_nothing(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    waiting = await ahead(world, clock)
    await world.add_node(dgx("b"))
    await world.database.write(nodes.set_cordoned, node.id, True)
    await world.database.write(lambda tx: work.poke(tx, waiting.id, clock.read()))
    await world.work()
    assert await places(world, waiting) == {node.id}
    assert await world.event_names(waiting.id) == ["placed"]


async def test_a_maintenance_window_is_not_moved_off_a_draining_node(
    world: World, clock: DatabaseClock
) -> None:
    """The usual order: drain, then work on the host."""
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    await world.add_node(dgx("b"))
    window = await add(world, node, after_ms=HOUR_MS)
    await set_out(world, node, drained=True)
    assert await standing(world) == [window.id]
    (row,) = await world.rows("SELECT DISTINCT node_id FROM bookings")
    assert row["node_id"] == node.id


async def types(world: World, made: Reservation) -> list[str]:
    return [condition.type for condition in (await world.view(made.id)).conditions]


async def test_running_spot_yields_to_who_must_move_at_the_last_repair_and_not_before(
    world: World, clock: DatabaseClock
) -> None:
    """Spec 7.7, 9.2: before, the node may come back, and nobody is displaced in vain."""
    clock.advance(0)
    old = await world.add_node(dgx("a"))
    firm = await ahead(world, clock)
    assert firm.during is not None
    new = await world.add_node(dgx("b"))
    spot = await world.active(new, count=8, key="spot", spot=True, duration="1d")
    await set_out(world, old, drained=True)
    assert (await types(world, firm), await types(world, spot)) == (["Degraded"], [])
    clock.set(firm.during.start_ms - REPAIR_AHEAD_MS)
    await world.work()
    moved = await world.view(firm.id)
    assert (moved.state, moved.during, moved.conditions) == (State.PLACED, firm.during, ())
    assert await places(world, firm) == {new.id}
    yielding = await world.view(spot.id)
    assert (yielding.state, await types(world, spot)) == (State.ACTIVE, ["Preempting"])
    assert yielding.during is not None
    assert yielding.during.end_ms == firm.during.start_ms
    await records.assert_no_overlap(world.database)
    clock.set(firm.during.start_ms)
    await world.work()
    await world.bind(new)
    assert (await world.view(spot.id)).state is State.RELEASED
    assert (await world.view(firm.id)).state is State.ACTIVE
    await records.assert_quota_adds_up(world.database)


@pytest.mark.parametrize("short_ms", [0, 1])
async def test_running_spot_keeps_its_grace_where_a_repair_comes_late(
    world: World, clock: DatabaseClock, short_ms: int
) -> None:
    clock.advance(0)
    old = await world.add_node(dgx("a"))
    firm = await ahead(world, clock)
    assert firm.during is not None
    new = await world.add_node(dgx("b"))
    spot = await world.active(new, count=8, key="spot", spot=True, duration="1d")
    clock.set(firm.during.start_ms - GRACE_MS + short_ms)
    await set_out(world, old, drained=True)
    assert await types(world, spot) == ([] if short_ms else ["Preempting"])
    assert await places(world, firm) == ({old.id} if short_ms else {new.id})


async def test_spot_yields_a_lost_member_a_node_that_no_other_member_is_on(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    nodes_ = [await world.add_node(dgx(name)) for name in "ab"]
    start = clock.read() + REPAIR_AHEAD_MS
    gang = await world.create(4, key="gang", gang={"size": 2}, start=start)
    beside = await world.create(4, key="beside", spot=True, start=start)
    (lost,) = {node.id for node in nodes_} - await places(world, beside)
    free = await world.add_node(dgx("c"))
    away = await world.create(8, key="away", spot=True, start=start)
    assert await places(world, away) == {free.id}
    await set_out(world, next(n for n in nodes_ if n.id == lost), drained=True)
    assert await places(world, gang) == {*await places(world, beside), free.id}
    assert (await world.view(away.id)).state is State.RELEASED
    assert (await world.view(beside.id)).state is State.PLACED
    await records.assert_no_overlap(world.database)
