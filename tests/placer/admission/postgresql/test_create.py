"""Creates of several placers on one PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from bcd.model.errors import QuotaExceeded
from bcd.model.reservation import State
from bcd.placer.admission.create import draft_of, open_draft
from bcd.placer.admission.policy import Allowed
from bcd.placer.admission.request import parse_create
from bcd.store.database import Row, Transaction
from bcd.store.reservations import StoredReservation
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.admission.test_races import run_races
from tests.placer.records import Beside, assert_no_overlap, assert_quota_adds_up, count
from tests.placer.waiting import until
from tests.placer.world import ALICE, TENANT, World, dgx


@pytest.fixture
async def other(world: World, clock: DatabaseClock) -> AsyncIterator[World]:
    """Another placer over the same database and pool, with connections and views of its own."""
    database = clock.open()
    yield World(database, world.authority, world.pool_id)
    await database.close()


async def test_a_rehearsal_overtaken_by_another_placer_answers_with_what_that_one_made(
    world: World, database_url: str
) -> None:
    """The draft is placed after the rehearsal read it and before it got the pool's lock."""
    await world.add_node(dgx("a"))
    await world.grant("gpu", 0)
    with pytest.raises(QuotaExceeded):
        await world.create(1)
    await world.grant("gpu", 1)
    beside = Beside(database_url)
    with psycopg.connect(database_url) as rival:
        rival.execute("SELECT id FROM pools FOR UPDATE")
        rehearsal = asyncio.create_task(world.create(1, dryRun=True))
        await until(lambda: beside.waiting_for_locks() > 0)
        rival.execute("UPDATE reservations SET state = 'pending', version = version + 1")
        rival.commit()
    assert (await rehearsal).state is State.PENDING


async def test_two_placers_make_one_reservation_of_one_key(world: World, other: World) -> None:
    await world.add_node(dgx("a"))
    for round_number in range(20):
        key = f"k{round_number}"
        made = await asyncio.gather(
            *(placer.create(8, key=key) for placer in (world, other) for _ in range(8))
        )
        assert len({reservation.id for reservation in made}) == 1
        assert {reservation.state for reservation in made} <= {State.PLACED, State.PENDING}
        assert await world.event_names(made[0].id) in (["placed"], ["pending"])
    assert world.policy.asked + other.policy.asked <= 40
    assert await count(world.database, "SELECT count(*) FROM bookings") == 8
    await assert_quota_adds_up(world.database)


async def test_two_placers_race_for_the_last_gpus(
    world: World, other: World, rounds: Rounds
) -> None:
    await run_races([world, other], rounds(30, 300))


async def test_two_placers_work_off_one_queue(world: World, other: World) -> None:
    for number in range(4):
        await world.add_node(dgx(f"n{number}"))
    made = await asyncio.gather(*((world, other)[i % 2].create(1, key=f"{i}") for i in range(40)))
    for _ in range(6):
        await asyncio.gather(world.worker.work_due(), other.worker.work_due())
    names = [await world.event_names(reservation.id) for reservation in made]
    assert names.count(["placed", "binding"]) == 32
    assert names.count(["pending"]) == 8
    await assert_no_overlap(world.database)
    await assert_quota_adds_up(world.database)


async def test_two_placers_that_decide_differently_agree_on_the_first_outcome(
    world: World, other: World
) -> None:
    world.policy.answer = Allowed()
    for round_number in range(10):
        answers = await asyncio.gather(
            world.create(1, key=f"k{round_number}"),
            other.create(1, key=f"k{round_number}", duration="1h"),
        )
        assert answers[0].id == answers[1].id
        assert answers[0].version == answers[1].version


class SweptMeanwhile:
    """A transaction that finds a draft's key taken; before it looks at the draft, it is swept."""

    def __init__(self, tx: Transaction, beside: Beside) -> None:
        self._tx = tx
        self._beside = beside

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def one(self, sql: str, **values: object) -> Row | None:
        found = self._tx.one(sql, **values)
        if sql.startswith("INSERT INTO reservations") and found is None:
            self._beside.execute("DELETE FROM reservations WHERE state = 'draft'")
        return found


async def test_a_draft_swept_while_its_key_is_used_again_is_written_again(
    world: World, database_url: str
) -> None:
    await world.grant("gpu", 0)
    with pytest.raises(QuotaExceeded):
        await world.create(1)
    asked = parse_create(world.document()).request
    draft = draft_of(ALICE, TENANT, asked, "k")

    def open_again(tx: Transaction) -> StoredReservation:
        swept: Any = SweptMeanwhile(tx, Beside(database_url))
        return open_draft(swept, draft)[1]

    written = await world.database.write(open_again)
    assert (written.id, written.state, written.version) == (draft.id, State.DRAFT, 1)
