"""Colliding callers, and what must be whole behind them: 500 attempts, or 10,000 with bench."""

import logging
import random
from collections.abc import AsyncIterator

import psycopg
import pytest

from bcd.store.database import Database
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.races import booking, lives
from tests.placer.races.arena import Arena
from tests.placer.races.sound import assert_sound
from tests.placer.races.table import Race
from tests.placer.records import Beside
from tests.placer.waiting import until
from tests.placer.world import World

RACES = (*booking.RACES, *lives.RACES)


@pytest.fixture
async def arena(
    world: World, engine: str, clock: DatabaseClock, database_url: str
) -> AsyncIterator[Arena]:
    """Two placers over one pool, and a clock that stands still."""
    clock.advance(0)
    databases = [world.database]
    if engine == "postgresql":
        databases.append(clock.open())
    other = World(databases[-1], world.authority, world.pool_id)
    made = Arena([world, other], clock, database_url, random.Random(7))
    logging.getLogger("bcd").addHandler(made.complaints)
    before = deadlocks(database_url)
    yield made
    logging.getLogger("bcd").removeHandler(made.complaints)
    await close(database_url, *databases)
    assert deadlocks(database_url) == before


async def close(url: str, *databases: Database) -> None:
    """Close them; the server has counted all that they did when it returns."""
    for database in databases:
        await database.close()
    if not url.startswith("sqlite:"):
        await until(lambda: Beside(url).connections() == 0)


def deadlocks(url: str) -> int:
    """How many of its transactions the server has ever ended for the sake of others."""
    if url.startswith("sqlite:"):
        return 0
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("race", RACES, ids=lambda race: race.name)
async def test_whoever_wins_nothing_is_booked_charged_or_told_twice(
    arena: Arena, race: Race, rounds: Rounds
) -> None:
    await race.begin(arena)
    wanted = -(-rounds(500, 10_000) // len(RACES))
    while arena.attempts < wanted:
        await race.round(arena)
        await arena.settle()
        await assert_sound(arena)
        await arena.clear()
        await assert_sound(arena)
