"""The one order of events (spec 9.4): without gaps, and read from any place."""

import pytest

from bcd.model.event import RESERVATION_EVENTS
from bcd.model.ids import is_type_id
from bcd.placer.events.publisher import Publisher
from bcd.placer.lifecycle.transitions import MOVES
from bcd.placer.upkeep import _forget_events
from bcd.store import events
from bcd.store.database import Database, Transaction
from bcd.store.events import Wanted
from tests.clock import DatabaseClock
from tests.placer.events.ends import everything, publish, tell
from tests.placer.records import count
from tests.placer.world import TENANT, World, dgx

DAY_MS = 86_400_000


def test_every_event_of_a_move_can_be_asked_for() -> None:
    assert {move.event for move in MOVES.values() if move.event} <= set(RESERVATION_EVENTS)


async def test_events_get_consecutive_places_and_ids_of_their_own(database: Database) -> None:
    await tell(database, *(f"reservation/{number % 7}" for number in range(1_234)))
    found = await everything(database)
    assert [event.published_seq for event in found] == list(range(1, 1_235))
    assert len({event.id for event in found}) == 1_234
    assert all(is_type_id("evt", event.id or "") for event in found)


async def test_what_is_published_once_is_never_published_again(database: Database) -> None:
    await tell(database, "reservation/a")
    first = await everything(database)
    assert await Publisher(database).pass_once() is None
    await tell(database, "reservation/b")
    assert [event.subject for event in await everything(database)] == [
        "reservation/a",
        "reservation/b",
    ]
    assert (await everything(database))[:1] == first


async def test_a_rolled_back_change_leaves_neither_an_event_nor_a_gap(database: Database) -> None:
    def undone(tx: Transaction) -> None:
        events.emit(tx, "reservation/undone", "reservation.placed", {})
        raise ValueError("undone")

    await tell(database, "reservation/a")
    with pytest.raises(ValueError, match="undone"):
        await database.write(undone)
    await tell(database, "reservation/b")
    assert [event.published_seq for event in await everything(database)] == [1, 2]


async def test_a_reader_that_begins_anywhere_sees_each_later_event_once(
    database: Database,
) -> None:
    await tell(database, *(f"reservation/{number}" for number in range(20)))
    whole = await everything(database)
    for after in range(21):
        for limit in (1, 3, 7, 100):
            assert await everything(database, after, limit) == whole[after:]


async def test_a_reservations_life_is_told_in_order_with_its_tenant(world: World) -> None:
    node = await world.add_node(dgx("a"))
    made = await world.active(node)
    await world.end_if_live(made.id)
    await publish(world.database)
    found = await everything(world.database)
    assert [event.type.removeprefix("reservation.") for event in found] == [
        "placed",
        "binding",
        "active",
        "released",
    ]
    assert {event.tenant_id for event in found} == {TENANT}


async def test_a_page_has_what_is_asked_for_and_says_how_far_it_looked(
    database: Database,
) -> None:
    await tell(database, "reservation/a", "reservation/b")
    await tell(database, "reservation/a", kind="reservation.active")
    await tell(database, "reservation/c", tenant="other")
    await tell(database, "node/n", tenant="", kind="node.enrolment-rejected")
    for wanted, places in (
        (Wanted(), [1, 2, 3, 4, 5]),
        (Wanted(tenant_id="acme"), [1, 2, 3]),
        (Wanted(subject="reservation/a"), [1, 3]),
        (Wanted(types=("reservation.active", "node.enrolment-rejected")), [3, 5]),
        (Wanted(tenant_id="other", types=("reservation.active",)), []),
    ):
        page = await database.read(events.page, wanted, 0, 100)
        assert [event.published_seq for event in page.events] == places
        assert (page.upto, page.newest) == (5, 5)
    short = await database.read(events.page, Wanted(subject="reservation/a"), 0, 1)
    assert (len(short.events), short.upto) == (1, 1)


async def test_events_are_kept_for_a_week_and_then_forgotten(
    database: Database, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await tell(database, "reservation/a", "reservation/b")
    clock.advance(DAY_MS)
    await tell(database, "reservation/c")
    clock.advance(6 * DAY_MS)
    assert await database.write(_forget_events) == 0
    clock.advance(1)
    assert await database.write(_forget_events) == 2
    assert [event.subject for event in await everything(database)] == ["reservation/c"]
    clock.advance(DAY_MS)
    assert await database.write(_forget_events) == 3
    assert await count(database, "SELECT count(*) FROM events") == 0
    await tell(database, "reservation/d")
    assert [event.published_seq for event in await everything(database)] == [4]


async def test_a_week_counts_from_when_an_event_could_be_read(
    database: Database, clock: DatabaseClock
) -> None:
    """However long no placer was there to publish it."""
    clock.advance(0)
    await database.write(events.emit, "reservation/a", "reservation.placed", {})
    clock.advance(30 * DAY_MS)
    await publish(database)
    assert await database.write(_forget_events) == 0
    assert len(await everything(database)) == 1
