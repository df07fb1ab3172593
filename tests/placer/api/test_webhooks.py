"""Webhooks over the API: who may have them, where they may point, and what they deliver."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bcd.model.errors import BadConfiguration, Reason
from bcd.placer.api import webhooks as api
from bcd.placer.events.outgoing import Outgoing
from bcd.placer.settings import WebhookSettings
from bcd.store import deliveries, webhooks
from bcd.store.database import Database, Transaction
from bcd.store.deliveries import Outcome
from bcd.wire.compute.v1 import events_pb2 as pb
from tests.placer.api.conftest import Client, Site, is_refusal
from tests.placer.events.receiver import Receiver, receiving, status
from tests.placer.waiting import until
from tests.placer.world import TENANT, AllowAll, dgx


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


async def create(client: Client, url: str, **changes: Any) -> pb.CreateWebhookResponse:
    request = pb.CreateWebhookRequest(**({"tenant_id": TENANT, "url": url} | changes))
    answer: pb.CreateWebhookResponse = await client.call(client.webhooks.CreateWebhook, request)
    return answer


async def listed(client: Client, tenant_id: str = TENANT) -> list[pb.Webhook]:
    request = pb.ListWebhooksRequest(tenant_id=tenant_id)
    return list((await client.call(client.webhooks.ListWebhooks, request)).webhooks)


async def test_a_reservations_events_arrive_signed_as_they_happen(
    site: Site, alice: Client, receiver: Receiver
) -> None:
    made = await create(alice, receiver.url)
    assert made.secret.startswith("whsec_")
    await site.world.add_node(dgx("a"))
    reservation = await alice.create()
    (post, *_) = await receiver.got(1)
    post.assert_signed(made.secret)
    assert post.document["type"] == "reservation.placed"
    assert post.document["data"]["subject"] == f"reservation/{reservation.id}"
    assert post.document["data"]["tenantId"] == TENANT
    assert post.document["data"]["poolId"] == site.world.pool_id


async def test_a_secret_is_shown_once_and_never_again(
    site: Site, alice: Client, receiver: Receiver
) -> None:
    made = await create(alice, receiver.url, types=["reservation.placed"])
    (only,) = await listed(alice)
    assert only == made.webhook
    assert (only.url, list(only.types)) == (receiver.url, ["reservation.placed"])
    assert only.creator_identity_id == "https://test.example/placer|alice"
    assert made.secret not in str(only)
    found = await site.world.database.read(webhooks.get, only.id)
    assert repr(found) == f"Webhook({only.id})"


async def test_an_agent_adds_no_webhook_that_would_outlive_its_session(
    site: Site, alice: Client, receiver: Receiver
) -> None:
    agent = site.client("alice", actor="bot")
    request = pb.CreateWebhookRequest(tenant_id=TENANT, url=receiver.url)
    refused = await agent.refused(agent.webhooks.CreateWebhook, request)
    assert (refused.reason, refused.details) == (Reason.ACCESS_DENIED, {"actor": "bot"})
    assert await listed(alice) == []


async def test_members_look_after_their_tenants_webhooks_and_strangers_find_none(
    site: Site, alice: Client, stranger: Client, admin: Client, receiver: Receiver
) -> None:
    mine = (await create(alice, receiver.url)).webhook
    whole = (await create(admin, receiver.url, tenant_id="")).webhook
    assert [one.id for one in await listed(admin, "")] == [mine.id, whole.id]
    assert [one.id for one in await listed(site.client("bob"))] == [mine.id]
    assert await listed(stranger, "other") == []
    for client, webhook in ((stranger, mine), (alice, whole)):
        stub, named = client.webhooks, webhook.id
        for method, about in (
            (stub.DeleteWebhook, pb.DeleteWebhookRequest(webhook_id=named)),
            (stub.EnableWebhook, pb.EnableWebhookRequest(webhook_id=named)),
            (stub.ListDeadLetters, pb.ListDeadLettersRequest(webhook_id=named)),
            (stub.RedeliverDeadLetters, pb.RedeliverDeadLettersRequest(webhook_id=named)),
        ):
            assert (await client.refused(method, about)).reason is Reason.NOT_FOUND
    for tenant in (TENANT, ""):
        request = pb.CreateWebhookRequest(tenant_id=tenant, url=receiver.url)
        refused = await stranger.refused(stranger.webhooks.CreateWebhook, request)
        assert refused.reason is Reason.ACCESS_DENIED
        lists = pb.ListWebhooksRequest(tenant_id=tenant)
        refused = await stranger.refused(stranger.webhooks.ListWebhooks, lists)
        assert refused.reason is Reason.ACCESS_DENIED
    await alice.call(alice.webhooks.DeleteWebhook, pb.DeleteWebhookRequest(webhook_id=mine.id))
    assert await listed(alice) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"url": ""}, "url"),
        ({"url": "https://10.0.0.1/"}, "url"),
        ({"url": "https://[::1]/"}, "url"),
        ({"url": "https://[::ffff:169.254.169.254]/latest"}, "url"),
        ({"url": "https://167772161/"}, "url"),
        ({"url": "https://0/"}, "url"),
        ({"url": "gopher://127.0.0.1/"}, "url"),
        ({"types": ["placed"]}, "types[0]"),
    ],
)
async def test_a_webhook_that_may_not_be_is_refused_when_it_is_made(
    alice: Client, changes: dict[str, Any], field: str
) -> None:
    request = pb.CreateWebhookRequest(
        **({"tenant_id": TENANT, "url": "http://127.0.0.1:1/"} | changes)
    )
    refused = await alice.refused(alice.webhooks.CreateWebhook, request)
    assert is_refusal(refused, Reason.INVALID_INPUT, field=field)


async def test_without_settings_neither_http_nor_loopback_is_allowed(
    database: Database, tmp_path: Path
) -> None:
    outgoing = Outgoing(database, AllowAll(), WebhookSettings())
    assert not outgoing.poster.reach.allow_http
    assert outgoing.poster.reach.networks == ()
    await outgoing.stop()
    (tmp_path / "ca.pem").write_text("nonsense")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(BadConfiguration, match=r"webhooks\.ca_file: .*name a PEM file"):
            Outgoing(database, AllowAll(), WebhookSettings(ca_file=tmp_path / name))


async def test_there_is_room_for_so_many_webhooks(
    site: Site, alice: Client, admin: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MAX_OF_TENANT", 2)
    monkeypatch.setattr(api, "MAX_WEBHOOKS", 3)
    for client, tenant in ((alice, TENANT), (alice, TENANT), (admin, "other")):
        await create(client, receiver.url, tenant_id=tenant)
    for client, tenant, words in (
        (alice, TENANT, "there are 2 webhooks already"),
        (admin, "third", "no room"),
    ):
        request = pb.CreateWebhookRequest(tenant_id=tenant, url=receiver.url)
        refused = await client.refused(client.webhooks.CreateWebhook, request)
        assert refused.reason is Reason.CONFLICT
        assert words in refused.message


async def test_a_receiver_that_is_gone_shows_and_is_enabled_again(
    site: Site, alice: Client
) -> None:
    async with receiving(status(410)) as receiver:
        made = (await create(alice, receiver.url)).webhook
        await alice.create()
        await receiver.got(1)
        while not (await listed(alice))[0].disabled:
            pass
        (shown,) = await listed(alice)
        assert "410" in shown.disabled
        assert (shown.waiting, shown.dead_letters) == (1, 0)
        answer = await alice.call(
            alice.webhooks.EnableWebhook, pb.EnableWebhookRequest(webhook_id=made.id)
        )
        assert answer.webhook.disabled == ""
        one, two = await receiver.got(2)
        assert one.id == two.id


async def test_dead_letters_are_listed_by_pages_and_sent_again(
    site: Site, alice: Client, receiver: Receiver
) -> None:
    """They were given up by a placer that is gone; this one leaves them where they are."""
    database = site.world.database
    made = (await create(alice, receiver.url)).webhook
    await database.write(webhooks.disable, made.id, "by the test")
    for number in range(5):
        await alice.create(f"k{number}")
    await until_published(site, 5)
    found = await database.read(webhooks.get, made.id)
    assert found is not None

    def give_up(tx: Transaction) -> None:
        tx.run("UPDATE webhooks SET lease_token = 'test' WHERE id = :id", id=made.id)
        places = {place: f"reservation/{place}" for place in range(1, 6)}
        deliveries.take_in(tx, found, "test", places, 5)
        outcomes = [Outcome(published_seq=place, problem="it answered 500") for place in places]
        assert deliveries.settle(tx, made.id, "test", outcomes, 0)

    await database.write(give_up)
    request = pb.ListDeadLettersRequest(webhook_id=made.id, limit=2)
    letters: list[pb.DeadLetter] = []
    while True:
        page = await alice.call(alice.webhooks.ListDeadLetters, request)
        letters += page.dead_letters
        if not page.next_cursor:
            break
        request.cursor = page.next_cursor
    assert [letter.problem for letter in letters] == ["it answered 500"] * 5
    assert len({letter.event.id for letter in letters}) == 5
    again = pb.RedeliverDeadLettersRequest(webhook_id=made.id, event_ids=["evt_none"])
    refused = await alice.refused(alice.webhooks.RedeliverDeadLetters, again)
    assert refused.reason is Reason.NOT_FOUND
    for named, number in (([letters[3].event.id], 1), ([], 4)):
        again = pb.RedeliverDeadLettersRequest(webhook_id=made.id, event_ids=named)
        answer = await alice.call(alice.webhooks.RedeliverDeadLetters, again)
        assert answer.redelivered == number
    await alice.call(alice.webhooks.EnableWebhook, pb.EnableWebhookRequest(webhook_id=made.id))
    posts = await receiver.got(5)
    assert {post.id for post in posts} == {letter.event.id for letter in letters}


async def test_dead_letters_tell_nobody_what_the_policy_hides(
    site: Site, alice: Client, receiver: Receiver, tmp_path: Path
) -> None:
    database = site.world.database
    made = (await create(alice, receiver.url)).webhook
    await database.write(webhooks.disable, made.id, "by the test")
    await alice.create()
    await until_published(site, 1)
    found = await database.read(webhooks.get, made.id)
    assert found is not None

    def give_up(tx: Transaction) -> None:
        tx.run("UPDATE webhooks SET lease_token = 'test' WHERE id = :id", id=made.id)
        deliveries.take_in(tx, found, "test", {1: "reservation/1"}, 5)
        outcome = Outcome(published_seq=1, problem="it answered 500")
        assert deliveries.settle(tx, made.id, "test", [outcome], 0)

    await database.write(give_up)
    request = pb.ListDeadLettersRequest(webhook_id=made.id)
    assert len((await alice.call(alice.webhooks.ListDeadLetters, request)).dead_letters) == 1
    (tmp_path / "none.cedar").write_text("forbid (principal, action, resource);")
    site.placer._policy.load(tmp_path)
    assert not (await alice.call(alice.webhooks.ListDeadLetters, request)).dead_letters


async def until_published(site: Site, number: int) -> None:
    """Until the placer's own publisher has given so many places."""
    newest = site.placer._outgoing.feed.newest
    while (await newest()).place < number:
        pass


async def test_a_bad_cursor_of_dead_letters_is_refused(alice: Client, receiver: Receiver) -> None:
    made = (await create(alice, receiver.url)).webhook
    for cursor in ("x", "-1", "1" * 19, "²"):
        request = pb.ListDeadLettersRequest(webhook_id=made.id, cursor=cursor)
        refused = await alice.refused(alice.webhooks.ListDeadLetters, request)
        assert is_refusal(refused, Reason.INVALID_INPUT, field="cursor")


async def test_a_restarted_placer_delivers_what_was_on_its_way(site: Site, alice: Client) -> None:
    async with receiving(status(503)) as receiver:
        await create(alice, receiver.url)
        await alice.create()
        await receiver.got(1)
        database = site.world.database
        busy = site.placer._outgoing._deliverer
        await until(lambda: not busy._tasks)
        await site.placer.stop()
        await database.write(let_time_pass)
        outgoing = Outgoing(
            database,
            AllowAll(),
            WebhookSettings(allow_http=True, allow_private=("127.0.0.0/8",)),
        )
        await outgoing._deliverer.pass_once()
        one, two = await receiver.got(2)
        assert one.id == two.id
        await outgoing.stop()


def let_time_pass(tx: Transaction) -> None:
    """As if everything was due that waits."""
    tx.run("UPDATE webhook_deliveries SET due_ms = 0")
    tx.run("UPDATE webhooks SET rest_until_ms = 0")
