"""The work queue: due subjects are claimed once, fenced by change, and come back after a crash."""

import asyncio

from bcd.store import work
from bcd.store.database import Database, Transaction
from bcd.store.work import LEASE_MS, TAKE_LEASE_MS, Claim
from tests.clock import DatabaseClock

NOW = 2_000_000_000_000


def schedule(tx: Transaction, key: str, wake_ms: int) -> None:
    work.schedule(tx, key, wake_ms)


async def claim_all(database: Database, limit: int = 100) -> list[Claim]:
    return list(await database.write(work.claim, limit))


def finish(tx: Transaction, claim: Claim, next_ms: int) -> bool:
    """What a worker does at the end of a pass."""
    if not work.holds(tx, claim):
        return False
    schedule(tx, claim.key, next_ms)
    return True


async def test_subjects_are_claimed_when_due_most_overdue_first(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(NOW)
    for key, wake_ms in (("late", NOW), ("later", NOW + 1), ("latest", NOW - 5), ("b", NOW)):
        await database.write(schedule, key, wake_ms)
    assert [claim.key for claim in await claim_all(database)] == ["latest", "b", "late"]
    assert await claim_all(database) == []
    clock.advance(1)
    assert [claim.key for claim in await claim_all(database)] == ["later"]


async def test_a_claim_takes_no_more_than_its_limit(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(NOW)
    for number in range(5):
        await database.write(schedule, f"k{number}", NOW - number)
    assert [claim.key for claim in await claim_all(database, 2)] == ["k4", "k3"]
    assert [claim.key for claim in await claim_all(database, 9)] == ["k2", "k1", "k0"]


async def test_no_two_workers_claim_one_subject(database: Database, clock: DatabaseClock) -> None:
    clock.set(NOW)
    for number in range(40):
        await database.write(schedule, f"k{number:02}", NOW)
    found = await asyncio.gather(*(claim_all(database, 7) for _ in range(8)))
    keys = [claim.key for claims in found for claim in claims]
    assert len(keys) == len(set(keys))
    keys += [claim.key for claim in await claim_all(database)]  # skipped while others held them
    assert sorted(keys) == [f"k{number:02}" for number in range(40)]


async def test_a_crashed_workers_claims_come_back_when_its_lease_runs_out(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(NOW)
    await database.write(schedule, "k", NOW)
    (first,) = await claim_all(database)
    assert await database.read(work.next_wake_ms) == NOW + LEASE_MS
    clock.advance(LEASE_MS - 1)
    assert await claim_all(database) == []
    clock.advance(1)
    (second,) = await claim_all(database)
    assert (first.attempts, second.attempts) == (1, 2)
    assert await database.write(finish, first, NOW) is False
    assert await database.write(finish, second, NOW + 99 * LEASE_MS) is True


async def test_a_change_fences_the_worker_and_brings_the_subject_up_again(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(NOW)
    for change in (schedule, work.poke):
        await database.write(schedule, "k", NOW)
        (claim,) = await claim_all(database)
        await database.write(change, "k", NOW)
        assert await database.write(finish, claim, NOW + 1000) is False
        (again,) = await claim_all(database)
        assert await database.write(finish, again, NOW + 1000) is True
        assert await database.read(work.next_wake_ms) == NOW + 1000


async def test_a_poke_brings_a_moment_forward_and_never_back(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(NOW)
    await database.write(work.poke, "k", NOW + 10)
    await database.write(work.poke, "k", NOW + 20)
    assert await database.read(work.next_wake_ms) == NOW + 10
    await database.write(work.poke, "k", NOW + 5)
    assert await database.read(work.next_wake_ms) == NOW + 5
    await database.write(schedule, "k", NOW + 30)
    assert await database.read(work.next_wake_ms) == NOW + 30


async def test_what_is_taken_is_claimed_at_once_whoever_held_it(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(NOW)
    new = await database.write(work.take, "k", NOW)
    newer = await database.write(work.take, "k", NOW)
    assert (new.attempts, newer.attempts) == (1, 2)
    assert await claim_all(database) == []
    assert await database.read(work.next_wake_ms) == NOW + TAKE_LEASE_MS
    assert await database.write(finish, new, NOW + 1000) is False
    assert await database.write(finish, newer, NOW + 1000) is True
    assert await database.read(work.next_wake_ms) == NOW + 1000


async def test_a_retry_counts_the_attempts_and_a_new_moment_forgets_them(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(NOW)
    await database.write(schedule, "k", NOW)
    for attempt in (1, 2, 3):
        (claim,) = await claim_all(database)
        assert claim.attempts == attempt
        await database.write(work.retry, claim, NOW)
    await database.write(schedule, "k", NOW)
    (claim,) = await claim_all(database)
    assert claim.attempts == 1


async def test_a_fenced_worker_cannot_put_the_subject_off(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(NOW)
    await database.write(schedule, "k", NOW)
    (claim,) = await claim_all(database)
    await database.write(work.poke, "k", NOW)
    await database.write(work.retry, claim, NOW + 99_000)
    assert await database.read(work.next_wake_ms) == NOW


async def test_a_dropped_subject_is_never_due(database: Database, clock: DatabaseClock) -> None:
    clock.set(NOW)
    await database.write(schedule, "k", NOW)
    (claim,) = await claim_all(database)
    await database.write(work.drop, "k")
    assert await database.write(work.holds, claim) is False
    clock.advance(2 * LEASE_MS)
    assert await claim_all(database) == []
    assert await database.read(work.next_wake_ms) is None


async def test_work_that_is_due_soon_wakes_the_workers(
    database: Database,
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    database.wakes.listen("work", heard.put_nowait)
    await database.write(work.schedule, "later", NOW, soon=False)
    for change in (schedule, work.poke):
        await database.write(change, "k", NOW)
        async with asyncio.timeout(10):
            await heard.get()
    assert heard.empty()
