"""What somebody may see of the events, and from which cursors one can go on."""

from collections.abc import Sequence

import pytest

from bcd.model.caller import Caller
from bcd.model.errors import InvalidInput
from bcd.placer.admission.attributes import Attributes
from bcd.placer.admission.policy import Action, Allowed, Decision, Denied
from bcd.placer.events.feed import Feed, Position
from bcd.placer.upkeep import _forget_events
from bcd.store import control
from bcd.store.events import Event, Wanted
from tests.clock import DatabaseClock
from tests.placer.events.ends import publish, tell
from tests.placer.world import ALICE, BOB, World, dgx

DAY_MS = 86_400_000
MALLORY = Caller(issuer="https://issuer", subject="mallory", tenants=frozenset({"other"}))
ROOT = Caller(issuer="https://issuer", subject="root", tenants=frozenset(), admin=True)


class OwnOnly:
    """A policy under which people read what is theirs."""

    def decide(
        self, caller: Caller, action: Action, resource: Attributes, *_word: object
    ) -> Decision:
        assert action is Action.READ
        return Allowed() if resource.attrs["owner"] == caller.owner else Denied(("not yours",))


async def seen(feed: Feed, caller: Caller, tenant_id: str = "") -> Sequence[Event]:
    wanted = Wanted(tenant_id=tenant_id)
    page = await feed.page(caller, wanted, Position(1, 0), 100)
    return page.events


@pytest.fixture
def feed(world: World) -> Feed:
    return Feed(world.database, world.policy)


async def test_everybody_sees_their_own_tenants_events_and_administrators_all(
    world: World, feed: Feed
) -> None:
    await world.add_node(dgx("a"))
    await world.create(1)
    await tell(world.database, "node/n", tenant="", kind="node.enrolment-rejected")
    assert [event.type for event in await seen(feed, ALICE)] == ["reservation.placed"]
    assert await seen(feed, MALLORY) == []
    assert await seen(feed, MALLORY, tenant_id="acme") == []
    assert [event.type for event in await seen(feed, ROOT)] == [
        "reservation.placed",
        "node.enrolment-rejected",
    ]


async def test_what_the_policy_hides_in_a_list_is_hidden_here_too(world: World) -> None:
    await world.add_node(dgx("a"))
    made = [await world.create(1, key="k", caller=caller) for caller in (ALICE, BOB)]
    await publish(world.database)
    feed = Feed(world.database, OwnOnly())
    for caller, own in zip((ALICE, BOB), made, strict=True):
        assert [event.subject for event in await seen(feed, caller)] == [f"reservation/{own.id}"]
    assert len(await seen(feed, ROOT)) == 2


async def test_an_event_whose_reservation_is_not_there_is_for_administrators_only(
    world: World, feed: Feed
) -> None:
    await tell(world.database, "reservation/rsv_gone")
    assert await seen(feed, ALICE) == []
    assert len(await seen(feed, ROOT)) == 1


async def test_a_cursor_names_the_same_place_again(world: World, feed: Feed) -> None:
    await tell(world.database, "reservation/a", "reservation/b")
    newest = await feed.newest()
    assert newest == Position(1, 2)
    assert await feed.position(newest.cursor) == newest
    assert await feed.position((await feed.oldest()).cursor) == Position(1, 0)


@pytest.mark.parametrize(
    "cursor",
    ["x", "1", "1-", "-1", "1-2-3", "1--2", " 1-2", "1-2\n", "\u0661-\u0662", "1-" + "9" * 19],
)
async def test_what_is_no_cursor_is_refused(feed: Feed, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="cursor: is none that an answer gave"):
        await feed.position(cursor)


async def test_a_cursor_behind_which_events_are_gone_is_refused_with_what_to_do(
    world: World, feed: Feed, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await tell(world.database, "reservation/a", "reservation/b")
    old = await feed.position("1-1")
    last = await feed.newest()
    clock.advance(7 * DAY_MS + 1)
    await world.database.write(_forget_events)
    with pytest.raises(InvalidInput, match=r"older than 7 days.*list the reservations"):
        await feed.position(old.cursor)
    with pytest.raises(InvalidInput, match="older than 7 days"):
        await feed.page(ROOT, Wanted(), old, 10)
    assert await feed.position(last.cursor) == last  # nothing behind it is gone
    assert await feed.oldest() == last


async def test_a_cursor_from_before_a_restore_is_refused(world: World, feed: Feed) -> None:
    await tell(world.database, "reservation/a")
    cursor = (await feed.newest()).cursor
    with pytest.raises(InvalidInput, match="before the control plane was restored"):
        await feed.position("1-2")
    await world.database.write(control.raise_epoch)
    with pytest.raises(InvalidInput, match="before the control plane was restored"):
        await feed.position(cursor)
    assert await feed.newest() == Position(2, 1)
