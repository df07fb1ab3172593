"""Colliding callers, and what must be whole behind them: 500 attempts, or 10,000 with bench."""

import random
from collections.abc import AsyncIterator

import pytest

from bcd.store.database import Database
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.races import booking, lives
from tests.placer.races.arena import Arena, Complaints
from tests.placer.races.sound import assert_sound
from tests.placer.races.table import Race
from tests.placer.world import World

import logging

RACES = (*booking.RACES, *lives.RACES)


@pytest.fixture
async def arena(
    world: World, engine: str, clock: DatabaseClock, database_url: str
) -> AsyncIterator[Arena]:
    """Two placers over one pool, and a clock that stands still."""
    clock.advance(0)
    other: Database = clock.open() if engine == "postgresql" else world.database
    worlds = [world, World(other, world.authority, world.pool_id)]
    made = Arena(worlds, clock, database_url, random.Random(7))
    logging.getLogger("bcd").addHandler(made.complaints)
    yield made
    logging.getLogger("bcd").removeHandler(made.complaints)
    if other is not world.database:
        await other.close()


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
    if not arena.url.startswith("sqlite"):
        import psycopg, asyncio
        await asyncio.sleep(1.2)
        with psycopg.connect(arena.url) as c:
            print("DEADLOCKS", race.name, c.execute("select deadlocks from pg_stat_database where datname=current_database()").fetchone(), dict(arena.answers), arena.attempts)
