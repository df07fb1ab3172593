"""What a transaction promises on either engine: whole or not at all, answered after the commit."""

import asyncio
import contextlib
import threading
from collections.abc import Callable

import pytest

from bcd.model.ids import is_type_id
from bcd.store import quotas
from bcd.store.database import ConstraintViolated, Database, Lane, StoreUnavailable, Transaction
from tests.clock import DatabaseClock
from tests.store.world import TENANT, make_pool


class Boom(Exception):
    """Raised by a transaction's body."""


def set_ceiling(tx: Transaction, resource: str, ceiling: int = 1) -> None:
    quotas.set_ceiling(tx, TENANT, resource, ceiling)


def resources(tx: Transaction) -> list[str]:
    return [quota.resource for quota in quotas.of_tenant(tx, TENANT)]


async def test_a_write_is_visible_to_readers_once_it_is_answered(database: Database) -> None:
    await database.write(set_ceiling, "gpu")
    assert await database.read(resources) == ["gpu"]


async def test_a_write_that_raises_leaves_nothing_and_raises_to_its_caller(
    database: Database,
) -> None:
    def body(tx: Transaction) -> None:
        set_ceiling(tx, "gpu")
        raise Boom

    with pytest.raises(Boom):
        await database.write(body)
    assert await database.read(resources) == []


@pytest.mark.parametrize("in_lane", [False, True])
async def test_writes_that_commit_together_fail_one_by_one(
    database: Database, in_lane: bool
) -> None:
    def body(tx: Transaction, number: int) -> int:
        set_ceiling(tx, f"r{number:02}")
        if number % 3 == 0:
            raise Boom
        return number

    async def ask(number: int) -> int:
        if in_lane:
            return await database.write_in(Lane("lane"), body, number)
        return await database.write(body, number)

    answers = await asyncio.gather(*map(ask, range(30)), return_exceptions=True)
    for number, answer in enumerate(answers):
        assert isinstance(answer, Boom) if number % 3 == 0 else answer == number
    assert await database.read(resources) == [f"r{n:02}" for n in range(30) if n % 3]


async def test_work_of_one_lane_goes_in_its_order_one_at_a_time(database: Database) -> None:
    order: list[int] = []
    at_work = threading.Lock()

    def body(tx: Transaction, number: int) -> None:
        assert at_work.acquire(blocking=False)
        set_ceiling(tx, f"r{number:02}")
        order.append(number)
        at_work.release()

    await asyncio.gather(*(database.write_in(Lane("lane"), body, number) for number in range(50)))
    assert order == list(range(50))
    assert len(await database.read(resources)) == 50


async def test_a_broken_row_in_one_write_does_not_harm_its_neighbours(database: Database) -> None:
    def broken(tx: Transaction) -> None:
        set_ceiling(tx, "lost")
        set_ceiling(tx, "negative", -1)

    answers = await asyncio.gather(
        database.write(set_ceiling, "a"),
        database.write(broken),
        database.write(set_ceiling, "b"),
        return_exceptions=True,
    )
    assert isinstance(answers[1], ConstraintViolated)
    assert await database.read(resources) == ["a", "b"]


async def test_a_savepoint_takes_back_only_what_happened_inside(database: Database) -> None:
    def body(tx: Transaction) -> None:
        set_ceiling(tx, "before")
        with contextlib.suppress(Boom), tx.savepoint():
            set_ceiling(tx, "inside")
            with tx.savepoint():
                set_ceiling(tx, "deeper")
            raise Boom
        set_ceiling(tx, "after")

    await database.write(body)
    assert await database.read(resources) == ["after", "before"]


async def test_a_savepoint_heals_a_refused_statement(database: Database) -> None:
    def body(tx: Transaction) -> None:
        with contextlib.suppress(ConstraintViolated), tx.savepoint():
            set_ceiling(tx, "negative", -1)
        set_ceiling(tx, "after")

    await database.write(body)
    assert await database.read(resources) == ["after"]


async def test_a_savepoint_as_first_statement_commits_nothing_by_itself(
    database: Database,
) -> None:
    def body(tx: Transaction) -> None:
        with tx.savepoint():
            set_ceiling(tx, "gpu")
        raise Boom

    with pytest.raises(Boom):
        await database.write(body)
    assert await database.read(resources) == []


async def test_a_reader_stays_on_one_snapshot(database: Database) -> None:
    started, written = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def body(tx: Transaction) -> tuple[list[str], list[str]]:
        before = resources(tx)
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(written.wait(), loop).result(10)
        return before, resources(tx)

    reading = asyncio.create_task(database.read(body))
    await started.wait()
    await database.write(set_ceiling, "gpu")
    written.set()
    assert await reading == ([], [])


async def test_a_reader_cannot_write(database: Database) -> None:
    with pytest.raises(Exception, match=r"(?i)read-?only"):
        await database.read(set_ceiling, "gpu")
    assert await database.read(resources) == []


async def test_a_caller_that_goes_away_does_not_undo_what_it_asked_for(
    database: Database, clock: DatabaseClock
) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def body(tx: Transaction) -> None:
        loop.call_soon_threadsafe(started.set)
        set_ceiling(tx, "gpu")

    asking = asyncio.create_task(database.write(body))
    await started.wait()
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await database.write(set_ceiling, "later")
    await database.close()  # finishes what was accepted
    again = clock.open()
    assert await again.read(resources) == ["gpu", "later"]
    await again.close()


async def test_many_changes_count_the_rows_that_they_touched(database: Database) -> None:
    def body(tx: Transaction) -> tuple[int, int, int]:
        sql = (
            "INSERT INTO quotas (tenant_id, resource, ceiling) VALUES ('t', :resource, 1)"
            " ON CONFLICT DO NOTHING"
        )
        rows = [{"resource": name} for name in ("a", "b", "a")]
        return tx.many(sql, rows), tx.many(sql, rows), tx.many(sql, [])

    assert await database.write(body) == (2, 0, 0)


async def test_the_clock_never_steps_back(database: Database, clock: DatabaseClock) -> None:
    def read(tx: Transaction) -> int:
        return tx.now_ms()

    clock.set(1_900_000_000_000)
    assert await database.write(read) == 1_900_000_000_000
    clock.set(1_800_000_000_000)
    assert await database.write(read) == 1_900_000_000_000
    assert await database.read(read) == 1_900_000_000_000
    clock.set(1_900_000_000_001)
    assert await database.read(read) == 1_900_000_000_001


async def test_new_ids_are_type_ids_on_the_databases_clock(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(1_900_000_000_000)
    first = await database.write(lambda tx: tx.new_id("evt"))
    clock.advance(1)
    second = await database.write(lambda tx: tx.new_id("evt"))
    assert is_type_id("evt", first)
    assert first < second


async def test_a_wake_up_comes_after_the_commit_and_only_then(database: Database) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    stop = database.wakes.listen("topic", heard.put_nowait)

    def body(tx: Transaction, fails: bool) -> None:
        tx.wake("topic", "failed" if fails else "key with blanks")
        with contextlib.suppress(Boom), tx.savepoint():
            tx.wake("topic", "taken back")
            raise Boom
        tx.wake("other", "topic")
        if fails:
            raise Boom

    with pytest.raises(Boom):
        await database.write(body, True)
    await database.write(body, False)
    async with asyncio.timeout(10):
        assert await heard.get() == "key with blanks"
    stop()
    await database.write(body, False)
    await database.write(make_pool)
    assert heard.empty()


async def test_a_closed_database_says_so(database: Database) -> None:
    await database.close()
    await database.close()
    attempts: list[Callable[[], object]] = [
        lambda: database.write(set_ceiling, "gpu"),
        lambda: database.write_in(Lane("lane"), set_ceiling, "gpu"),
        lambda: database.read(resources),
    ]
    for attempt in attempts:
        with pytest.raises(StoreUnavailable, match="closed"):
            await attempt()  # type: ignore[misc]


async def test_closing_finishes_what_was_accepted(database: Database, clock: DatabaseClock) -> None:
    writes = [asyncio.create_task(database.write(set_ceiling, f"r{n:02}")) for n in range(20)]
    writes += [
        asyncio.create_task(database.write_in(Lane("lane"), set_ceiling, f"r{n}"))
        for n in range(20, 80)
    ]
    await asyncio.sleep(0)
    await database.close()
    await asyncio.gather(*writes)
    again = clock.open()
    assert len(await again.read(resources)) == 80
    await again.close()
