"""Publishers of several placers on one PostgreSQL, beside writers that commit in any order."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

import psycopg
import pytest

from bcd.placer.events.publisher import Publisher
from bcd.store import events
from bcd.store.database import Database, Transaction
from tests.clock import DatabaseClock
from tests.placer.events.ends import everything, publish
from tests.placer.records import Beside, count
from tests.placer.waiting import until

WRITERS, ROUNDS = 6, 40


@pytest.fixture
async def other(clock: DatabaseClock, database: Database) -> AsyncIterator[Database]:
    """Another placer's connections."""
    opened = clock.open()
    yield opened
    await opened.close()


async def test_an_event_that_is_committed_late_is_published_behind_what_was_read(
    database: Database, database_url: str
) -> None:
    """Its ``seq`` is smaller: who reads by that would skip it."""
    with psycopg.connect(database_url) as late:
        late.execute(
            "INSERT INTO events (subject, type, data, at_ms)"
            " VALUES ('reservation/late', 'reservation.placed', '{}', 0)"
        )
        await database.write(events.emit, "reservation/early", "reservation.placed", {})
        await publish(database)
        seen = await everything(database)
        assert [event.subject for event in seen] == ["reservation/early"]
        late.commit()
    await publish(database)
    assert seen[0].published_seq == 1
    assert [event.subject for event in await everything(database, 1)] == ["reservation/late"]


async def test_a_second_publisher_waits_for_the_first_and_goes_on_behind_it(
    database: Database, database_url: str
) -> None:
    beside = Beside(database_url)
    with psycopg.connect(database_url) as rival:
        rival.execute("SELECT value FROM control WHERE key = 'published' FOR UPDATE")
        await database.write(events.emit, "reservation/a", "reservation.placed", {})
        waiting = asyncio.create_task(Publisher(database).pass_once())
        await until(lambda: beside.waiting_for_locks() > 0)
        rival.execute("UPDATE events SET published_seq = 1, id = 'evt_rival', published_ms = 0")
        rival.execute("UPDATE control SET value = 1 WHERE key = 'published'")
        rival.commit()
        await waiting
    (only,) = await everything(database)
    assert only.id == "evt_rival"


async def test_every_event_is_seen_once_and_in_order_by_who_follows_two_publishers(
    database: Database, other: Database
) -> None:
    """Writers of one subject follow each other, as under a pool's lock; subjects do not wait."""
    locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
    writing = True

    def write(tx: Transaction, subject: int, number: int) -> None:
        for part in range(2):
            data = {"number": 2 * number + part}
            events.emit(tx, f"reservation/{subject}", "reservation.placed", data)

    async def writer(subject: int) -> None:
        for number in range(ROUNDS):
            async with locks[subject]:
                store = (database, other)[number % 2]
                await store.write(write, subject, number)

    async def publisher(store: Database) -> None:
        while writing:
            await Publisher(store).pass_once()

    async def follower(store: Database) -> list[events.Event]:
        seen: list[events.Event] = []
        while writing or len(seen) < 2 * WRITERS * ROUNDS:
            after = seen[-1].published_seq or 0 if seen else 0
            seen += await everything(store, after, limit=17)
        return seen

    async def write_all() -> None:
        nonlocal writing
        await asyncio.gather(*(writer(subject) for subject in range(WRITERS)))
        await publish(database)
        writing = False

    followers = [asyncio.create_task(follower(store)) for store in (database, other)]
    async with asyncio.timeout(120):
        await asyncio.gather(write_all(), publisher(database), publisher(other))
        one, two = await asyncio.gather(*followers)
    for seen in (one, two):
        assert [event.published_seq for event in seen] == list(range(1, len(seen) + 1))
        for subject in range(WRITERS):
            numbers = [
                event.data["number"] for event in seen if event.subject == f"reservation/{subject}"
            ]
            assert numbers == list(range(2 * ROUNDS))
    assert await count(database, "SELECT count(*) FROM events") == len(one) == len(two)
