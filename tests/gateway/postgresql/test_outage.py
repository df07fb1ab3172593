"""The database goes away under a running gateway, and comes back."""

import asyncio

from bcd.gateway.server import Gateway
from bcd.wire.node.v1 import gateway_pb2 as pb
from tests.gateway.conftest import Site
from tests.gateway.node import Ended, TestNode
from tests.gateway.test_health import status
from tests.gateway.test_relay import generation_of, save
from tests.gateway.test_reports import STORED, Holder, allocation_of, sealed
from tests.gateway.waiting import until
from tests.postgres import Cluster


async def back(site: Site, gateway: Gateway, holder: Holder, number: int) -> bool:
    """Whether the node is let in again and its report is stored."""
    node = await site.reconnect(gateway, holder.node)
    try:
        await node.welcome()
    except (Ended, AssertionError):
        return False
    again = Holder(node, holder.allocation_id)
    return (await again.answer(sealed(again.report(number)))).status == STORED


async def test_an_outage_ends_only_what_needs_the_database_and_nothing_is_lost(
    site: Site, postgresql: Cluster
) -> None:
    gateway = await site.start(heartbeat_ttl_ms=60_000)
    busy, idle = await site.new_node(gateway), await site.new_node(gateway)
    await busy.welcome()
    await idle.welcome()
    holder = Holder(busy, await allocation_of(site, busy.node_id))
    assert (await holder.answer(sealed(holder.report(1)))).status == STORED
    postgresql.kill()
    try:
        await holder.send(sealed(holder.report(2)))
        goaway = await busy.goaway()
        assert goaway.reason == pb.GOAWAY_REASON_OVERLOADED
        assert goaway.retry_after_ms > 0
        refused = await site.reconnect(gateway, busy)
        await refused.send(refused.hello())
        assert (await refused.goaway()).reason == pb.GOAWAY_REASON_OVERLOADED
    finally:
        postgresql.start()
    await until(lambda: back(site, gateway, holder, 2))
    await idle.heartbeat()
    await until(lambda: asyncio.sleep(0, gateway.connected == 2))
    idle_holder = Holder(idle, await allocation_of(site, idle.node_id))
    assert (await idle_holder.answer(sealed(idle_holder.report(1)))).status == STORED


async def test_a_gateway_without_its_database_does_not_call_itself_healthy(
    site: Site, postgresql: Cluster
) -> None:
    gateway = await site.start(tick_ms=300)

    async def says(expected: str) -> bool:
        return await status(site, gateway) == expected

    await until(lambda: says("SERVING"))
    postgresql.kill()
    try:
        await until(lambda: says("NOT_SERVING"))
    finally:
        postgresql.start()
    await until(lambda: says("SERVING"))


async def test_states_saved_while_wake_ups_are_lost_are_sent(
    site: Site, postgresql: Cluster
) -> None:
    gateway = await site.start(tick_ms=1_000)
    node: TestNode = await site.new_node(gateway)
    await node.welcome()
    postgresql.kill()
    postgresql.start()
    await save(site, node, 3)
    assert await generation_of(node) == 3
