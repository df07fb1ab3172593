"""Webhooks get each event at least once and in order, whatever their receivers do (spec 9.4)."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence

import pytest

from bcd.placer.events.backoff import RETRIES_MS
from bcd.placer.events.deliverer import Deliverer
from bcd.placer.events.feed import Feed
from bcd.placer.events.message import secret_text
from bcd.placer.events.post import Answer, Poster
from bcd.placer.events.target import Reach, networks_of
from bcd.placer.upkeep import _forget_events
from bcd.store import deliveries, webhooks
from bcd.store.database import Transaction
from bcd.store.deliveries import Counts
from bcd.store.webhooks import Webhook
from tests.clock import DatabaseClock
from tests.placer.events.ends import tell
from tests.placer.events.receiver import Receiver, never, receiving, status
from tests.placer.events.test_feed import ROOT, OwnOnly
from tests.placer.waiting import until
from tests.placer.world import ALICE, BOB, World, dgx

DAY_MS = 86_400_000
SECRET = b"s" * 32
LOOPBACK = Reach(allow_http=True, networks=networks_of(["127.0.0.0/8"]))


async def itself(host: str, _port: int) -> Sequence[str]:
    return [host]


def poster(reach: Reach = LOOPBACK, total_s: float = 20.0) -> Poster:
    return Poster(reach, itself, ssl.create_default_context(), total_s=total_s)


class Hooks:
    """A deliverer that runs when a test says so, and the database behind it."""

    def __init__(self, world: World, clock: DatabaseClock) -> None:
        self.world = world
        self.clock = clock
        self.deliverer = self.another()

    def another(self, posts: Poster | None = None, feed: Feed | None = None) -> Deliverer:
        """Another placer's."""
        database = self.world.database
        feed = feed or Feed(database, self.world.policy)
        return Deliverer(database, feed, posts or poster())

    async def add(self, url: str, **changes: object) -> Webhook:
        """A webhook of an administrator, for everything."""

        def write(tx: Transaction) -> Webhook:
            fields = {"tenant_id": "", "types": (), "creator": ROOT, **changes}
            wanted = Webhook(id="", url=url, secret=SECRET, **fields)  # type: ignore[arg-type]
            return webhooks.add(tx, wanted, tx.new_id("hook"))

        return await self.world.database.write(write)

    async def run(self, deliverer: Deliverer | None = None) -> int | None:
        """Passes until nothing is due; returns the rest to take in milliseconds."""
        deliverer = deliverer or self.deliverer
        while True:
            rest = await deliverer.pass_once()
            if not deliverer._tasks:
                return None if rest is None else round(rest * 1000)
            await asyncio.gather(*deliverer._tasks.values())

    async def get(self, webhook: Webhook) -> tuple[Webhook, Counts]:
        """As it is now."""
        found = await self.world.database.read(webhooks.get, webhook.id)
        assert found is not None
        return found, await self.world.database.read(deliveries.counts, webhook.id)


@pytest.fixture
async def hooks(world: World, clock: DatabaseClock) -> AsyncIterator[Hooks]:
    clock.advance(0)
    made = Hooks(world, clock)
    yield made
    await made.deliverer.stop()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


async def test_each_event_comes_once_signed_and_in_order(hooks: Hooks, receiver: Receiver) -> None:
    await tell(hooks.world.database, "reservation/before")
    await hooks.add(receiver.url)
    subjects = [f"reservation/{number % 3}" for number in range(30)]
    await tell(hooks.world.database, *subjects)
    assert await hooks.run() is None
    assert len({post.id for post in receiver.posts}) == len(receiver.posts) == 30
    for subject in set(subjects):
        numbers = [
            post.document["data"]["number"]
            for post in receiver.posts
            if post.document["data"]["subject"] == subject
        ]
        assert numbers == sorted(numbers)
    for post in receiver.posts:
        post.assert_signed(secret_text(SECRET))
        assert post.headers["webhook-timestamp"] == str(hooks.clock.read() // 1000)


async def test_only_what_it_is_for_is_delivered(hooks: Hooks, receiver: Receiver) -> None:
    await hooks.add(receiver.url, tenant_id="acme", types=("reservation.active",))
    database = hooks.world.database
    await tell(database, "reservation/a")
    await tell(database, "reservation/b", kind="reservation.active", tenant="other")
    await tell(database, "node/n", kind="node.enrolment-rejected", tenant="")
    await tell(database, "reservation/c", kind="reservation.active")
    await hooks.run()
    assert receiver.subjects == ["reservation/c"]


async def test_nobody_is_delivered_more_than_they_may_read(
    hooks: Hooks, receiver: Receiver
) -> None:
    world = hooks.world
    await world.add_node(dgx("a"))
    await hooks.add(receiver.url, tenant_id="acme", creator=BOB)
    await world.create(1, key="k", caller=ALICE)
    own = await world.create(1, key="k", caller=BOB)
    await tell(world.database)
    strict = hooks.another(feed=Feed(world.database, OwnOnly()))
    await hooks.run(strict)
    assert receiver.subjects == [f"reservation/{own.id}"]


async def test_failures_are_tried_again_until_one_is_taken(hooks: Hooks) -> None:
    async with receiving(status(500), status(503), status(302)) as receiver:
        webhook = await hooks.add(receiver.url)
        await tell(hooks.world.database, "reservation/a")
        for attempt in range(3):
            rest = await hooks.run()
            assert len(receiver.posts) == attempt + 1
            assert rest is not None
            assert rest >= RETRIES_MS[attempt] * 0.8
            assert "it answered" in (await hooks.get(webhook))[0].problem
            hooks.clock.advance(rest)
        assert await hooks.run() is None
        assert len({post.id for post in receiver.posts}) == 1
        stamps = [int(post.headers["webhook-timestamp"]) for post in receiver.posts]
        assert stamps == sorted(set(stamps))
        found, counts = await hooks.get(webhook)
    assert (len(receiver.posts), counts, found.problem) == (4, Counts(), "")
    assert found.delivered_ms == hooks.clock.read()


async def test_a_failing_event_holds_up_its_own_subject_only(hooks: Hooks) -> None:
    async with receiving(status(500)) as receiver:
        await hooks.add(receiver.url)
        await tell(
            hooks.world.database,
            *("reservation/a", "reservation/a", "reservation/b", "reservation/b"),
        )
        rest = await hooks.run()
        assert sorted(receiver.subjects) == ["reservation/a", "reservation/b", "reservation/b"]
        assert rest is not None
        hooks.clock.advance(rest)
        await hooks.run()
    own = [p.document["data"]["number"] for p in receiver.posts if "/a" in str(p.document)]
    assert own == [0, 0, 1]


async def test_a_receiver_that_is_away_is_not_asked_about_every_event(hooks: Hooks) -> None:
    async with receiving(*[status(500)] * 100) as receiver:
        await hooks.add(receiver.url)
        await tell(hooks.world.database, *(f"reservation/{number}" for number in range(50)))
        rest = await hooks.run()
        assert len(receiver.posts) <= 2
        assert rest is not None
        assert rest <= 1_000


async def last_try(hooks: Hooks) -> None:
    """Let time pass until nothing is due any more."""
    while (rest := await hooks.run()) is not None:
        hooks.clock.advance(rest + 1)


async def test_what_no_try_brought_over_is_a_dead_letter_that_can_be_sent_again(
    hooks: Hooks,
) -> None:
    tries = len(RETRIES_MS) + 1
    async with receiving(*[status(500)] * tries) as receiver:
        webhook = await hooks.add(receiver.url)
        begun = hooks.clock.read()
        await tell(hooks.world.database, "reservation/a", "reservation/a")
        await last_try(hooks)
        assert hooks.clock.read() - begun < 36 * 3_600_000
        database = hooks.world.database
        (dead,) = await database.read(deliveries.dead_letters, webhook.id, 0, 10)
        assert (dead.attempts, dead.problem) == (tries, "it answered 500")
        assert [post.document["data"]["number"] for post in receiver.posts] == [0] * tries + [1]
        assert dead.event.id is not None
        assert await database.write(deliveries.redeliver, webhook.id, ["evt_other"]) == 0
        assert await database.write(deliveries.redeliver, webhook.id, [dead.event.id]) == 1
        await hooks.run()
        assert receiver.posts[-1].id == dead.event.id
        assert (await hooks.get(webhook))[1] == Counts()


async def test_a_receiver_that_is_gone_is_left_alone_until_it_is_enabled(hooks: Hooks) -> None:
    async with receiving(status(410)) as receiver:
        webhook = await hooks.add(receiver.url)
        await tell(hooks.world.database, "reservation/a")
        assert await hooks.run() is None
        await tell(hooks.world.database, "reservation/b")
        hooks.clock.advance(DAY_MS)
        assert await hooks.run() is None
        assert len(receiver.posts) == 1
        assert "410" in (await hooks.get(webhook))[0].disabled
        await hooks.world.database.write(webhooks.enable, webhook.id)
        await hooks.run()
        assert sorted(receiver.subjects[1:]) == ["reservation/a", "reservation/b"]


async def test_too_many_dead_letters_disable_a_webhook(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "MAX_DEAD", 2)
    async with receiving(*[status(500)] * 1000) as receiver:
        webhook = await hooks.add(receiver.url)
        await tell(hooks.world.database, *(f"reservation/{number}" for number in range(4)))
        await last_try(hooks)
        found, counts = await hooks.get(webhook)
    assert "dead letters" in found.disabled
    assert counts.dead + counts.waiting == 4


async def test_a_slow_receiver_holds_up_nobody(hooks: Hooks, receiver: Receiver) -> None:
    async with receiving(*[never] * 100) as slow:
        for _ in range(3):
            await hooks.add(slow.url)
        await hooks.add(receiver.url)
        await tell(hooks.world.database, *(f"reservation/{number}" for number in range(20)))
        await hooks.deliverer.pass_once()
        await slow.got(3)
        assert len(await receiver.got(20)) == 20
        assert len(hooks.deliverer._tasks) >= 3  # they still wait
        await tell(hooks.world.database, "reservation/more")
        await until(lambda: len(hooks.deliverer._tasks) == 3)
        await hooks.deliverer.pass_once()
        assert (await receiver.got(21))[-1].document["data"]["subject"] == "reservation/more"


async def test_what_comes_while_a_webhook_is_busy_follows_at_once(hooks: Hooks) -> None:
    release = asyncio.Event()

    async def held(post: object, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await status(200)(post, writer)  # type: ignore[arg-type]

    async with receiving(held) as receiver:
        await hooks.add(receiver.url)
        await tell(hooks.world.database, "reservation/a")
        await hooks.deliverer.pass_once()
        await receiver.got(1)
        await tell(hooks.world.database, "reservation/b")
        assert await hooks.deliverer.pass_once() is None
        release.set()
        assert [p.document["data"]["subject"] for p in await receiver.got(2)] == [
            "reservation/a",
            "reservation/b",
        ]


async def test_a_placer_that_dies_in_the_middle_of_an_attempt_loses_nothing(hooks: Hooks) -> None:
    """Another one takes the lease over when it has run out, and sends the event again."""
    async with receiving(never) as receiver:
        webhook = await hooks.add(receiver.url)
        await tell(hooks.world.database, "reservation/a")
        await hooks.deliverer.pass_once()
        await receiver.got(1)
        other = hooks.another()
        rest = await hooks.run(other)
        assert len(receiver.posts) == 1
        assert rest is not None
        hooks.clock.advance(rest)
        assert await hooks.run(other) is None
        assert [post.id for post in receiver.posts] == [receiver.posts[0].id] * 2
        assert (await hooks.get(webhook))[1] == Counts()


async def test_a_placer_that_lost_its_lease_writes_nothing_any_more(hooks: Hooks) -> None:
    release = asyncio.Event()

    async def late(post: object, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await status(410)(post, writer)  # type: ignore[arg-type]

    async with receiving(late, status(500)) as receiver:
        webhook = await hooks.add(receiver.url)
        await tell(hooks.world.database, "reservation/a")
        await hooks.deliverer.pass_once()
        await receiver.got(1)
        hooks.clock.advance(webhooks.LEASE_MS)
        other = hooks.another()
        await hooks.run(other)
        release.set()
        await asyncio.gather(*hooks.deliverer._tasks.values())
        found, counts = await hooks.get(webhook)
    assert (found.disabled, found.problem, counts.waiting) == ("", "it answered 500", 1)


async def test_a_stopped_placer_gives_its_webhooks_to_the_next_at_once(hooks: Hooks) -> None:
    async with receiving(never) as receiver:
        await hooks.add(receiver.url)
        await tell(hooks.world.database, "reservation/a")
        await hooks.deliverer.pass_once()
        await receiver.got(1)
        await hooks.deliverer.stop()
        assert await hooks.run(hooks.another()) is None
        assert len(receiver.posts) == 2


async def test_settings_that_became_stricter_hold_for_webhooks_that_are_there(
    hooks: Hooks, receiver: Receiver
) -> None:
    webhook = await hooks.add(receiver.url)
    await tell(hooks.world.database, "reservation/a")
    for reach, words in (
        (Reach(), "http is not allowed here"),
        (Reach(allow_http=True), "an address that is not public"),
    ):
        rest = await hooks.run(hooks.another(poster(reach)))
        assert words in (await hooks.get(webhook))[0].problem
        assert rest is not None
        hooks.clock.advance(rest)
    assert receiver.posts == []


async def test_no_more_is_taken_in_than_there_is_room_for(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "MAX_WAITING", 5)
    async with receiving(status(500), status(500)) as receiver:
        webhook = await hooks.add(receiver.url)
        await tell(hooks.world.database, *(f"reservation/{number}" for number in range(30)))
        rest = await hooks.run()
        assert (await hooks.get(webhook))[1] == Counts(waiting=5)
        while rest is not None:
            hooks.clock.advance(rest)
            rest = await hooks.run()
        assert set(receiver.subjects) == {f"reservation/{number}" for number in range(30)}


async def test_events_on_their_way_outlive_the_week_and_what_was_not_taken_in_is_counted(
    hooks: Hooks, receiver: Receiver
) -> None:
    database = hooks.world.database
    webhook = await hooks.add(receiver.url, types=("reservation.placed",))
    quiet = await hooks.add(receiver.url, tenant_id="quiet")
    async with receiving(status(410)) as gone:
        slow = await hooks.add(gone.url)
        await tell(database, "reservation/kept")
        await hooks.run()
    await database.write(webhooks.disable, webhook.id, "by the test")
    await tell(database, "reservation/a", "reservation/b")
    await tell(database, "reservation/c", kind="reservation.active")
    hooks.clock.advance(7 * DAY_MS + 1)
    await database.write(_forget_events)
    assert [(await hooks.get(one))[0].skipped for one in (webhook, quiet, slow)] == [2, 0, 3]
    assert (await hooks.get(slow))[1] == Counts(waiting=1)
    await database.write(webhooks.delete, slow.id)
    await database.write(_forget_events)
    assert await hooks.world.rows("SELECT * FROM events") == []


async def test_a_webhook_that_wants_nothing_of_much_does_not_go_through_it_again(
    hooks: Hooks, receiver: Receiver
) -> None:
    database = hooks.world.database
    quiet = await hooks.add(receiver.url, tenant_id="quiet")
    busy = await hooks.add(receiver.url, types=("reservation.failed",))
    await tell(database, *(f"reservation/{number}" for number in range(100)))
    await hooks.run()
    assert [(await hooks.get(one))[0].taken_seq for one in (quiet, busy)] == [0, 0]
    await tell(database, "reservation/a", kind="reservation.failed")
    await hooks.run()
    assert [(await hooks.get(one))[0].taken_seq for one in (quiet, busy)] == [101, 101]
    await tell(database, "reservation/b", tenant="quiet")
    await hooks.run()
    assert receiver.subjects == ["reservation/a", "reservation/b"]


async def test_dead_letters_go_after_a_month(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bcd.placer.events.backoff.RETRIES_MS", ())
    async with receiving(status(500)) as receiver:
        webhook = await hooks.add(receiver.url)
        await tell(hooks.world.database, "reservation/a")
        await hooks.run()
        for days, dead in ((30, 1), (1, 0)):
            hooks.clock.advance(days * DAY_MS)
            await hooks.world.database.write(_forget_events)
            assert (await hooks.get(webhook))[1].dead == dead


async def test_a_log_line_has_neither_url_nor_secret(
    hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="bcd")
    async with receiving(status(500)) as receiver:
        await hooks.add(receiver.url)
        await tell(hooks.world.database, "reservation/a")
        await hooks.run()
    fields = [str(vars(record)) for record in caplog.records]
    assert any("it answered 500" in line for line in fields)
    assert not any("room=1" in line or "ssss" in line for line in fields)


def test_an_answer_that_is_no_success_is_not_taken_for_one() -> None:
    assert [code for code in range(600) if Answer(code).accepted] == list(range(200, 300))
