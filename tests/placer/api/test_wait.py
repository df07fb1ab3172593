"""Holding an answer until its operation ends: by wake-up, by re-reading, by time."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from bcd.model.reservation import OperationState, Reservation
from bcd.placer.api.wait import wait_for_operation
from bcd.store.database import Database
from tests.placer.records import Beside
from tests.placer.waiting import until
from tests.placer.world import World

SECOND_MS = 1_000


@pytest.fixture
async def running(world: World, database_url: str) -> Reservation:
    """A reservation whose operation still runs, as a queued one's would."""
    made = await world.create(1)
    Beside(database_url).execute("UPDATE reservations SET operation = 'running'")
    return await world.view(made.id)


async def finish(world: World, *, wake: bool = True) -> None:
    """Let the operation end, with the wake-up or without."""
    (row,) = await world.rows("SELECT id FROM reservations")

    def write(tx: Any) -> None:
        tx.run("UPDATE reservations SET operation = 'succeeded'")
        if wake:
            tx.wake("reservation", row["id"])

    await world.database.write(write)


@dataclass
class Counting:
    """A database that counts reads and lets a test act after one of them."""

    database: Database
    reads: int = 0
    listening: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def wakes(self) -> "Counting":
        return self

    def listen(self, topic: str, listener: Callable[[str], None]) -> Callable[[], None]:
        stop = self.database.wakes.listen(topic, listener)
        self.listening += 1

        def stopped() -> None:
            self.listening -= 1
            stop()

        return stopped

    async def read(self, *work: Any) -> Any:
        self.reads += 1
        return await self.database.read(*work)


def counting(world: World) -> tuple[Counting, Database]:
    made = Counting(world.database)
    return made, cast(Database, made)


async def test_an_operation_that_is_over_is_answered_without_a_read(world: World) -> None:
    made = await world.create(1)
    counted, database = counting(world)
    assert await wait_for_operation(database, made, 30 * SECOND_MS) is made
    assert (counted.reads, counted.listening) == (0, 0)


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_without_a_time_to_wait_it_is_answered_as_it_is(
    world: World, running: Reservation, timeout_ms: int
) -> None:
    counted, database = counting(world)
    assert await wait_for_operation(database, running, timeout_ms) is running
    assert counted.reads == 0


async def test_a_wake_up_ends_the_wait(world: World, running: Reservation) -> None:
    counted, database = counting(world)
    waiting = asyncio.create_task(wait_for_operation(database, running, 30 * SECOND_MS))
    await until(lambda: counted.listening == 1)
    await finish(world)
    answer = await waiting
    assert answer.operation is OperationState.SUCCEEDED
    assert counted.listening == 0


async def test_a_lost_wake_up_costs_a_rest_and_no_change(
    world: World, running: Reservation
) -> None:
    counted, database = counting(world)
    waiting = asyncio.create_task(wait_for_operation(database, running, 30 * SECOND_MS))
    await until(lambda: counted.listening == 1)
    await finish(world, wake=False)
    assert (await waiting).operation is OperationState.SUCCEEDED
    assert counted.reads <= 3


async def test_a_time_that_is_up_is_no_error_but_the_last_read(
    world: World, running: Reservation
) -> None:
    counted, database = counting(world)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    answer = await wait_for_operation(database, running, 400)
    assert 0.35 <= loop.time() - begun < 5
    assert answer == running
    assert 2 <= counted.reads <= 5, "reads back off: 50, 100, 200 ms"


async def test_a_caller_that_goes_away_stops_the_wait(world: World, running: Reservation) -> None:
    counted, database = counting(world)
    waiting = asyncio.create_task(wait_for_operation(database, running, 30 * SECOND_MS))
    await until(lambda: counted.listening == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert counted.listening == 0


async def test_news_of_others_does_not_end_the_wait(world: World, running: Reservation) -> None:
    counted, database = counting(world)
    waiting = asyncio.create_task(wait_for_operation(database, running, 300))
    await until(lambda: counted.listening == 1)
    for number in range(5):
        await world.create(1, key=f"other{number}")
    assert (await waiting).operation is OperationState.RUNNING
    assert counted.reads <= 6


async def test_many_wait_for_one_and_all_are_answered(world: World, running: Reservation) -> None:
    counted, database = counting(world)
    waiting = [
        asyncio.create_task(wait_for_operation(database, running, 30 * SECOND_MS))
        for _ in range(16)
    ]
    await until(lambda: counted.listening == 16)
    await finish(world)
    answers: Mapping[OperationState, int] = {}
    for task in waiting:
        answer = await task
        answers = {**answers, answer.operation: answers.get(answer.operation, 0) + 1}
    assert answers == {OperationState.SUCCEEDED: 16}
