"""Killed at random instants, a placer tells watchers and webhooks of everything all the same."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

import grpc
import pytest

from bcd.wire.compute.v1 import events_pb2, events_pb2_grpc, reservations_pb2
from tests.conftest import MakeSystem
from tests.journeys.records import query
from tests.journeys.system import TENANT, Client, System
from tests.placer.events.receiver import receiving

T = TypeVar("T")
KILLS = 5
SETTINGS = '[webhooks]\nallow_http = true\nallow_private = ["127.0.0.0/8"]\n'


async def live(system: System, pool_id: str, done: asyncio.Event) -> int:
    """Create and cancel one reservation after the other, insisting; returns how many."""
    number = 0
    while not done.is_set():
        number += 1
        await asyncio.to_thread(_one_life, system, pool_id, f"k{number}")
    return number


def _one_life(system: System, pool_id: str, key: str) -> None:
    made = _insist(system, lambda client: client.create(pool_id, 1, key))
    request = reservations_pb2.CancelReservationRequest(tenant_id=TENANT, reservation_id=made.id)
    _insist(system, lambda client: _cancel(client, request))


def _cancel(client: Client, request: reservations_pb2.CancelReservationRequest) -> object:
    try:
        return client.reservations.CancelReservation(request, metadata=client.metadata, timeout=5)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:  # the lost answer was a yes
            return None
        raise


def _insist(system: System, call: Callable[[Client], T]) -> T:
    while True:
        client = system.client()
        with client.channel:
            try:
                return call(client)
            except grpc.RpcError:
                continue


def every_event(system: System) -> list[events_pb2.Event]:
    """What a list gives, page by page, from the oldest."""
    client = system.client()
    with client.channel:
        stub = events_pb2_grpc.EventsServiceStub(client.channel)
        request, more = events_pb2.ListEventsRequest(tenant_id=TENANT, limit=7), True
        found: list[events_pb2.Event] = []
        while more:
            page = stub.ListEvents(request, metadata=client.metadata, timeout=30)
            found += page.events
            request.cursor, more = page.next_cursor, page.more
    return found


@pytest.mark.timeout(300)
async def test_every_event_reaches_who_wants_it_in_order(make_system: MakeSystem) -> None:
    system = make_system()
    system.placer_file.write_text(system.placer_file.read_text() + SETTINGS)
    async with receiving() as receiver:
        with system:
            pool_id = await asyncio.to_thread(system.add_pool)
            client = system.client()
            with client.channel:
                request = events_pb2.CreateWebhookRequest(tenant_id=TENANT, url=receiver.url)
                stub = events_pb2_grpc.WebhooksServiceStub(client.channel)
                stub.CreateWebhook(request, metadata=client.metadata, timeout=30)
            done = asyncio.Event()
            living = asyncio.create_task(live(system, pool_id, done))
            await receiver.got(4)
            for _ in range(KILLS):
                await asyncio.sleep(random.uniform(0.1, 1.0))
                await asyncio.to_thread(system.programs["placer"].kill)
                system.programs["placer"].start()
                await asyncio.to_thread(system.wait_api)
            done.set()
            lives = await living
            while len({post.id for post in receiver.posts}) < 2 * lives:
                await receiver.got(len(receiver.posts) + 1, within_s=60)  # the lease runs out
            told = await asyncio.to_thread(every_event, system)
    by_subject: dict[str, list[str]] = defaultdict(list)
    for event in told:
        by_subject[event.subject].append(event.id)
    assert len(told) == 2 * lives
    assert len({event.id for event in told}) == len(told)
    first: dict[str, None] = dict.fromkeys(post.id for post in receiver.posts)
    order = list(first)
    for ids in by_subject.values():
        assert sorted(ids, key=order.index) == ids
    places = [row["published_seq"] for row in query(system.url, "SELECT published_seq FROM events")]
    assert sorted(places) == list(range(1, 2 * lives + 1))
