"""A fault that only shows where transactions really run at once."""

import pytest

from tests.model_trace.test_faults import no_pool_lock
from tests.placer.races import booking
from tests.placer.races.arena import Arena
from tests.placer.races.sound import run
from tests.placer.races.table import Race


async def test_pools_that_nobody_locks_are_found(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database keeps devices apart by itself, and not the sums of what hosts give."""
    arena.deadlocks_are_expected = True
    no_pool_lock(monkeypatch)
    with pytest.raises(AssertionError):
        await run(arena, Race(booking.host_amounts, booking.with_amounts), 400)
