"""The placer's fixtures: a world with one pool and a quota, and on PostgreSQL a rival in it."""

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import settings

from bcd.store.database import Database
from tests.clock import DatabaseClock
from tests.placer.waiting import Rival
from tests.placer.world import World, new_authority

# A busy machine says nothing about what is tested.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture
async def world(database: Database, clock: DatabaseClock) -> World:
    """A control plane with one pool, quota for 1,000 GPUs and no nodes yet."""
    made = World(database, new_authority(clock.read()))
    await made.add_pool()
    await made.grant("gpu", 1000)
    await made.grant("gpu.mig", 1000)
    return made


@pytest.fixture
def rival(database_url: str) -> Iterator[Rival]:
    """Somebody else in the same database, who waits for no lock."""
    with psycopg.connect(database_url) as connection:
        yield connection
