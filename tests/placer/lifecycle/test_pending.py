"""Waiting reservations: tried again in time, oldest first, each of them."""

from datetime import datetime

import pytest

from bcd.model.ids import ReservationId
from bcd.model.reservation import State
from bcd.placer.lifecycle.pending import Rest, retry_pending
from bcd.placer.lifecycle.transitions import Trigger
from bcd.store import work
from tests.clock import DatabaseClock
from tests.placer.records import assert_quota_adds_up
from tests.placer.world import World, dgx

HOUR_MS = 3_600_000


async def waiting(world: World, amount: int, count: int = 1) -> list[ReservationId]:
    return [(await world.create(count, key=f"w{i:03}")).id for i in range(amount)]


async def in_state(world: World, state: str) -> list[ReservationId]:
    rows = await world.rows("SELECT id FROM reservations WHERE state = :s ORDER BY seq", s=state)
    return [row["id"] for row in rows]


async def settled(world: World) -> set[ReservationId]:
    """Those that found a place."""
    return set(await in_state(world, "placed")) | set(await in_state(world, "binding"))


async def test_a_waiting_reservation_is_tried_again_every_thirty_seconds(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    made = await world.create(1)
    first = (await world.view(made.id)).version
    await world.database.write(lambda tx: tx.run("DELETE FROM pool_changes"))
    (before,) = await world.rows("SELECT wake_ms FROM work")
    assert before["wake_ms"] == clock.read() + 30_000
    clock.advance(30_000)
    await world.work()
    (after,) = await world.rows("SELECT wake_ms FROM work")
    assert after["wake_ms"] == clock.read() + 30_000
    assert (await world.view(made.id)).version == first, "nothing changed, so nothing was written"


async def test_the_condition_follows_what_is_in_the_way_and_keeps_its_time(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    made = await world.create(1)
    (before,) = made.conditions
    clock.advance(60_000)
    await world.add_node(dgx("a"), trusted=False)
    await world.work()
    (after,) = (await world.view(made.id)).conditions
    assert "no nodes" in before.message
    assert "trust rejected 1" in after.message
    assert after.last_transition_time == before.last_transition_time
    assert await world.event_names(made.id) == ["pending"]


async def test_a_new_node_takes_in_who_waits_at_once_with_the_full_window(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    made = await world.create(1)
    clock.advance(10 * 60_000)
    await world.add_node(dgx("a"))
    await world.work()
    placed = await world.view(made.id)
    assert placed.state is State.BINDING
    assert placed.during is not None
    assert (placed.during.start_ms, placed.during.end_ms) == (
        clock.read(),
        clock.read() + HOUR_MS,
    )
    assert placed.conditions == ()
    assert await world.event_names(made.id) == ["pending", "placed", "binding"]
    assert await world.used() == 1


@pytest.mark.parametrize("how", ["released", "cancelled"])
async def test_freed_devices_go_to_the_oldest_that_wait(
    world: World, clock: DatabaseClock, how: str
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a", 2))
    holder = await world.create(2, key="holder")
    ids = await waiting(world, 5)
    await world.end(holder.id, Trigger(how))
    await world.work()
    assert await settled(world) == set(ids[:2])
    await world.end(ids[1], Trigger.RELEASED)
    await world.work()
    assert await settled(world) == {ids[0], ids[2]}


async def test_one_that_does_not_fit_does_not_stop_those_behind_it(world: World) -> None:
    large = await world.create(8, key="large")
    small = await world.create(1, key="small")
    await world.add_node(dgx("a", 4))
    await world.work()
    assert (await world.view(large.id)).state is State.PENDING
    assert (await world.view(small.id)).state is State.BINDING


async def test_a_long_queue_is_looked_through_to_its_end(world: World) -> None:
    """More than one transaction looks at: 130 that do not fit, and one behind them that does."""
    await world.grant("gpu", 2000)
    await waiting(world, 130, count=8)
    last = await world.create(1, key="last")
    await world.add_node(dgx("a", 4))
    await world.work()
    assert (await world.view(last.id)).state is State.BINDING
    assert len(await in_state(world, "pending")) == 130
    (row,) = await world.rows("SELECT count(*) AS n FROM work WHERE key = :k", k=world.pool_id)
    assert row["n"] == 1


async def test_a_long_queue_that_fits_is_placed_whole(world: World) -> None:
    ids = await waiting(world, 130)
    for number in range(17):
        await world.add_node(dgx(f"n{number}"))
    await world.work()
    assert await settled(world) == set(ids)
    await world.work()
    rows = await world.rows("SELECT key FROM work WHERE key = :pool", pool=world.pool_id)
    assert rows == [], "nobody waits, so the pool needs no looking at"
    await assert_quota_adds_up(world.database)


async def test_capacity_that_is_freed_during_a_pass_restarts_it_from_the_oldest(
    world: World,
) -> None:
    await world.add_node(dgx("a", 8))
    holder = await world.create(8, key="holder")
    oldest = (await waiting(world, 1, count=8))[0]
    for number in range(80):
        await world.create(8, key=f"x{number}")
    (claim,) = await claim_pool(world)
    rest = await retry(world, claim, Rest())
    assert rest is not None
    await world.end(holder.id, Trigger.RELEASED)
    assert await retry(world, claim, rest) is None, "the pass was taken over"
    assert await settled(world) == set()
    await world.work()
    assert await settled(world) == {oldest}


async def claim_pool(world: World) -> list[work.Claim]:
    await world.database.write(lambda tx: work.poke(tx, world.pool_id, 0))
    claims = await world.database.write(work.claim, 100)
    return [claim for claim in claims if claim.key == world.pool_id]


async def retry(world: World, claim: work.Claim, rest: Rest) -> Rest | None:
    return await world.database.write(retry_pending, claim, world.placements, world.signer, rest)


async def test_a_pass_without_its_claim_changes_nothing(world: World) -> None:
    ids = await waiting(world, 1)
    (claim,) = await claim_pool(world)
    await world.add_node(dgx("a"))  # pokes the pool
    assert await retry(world, claim, Rest()) is None
    assert await in_state(world, "pending") == ids


async def test_a_pass_keeps_the_moment_at_which_devices_become_free(
    world: World, clock: DatabaseClock
) -> None:
    """The next pass is due then, and not up to thirty seconds later."""
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    active = await world.active(node, count=8)
    late = await world.create(8, key="late")
    assert active.during is not None
    end = active.during.end_ms
    clock.set(end - 12_000)
    await world.work()
    (row,) = await world.rows("SELECT wake_ms FROM work WHERE key = :k", k=world.pool_id)
    assert row["wake_ms"] == end
    clock.set(end)
    await world.work()
    assert (await world.view(late.id)).state is State.BINDING


@pytest.mark.parametrize("count", [1, 2, 5, 8])
async def test_the_time_that_the_condition_names_is_true(
    world: World, clock: DatabaseClock, count: int
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    for number in range(8):
        await world.create(1, key=f"h{number}", duration=f"{number + 1}h")
        await world.work()
    made = await world.create(count, key="asker")
    moment = made.conditions[0].message.split("from ")[1].split(" on")[0]
    told = round(datetime.fromisoformat(moment.replace(" UTC", "Z")).timestamp() * 1000)
    clock.set(told - 1000)
    await refresh(world)
    assert (await world.view(made.id)).state is State.PENDING
    clock.set(told)
    await refresh(world)
    assert (await world.view(made.id)).state is State.BINDING


async def refresh(world: World) -> None:
    """Nodes stay in touch while hours pass, and report what they hold."""
    for node in world.nodes:
        await world.connect(node)
        await world.bind(node)
    await world.work()
