"""How late starts and ends come among 10,000 live reservations, by the real worker and clock.

Lateness is the event's time on the database's clock behind the moment that was promised.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from bcd.model.units import DAY_MS
from bcd.placer.events.publisher import Publisher
from bcd.placer.loops import Loop
from bcd.store.database import Database, Transaction
from bcd.store.open import open_database
from tests.bench.fleet import Fleet, Live, add_fleet, fill
from tests.bench.measure import cpu_s, percentile, table
from tests.conftest import Rounds
from tests.placer.world import World, new_authority

# Until the first start, for writing the reservations.
HEAD_MS = 20_000
LENGTH_MS = 5_000


def live(fleet: Fleet, due: int, others: int, from_ms: int, spread_ms: int) -> Iterator[Live]:
    """One GPU each: ``due`` of them start and end one after the other, the others much later."""
    gpus = [(node_id, gpu) for node_id, own in fleet.nodes for gpu in own]
    for number, (node_id, gpu) in enumerate(gpus[: due + others]):
        start_ms = from_ms + number * spread_ms // due
        if number >= due:
            start_ms = from_ms + DAY_MS + number
        yield Live(node_id, (gpu,), start_ms, start_ms + LENGTH_MS)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[None]:
    """The loops that a placer has for reservations and their events."""
    database = world.database
    loops = (
        Loop("work", database, ["work"], world.worker.work_pass, 1.0),
        Loop("publish", database, ["event"], Publisher(database).pass_once, 1.0),
    )
    tasks = [asyncio.create_task(loop.run()) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def lateness(tx: Transaction, event: str, column: str) -> list[float]:
    """Of every event of a kind how long after the reservation's moment it was, in ms."""
    rows = tx.all(
        f"SELECT e.at_ms - r.{column} AS late_ms FROM events e"
        " JOIN reservations r ON e.subject = 'reservation/' || r.id WHERE e.type = :event",
        event=event,
    )
    return [float(row["late_ms"]) for row in rows]


async def ended(database: Database, count: int) -> None:
    """Wait until so many have ended; looks twice a second, which costs nothing that counts."""
    woken = asyncio.Event()
    stop = database.wakes.listen("published", lambda _: woken.set())
    try:
        while len(await database.read(lateness, "reservation.released", "end_ms")) < count:
            woken.clear()
            await asyncio.wait([asyncio.create_task(woken.wait())], timeout=1.0)
            await asyncio.sleep(0.5)
    finally:
        stop()


@pytest.mark.timeout(1200)
async def test_starts_and_ends_among_many_live_reservations(
    database_url: str, engine: str, rounds: Rounds
) -> None:
    due, others, spread_ms = rounds(100, 1_000), rounds(900, 9_000), rounds(10_000, 60_000)
    database = open_database(database_url)
    fleet = await add_fleet(database, -(-(due + others) // 8))
    from_ms = time.time_ns() // 1_000_000 + HEAD_MS
    await fill(database, fleet, live(fleet, due, others, from_ms, spread_ms))
    authority = new_authority(time.time_ns() // 1_000_000)
    world = World(database, authority, pool_id=fleet.pool_id)
    used = cpu_s()
    async with running(world):
        await ended(database, due)
    cpu_ms = (cpu_s() - used) / due * 1e3
    started = await database.read(lateness, "reservation.binding", "start_ms")
    over = await database.read(lateness, "reservation.released", "end_ms")
    await database.close()
    assert len(started) == len(over) == due
    assert min(*started, *over) >= 0, "none before its time"
    table(
        f"{due} holds that start and end in {spread_ms // 1000} s, {others} others, {engine}",
        [
            (name, f"late p50 {percentile(found, 50):.0f} p99 {percentile(found, 99):.0f} ms")
            for name, found in (("starts", started), ("ends", over))
        ]
        + [("CPU for each start and end together", f"{cpu_ms:.2f} ms")],
    )
