"""Several placers share one queue on one PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from bcd.model.pool import PlacerKind, PoolPolicy
from bcd.model.reservation import OperationState
from bcd.store import work
from tests.clock import DatabaseClock
from tests.placer.records import assert_no_overlap, assert_quota_adds_up
from tests.placer.world import World, dgx


@pytest.fixture
async def placers(world: World, clock: DatabaseClock) -> AsyncIterator[list[World]]:
    """Three placers over one pool with a queued placer and 32 GPUs."""
    clock.advance(0)
    world.pool_id = await world.add_pool("queued", PoolPolicy(placer=PlacerKind.QUEUED))
    for number in range(4):
        await world.add_node(dgx(f"n{number}"))
    databases = [clock.open(), clock.open()]
    yield [world, *(World(one, world.authority, world.pool_id) for one in databases)]
    for database in databases:
        await database.close()


async def test_three_placers_place_what_comes_in_once_and_lose_nobody(
    placers: list[World], clock: DatabaseClock
) -> None:
    world = placers[0]
    creates = asyncio.gather(*(placers[i % 3].create(1, key=f"k{i}") for i in range(60)))
    await asyncio.gather(*(placer.worker.work_due() for placer in placers for _ in range(8)))
    made = await creates
    for _ in range(6):
        clock.advance(work.TICK_MS)
        await asyncio.gather(*(placer.worker.work_due() for placer in placers))
    found = [await world.view(one.id) for one in made]
    assert {one.operation for one in found} == {OperationState.SUCCEEDED}
    names = [await world.event_names(one.id) for one in found]
    assert (
        names.count(["queued", "placed", "binding"])
        + names.count(["queued", "pending", "placed", "binding"])
        == 32
    )
    assert names.count(["queued", "pending"]) == 28
    await assert_no_overlap(world.database)
    await assert_quota_adds_up(world.database)
