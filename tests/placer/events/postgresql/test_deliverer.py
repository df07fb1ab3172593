"""Two placers deliver to one webhook on PostgreSQL: the lease keeps them apart."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from bcd.placer.events.deliverer import Deliverer
from bcd.placer.events.feed import Feed
from bcd.placer.events.publisher import Publisher
from bcd.store import deliveries, webhooks
from bcd.store.database import Database, Transaction
from bcd.store.deliveries import Counts
from tests.clock import DatabaseClock
from tests.placer.events.ends import everything, tell
from tests.placer.events.receiver import receiving
from tests.placer.events.test_deliverer import SECRET, poster
from tests.placer.events.test_feed import ROOT
from tests.placer.world import AllowAll

ROUNDS = 60


@pytest.fixture
async def other(clock: DatabaseClock, database: Database) -> AsyncIterator[Database]:
    """Another placer's connections."""
    opened = clock.open()
    yield opened
    await opened.close()


async def test_two_placers_deliver_each_event_once_and_in_order(
    database: Database, other: Database
) -> None:
    async with receiving() as receiver:

        def add(tx: Transaction) -> str:
            wanted = webhooks.Webhook(
                id="", tenant_id="", url=receiver.url, types=(), creator=ROOT, secret=SECRET
            )
            return webhooks.add(tx, wanted, tx.new_id("hook")).id

        webhook_id = await database.write(add)
        stores = (database, other)
        deliverers = [Deliverer(store, Feed(store, AllowAll()), poster()) for store in stores]

        async def write() -> None:
            for _ in range(ROUNDS):
                await tell(database, "reservation/a", "reservation/b")

        async def deliver(store: Database, deliverer: Deliverer) -> None:
            while len(receiver.posts) < 2 * ROUNDS:
                await Publisher(store).pass_once()
                await deliverer.pass_once()

        async with asyncio.timeout(120):
            await asyncio.gather(write(), *map(deliver, stores, deliverers))
            for deliverer in deliverers:
                while deliverer._tasks:
                    await asyncio.gather(*deliverer._tasks.values())
        for deliverer in deliverers:
            await deliverer.stop()
    assert len({post.id for post in receiver.posts}) == len(receiver.posts) == 2 * ROUNDS
    written = await everything(database)
    for subject in ("reservation/a", "reservation/b"):
        sent = [post.id for post in receiver.posts if post.document["data"]["subject"] == subject]
        assert sent == [event.id for event in written if event.subject == subject]
    assert await database.read(deliveries.counts, webhook_id) == Counts()
