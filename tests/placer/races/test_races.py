"""Colliding callers, and what must be whole behind them: 500 attempts, or 10,000 with bench."""

import pytest

from tests.conftest import Rounds
from tests.placer.races import booking, lives
from tests.placer.races.arena import Arena
from tests.placer.races.sound import run
from tests.placer.races.table import Race

RACES = (*booking.RACES, *lives.RACES)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("race", RACES, ids=lambda race: race.name)
async def test_whoever_wins_nothing_is_booked_charged_or_told_twice(
    arena: Arena, race: Race, rounds: Rounds
) -> None:
    await run(arena, race, -(-rounds(500, 10_000) // len(RACES)))
