"""Nodes that do not read, or send too much: bounded, ended, and no burden to the others."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from bcd.gateway.outbox import MAX_WAITING, Outbox, SlowPeer
from bcd.gateway.server import Gateway
from bcd.wire.node.v1 import gateway_pb2 as pb
from tests.gateway.conftest import Connect, Site
from tests.gateway.test_reports import Holder, allocation_of, sealed
from tests.gateway.waiting import until

FRAME = pb.ConnectResponse(report_ack=pb.ReportAck(number=1))
Write = Callable[[pb.ConnectResponse], Awaitable[None]]


async def no_state() -> pb.ConnectResponse | None:
    return None


async def forever(_: pb.ConnectResponse) -> None:
    await asyncio.Event().wait()


async def test_a_write_that_blocks_ends_the_writer() -> None:
    outbox = Outbox(forever, no_state, write_timeout_ms=50)
    outbox.put(FRAME)
    with pytest.raises(SlowPeer, match="longer than"):
        await asyncio.wait_for(outbox.run(), 5)


async def test_a_full_queue_refuses_and_drops_nothing() -> None:
    written: list[pb.ConnectResponse] = []

    async def write(message: pb.ConnectResponse) -> None:
        written.append(message)

    outbox = Outbox(write, no_state, write_timeout_ms=1000)
    for _ in range(MAX_WAITING):
        outbox.put(FRAME)
    with pytest.raises(SlowPeer, match="waiting"):
        outbox.put(FRAME)
    outbox.close(None)
    await asyncio.wait_for(outbox.run(), 5)
    assert len(written) == MAX_WAITING


async def test_states_that_change_while_a_write_lasts_are_read_once() -> None:
    written: list[int] = []
    newest = 0
    gate = asyncio.Event()

    async def write(message: pb.ConnectResponse) -> None:
        await gate.wait()
        written.append(message.report_ack.number)

    async def newest_state() -> pb.ConnectResponse | None:
        return pb.ConnectResponse(report_ack=pb.ReportAck(number=newest))

    outbox = Outbox(write, newest_state, write_timeout_ms=5000)
    running = asyncio.create_task(outbox.run())
    outbox.put(pb.ConnectResponse(report_ack=pb.ReportAck(number=1000)))
    await asyncio.sleep(0)
    for newest in range(1, 50):  # noqa: B007 - newest_state reads it
        outbox.state_changed()
        await asyncio.sleep(0)
    gate.set()
    while len(written) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    outbox.close(None)
    await asyncio.wait_for(running, 5)
    assert written == [1000, 49]


async def test_the_last_word_is_written_after_what_waits() -> None:
    written: list[pb.ConnectResponse] = []

    async def write(message: pb.ConnectResponse) -> None:
        written.append(message)

    outbox = Outbox(write, no_state, write_timeout_ms=1000)
    outbox.put(FRAME)
    last = pb.ConnectResponse(goaway=pb.Goaway())
    outbox.close(last)
    await asyncio.wait_for(outbox.run(), 5)
    assert written == [FRAME, last]


async def test_a_node_that_floods_and_does_not_read_is_ended_and_delays_nobody(
    new_node: Connect, gateway: Gateway, site: Site
) -> None:
    slow, quick = await new_node(), await new_node()
    await slow.welcome()
    await quick.welcome()
    holder = Holder(quick, await allocation_of(site, quick.node_id))
    # Rejections that are as long as they get fill the windows soon.
    flood = Holder(slow, holder.allocation_id)
    rubbish = sealed(flood.report(1))
    rubbish.payload = b"\xff"

    async def send_flood() -> None:
        while True:
            await flood.send(rubbish)

    flooding = asyncio.create_task(send_flood())

    numbers = itertools.count(1)

    async def slow_one_is_gone() -> bool:
        number = next(numbers)
        async with asyncio.timeout(5):
            assert (await holder.answer(sealed(holder.report(number)))).number == number
        return gateway.connected == 1

    await until(slow_one_is_gone)
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)
    assert gateway.counters["slow_peers"] == 1
