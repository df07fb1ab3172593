"""Claims of GPUs while somebody else's transaction is open: who waits, and holding what."""

import asyncio

import pytest

from bcd.placer.capacity.inventory import apply_inventory
from bcd.store import nodes
from tests.placer.capacity.test_gpu_claims import bookable, receive
from tests.placer.waiting import Rival, until_locked_out
from tests.placer.world import World, dgx

CLAIM = "INSERT INTO gpu_claims (uuid, node_id) VALUES (%s, %s)"
LOCK = "SELECT 1 FROM gpu_claims WHERE uuid = %s FOR UPDATE NOWAIT"


@pytest.mark.parametrize("commits", [True, False])
async def test_who_comes_second_waits_to_see_whether_the_first_commits(
    world: World, database_url: str, rival: Rival, commits: bool
) -> None:
    first, second = await world.add_node(()), await world.add_node(())
    rival.execute(CLAIM, ("GPU-a-1", first.id))
    await receive(world, second, dgx("a", 2))
    applying = asyncio.create_task(world.database.write(apply_inventory, second.id))
    await until_locked_out(database_url)
    if commits:
        rival.commit()
    else:
        rival.rollback()
    await applying
    assert await bookable(world, second) == {"GPU-a-0"} | (set() if commits else {"GPU-a-1"})


async def test_gpus_are_claimed_in_the_order_of_their_ids(
    world: World, database_url: str, rival: Rival
) -> None:
    first, second = await world.add_node(()), await world.add_node(())
    rival.execute("SET lock_timeout = '100ms'")
    rival.execute(CLAIM, ("GPU-a-0", first.id))
    await receive(world, second, [*reversed(dgx("a", 4))])
    applying = asyncio.create_task(world.database.write(apply_inventory, second.id))
    await until_locked_out(database_url)
    for number in (1, 2, 3):
        rival.execute(CLAIM, (f"GPU-a-{number}", first.id))
    rival.commit()
    await applying
    assert await bookable(world, second) == set()


async def test_gpus_are_let_go_of_in_the_order_of_their_ids(
    world: World, database_url: str, rival: Rival
) -> None:
    node = await world.add_node([*reversed(dgx("a", 4))])
    rival.execute(LOCK, ("GPU-a-0",))
    removing = asyncio.create_task(world.database.write(nodes.remove, node.id))
    await until_locked_out(database_url)
    for number in (1, 2, 3):
        rival.execute(LOCK, (f"GPU-a-{number}",))
    rival.execute("SELECT 1 FROM nodes WHERE id = %s FOR UPDATE NOWAIT", (node.id,))
    rival.rollback()
    await removing
    assert await world.rows("SELECT 1 FROM gpu_claims") == []
