"""The pool's lock, its clock, and the record of which nodes changed."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from bcd.model.errors import Conflict, NotFound
from bcd.model.ids import NodeId, PoolId
from bcd.model.pool import PoolPolicy
from bcd.store import pools
from bcd.store.database import Database, Transaction
from bcd.store.pools import Change
from tests.clock import DatabaseClock
from tests.store.world import TENANT, make_pool

A, B, C = NodeId("node_a"), NodeId("node_b"), NodeId("node_c")
Point = tuple[int, str]


def note(
    tx: Transaction, pool_id: PoolId, nodes: Sequence[NodeId], what: Change = "bookings"
) -> Point:
    held = pools.lock(tx, pool_id)
    pools.note_changes(tx, held, nodes, what)
    return held.seq, held.token


def since(tx: Transaction, pool_id: PoolId, point: Point) -> Mapping[NodeId, Change] | None:
    return pools.changes_since(tx, pool_id, *point)


async def test_a_pool_reads_as_it_was_created(database: Database) -> None:
    policy = PoolPolicy(turnaround_ms=60_000)
    pool = await database.write(pools.create, "east", TENANT, "eu-1", policy)
    assert await database.read(pools.get, pool.id) == pool
    assert pool.policy == policy
    await database.write(make_pool, "centre")
    assert [found.name for found in await database.read(pools.every)] == ["centre", "east"]


async def test_a_pools_name_is_its_own(database: Database) -> None:
    await database.write(make_pool, "east")
    with pytest.raises(Conflict, match="east"):
        await database.write(make_pool, "east")


async def test_a_pool_that_is_not_there_is_not_found(database: Database) -> None:
    for work in (pools.get, pools.lock):
        with pytest.raises(NotFound):
            await database.write(work, PoolId("pool_none"))


async def test_the_time_under_the_lock_never_steps_back(
    database: Database, clock: DatabaseClock
) -> None:
    pool_id = await database.write(make_pool)
    times = []
    for moment in (2_000_000_000_000, 1_900_000_000_000, 2_000_000_000_001):
        await database.close()  # what this process saw of the clock is forgotten
        database = clock.open()
        clock.set(moment)
        times.append((await database.write(pools.lock, pool_id)).now_ms)
    await database.close()
    assert times == [2_000_000_000_000, 2_000_000_000_000, 2_000_000_000_001]


async def test_one_transaction_at_a_time_holds_a_pool(database: Database) -> None:
    pool_id = await database.write(make_pool)
    inside = 0

    def body(tx: Transaction) -> int:
        nonlocal inside
        now_ms = pools.lock(tx, pool_id).now_ms
        inside += 1
        assert inside == 1
        tx.all("SELECT * FROM nodes")
        inside -= 1
        return now_ms

    times = await asyncio.gather(*(database.write(body) for _ in range(20)))
    assert len(times) == 20


async def test_changes_since_a_point_name_each_node_once(database: Database) -> None:
    pool_id = await database.write(make_pool)
    start = await database.write(note, pool_id, [C])
    await database.write(note, pool_id, [A, B])
    end = await database.write(note, pool_id, [A])
    assert await database.read(since, pool_id, start) == {A: "bookings", B: "bookings"}
    assert await database.read(since, pool_id, end) == {}


async def test_a_nodes_own_change_outweighs_its_bookings(database: Database) -> None:
    pool_id = await database.write(make_pool)
    start = await database.write(note, pool_id, [C])
    await database.write(note, pool_id, [A, B], "node")
    await database.write(note, pool_id, [A])
    await database.write(note, pool_id, [B], "node")
    assert await database.read(since, pool_id, start) == {A: "node", B: "node"}


async def test_the_lock_shows_the_newest_change(database: Database) -> None:
    pool_id = await database.write(make_pool)
    held = await database.write(pools.lock, pool_id)
    assert (held.seq, held.token) == (0, "")
    noted = await database.write(note, pool_id, [A, B])
    held = await database.write(pools.lock, pool_id)
    assert (held.seq, held.token) == noted
    await database.write(note, pool_id, [])
    held = await database.write(pools.lock, pool_id)
    assert (held.seq, held.token) == noted


async def test_a_change_that_was_rolled_back_is_no_point_to_start_from(
    database: Database,
) -> None:
    """A reader that saw a number before its rollback must not take another change for it."""
    pool_id = await database.write(make_pool)
    await database.write(note, pool_id, [C])
    seen: list[Point] = []

    def fails(tx: Transaction) -> None:
        seen.append(note(tx, pool_id, [A]))
        raise KeyError

    with pytest.raises(KeyError):
        await database.write(fails)
    taken = await database.write(note, pool_id, [B])
    assert taken[0] == seen[0][0]
    assert await database.read(since, pool_id, seen[0]) is None
    assert await database.read(since, pool_id, taken) == {}


async def test_points_that_are_unknown_or_forgotten_are_said_so(database: Database) -> None:
    pool_id = await database.write(make_pool)
    first = await database.write(note, pool_id, [A])
    assert await database.read(since, pool_id, (first[0] + 1, "later")) is None
    assert await database.read(since, pool_id, (0, "")) is None
    for _ in range(3):
        await database.write(note, pool_id, [A] * 2048)
    assert await database.read(since, pool_id, first) is None
    newest = await database.write(note, pool_id, [B])
    await database.write(note, pool_id, [C])
    assert await database.read(since, pool_id, newest) == {C: "bookings"}
