"""Every end moves later or none does, and an expected collision is an answer."""

import random
from dataclasses import replace

import pytest

from bcd.model.device import DeviceClass
from bcd.model.pool import PoolPolicy
from bcd.model.reservation import Resources, State
from bcd.placer.placement.booking import AvailableUntil, Extended, Placed
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.placement.machines import ask, mig_host
from tests.placer.placement.placing import (
    HOUR_MS,
    Wish,
    extend,
    give_capacity,
    learn,
    placed,
    reserve,
)
from tests.placer.placement.test_booking import BOTH
from tests.placer.placement.test_host_amounts import add_host, random_wish
from tests.placer.records import assert_hosts_hold, assert_no_overlap, rows, tables
from tests.placer.world import World, dgx, gpu


async def ends(world: World, reservation_id: str) -> set[int]:
    found = await rows(
        world.database,
        "SELECT end_ms FROM bookings WHERE reservation_id = :id"
        " UNION ALL SELECT end_ms FROM host_bookings WHERE reservation_id = :id",
        id=reservation_id,
    )
    return {row["end_ms"] for row in found}


async def test_all_members_end_later_devices_amounts_and_allocations(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    for name in "ab":
        await add_host(world, name)
    made, before = await placed(world, gang=2, resources=Resources(vcpu=2))
    outcome = await extend(world, made, HOUR_MS)
    assert isinstance(outcome, Extended)
    assert outcome.window.end_ms == clock.read() + 2 * HOUR_MS
    assert outcome.node_ids == tuple(a.node_id for a in before)
    assert await ends(world, made) == {outcome.window.end_ms}
    assert {a.until_ms for a in await world.live(made)} == {outcome.window.end_ms}


async def test_one_member_in_the_way_holds_all_of_them(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    for name in "ab":
        await world.add_node(dgx(name, 1))
    made, before = await placed(world, gang=2)
    await placed(world, start=3 * HOUR_MS)
    image = await ends(world, made)
    outcome = await extend(world, made, 4 * HOUR_MS)
    assert outcome == AvailableUntil(clock.read() + 3 * HOUR_MS)
    assert await ends(world, made) == image
    assert list(await world.live(made)) == list(before)
    assert isinstance(await extend(world, made, 2 * HOUR_MS), Extended)
    assert await extend(world, made, 1) == AvailableUntil(clock.read() + 3 * HOUR_MS)
    await assert_no_overlap(world.database)


async def test_the_turnaround_is_kept_free_behind_the_new_end(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    world.pool_id = await world.add_pool("slow", PoolPolicy(turnaround_ms=60_000))
    await world.add_node(dgx("a", 1), world.pool_id)
    made, _ = await placed(world)
    await placed(world, start=3 * HOUR_MS)
    until = clock.read() + 3 * HOUR_MS - 60_000
    assert await extend(world, made, 2 * HOUR_MS) == AvailableUntil(until)
    assert isinstance(await extend(world, made, 2 * HOUR_MS - 60_000), Extended)
    assert await ends(world, made) == {until + 60_000}


async def test_a_gpu_that_somebody_takes_in_another_mode_later_is_in_the_way(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(BOTH[:3])
    made, _ = await placed(world, devices=(ask(2, device_class=DeviceClass.MIG),))
    await placed(world, start=2 * HOUR_MS)
    assert await extend(world, made, 2 * HOUR_MS) == AvailableUntil(clock.read() + 2 * HOUR_MS)
    assert isinstance(await extend(world, made, HOUR_MS), Extended)


async def test_cpus_that_somebody_needs_later_are_in_the_way(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await add_host(world, "a", vcpu=8)
    made, _ = await placed(world, resources=Resources(vcpu=5))
    await placed(world, resources=Resources(vcpu=3), duration_ms=9 * HOUR_MS)
    await placed(world, resources=Resources(vcpu=1), start=4 * HOUR_MS)
    assert await extend(world, made, 5 * HOUR_MS) == AvailableUntil(clock.read() + 4 * HOUR_MS)
    assert isinstance(await extend(world, made, 3 * HOUR_MS), Extended)
    await assert_hosts_hold(world.database)


async def test_what_was_extended_is_in_the_view(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    await world.add_node(dgx("a", 1))
    made, _ = await placed(world)
    assert isinstance(await extend(world, made, HOUR_MS), Extended)
    clock.advance(HOUR_MS)
    _, (second,) = await placed(world, start=HOUR_MS)
    assert second.until_ms == clock.read() + 2 * HOUR_MS


@pytest.mark.parametrize("seed", range(3))
async def test_up_to_what_is_answered_it_can_be_extended_and_not_a_millisecond_more(
    world: World, clock: DatabaseClock, seed: int, rounds: Rounds
) -> None:
    """In calendars of gangs, shares and amounts, each reservation in its turn."""
    clock.advance(0)
    await world.grant("gpu", 100_000)
    chance = random.Random(seed)
    for name in "ab":
        node = await add_host(world, name, vcpu=10, gpus=3)
        await world.send_inventory(node, [*node.devices, *mig_host(name, 2, 3)[:4]])
    made = []
    for _ in range(rounds(25, 200)):
        wish = random_wish(chance)
        if chance.random() < 0.3:
            wish = replace(wish, devices=(ask(2, device_class=DeviceClass.MIG),))
        reservation_id, outcome = await reserve(world, wish)
        if isinstance(outcome, Placed):
            made.append(reservation_id)
    stopped = 0
    for reservation_id in made:
        during = (await world.view(reservation_id)).during
        assert during is not None
        answer = await extend(world, reservation_id, 100 * HOUR_MS)
        if isinstance(answer, Extended):
            continue
        stopped += 1
        if answer.end_ms > during.end_ms:
            fits = await extend(world, reservation_id, answer.end_ms - during.end_ms)
            assert isinstance(fits, Extended)
        assert await extend(world, reservation_id, 1) == answer
    assert stopped
    await assert_no_overlap(world.database)
    await assert_hosts_hold(world.database)


# What is kept for one that waits counts as booked (spec 7.5).


async def test_extends_do_not_starve_the_oldest_that_waits(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    for name in "ab":
        await add_host(world, name, gpus=8)
    ends = clock.read() + 2 * HOUR_MS
    first, _ = await placed(world, devices=(ask(6),), duration_ms=2 * HOUR_MS)
    second, _ = await placed(world, devices=(ask(2),))
    beside, _ = await placed(world, devices=(ask(8),), duration_ms=5 * HOUR_MS)
    waits, _ = await reserve(world, Wish(devices=(ask(8),)))
    image = await tables(world.database)
    assert await extend(world, first, 1) == AvailableUntil(ends)
    assert await extend(world, second, HOUR_MS + 1) == AvailableUntil(ends)
    assert await tables(world.database) == image, "what is kept is booked for the look alone"
    assert isinstance(await extend(world, second, HOUR_MS), Extended)
    assert await extend(world, second, 1) == AvailableUntil(ends)
    assert isinstance(await extend(world, beside, 9 * HOUR_MS), Extended)
    await pass_at(world, clock, ends)
    assert (await world.view(waits)).state is State.BINDING


async def test_an_extend_leaves_the_turnaround_before_what_is_kept(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    world.pool_id = await world.add_pool("slow", PoolPolicy(turnaround_ms=60_000))
    await world.add_node(dgx("a", 2), world.pool_id)
    made, _ = await placed(world)
    await placed(world, duration_ms=3 * HOUR_MS)
    await reserve(world, Wish(devices=(ask(2),)))
    until = AvailableUntil(clock.read() + 3 * HOUR_MS)
    assert await extend(world, made, 9 * HOUR_MS) == until
    assert isinstance(await extend(world, made, 2 * HOUR_MS), Extended)
    assert await extend(world, made, 1) == until


async def test_cpus_that_are_kept_are_in_the_way_of_an_extend(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node([gpu("h"), gpu("a", model="A100")])
    await learn(world, node, "devices.limits")
    await give_capacity(world, node, 8)
    made, _ = await placed(world, devices=(ask(1, model="H100"),), resources=Resources(vcpu=5))
    other = Wish(devices=(ask(1, model="A100"),), resources=Resources(vcpu=4))
    waits, _ = await reserve(world, other)
    assert await extend(world, made, HOUR_MS) == AvailableUntil(clock.read() + HOUR_MS)
    await world.end_if_live(waits)
    assert isinstance(await extend(world, made, HOUR_MS), Extended)


async def pass_at(world: World, clock: DatabaseClock, now_ms: int) -> None:
    """Work off what is due then, the nodes in touch."""
    clock.set(now_ms)
    for node in world.nodes:
        await world.connect(node)
    await world.work()
