"""The queue's worker: fenced claims, leases that come back, and work that poisons nobody else's."""

import asyncio
import logging

import pytest

from bcd.model.ids import ReservationId
from bcd.model.reservation import State
from bcd.placer.lifecycle.judge import JUDGED_AT_ONCE, judge_node
from bcd.placer.lifecycle.reconcile import Reconciler
from bcd.placer.lifecycle.worker import Worker
from bcd.store import work
from bcd.store.work import LEASE_MS, TAKE_LEASE_MS, Claim
from tests.clock import DatabaseClock
from tests.placer.world import World, dgx

MINUTE_MS = 60_000


async def claims(world: World) -> list[Claim]:
    return list(await world.database.write(work.claim, 100))


async def reconcile(world: World, claim: Claim) -> None:
    await world.database.write(Reconciler(world.placements, world.signer).reconcile, claim)


async def moment(world: World, key: str) -> int | None:
    rows = await world.rows("SELECT wake_ms FROM work WHERE key = :key", key=key)
    return rows[0]["wake_ms"] if rows else None


async def test_a_pass_works_on_what_is_due_and_tells_the_next_moment(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await world.create(1)
    while (await world.worker.work_due())[0]:
        pass
    assert (await world.view(made.id)).state is State.BINDING
    rest_s = await world.worker.work_pass()
    assert rest_s == 5 * 60.0
    clock.advance(4 * MINUTE_MS)
    assert await world.worker.work_pass() == 60.0


async def test_an_empty_queue_is_looked_at_every_second(world: World) -> None:
    assert await world.worker.work_pass() == 1.0


async def test_more_than_one_batch_is_gone_on_with_at_once(world: World) -> None:
    for number in range(5):
        await world.add_node(dgx(f"n{number}"))
    for number in range(40):
        await world.create(1, key=f"{number}")
    assert await world.worker.work_pass() == 0.0


async def test_a_claim_is_one_workers_until_its_lease_is_over(
    world: World, clock: DatabaseClock
) -> None:
    """A worker that dies with its claim leaves it to the next."""
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await world.create(1)
    await world.work()
    clock.advance(5 * MINUTE_MS)
    lost = await claims(world)
    assert [claim.key for claim in lost] == [made.id]
    assert await claims(world) == []
    clock.advance(LEASE_MS - 1)
    assert await claims(world) == []
    clock.advance(1)
    await world.work()
    assert await world.event_names(made.id) == ["placed", "binding", "placed", "binding"]


async def test_a_worker_that_comes_back_late_changes_nothing(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await world.create(1)
    await world.work()
    clock.advance(5 * MINUTE_MS)
    (late,) = await claims(world)
    clock.advance(LEASE_MS)
    await world.work()
    before = await world.view(made.id)
    await reconcile(world, late)
    assert await world.view(made.id) == before
    (row,) = await world.rows("SELECT attempts FROM reservations")
    assert row["attempts"] == 1


async def test_a_judged_report_takes_the_subject_from_a_worker_that_holds_it(
    world: World, clock: DatabaseClock
) -> None:
    """The work is done by whoever has the newest claim."""
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    made = await world.create(1)
    await world.work()
    (allocation,) = await world.live(made.id)
    await world.database.write(work.poke, made.id, clock.read())
    (claim,) = await claims(world)
    await world.send(node, node.seal(node.report(allocation)), allocation.id)
    judged = await world.database.write(judge_node, node.id)
    assert judged.count == 1
    await reconcile(world, claim)
    assert (await world.view(made.id)).state is State.BINDING, "the claim was fenced"
    assert await claims(world) == [], "it is taken already"
    await reconcile(world, *judged.claims)
    assert (await world.view(made.id)).state is State.ACTIVE


async def test_a_judge_that_dies_leaves_the_subject_to_the_next_worker(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    made = await world.create(1)
    await world.work()
    (allocation,) = await world.live(made.id)
    await world.send(node, node.seal(node.report(allocation)), allocation.id)
    await world.database.write(judge_node, node.id)
    clock.advance(TAKE_LEASE_MS)
    await world.work()
    assert (await world.view(made.id)).state is State.ACTIVE


async def test_work_about_nothing_is_dropped(world: World) -> None:
    await world.database.write(work.poke, "rsv_nobody", 0)
    await world.work()
    assert await moment(world, "rsv_nobody") is None


async def test_work_about_a_pool_that_is_gone_does_not_stop_the_rest(world: World) -> None:
    await world.add_node(dgx("a"))
    await world.database.write(work.poke, "pool_gone", 0)
    made = await world.create(1)
    await world.work()
    assert (await world.view(made.id)).state is State.BINDING
    assert await moment(world, "pool_gone") is not None


async def test_poison_is_tried_again_ever_more_seldom_and_stops_nobody(
    world: World, clock: DatabaseClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that cannot be read stands for whatever breaks."""
    clock.advance(0)
    await world.add_node(dgx("a"))
    poison = await world.create(1, key="poison")
    await break_it(world, poison.id)
    waits = []
    for number in range(9):
        healthy = await world.create(1, key=f"{number}") if number < 7 else None
        now = clock.read()
        with caplog.at_level(logging.WARNING):
            await world.work()
        if healthy is not None:
            assert (await world.view(healthy.id)).state is State.BINDING
        again = await moment(world, poison.id)
        assert again is not None
        waits.append(again - now)
        clock.set(again)
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    assert "work failed and will be tried again" in caplog.text
    await mend_it(world, poison.id)
    await world.work()
    assert await world.event_names(poison.id) == ["placed", "binding"]


async def break_it(world: World, reservation_id: ReservationId) -> None:
    await world.database.write(
        lambda tx: tx.run(
            "UPDATE reservations SET conditions = 'x' WHERE id = :id", id=reservation_id
        )
    )


async def mend_it(world: World, reservation_id: ReservationId) -> None:
    await world.database.write(
        lambda tx: tx.run(
            "UPDATE reservations SET conditions = '[]' WHERE id = :id", id=reservation_id
        )
    )


async def test_two_workers_share_the_work_and_do_none_of_it_twice(world: World) -> None:
    other = Worker(world.database, Reconciler(world.placements, world.signer))
    for number in range(8):
        await world.add_node(dgx(f"n{number}"))
    made = [await world.create(1, key=f"{number}") for number in range(60)]
    for _ in range(4):
        await asyncio.gather(world.worker.work_due(), other.work_due())
    for reservation in made:
        assert await world.event_names(reservation.id) == ["placed", "binding"]
        assert (await world.view(reservation.id)).version == 3


async def test_a_node_that_floods_takes_no_others_turn(world: World, clock: DatabaseClock) -> None:
    """What a flood adds between two passes waits for the next one."""
    clock.advance(0)
    loud, quiet = await world.add_node(dgx("a")), await world.add_node(dgx("b"))
    made = [await world.create(8, key=key) for key in ("one", "two")]
    while (await world.worker.work_due())[0]:
        pass
    held = {(await world.live(one.id))[0].node_id: (await world.live(one.id))[0] for one in made}
    flood = held[loud.id]
    for _ in range(2 * JUDGED_AT_ONCE):
        await world.send(loud, loud.seal(loud.report(flood)), flood.id)
    await world.send(quiet, quiet.seal(quiet.report(held[quiet.id])), held[quiet.id].id)
    assert await world.worker.judge_pass() == 0.0
    unjudged = await world.rows("SELECT node_id FROM reports WHERE verdict IS NULL")
    assert [row["node_id"] for row in unjudged] == [loud.id] * JUDGED_AT_ONCE
    assert await world.worker.judge_pass() == 0.0
    assert await world.worker.judge_pass() is None
