"""The queued placer: taken in at once, placed in batches, oldest first (spec 7.1, 7.6, 8)."""

import asyncio
from typing import Any

import pytest

from bcd.model.errors import QuotaExceeded, Unavailable
from bcd.model.ids import ReservationId
from bcd.model.pool import PlacerKind, PoolPolicy
from bcd.model.reservation import OperationState, Reservation, State
from bcd.placer.lifecycle.pending import Rest, retry_pending
from bcd.placer.lifecycle.reconcile import Reconciler
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.lifecycle.worker import Worker
from bcd.placer.placement.booking import Placed, Placements
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store import work
from bcd.store.database import Overlap, Transaction
from bcd.store.pools import PoolLock
from bcd.store.reservations import StoredReservation
from tests.clock import DatabaseClock
from tests.placer.records import assert_no_overlap, assert_quota_adds_up, count, tables
from tests.placer.world import World, dgx


@pytest.fixture
async def world(world: World, clock: DatabaseClock) -> World:
    """One node of eight GPUs in a pool with a queued placer."""
    clock.advance(0)
    world.pool_id = await world.add_pool("queued", PoolPolicy(placer=PlacerKind.QUEUED))
    await world.add_node(dgx("a"))
    await world.work()
    return world


async def states(world: World, made: list[Reservation]) -> list[State]:
    return [(await world.view(one.id)).state for one in made]


async def queue(world: World, amount: int, each: int = 1) -> list[Reservation]:
    return [await world.create(each, key=f"q{i:03}") for i in range(amount)]


async def test_a_create_is_taken_in_charged_and_left_to_the_queue(
    world: World, clock: DatabaseClock
) -> None:
    made = await world.create(4)
    assert (made.state, made.operation) == (State.PENDING, OperationState.RUNNING)
    assert made.during is None
    (condition,) = made.conditions
    assert (condition.type, condition.status) == ("Queued", "True")
    assert await world.used() == 4
    assert await count(world.database, "SELECT count(*) FROM bookings") == 0
    assert await world.event_names(made.id) == ["queued"]
    assert await world.create(4) == made, "the same key finds it"
    (row,) = await world.rows("SELECT wake_ms FROM work WHERE key = :k", k=world.pool_id)
    assert row["wake_ms"] == clock.read()


async def test_the_queue_ends_the_operation_placed_or_found_unschedulable(world: World) -> None:
    first, second = await world.create(8, key="first"), await world.create(8, key="second")
    await world.work()
    placed, waits = await world.view(first.id), await world.view(second.id)
    assert (placed.state, placed.operation) == (State.BINDING, OperationState.SUCCEEDED)
    assert placed.conditions == ()
    assert (waits.state, waits.operation) == (State.PENDING, OperationState.SUCCEEDED)
    assert [c.type for c in waits.conditions] == ["Unschedulable"]
    assert await world.event_names(first.id) == ["queued", "placed", "binding"]
    assert await world.event_names(second.id) == ["queued", "pending"]
    await world.end(first.id, Trigger.RELEASED)
    await world.work()
    assert await world.event_names(second.id) == ["queued", "pending", "placed", "binding"]
    await assert_quota_adds_up(world.database)


async def test_the_oldest_gets_what_there_is(world: World) -> None:
    made = await queue(world, 6, each=2)
    await world.work()
    assert await states(world, made) == [State.BINDING] * 4 + [State.PENDING] * 2


async def test_a_long_queue_is_worked_off_in_one_pass(world: World) -> None:
    for number in range(9):
        await world.add_node(dgx(f"n{number}"))
    made = await queue(world, 80)
    await world.worker.work_due()
    assert set(await states(world, made)) == {State.PLACED}
    assert await count(world.database, "SELECT count(*) FROM bookings") == 80
    rows = await world.rows("SELECT key FROM work WHERE key = :pool", pool=world.pool_id)
    assert rows == []
    await assert_no_overlap(world.database)
    await assert_quota_adds_up(world.database)


async def test_the_condition_tells_the_place_in_the_queue(world: World) -> None:
    made = await queue(world, 3, each=8)
    texts = [(await world.view(one.id)).conditions[0].message for one in made]
    assert "first in the pool's queue" in texts[0]
    assert "1 ahead of it in the pool's queue" in texts[1]
    assert "2 ahead of it in the pool's queue" in texts[2]
    await world.work()
    (condition,) = (await world.view(made[2].id)).conditions
    assert condition.type == "Unschedulable"
    assert "1 ahead of it in the pool's queue" in condition.message
    stored = (await world.rows("SELECT conditions FROM reservations WHERE state = 'pending'"))[0]
    assert "queue" not in stored["conditions"], "counted when it is read"


async def test_a_queued_one_can_be_given_up_and_gets_its_charge_back(world: World) -> None:
    made = await world.create(4)
    assert (await world.end(made.id, Trigger.CANCELLED)).state is State.CANCELLED
    await world.work()
    assert await world.event_names(made.id) == ["queued", "cancelled"]
    assert await world.used() == 0
    assert await count(world.database, "SELECT count(*) FROM bookings") == 0


async def test_a_refused_charge_leaves_a_draft_and_no_queue(world: World) -> None:
    await world.grant("gpu", 3)
    with pytest.raises(QuotaExceeded):
        await world.create(4)
    assert await count(world.database, "SELECT count(*) FROM events") == 0


async def test_a_rehearsal_says_what_the_placer_would_come_to(world: World) -> None:
    before = await tables(world.database)
    assert (await world.create(4, dryRun=True)).state is State.PLACED
    assert (await world.create(9, dryRun=True)).state is State.PENDING
    assert dict(await tables(world.database)) == dict(before)


async def test_what_was_taken_in_survives_the_placer(world: World, clock: DatabaseClock) -> None:
    """A placer dies after it claimed the pool: another one goes on when the claim has run out."""
    made = await world.create(4)
    await claim_pool(world)
    after = World(world.database, world.authority, world.pool_id)
    await after.work()
    assert (await world.view(made.id)).state is State.PENDING
    clock.advance(work.LEASE_MS)
    await after.work()
    assert (await world.view(made.id)).state is State.BINDING


# One pass


class Stumbling(Placements):
    """Places, and then runs into what ``errors`` says for a reservation, once."""

    def __init__(self, errors: dict[ReservationId, Exception]) -> None:
        super().__init__()
        self._errors = errors

    def place(
        self, tx: Transaction, held: PoolLock, row: StoredReservation, *args: Any, **kwargs: Any
    ) -> Placed | Unschedulable:
        outcome = super().place(tx, held, row, *args, **kwargs)
        if row.id in self._errors:
            raise self._errors.pop(row.id)
        return outcome


@pytest.mark.parametrize("error", [Overlap("taken"), Unavailable("changes too fast")])
async def test_what_one_of_a_batch_runs_into_undoes_nothing_of_the_others(
    world: World, clock: DatabaseClock, error: Exception
) -> None:
    made = await queue(world, 4, each=2)
    placements = Stumbling({made[1].id: error})
    world.worker = Worker(world.database, Reconciler(placements, world.signer))
    await world.worker.work_due()
    assert await states(world, made) == [
        State.PLACED,
        State.PENDING,
        State.PLACED,
        State.PLACED,
    ]
    assert await world.event_names(made[1].id) == ["queued"]
    assert await count(world.database, "SELECT count(*) FROM bookings") == 6
    assert len(await world.rows("SELECT id FROM allocations")) == 3
    clock.advance(work.TICK_MS)
    await world.work()
    assert await states(world, made) == [State.BINDING] * 4
    await assert_no_overlap(world.database)
    await assert_quota_adds_up(world.database)


async def claim_pool(world: World) -> work.Claim:
    claims = await world.database.write(work.claim, 100)
    (claim,) = [claim for claim in claims if claim.key == world.pool_id]
    return claim


async def run_batch(world: World, claim: work.Claim, rest: Rest) -> Rest | None:
    return await world.database.write(retry_pending, claim, world.placements, world.signer, rest)


async def test_newcomers_do_not_send_a_pass_back_to_the_start(world: World) -> None:
    """Else the end of a busy queue would never be looked at."""
    await world.grant("gpu", 10_000)
    made = await queue(world, 70, each=8)
    claim = await claim_pool(world)
    rest: Rest | None = Rest()
    passes = 0
    while rest is not None:
        rest = await run_batch(world, claim, rest)
        passes += 1
        if passes < 3:
            made.append(await world.create(8, key=f"late{passes}"))
    assert passes == 3
    operations = [(await world.view(one.id)).operation for one in made]
    assert set(operations) == {OperationState.SUCCEEDED}


async def test_one_that_comes_in_behind_the_pass_is_looked_at_within_a_second(
    world: World, clock: DatabaseClock
) -> None:
    """Its draft is older than what the pass has seen: its charge was refused before."""
    await world.grant("gpu", 0)
    with pytest.raises(QuotaExceeded):
        await world.create(1, key="old")
    await world.grant("gpu", 10_000)
    await queue(world, 40, each=9)
    claim = await claim_pool(world)
    rest = await run_batch(world, claim, Rest())
    assert rest is not None
    late = await world.create(1, key="old")
    assert await run_batch(world, claim, rest) is None
    assert (await world.view(late.id)).operation is OperationState.RUNNING
    clock.advance(work.TICK_MS)
    await world.work()
    assert (await world.view(late.id)).state is State.BINDING


async def test_creates_passes_and_releases_at_once_lose_nobody(world: World) -> None:
    for round_number in range(5):
        creates = [world.create(1, key=f"r{round_number}-{i}") for i in range(24)]
        answers = await asyncio.gather(*creates, *(world.worker.work_due() for _ in range(6)))
        made = [answer for answer in answers if isinstance(answer, Reservation)]
        await world.work()
        found = [await world.view(one.id) for one in made]
        assert {one.operation for one in found} == {OperationState.SUCCEEDED}
        assert [one.state for one in found].count(State.BINDING) == 8
        await assert_no_overlap(world.database)
        await assert_quota_adds_up(world.database)
        waiting_first = sorted(found, key=lambda one: one.state is State.BINDING)
        for one in waiting_first:
            await world.end(one.id, Trigger.RELEASED)
    assert await world.used() == 0


async def test_who_was_queued_before_the_pool_places_inline_is_overtaken_by_nobody(
    world: World,
) -> None:
    """The younger one would fit beside the oldest, for which alone something is kept."""
    before = await queue(world, 2, each=4)
    await world.set_policy(placer="inline")
    young = await world.create(4, key="young")
    assert (young.state, young.operation) == (State.PENDING, OperationState.RUNNING)
    assert await world.event_names(young.id) == ["queued"]
    await world.work()
    assert await states(world, [*before, young]) == [State.BINDING, State.BINDING, State.PENDING]
    assert (await world.view(young.id)).operation is OperationState.SUCCEEDED
    await world.end(before[0].id, Trigger.RELEASED)
    await world.work()
    assert (await world.view(young.id)).state is State.BINDING
    await assert_quota_adds_up(world.database)


async def test_once_the_queue_is_worked_off_an_inline_pool_places_at_once(world: World) -> None:
    waits = await world.create(9, key="waits")
    await world.set_policy(placer="inline")
    await world.work()
    assert (await world.view(waits.id)).operation is OperationState.SUCCEEDED
    made = await world.create(4, key="young")
    assert (made.state, made.operation) == (State.PLACED, OperationState.SUCCEEDED)
