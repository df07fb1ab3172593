"""Long pages leave others their turn: between any two decisions on them the loop goes round."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

from bcd.placer.admission.policy import Allowed, Decision
from bcd.placer.api.reservations import ReservationCalls
from bcd.placer.events.feed import Feed, Position
from bcd.store.events import Wanted
from bcd.wire.compute.v1 import reservations_pb2 as pb
from tests.placer.events.ends import publish
from tests.placer.world import ALICE, TENANT, World

ROWS = 12


class Watching:
    """A policy that allows all, and notes in which turn of the event loop it was asked."""

    def __init__(self) -> None:
        self.turn = 0
        self.asked: list[int] = []

    def decide(self, *_question: object) -> Decision:
        self.asked.append(self.turn)
        return Allowed()

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[None]:
        """Count the turns that somebody else gets meanwhile."""

        async def count() -> None:
            while True:
                self.turn += 1
                await asyncio.sleep(0)

        counter = asyncio.create_task(count())
        try:
            yield
        finally:
            counter.cancel()

    def assert_taking_turns(self) -> None:
        assert len(self.asked) == ROWS
        assert all(one < other for one, other in pairwise(self.asked))


async def fill(world: World) -> None:
    for number in range(ROWS):
        await world.create(1, key=f"k{number}")


async def test_a_list_does_not_keep_others_waiting(world: World) -> None:
    await fill(world)
    policy = Watching()
    calls = ReservationCalls(
        world.database, world.admission, world.extensions, policy, world.signer
    )
    async with policy.counting():
        page = await calls.list(ALICE, pb.ListReservationsRequest(tenant_id=TENANT))
    assert len(page.reservations) == ROWS
    policy.assert_taking_turns()


async def test_a_page_of_events_does_not_keep_others_waiting(world: World) -> None:
    await fill(world)
    await publish(world.database)
    policy = Watching()
    async with policy.counting():
        wanted = Wanted(tenant_id=TENANT)
        page = await Feed(world.database, policy).page(ALICE, wanted, Position(1, 0), 100)
    assert len(page.events) == ROWS
    policy.assert_taking_turns()
