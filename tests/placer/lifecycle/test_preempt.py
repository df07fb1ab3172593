"""Spot reservations yield: a grace for who has started, the fewest, nobody in vain (spec 7.7)."""

from collections.abc import Mapping
from typing import Any

import pytest

from bcd.model.errors import InvalidState
from bcd.model.pool import PoolPolicy, SpotPolicy
from bcd.model.report import Failed
from bcd.model.reservation import Reservation, State
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.placer.placement.vain import Asked, InVain
from bcd.store import work
from bcd.store.pools import PoolLock
from tests.clock import DatabaseClock
from tests.placer.records import assert_no_overlap, assert_quota_adds_up, tables
from tests.placer.world import World, dgx

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
GRACE_MS = 120_000
LONG: Mapping[str, Any] = {"duration": "1d"}


async def spot(world: World, key: str, count: int = 1, **changes: Any) -> Reservation:
    """A spot reservation that runs for a day, bound."""
    made = await world.create(count, key=key, spot=True, **{**LONG, **changes})
    await world.work()
    await world.bind(*world.nodes)
    return await world.view(made.id)


def start_of(reservation: Reservation) -> int:
    assert reservation.during is not None
    return reservation.during.start_ms


async def conditions(world: World, made: Reservation) -> list[str]:
    return [c.type for c in (await world.view(made.id)).conditions]


async def test_who_has_started_gets_the_grace_and_the_other_begins_behind_it(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    victim = await spot(world, "spot")
    now = clock.read()
    made = await world.create(1, key="firm")
    assert (made.state, start_of(made)) == (State.PLACED, now + GRACE_MS)
    assert made.during is not None
    assert made.during.end_ms == now + GRACE_MS + HOUR_MS
    yielding = await world.view(victim.id)
    assert (yielding.state, await conditions(world, victim)) == (State.ACTIVE, ["Preempting"])
    assert yielding.during is not None
    assert yielding.during.end_ms == now + GRACE_MS
    assert [a.until_ms for a in (await world.desired(node)).assignments] == [now + GRACE_MS]
    await assert_no_overlap(world.database)
    clock.set(now + GRACE_MS - 1)
    await world.work()
    assert (await world.view(victim.id)).state is State.ACTIVE
    clock.set(now + GRACE_MS)
    await world.work()
    assert (await world.view(victim.id)).state is State.RELEASED
    assert (await world.view(made.id)).state is State.BINDING
    told = await world.event_names(victim.id)
    assert told == ["placed", "binding", "active", "preempting", "preempted", "released"]
    assert (await world.events(victim.id))[-1].data["reason"] == "preempted"
    await world.bind(node)
    assert (await world.view(made.id)).state is State.ACTIVE
    await assert_quota_adds_up(world.database)


async def test_who_has_not_started_is_released_at_once(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    await world.add_node(dgx("a", 1))
    later = clock.read() + 30 * MINUTE_MS
    victim = await world.create(1, key="spot", spot=True, start=later)
    made = await world.create(1, key="firm")
    assert (made.state, start_of(made)) == (State.PLACED, clock.read())
    assert (await world.view(victim.id)).state is State.RELEASED
    assert await world.event_names(victim.id) == ["placed", "preempted", "released"]
    await assert_no_overlap(world.database)


async def test_spot_never_displaces_spot_and_nobody_displaces_the_firm(world: World) -> None:
    await world.add_node(dgx("a", 2))
    await world.create(1, key="firm", **LONG)
    await spot(world, "spot")
    assert (await world.create(1, key="other", spot=True)).state is State.PENDING
    assert (await world.create(2, key="both")).state is State.PENDING


async def test_nobody_is_displaced_in_vain(world: World) -> None:
    """A refusal leaves every row as it was, but for the one that waits now."""
    await world.add_node(dgx("a", 4))
    await world.create(3, key="firm", **LONG)
    victim = await spot(world, "spot")
    before = await tables(world.database)
    assert (await world.create(2, key="two")).state is State.PENDING
    after = await tables(world.database)
    for table in ("bookings", "allocations", "desired_states"):
        assert after[table] == before[table]
    assert await conditions(world, victim) == []
    assert await world.event_names(victim.id) == ["placed", "binding", "active"]


async def test_what_fits_by_itself_within_the_grace_disturbs_nobody(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a", 2))
    short = await world.create(1, key="short", duration=f"{GRACE_MS}ms")
    victim = await spot(world, "spot")
    made = await world.create(1, key="firm")
    assert (made.state, await conditions(world, victim)) == (State.PENDING, [])
    clock.set(start_of(short) + GRACE_MS)
    await world.work()
    assert (await world.view(made.id)).state is State.BINDING
    assert await conditions(world, victim) == []


async def test_the_fewest_yield_and_of_equals_the_youngest(world: World) -> None:
    await world.add_node(dgx("a", 4))
    await world.add_node(dgx("b", 4))
    singles = [await spot(world, f"single-{i}") for i in range(4)]
    old = await spot(world, "old", 2)
    young = await spot(world, "young", 2)
    assert (await world.create(2, key="firm")).state is State.PLACED
    yielding = [one for one in (*singles, old, young) if await conditions(world, one)]
    assert [one.id for one in yielding] == [young.id]
    assert (await world.create(4, key="more")).state is State.PLACED
    await assert_no_overlap(world.database)


async def test_a_gang_takes_free_nodes_and_displaces_only_for_the_rest(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.add_node(dgx(name, 2))
    victim = await spot(world, "one", 2)
    other = await spot(world, "two", 2)
    made = await world.create(2, key="gang", gang={"size": 2})
    assert made.state is State.PLACED
    assert {a.node_id for a in await world.live(made.id)} >= {world.nodes[2].id}
    assert [await conditions(world, one) for one in (victim, other)] == [[], ["Preempting"]]
    nodes_of = {a.node_id for a in await world.live(made.id)}
    assert len(nodes_of) == 2


async def test_turnaround_lies_between_who_yields_and_who_comes(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    policy = PoolPolicy(turnaround_ms=5 * MINUTE_MS, spot=SpotPolicy(grace_seconds=60))
    pool = await world.add_pool("other", policy)
    await world.add_node(dgx("a", 1), pool)
    await spot(world, "spot", poolId=pool)
    made = await world.create(1, key="firm", poolId=pool)
    assert start_of(made) == clock.read() + 6 * MINUTE_MS


async def test_who_yields_what_a_longer_turnaround_kept_ends_no_later_for_it(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.set_policy(turnaroundMs=HOUR_MS)
    node = await world.add_node(dgx("a", 1))
    victim = await world.active(node, key="spot", spot=True, duration="10m")
    assert victim.during is not None
    await world.set_policy()
    clock.set(victim.during.end_ms - MINUTE_MS)
    now = clock.read()
    made = await world.create(1, key="firm")
    assert (made.state, start_of(made)) == (State.PLACED, now + GRACE_MS)
    assert (await world.view(victim.id)).during == victim.during
    assert await conditions(world, victim) == ["Preempting"]
    await assert_no_overlap(world.database)


async def test_a_window_ahead_lets_who_has_started_stay_until_then(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a", 1))
    victim = await spot(world, "spot")
    start = clock.read() + 2 * HOUR_MS
    made = await world.create(1, key="firm", start=start)
    assert (made.state, start_of(made)) == (State.PLACED, start)
    yielding = await world.view(victim.id)
    assert yielding.during is not None
    assert yielding.during.end_ms == start


async def test_who_yields_is_not_extended_and_not_bound_again(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    victim = await world.create(1, key="spot", spot=True, **LONG)
    await world.work()
    await world.create(1, key="firm")
    with pytest.raises(InvalidState, match="being preempted"):
        await world.extend(victim.id, by_ms=HOUR_MS)
    (allocation,) = await world.live(victim.id)
    failed = node.seal(node.report(allocation, Failed("device-busy")))
    await world.send(node, failed, allocation.id)
    await world.work()
    assert (await world.view(victim.id)).state is State.RELEASED


async def test_a_pending_one_displaces_when_its_turn_comes(
    world: World, clock: DatabaseClock
) -> None:
    """What waits is placed by the pool's pass in the same way; a rehearsal displaces nobody."""
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    firm = await world.create(1, key="firm")
    waiting = await world.create(1, key="waiting", **LONG)
    await world.end(firm.id, Trigger.RELEASED)
    await world.end(waiting.id, Trigger.CANCELLED)
    victim = await spot(world, "spot")
    rehearsed = await world.create(1, key="dry", dryRun=True)
    assert (rehearsed.state, await conditions(world, victim)) == (State.PLACED, [])
    made = await world.create(1, key="two", gang={"size": 2})
    assert made.state is State.PENDING
    other = await world.add_node(dgx("b", 1))
    await world.work()
    assert (await world.view(made.id)).state is State.PLACED
    assert await conditions(world, victim) == ["Preempting"]
    assert {a.node_id for a in await world.live(made.id)} == {node.id, other.id}


# What was in vain is remembered.


class CountingInVain(InVain):
    """Counts the looks for victims that helped nobody."""

    looks = 0

    def note(self, held: PoolLock, asked: Asked, refused: Unschedulable, until_ms: int) -> None:
        self.looks += 1
        super().note(held, asked, refused, until_ms)


async def passed(world: World, clock: DatabaseClock, now_ms: int) -> None:
    """A pass over who waits at that moment, with the nodes in touch."""
    clock.set(now_ms)
    for node in world.nodes:
        await world.connect(node)
    await world.database.write(lambda tx: work.poke(tx, world.pool_id, now_ms))
    await world.work()


async def test_a_look_in_vain_is_not_repeated_until_something_changes(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    counting = world.placements.in_vain = CountingInVain()
    await world.add_node(dgx("a", 4))
    firm = await world.create(1, key="firm", **LONG)
    victim = await spot(world, "spot", 3)
    equal = [await world.create(4, key=f"equal-{i}") for i in range(3)]
    await world.create(4, key="longer", duration="2h")
    assert counting.looks == 3, "the oldest, one behind what is kept for it, and the longer one"
    for _ in range(3):
        await passed(world, clock, clock.read() + 30_000)
    assert counting.looks == 3
    await world.end(firm.id, Trigger.RELEASED)
    await world.work()
    assert await conditions(world, victim) == ["Preempting"]
    assert (await world.view(equal[0].id)).state is State.PLACED


async def test_a_look_in_vain_is_repeated_once_time_alone_may_have_helped(
    world: World, clock: DatabaseClock
) -> None:
    """The firm one ends by itself, so that the spot one need not stay longer than that."""
    clock.advance(0)
    await world.add_node(dgx("a", 2))
    firm = await world.create(1, key="firm")
    victim = await spot(world, "spot")
    made = await world.create(2, key="both")
    assert firm.during is not None
    helps_ms = firm.during.end_ms - GRACE_MS
    await passed(world, clock, helps_ms - 1)
    assert ((await world.view(made.id)).state, await conditions(world, victim)) == (
        State.PENDING,
        [],
    )
    await passed(world, clock, helps_ms)
    after = await world.view(made.id)
    assert (after.state, start_of(after)) == (State.PLACED, firm.during.end_ms)
    assert await conditions(world, victim) == ["Preempting"]


async def test_a_look_in_vain_is_repeated_once_nothing_is_kept_any_more(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a", 2))
    await world.create(1, key="firm", **LONG)
    victim = await spot(world, "spot")
    oldest = await world.create(2, key="oldest")
    made = await world.create(1, key="over what is kept", duration="2d")
    await passed(world, clock, clock.read() + 30_000)
    assert (await world.view(made.id)).state is State.PENDING
    await world.end(oldest.id, Trigger.CANCELLED)
    await world.work()
    assert (await world.view(made.id)).state is State.PLACED
    assert await conditions(world, victim) == ["Preempting"]
