"""Two racing callers, and a placer that ends at the n-th statement of the two, or of its own one.

Whatever had been done by then: after a start of fresh placers and the same calls again, every rule
holds, and what was acknowledged before is there (spec 18).
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from bcd.model.errors import BcdError
from bcd.model.reservation import Reservation, State
from bcd.store.extend_holds import HOLD_MS
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.model_trace.recording import Crashed, Fuse
from tests.placer.races.arena import Act, Arena
from tests.placer.races.pairs import PAIRS, REFUSALS, Pair, Site, new_site
from tests.placer.races.sound import assert_sound


@pytest.fixture(params=["alone", "together"])
async def site(request: pytest.FixtureRequest, database_url: str, clock: DatabaseClock) -> Site:
    """Placers of which the first one dies, or both."""
    return await new_site(database_url, clock, alone=request.param == "alone")


async def crash(arena: Arena, acts: Sequence[Act], fuse: Fuse, left: int) -> Sequence[Any]:
    """Do all at once, each on a placer of its own, until the fuse blows; returns what was heard."""
    fuse.left = left
    calls = list(zip(acts, arena.worlds, strict=True))
    if left % 2:
        calls.reverse()
    tasks = {act: asyncio.ensure_future(act(world)) for act, world in calls}
    found = await asyncio.gather(*(tasks[act] for act in acts), return_exceptions=True)
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*rest, return_exceptions=True)
    fuse.left = None
    for answer in found:
        if isinstance(answer, BaseException) and not isinstance(answer, Crashed):
            assert isinstance(answer, BcdError), answer
            assert answer.reason in REFUSALS, answer
    return found


async def once(site: Site, pair: Pair, left: int) -> bool:
    """One race with so many statements left; returns whether somebody died of it."""
    fuse = Fuse()
    async with site.running(fuse) as arena:
        acts = await pair(arena)
        heard = await crash(arena, acts, fuse, left)
    async with site.running(Fuse()) as arena:
        await arena.later(HOLD_MS + 1)(arena.world)  # claims and slots of the dead come back
        again = await arena.collide(*acts, refusals=REFUSALS)
        await arena.settle()
        await assert_sound(arena)
        for before, after in zip(heard, again, strict=True):
            if isinstance(before, Reservation):
                assert after.id == before.id
                assert after.state is not State.DRAFT
            if before == State.RELEASED:
                assert after == State.RELEASED
        await arena.clear()
        await assert_sound(arena)
    return fuse.blown


@pytest.mark.timeout(900)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__.replace("_", "-"))
async def test_who_dies_in_a_race_leaves_nothing_half_done(
    site: Site, pair: Pair, rounds: Rounds
) -> None:
    left, stride, died, quiet = 0, rounds(17, 1), 0, 0
    while quiet < 2:  # one of the two may have less to do
        is_dead = await once(site, pair, left)
        died, quiet = died + is_dead, 0 if is_dead else quiet + 1
        left += stride
    assert died
