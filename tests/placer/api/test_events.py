"""Events over the API: watched from any cursor, listed by pages (spec 9.4, 15.1)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest

from bcd.model.caller import Caller
from bcd.model.errors import QuotaExceeded, Reason, Unavailable
from bcd.placer.api import events as api
from bcd.placer.api.edge import Edge
from bcd.placer.api.events import EventCalls
from bcd.placer.events.feed import Feed
from bcd.placer.pki.issuer import Grant
from bcd.store import events
from bcd.store.database import Transaction
from bcd.wire.compute.v1 import events_pb2 as pb
from bcd.wire.compute.v1 import reservations_pb2
from bcd.wire.status import decode_error
from tests.placer.api.conftest import Client, Site, is_refusal
from tests.placer.waiting import until
from tests.placer.world import ALICE, TENANT, World, dgx


@dataclass
class Watch:
    """An open stream."""

    call: Any

    async def answer(self) -> pb.WatchEventsResponse:
        """The next message."""
        async with asyncio.timeout(20):
            answer: pb.WatchEventsResponse = await self.call.read()
        return answer

    async def event(self) -> tuple[pb.Event, str]:
        """The next event and its cursor; heartbeats are passed over."""
        while True:
            answer = await self.answer()
            if answer.HasField("event"):
                return answer.event, answer.cursor

    async def refusal(self) -> Any:
        """How a stream ends that must end."""
        try:
            async with asyncio.timeout(20):
                while await self.call.read() is not grpc.aio.EOF:
                    pass
        except grpc.aio.AioRpcError as error:
            return decode_error(error)
        raise AssertionError("the stream ended well")


@asynccontextmanager
async def watching(client: Client, **wanted: Any) -> AsyncIterator[Watch]:
    """A stream that is open, with its first message read."""
    request = pb.WatchEventsRequest(**({"tenant_id": TENANT} | wanted))
    watch = Watch(client.events.WatchEvents(request, metadata=client.metadata))
    yield watch
    watch.call.cancel()


async def release(client: Client, reservation_id: str) -> None:
    request = reservations_pb2.ReleaseReservationRequest(
        tenant_id=TENANT, reservation_id=reservation_id
    )
    await client.call(client.reservations.ReleaseReservation, request)


async def test_a_watcher_is_told_of_what_happens_from_now_on(site: Site, alice: Client) -> None:
    before = await alice.create("before")
    async with watching(alice) as watch:
        hello = await watch.answer()
        assert not hello.HasField("event")
        assert hello.cursor
        made = await alice.create("after")
        event, _ = await watch.event()
        while event.subject == f"reservation/{before.id}":  # it was published a moment ago
            event, _ = await watch.event()
        assert (event.subject, event.type) == (f"reservation/{made.id}", "reservation.pending")
        assert event.tenant_id == TENANT
        assert event.id.startswith("evt_")
        assert json.loads(event.data) == {"state": "pending", "poolId": site.world.pool_id}


async def test_a_watcher_goes_on_where_another_stopped(site: Site, alice: Client) -> None:
    async with watching(alice) as watch:
        start = (await watch.answer()).cursor
        for number in range(5):
            await alice.create(f"k{number}")
        whole = [await watch.event() for _ in range(5)]
    for seen in range(6):
        cursor = whole[seen - 1][1] if seen else start
        async with watching(alice, cursor=cursor) as watch:
            assert [await watch.event() for _ in whole[seen:]] == whole[seen:]


async def test_a_watcher_hears_only_what_it_asked_for_and_its_cursor_moves_all_the_same(
    site: Site, alice: Client
) -> None:
    made = await alice.create("one")
    wanted = {"subject": f"reservation/{made.id}", "types": ["reservation.cancelled"]}
    async with watching(alice, **wanted) as watch:
        await watch.answer()
        await alice.create("two")
        await release(alice, made.id)
        event, cursor = await watch.event()
        assert event.type == "reservation.cancelled"
    async with watching(alice, cursor=cursor) as watch:
        assert (await watch.answer()).cursor == cursor


async def test_heartbeats_carry_the_newest_cursor_to_who_filters(world: World) -> None:
    """Else a watcher of something rare would resume from what is long forgotten."""
    calls = EventCalls(Feed(world.database, world.policy), heartbeat_s=0.01)
    sent: list[pb.WatchEventsResponse] = []
    enough = asyncio.Event()

    async def send(answer: pb.WatchEventsResponse) -> None:
        sent.append(answer)
        if answer.cursor == "1-3":
            enough.set()

    request = pb.WatchEventsRequest(tenant_id=TENANT, types=["reservation.failed"])
    task = asyncio.create_task(calls.watch(ALICE, request, send))
    await until(lambda: len(sent) > 2)

    def write(tx: Transaction) -> None:
        for number in range(3):
            events.emit(tx, f"reservation/{number}", "reservation.placed", {}, tenant_id=TENANT)
        events.publish(tx, 10)

    await world.database.write(write)
    async with asyncio.timeout(20):
        await enough.wait()
    assert not any(answer.HasField("event") for answer in sent)
    assert sent[0].cursor == "1-0"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls.streams.total() == 0


async def test_strangers_hear_nothing_and_administrators_everything(
    site: Site, alice: Client, stranger: Client, admin: Client
) -> None:
    async with watching(stranger, tenant_id="other") as deaf, watching(admin, tenant_id="") as all_:
        await deaf.answer()
        await all_.answer()
        made = await alice.create()
        event, cursor = await all_.event()
        assert event.subject == f"reservation/{made.id}"
        listed = await stranger.call(
            stranger.events.ListEvents, pb.ListEventsRequest(tenant_id="other")
        )
        assert (len(listed.events), listed.next_cursor) == (0, cursor)
    for tenant in (TENANT, ""):
        async with watching(stranger, tenant_id=tenant) as watch:
            assert (await watch.refusal()).reason is Reason.ACCESS_DENIED
        refused = await stranger.refused(
            stranger.events.ListEvents, pb.ListEventsRequest(tenant_id=tenant)
        )
        assert refused.reason is Reason.ACCESS_DENIED


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cursor": "nonsense"}, "cursor"),
        ({"cursor": "1-99"}, "cursor"),
        ({"cursor": "9-0"}, "cursor"),
        ({"types": ["reservation.placed", "placed"]}, "types[1]"),
        ({"subject": "a" * 300}, "subject"),
        ({"subject": "a\nb"}, "subject"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(
    alice: Client, changes: dict[str, Any], field: str
) -> None:
    async with watching(alice, **changes) as watch:
        assert is_refusal(await watch.refusal(), Reason.INVALID_INPUT, field=field)
    request = pb.ListEventsRequest(**({"tenant_id": TENANT} | changes))
    refused = await alice.refused(alice.events.ListEvents, request)
    assert is_refusal(refused, Reason.INVALID_INPUT, field=field)


async def test_a_list_pages_from_the_oldest_and_a_watch_goes_on_behind_it(
    site: Site, alice: Client
) -> None:
    made = [await alice.create(f"k{number}") for number in range(5)]
    found: list[str] = []
    request = pb.ListEventsRequest(tenant_id=TENANT, limit=2)
    while len(found) < 5:
        page = await alice.call(alice.events.ListEvents, request)
        assert len(page.events) <= 2
        found += [event.subject for event in page.events]
        request.cursor = page.next_cursor
    assert found == [f"reservation/{one.id}" for one in made]
    assert not page.more
    async with watching(alice, cursor=page.next_cursor) as watch:
        await release(alice, made[0].id)
        assert (await watch.event())[0].subject == f"reservation/{made[0].id}"
    for limit in (0, 201, -1):
        request.limit = limit
        refused = await alice.refused(alice.events.ListEvents, request)
        assert is_refusal(refused, Reason.INVALID_INPUT, field="limit")


async def test_watchers_are_counted_and_a_place_is_free_when_one_leaves(
    site: Site, alice: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_MAX_STREAMS_OF_ONE", 2)
    async with watching(alice) as one, watching(alice) as two:
        for watch in (one, two):
            await watch.answer()
        async with watching(alice) as three:
            refused = await three.refusal()
            assert refused.reason is Reason.UNAVAILABLE
            assert "too many watchers" in refused.message
        one.call.cancel()
        async with asyncio.timeout(20):
            while True:
                async with watching(alice) as again:
                    answer = await _first(again)
                    if answer is not None:
                        break


async def test_a_tenants_watchers_are_bounded_and_administrators_are_none_of_them(
    world: World,
) -> None:
    calls = EventCalls(Feed(world.database, world.policy))
    member = replace(ALICE, tenants=frozenset({TENANT, "other"}))
    admin = replace(ALICE, subject="root", tenants=frozenset(), admin=True)
    running: list[asyncio.Task[None]] = []

    async def watch(caller: Caller, tenant_id: str = TENANT) -> None:
        greeted = asyncio.Event()

        async def send(_answer: pb.WatchEventsResponse) -> None:
            greeted.set()

        request = pb.WatchEventsRequest(tenant_id=tenant_id)
        task = asyncio.create_task(calls.watch(caller, request, send))
        running.append(task)
        waiting = asyncio.create_task(greeted.wait())
        done, _ = await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task in done:
            running.pop()
            await task

    for number in range(3):
        await watch(replace(admin, subject=f"root{number}"))
    for number in range(32):
        await watch(replace(member, subject=f"m{number}"))
    with pytest.raises(QuotaExceeded) as refused:
        await watch(replace(member, subject="more"))
    assert refused.value.details == {"resource": "watchers", "limit": "32", "tenantId": TENANT}
    assert "has 32 watchers" in refused.value.message
    await watch(admin)
    await watch(replace(member, subject="more"), "other")
    running[3].cancel()
    await asyncio.wait(running[3:4])
    await watch(replace(member, subject="more"))
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    assert [*calls.streams, *calls.tenants] == []


async def _first(watch: Watch) -> pb.WatchEventsResponse | None:
    try:
        return await watch.answer()
    except grpc.aio.AioRpcError:
        return None


async def test_a_stream_ends_with_its_token(site: Site) -> None:
    """With the next thing it would have said, a heartbeat at the latest."""
    grant = Grant(subject="alice", tenants=(TENANT,))
    almost_over = site.issuer.issue(grant, site.clock.read() - 57_500, 60_000)
    async with watching(site.bearer(almost_over)) as watch:
        await watch.answer()
        end = asyncio.create_task(watch.refusal())
        while not end.done():
            await site.world.database.write(tell, TENANT)
        assert (await end).reason is Reason.UNAUTHENTICATED


def tell(tx: Transaction, tenant_id: str) -> None:
    """An event of nothing in particular."""
    events.emit(tx, "test/one", "reservation.placed", {}, tenant_id=tenant_id)


async def test_a_caller_that_takes_nothing_loses_its_place(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bcd.placer.api.edge._TAKE_S", 0.05)

    class Stuck:
        """A call whose peer reads nothing."""

        ended: Any = None

        def invocation_metadata(self) -> list[tuple[str, str]]:
            return [("authorization", f"Bearer {site.token()}")]

        async def write(self, _answer: object) -> None:
            await asyncio.Event().wait()

        async def abort_with_status(self, status: Any) -> None:
            self.ended = status
            raise Unavailable("aborted")

    stuck = Stuck()
    calls = EventCalls(Feed(site.world.database, site.world.policy))
    edge = Edge(site.issuer)
    request = pb.WatchEventsRequest(tenant_id=TENANT)
    with pytest.raises(Unavailable, match="aborted"):
        await edge.stream(calls.watch, request, stuck)  # type: ignore[arg-type]
    assert "took an answer" in stuck.ended.details
    assert calls.streams.total() == 0


async def test_a_burst_that_is_larger_than_a_page_comes_whole(site: Site, admin: Client) -> None:
    def write(tx: Transaction) -> None:
        for number in range(1_000):
            events.emit(tx, f"reservation/{number}", "reservation.placed", {"number": number})

    async with watching(admin, tenant_id="") as watch:
        await watch.answer()
        await site.world.database.write(write)
        found = [await watch.event() for _ in range(1_000)]
    assert [json.loads(event.data)["number"] for event, _ in found] == list(range(1_000))


async def test_a_nodes_events_are_told_to_administrators_only(
    site: Site, alice: Client, admin: Client
) -> None:
    await site.world.add_node(dgx("a"))

    def write(tx: Transaction) -> None:
        events.emit(tx, "node/n", "node.enrolment-rejected", {"nodeId": "n", "reason": "x"})

    async with watching(alice) as own, watching(admin, tenant_id="") as all_:
        await own.answer()
        await all_.answer()
        await site.world.database.write(write)
        assert (await all_.event())[0].type == "node.enrolment-rejected"
        made = await alice.create()
        assert (await own.event())[0].subject == f"reservation/{made.id}"
