"""Slots: shares of one GPU gather, and a GPU is whole or shared, never both (spec 7.4)."""

import random
from collections import Counter

import pytest

from bcd.model.pool import PoolPolicy, SharingMode, SharingPolicy
from bcd.model.reservation import Reservation, State
from bcd.placer.lifecycle.transitions import Trigger
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.records import assert_no_overlap
from tests.placer.world import World, dgx


async def add_pool(world: World, mode: SharingMode, replicas: int | None = None) -> None:
    """A pool that shares its GPUs is the world's own from now on."""
    policy = PoolPolicy(sharing=SharingPolicy(mode=mode, replicas=replicas))
    world.pool_id = await world.add_pool(mode.value, policy)
    await world.grant("gpu.slot", 1000)


async def slots(world: World, key: str, count: int) -> tuple[Reservation, Counter[str]]:
    """A reservation of slots, and how many of each GPU it was given."""
    made = await world.create(key=key, devices=[{"class": "gpu.slot", "count": count}])
    devices = [device.id for one in await world.live(made.id) for device in one.devices]
    return made, Counter(name.rpartition("::")[0] for name in devices)


async def test_slots_of_many_tenants_fill_one_gpu_before_the_next(world: World) -> None:
    await add_pool(world, SharingMode.TIME_SLICE)
    for name in "ab":
        await world.add_node(dgx(name, 2))
    given = Counter[str]()
    for number in range(8):
        _, one = await slots(world, f"{number}", 1)
        given += one
        assert sum(1 for count in given.values() if count < 4) <= 1
    assert sorted(given.values()) == [4, 4]
    assert (await world.create(2, key="whole")).state is State.PLACED
    assert (await world.create(1, key="one more")).state is State.PENDING
    await assert_no_overlap(world.database)


async def test_a_gpu_is_free_as_a_whole_once_its_last_slot_is(world: World) -> None:
    await add_pool(world, SharingMode.TIME_SLICE)
    await world.add_node(dgx("a", 1))
    first, _ = await slots(world, "1", 1)
    second, _ = await slots(world, "2", 1)
    whole = await world.create(1, key="whole")
    await world.end(first.id, Trigger.RELEASED)
    await world.work()
    assert (await world.view(whole.id)).state is State.PENDING
    await world.end(second.id, Trigger.RELEASED)
    await world.work()
    assert (await world.view(whole.id)).state is State.BINDING
    third, _ = await slots(world, "3", 1)
    assert third.state is State.PENDING


async def test_slots_shared_by_mps_lie_on_one_gpu(world: World) -> None:
    await add_pool(world, SharingMode.MPS, 4)
    await world.add_node(dgx("a", 2))
    for key, count in (("1", 3), ("2", 3)):
        _, given = await slots(world, key, count)
        assert list(given.values()) == [count]
    made, _ = await slots(world, "3", 2)
    assert made.state is State.PENDING
    assert "topology rejected 1" in made.conditions[0].message
    _, given = await slots(world, "4", 1)
    assert sum(given.values()) == 1


@pytest.mark.parametrize("seed", range(2))
async def test_no_history_of_slots_and_whole_gpus_overlaps(
    world: World, clock: DatabaseClock, seed: int, rounds: Rounds
) -> None:
    clock.advance(0)
    chance = random.Random(seed)
    await add_pool(world, chance.choice([SharingMode.TIME_SLICE, SharingMode.MPS]), 3)
    for name in "ab":
        await world.add_node(dgx(name, 3))
    made = []
    states = Counter[State]()
    for number in range(rounds(30, 200)):
        kind = chance.choice(["gpu", "gpu.slot"])
        devices = [{"class": kind, "count": chance.randint(1, 3)}]
        one = await world.create(key=f"k{number}", devices=devices, duration="30m")
        states[one.state] += 1
        made.append(one.id)
        if chance.random() < 0.5:
            await world.end_if_live(made.pop(chance.randrange(len(made))))
        clock.advance(chance.randint(0, 10 * 60_000))
        for node in world.nodes:
            await world.connect(node)
    assert states[State.PLACED]
    assert states[State.PENDING]
    await assert_no_overlap(world.database)
