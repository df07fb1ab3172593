"""A draining node: what has not started moves elsewhere, what runs stays (spec 1.3, 9.3)."""

from bcd.model.reservation import Reservation, State
from bcd.store import nodes, pools, reservations, work
from bcd.store.database import Transaction
from tests.clock import DatabaseClock
from tests.placer import records
from tests.placer.lifecycle.test_maintenance import add, standing
from tests.placer.world import FakeNode, World, dgx

HOUR_MS = 3_600_000


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
