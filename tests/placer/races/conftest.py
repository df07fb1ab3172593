"""The races' control plane: two placers over one pool."""

import logging
import random
from collections.abc import AsyncIterator

import psycopg
import pytest

from bcd.store.database import Database
from tests.clock import DatabaseClock
from tests.placer.races.arena import Arena
from tests.placer.records import Beside
from tests.placer.waiting import until
from tests.placer.world import World


@pytest.fixture
async def arena(
    world: World, engine: str, clock: DatabaseClock, database_url: str
) -> AsyncIterator[Arena]:
    """Two placers, and a clock that stands still; the server must have had no deadlock by the end.

    Deadlocks are tried again, so that no caller hears of one, but only so many times.
    """
    clock.advance(0)
    databases = [world.database]
    if engine == "postgresql":
        databases.append(clock.open())
    other = World(databases[-1], world.authority, world.pool_id)
    made = Arena([world, other], clock, database_url, random.Random(7))
    logging.getLogger("bcd").addHandler(made.complaints)
    before = _deadlocks(database_url)
    yield made
    logging.getLogger("bcd").removeHandler(made.complaints)
    await _close(database_url, *databases)
    assert made.deadlocks_are_expected or _deadlocks(database_url) == before


async def _close(url: str, *databases: Database) -> None:
    """Close them; the server has counted all that they did when it returns."""
    for database in databases:
        await database.close()
    if not url.startswith("sqlite:"):
        await until(lambda: Beside(url).connections() == 0)


def _deadlocks(url: str) -> int:
    """How many of its transactions the server has ever ended for the sake of others."""
    if url.startswith("sqlite:"):
        return 0
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])
