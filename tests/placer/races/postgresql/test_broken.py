"""Connections that the server ends while callers race: refused or done, and nothing in between."""

import asyncio
import random

import psycopg
import pytest

from bcd.model.errors import BcdError, Reason
from bcd.store.extend_holds import HOLD_MS
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.model_trace.recording import Fuse
from tests.placer.races.pairs import PAIRS, REFUSALS, Pair, Site, new_site
from tests.placer.races.sound import assert_sound

_END_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND xact_start IS NOT NULL"
)


async def once(site: Site, pair: Pair, delay_s: float) -> int:
    """One race during which every open transaction is broken off; returns how many were."""
    broken = 0

    def end_all() -> int:
        with psycopg.connect(site.url, autocommit=True) as connection:
            return connection.execute(_END_ALL).rowcount

    async with site.running(Fuse()) as arena:
        acts = await pair(arena)
        calls = [asyncio.ensure_future(act(w)) for act, w in zip(acts, arena.worlds, strict=True)]
        await asyncio.sleep(delay_s)
        broken += await asyncio.to_thread(end_all)
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException):
                assert isinstance(answer, BcdError), answer
                assert answer.reason in (*REFUSALS, Reason.UNAVAILABLE), answer
        await arena.quiet()
        await arena.later(HOLD_MS + 1)(arena.world)
        await arena.collide(*acts, refusals=REFUSALS)
        await arena.settle()
        await assert_sound(arena)
        await arena.clear()
        await assert_sound(arena)
    return broken


@pytest.mark.timeout(900)
async def test_connections_that_break_in_a_race_leave_nothing_half_done(
    database_url: str, clock: DatabaseClock, rounds: Rounds
) -> None:
    site, chance, broken = await new_site(database_url, clock), random.Random(7), 0
    for number in range(rounds(2, 40) * len(PAIRS)):
        broken += await once(site, PAIRS[number % len(PAIRS)], chance.random() * 0.02)
    assert broken
