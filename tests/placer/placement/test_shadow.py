"""The oldest that waits is not starved by younger ones, and they fill the gaps (spec 7.5)."""

import random
from typing import Any

import pytest

from bcd.model.ids import ReservationId
from bcd.model.reservation import Reservation, State
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.placement.booking import Placements
from bcd.signing.certificates import Role
from bcd.store import pools, shadows
from bcd.store.database import Transaction
from bcd.store.shadows import Shadow
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.hostile import another_key
from tests.placer.records import assert_no_overlap, assert_quota_adds_up
from tests.placer.world import World, dgx

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@pytest.fixture
async def world(world: World, clock: DatabaseClock) -> World:
    """One node of eight GPUs."""
    clock.advance(0)
    await world.add_node(dgx("a"))
    return world


async def shadow_of(world: World) -> Shadow:
    found = await world.database.read(shadows.get, world.pool_id)
    assert found is not None
    return found


async def pass_time(world: World, clock: DatabaseClock, to_ms: int) -> None:
    """Nodes stay in touch meanwhile, and bind what they are told."""
    clock.set(to_ms)
    for node in world.nodes:
        await world.connect(node)
    await world.work()
    await world.bind(*world.nodes)


async def renew(world: World) -> None:
    """Nodes get new keys, as they do twice a day: simulated days outlast a certificate."""
    for node in world.nodes:
        subject = (Role.NODE, node.id)
        node.key = await another_key(world.database, world.authority, subject)


async def fill(world: World, hours: int = 8) -> list[Reservation]:
    """Eight reservations of one GPU each, the last of which ends after so many hours."""
    return [await world.create(1, key=f"h{i}", duration=f"{max(1, hours - i)}h") for i in range(8)]


async def state(world: World, made: Reservation) -> State:
    return (await world.view(made.id)).state


# The bound


async def test_a_stream_of_small_requests_does_not_starve_a_large_one(
    world: World, clock: DatabaseClock
) -> None:
    """Every half hour two more that take two hours: without protection all eight are never free.

    Those that are over before the large one's turn fill the gaps meanwhile.
    """
    begun = clock.read()
    await fill(world)
    large = await world.create(8, key="large")
    assert (await shadow_of(world)).start_ms == begun + 8 * HOUR_MS
    small: list[Reservation] = []
    for half_hour in range(1, 17):
        await pass_time(world, clock, begun + half_hour * 30 * MINUTE_MS)
        for number in range(2):
            key = f"s{half_hour}-{number}"
            small.append(await world.create(1, key=key, duration="2h"))
    started = await world.view(large.id)
    assert started.during is not None
    assert started.during.start_ms == begun + 8 * HOUR_MS
    windows = [(await world.view(one.id)).during for one in small]
    backfilled = [window for window in windows if window is not None]
    assert len(backfilled) >= 10
    assert all(window.end_ms <= started.during.start_ms for window in backfilled)
    await assert_no_overlap(world.database)
    await assert_quota_adds_up(world.database)


async def test_what_is_over_before_its_turn_passes_and_what_is_not_waits(world: World) -> None:
    await world.create(4, key="holder", duration="3h")
    large = await world.create(8, key="large", duration="1h")
    assert (await world.create(2, key="short", duration="3h")).state is State.PLACED
    long = await world.create(2, key="long", duration="181m")
    assert long.state is State.PENDING
    assert "1 ahead of it" in long.conditions[0].message
    assert (await shadow_of(world)).reservation_id == large.id


async def test_what_goes_elsewhere_passes(world: World) -> None:
    await world.add_node(dgx("b"))
    await world.create(8, key="one", duration="2h")
    await world.create(2, key="two", duration="9h")
    large = await world.create(8, key="large")
    assert (await world.create(6, key="other", duration="90h")).state is State.PLACED
    assert await state(world, large) is State.PENDING


async def test_devices_that_are_freed_go_to_the_oldest_and_to_no_newcomer(world: World) -> None:
    """The newcomer asks after the release and before anybody looked at the queue."""
    holder = await world.create(8, key="holder")
    large = await world.create(8, key="large")
    await world.end(holder.id, Trigger.RELEASED)
    newcomer = await world.create(1, key="newcomer")
    assert newcomer.state is State.PENDING
    await world.work()
    assert await state(world, large) is State.BINDING
    assert await state(world, newcomer) is State.PENDING


async def test_it_moves_sooner_when_something_ends_sooner(
    world: World, clock: DatabaseClock
) -> None:
    begun = clock.read()
    holders = await fill(world)
    await world.create(8, key="large")
    await world.end(holders[0].id, Trigger.RELEASED)
    await world.work()
    assert (await shadow_of(world)).start_ms == begun + 7 * HOUR_MS
    assert (await world.create(1, key="fits", duration="7h")).state is State.PLACED
    assert (await world.create(1, key="waits", duration="421m")).state is State.PENDING


async def test_the_next_oldest_is_protected_once_the_oldest_has_its_place(
    world: World, clock: DatabaseClock
) -> None:
    begun = clock.read()
    await world.create(8, key="holder", duration="1h")
    first = await world.create(8, key="first", duration="2h")
    second = await world.create(7, key="second", duration="2h")
    await pass_time(world, clock, begun + HOUR_MS)
    assert await state(world, first) is State.ACTIVE
    assert (await shadow_of(world)).reservation_id == second.id
    assert (await world.create(1, key="x", duration="9h")).state is State.PENDING


# What is not kept


async def test_one_that_fits_not_even_an_idle_pool_keeps_nothing_from_the_others(
    world: World,
) -> None:
    await world.create(9, key="never")
    holder = await world.create(4, key="holder", duration="1h")
    assert holder.state is State.PLACED
    large = await world.create(8, key="large")
    assert (await shadow_of(world)).reservation_id == large.id
    assert (await world.create(4, key="long", duration="9h")).state is State.PENDING
    assert (await world.create(4, key="short", duration="1h")).state is State.PLACED


@pytest.mark.parametrize(
    "asked",
    [
        {"count": 8, "spot": True},
        {"count": 8, "start": 0},
        {"count": 9},
        {"count": 1, "model": "B200"},
    ],
    ids=["spot", "start ahead", "too many", "no such model"],
)
async def test_the_oldest_that_could_fit_is_protected_however_many_keep_nothing(
    world: World, clock: DatabaseClock, asked: dict[str, Any]
) -> None:
    await fill(world)
    if "start" in asked:
        asked = asked | {"start": clock.read() + 2 * HOUR_MS}
    for number in range(40):
        before = await world.create(**asked, key=f"before{number}")
        assert await state(world, before) is State.PENDING
    large = await world.create(8, key="large")
    clock.advance(HOUR_MS + 1)
    young = await world.create(1, key="young", duration="12h")
    assert young.state is State.PENDING
    assert (await shadow_of(world)).reservation_id == large.id


async def test_one_that_is_given_up_keeps_nothing(world: World) -> None:
    await world.create(4, key="holder", duration="1h")
    large = await world.create(8, key="large")
    await world.end(large.id, Trigger.CANCELLED)
    assert (await world.create(4, key="long", duration="9h")).state is State.PLACED


async def test_an_older_one_is_not_held_up_by_what_is_kept_for_a_younger(world: World) -> None:
    """The older one lost its node before it was bound, and is placed again."""
    older = await world.create(4, key="older", duration="9h")
    await world.create(4, key="holder", duration="1h")
    younger = await world.create(8, key="younger")
    assert await state(world, younger) is State.PENDING
    await world.work()
    await world.database.write(
        lambda tx: tx.run("UPDATE reservations SET bind_deadline_ms = 0 WHERE id = :i", i=older.id)
    )
    await world.database.write(lambda tx: tx.run("UPDATE work SET wake_ms = 0"))
    await world.work()
    assert await state(world, older) is State.BINDING
    assert (await world.event_names(older.id)).count("placed") == 2


# Through changes


async def test_a_node_that_goes_moves_it_to_another(world: World, clock: DatabaseClock) -> None:
    begun = clock.read()
    other = await world.add_node(dgx("b"))
    first = await world.create(8, key="one", duration="2h")
    await world.create(8, key="two", duration="5h")
    await world.create(8, key="large")
    (node_id,) = (await shadow_of(world)).members
    assert (await shadow_of(world)).start_ms == begun + 2 * HOUR_MS
    assert [a.node_id for a in await world.live(first.id)] == [node_id]
    lost = next(node for node in world.nodes if node.id == node_id)
    await world.send_inventory(lost, lost.devices[:7])
    await world.create(1, key="asks", duration="9h")
    left = ({node.id for node in world.nodes} - {node_id}).pop()
    assert set((await shadow_of(world)).members) == {left}
    assert (await shadow_of(world)).start_ms == begun + 5 * HOUR_MS
    assert other.id in (node_id, left)


async def test_a_restart_keeps_the_same_devices_for_the_same_time(world: World) -> None:
    for name in "bcd":
        await world.add_node(dgx(name))
    for number in range(4):
        await world.create(8, key=f"h{number}", duration="2h")
    await world.create(8, key="large", duration="3h")
    before = await shadow_of(world)
    after = World(world.database, world.authority, world.pool_id)
    made = await after.create(8, key="asks")
    assert made.state is State.PENDING
    assert await shadow_of(world) == before


async def test_the_view_is_what_it_was_after_every_question(world: World) -> None:
    """What was shown as taken is free again for the one it is kept for."""
    await world.create(4, key="holder", duration="1h")
    await world.create(8, key="large")
    for number, duration in enumerate(("30m", "9h", "30m", "9h")):
        await world.create(1, key=f"s{number}", duration=duration)

        def compare(tx: Transaction) -> None:
            held = pools.lock(tx, world.pool_id)
            known, fresh = world.placements.view(tx, held), Placements().view(tx, held)
            for node_id, node in fresh.nodes.items():
                for start_ms in range(held.now_ms, held.now_ms + 12 * HOUR_MS, 10 * MINUTE_MS):
                    window = (start_ms, start_ms + 10 * MINUTE_MS)
                    assert known.nodes[node_id].free(*window) == node.free(*window)

        await world.database.write(compare)


async def test_whatever_comes_and_goes_its_turn_never_moves_later(
    world: World, clock: DatabaseClock, rounds: Rounds
) -> None:
    """Random creates, releases and hours; a restart now and then."""
    await world.add_node(dgx("b", 4))
    for seed in range(rounds(4, 100)):
        await renew(world)
        drawn = random.Random(seed)
        turns: dict[ReservationId, int] = {}
        made: list[Reservation] = []
        for step in range(40):
            count, length = drawn.choice([1, 1, 2, 4, 8]), drawn.choice([30, 60, 150, 300])
            key = f"k{seed}-{step}"
            made.append(await world.create(count, key=key, duration=f"{length}m"))
            known = await world.database.read(shadows.get, world.pool_id)
            if known is not None and await state(world, made[0]) is not None:
                turn = turns.setdefault(known.reservation_id, known.start_ms)
                assert known.start_ms <= max(turn, clock.read())
                turns[known.reservation_id] = min(turn, known.start_ms)
            if drawn.random() < 0.3:
                await world.end_if_live(drawn.choice(made).id)
            if drawn.random() < 0.5:
                await pass_time(world, clock, clock.read() + 20 * MINUTE_MS)
            if drawn.random() < 0.1:
                world.placements._views.forget(world.pool_id)
        for one in made:
            found = await world.view(one.id)
            if found.during is not None and one.id in turns:
                assert found.during.start_ms <= turns[one.id] + 20 * MINUTE_MS
        await assert_no_overlap(world.database)
        for one in reversed(made):
            await world.end_if_live(one.id)
    assert await world.used() == 0
