"""Thirty-two creates at once for the last eight GPUs."""

import asyncio
from collections.abc import Sequence

from bcd.model.errors import QuotaExceeded
from bcd.model.reservation import Reservation, State
from bcd.placer.lifecycle.transitions import Trigger
from tests.conftest import Rounds
from tests.placer.records import assert_no_overlap, assert_quota_adds_up
from tests.placer.world import World, dgx

CALLERS = 32


async def race(worlds: Sequence[World], count: int, key: str) -> list[Reservation | BaseException]:
    """Everyone creates at once, spread over the placers."""
    creates = [worlds[i % len(worlds)].create(count, key=f"{key}-{i}") for i in range(CALLERS)]
    return await asyncio.gather(*creates, return_exceptions=True)


async def assert_won(
    world: World, answers: list[Reservation | BaseException], count: int, charged: int
) -> None:
    """Exactly as many were placed as fit, the rest waits or is over the quota."""
    made = [answer for answer in answers if isinstance(answer, Reservation)]
    refused = [answer for answer in answers if not isinstance(answer, Reservation)]
    assert len(made) == charged
    assert all(isinstance(error, QuotaExceeded) for error in refused), refused
    placed = [reservation for reservation in made if reservation.state is State.PLACED]
    waiting = [reservation for reservation in made if reservation.state is State.PENDING]
    assert len(placed) == 8 // count
    assert len(placed) + len(waiting) == len(made)
    assert {c.type for r in waiting for c in r.conditions} <= {"Unschedulable"}
    assert await world.used() == count * len(made)
    await assert_no_overlap(world.database)
    await assert_quota_adds_up(world.database)


async def clear(world: World, answers: list[Reservation | BaseException]) -> None:
    """End all that was made, those that wait first, so that nothing moves up."""
    made = [answer for answer in answers if isinstance(answer, Reservation)]
    for reservation in sorted(made, key=lambda r: r.state is State.PLACED):
        await world.end(reservation.id, Trigger.RELEASED)
    assert await world.used() == 0


async def run_races(worlds: Sequence[World], rounds: int) -> None:
    world = worlds[0]
    for name in "ab":
        await world.add_node(dgx(name, 4))
    await world.grant("gpu", 100_000)
    for number in range(rounds):
        count = (1, 2, 4)[number % 3]
        answers = await race(worlds, count, f"r{number}")
        await assert_won(world, answers, count, CALLERS)
        await clear(world, answers)
    await world.grant("gpu", 12)
    answers = await race(worlds, 1, "quota")
    await assert_won(world, answers, 1, 12)
    await clear(world, answers)


async def test_exactly_as_many_win_the_last_gpus_as_there_are(world: World, rounds: Rounds) -> None:
    await run_races([world], rounds(30, 300))


async def test_all_that_wait_move_up_as_the_winners_leave(world: World) -> None:
    await world.add_node(dgx("a"))
    answers = await race([world], 1, "x")
    left = [answer.id for answer in answers if isinstance(answer, Reservation)]
    assert len(left) == CALLERS
    for _ in range(CALLERS // 8):
        await world.work()
        running = [i for i in left if (await world.view(i)).state is State.BINDING]
        assert len(running) == 8
        await asyncio.gather(*(world.end(i, Trigger.RELEASED) for i in running))
        left = [i for i in left if i not in running]
        await assert_no_overlap(world.database)
        await assert_quota_adds_up(world.database)
    assert left == []
    assert await world.used() == 0


async def test_creates_releases_and_retries_at_once_never_share_a_device(
    world: World, rounds: Rounds
) -> None:
    for name in "ab":
        await world.add_node(dgx(name, 4))
    for number in range(rounds(10, 100)):
        answers = await race([world], 1, f"a{number}")
        first = [answer.id for answer in answers if isinstance(answer, Reservation)]
        mixed = await asyncio.gather(
            *(world.end_if_live(i) for i in first),
            *(world.create(2, key=f"b{number}-{i}") for i in range(16)),
            world.worker.work_due(),
            world.worker.work_due(),
            return_exceptions=True,
        )
        assert not [answer for answer in mixed if isinstance(answer, BaseException)]
        await world.work()
        second = [answer for answer in mixed if isinstance(answer, Reservation)]
        states = [(await world.view(r.id)).state for r in second]
        assert states.count(State.BINDING) == 4
        await assert_no_overlap(world.database)
        await assert_quota_adds_up(world.database)
        for reservation in sorted(second, key=lambda r: r.id):
            await world.end_if_live(reservation.id)
    assert await world.used() == 0
