"""What the end of one reservation means for the others."""

from bcd.model.pool import PoolPolicy
from bcd.model.reservation import State
from bcd.placer.lifecycle.reconcile import Reconciler
from bcd.placer.lifecycle.transitions import Trigger
from bcd.store import work
from tests.clock import DatabaseClock
from tests.placer.world import World, dgx

HOUR_MS = 3_600_000


async def test_the_end_of_a_window_places_a_waiting_reservation_at_once(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    active = await world.active(node, count=8)
    waiting = await world.create(8, key="waiting")
    assert active.during is not None
    clock.set(active.during.end_ms - 1)
    await world.work()
    assert (await world.view(waiting.id)).state is State.PENDING
    clock.advance(1)
    await world.work()
    assert (await world.view(active.id)).state is State.RELEASED
    assert (await world.view(waiting.id)).state is State.BINDING


async def test_a_waiting_reservation_is_placed_when_the_turnaround_is_over(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    pool_id = await world.add_pool("slow", PoolPolicy(turnaround_ms=7_000))
    node = await world.add_node(dgx("a"), pool_id)
    active = await world.active(node, count=8, poolId=pool_id)
    waiting = await world.create(8, key="waiting", poolId=pool_id)
    assert active.during is not None
    clock.set(active.during.end_ms)
    await world.work()
    assert (await world.view(active.id)).state is State.RELEASED
    clock.advance(6_999)
    await world.work()
    assert (await world.view(waiting.id)).state is State.PENDING
    clock.advance(1)
    await world.work()
    assert (await world.view(waiting.id)).state is State.BINDING


async def test_a_window_that_begins_behind_the_turnaround_is_given_at_once(
    world: World, clock: DatabaseClock
) -> None:
    """Spec 14.4: freed capacity wakes who waits, also for a time when it is free anyway."""
    clock.advance(0)
    pool_id = await world.add_pool("slow", PoolPolicy(turnaround_ms=7_000))
    node = await world.add_node(dgx("a"), pool_id)
    active = await world.active(node, count=8, poolId=pool_id)
    start_ms = clock.read() + 60_000
    waiting = await world.create(8, key="waiting", poolId=pool_id, start=start_ms)
    assert waiting.state is State.PENDING
    await world.end(active.id, Trigger.RELEASED)
    await world.work()
    assert (await world.view(waiting.id)).state is State.PLACED


async def test_what_was_kept_for_one_that_gives_up_is_given_to_the_next_at_once(
    world: World, clock: DatabaseClock
) -> None:
    """Spec 7.5: the oldest that waits has its place kept; without it there is room."""
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    await world.active(node, count=6)
    oldest = await world.create(8, key="oldest")
    younger = await world.create(2, key="younger", duration="3h")
    assert (oldest.state, younger.state) == (State.PENDING, State.PENDING)
    await world.end(oldest.id, Trigger.CANCELLED)
    await world.work()
    assert (await world.view(younger.id)).state is State.BINDING


async def test_a_node_never_holds_the_old_and_the_new_reservation_of_a_device_at_once(
    world: World, clock: DatabaseClock
) -> None:
    """The new one is worked on first: it ends what is over before it starts."""
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    old = await world.active(node, count=8)
    assert old.during is not None
    clock.set(old.during.end_ms)
    new = await world.create(8, key="new")
    assert new.state is State.PLACED
    reconciler = Reconciler(world.placements, world.signer)
    for claim in await world.database.write(work.claim, 8):
        if claim.key == new.id:
            await world.database.write(reconciler.reconcile, claim)
    (allocation,) = await world.live(new.id)
    assert await world.assigned(node) == [allocation.id]
    assert (await world.view(old.id)).state is State.RELEASED
    assert (await world.events(old.id))[-1].data["reason"] == "expired"
    assert await world.used() == 8
    await world.work()
    await world.bind(node)
    assert (await world.view(new.id)).state is State.ACTIVE
