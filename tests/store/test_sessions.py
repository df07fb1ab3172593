"""Sessions: a newer one fences the older, whose writes then do nothing."""

import asyncio

import pytest

from bcd.model.ids import NodeId
from bcd.store import sessions
from bcd.store.database import ConstraintViolated, Database, Transaction
from bcd.store.sessions import Acknowledgement, Opening
from tests.clock import DatabaseClock
from tests.store.world import make_node, make_pool

ACK = Acknowledgement(epoch=1, generation=7, hash="ab", status="applied", errors=(("a", "b"),))


def opening(node_id: NodeId, instance: str = "one") -> Opening:
    return Opening(
        node_id=node_id,
        gateway_id="gw",
        process_instance=instance,
        boot_id="boot",
        daemon_version="0.1.0",
        protocol_version=1,
        ttl_ms=30_000,
    )


def some_nodes(tx: Transaction, count: int = 1) -> list[NodeId]:
    pool_id = make_pool(tx)
    return [make_node(tx, pool_id) for _ in range(count)]


async def test_every_session_of_a_node_has_a_greater_epoch(database: Database) -> None:
    (node_id,) = await database.write(some_nodes)
    epochs = await asyncio.gather(
        *(database.write(sessions.open_session, opening(node_id, f"p{n}")) for n in range(8))
    )
    assert sorted(epochs) == list(range(1, 9))
    session = await database.read(sessions.get, node_id)
    assert session is not None
    assert (session.epoch, session.process_instance) == (8, f"p{epochs.index(8)}")
    assert session.connected


async def test_a_node_that_was_removed_gets_no_session(database: Database) -> None:
    with pytest.raises(ConstraintViolated):
        await database.write(sessions.open_session, opening(NodeId("node_none")))


async def test_a_fenced_session_writes_nothing(database: Database, clock: DatabaseClock) -> None:
    (node_id,) = await database.write(some_nodes)
    old = await database.write(sessions.open_session, opening(node_id))
    new = await database.write(sessions.open_session, opening(node_id, "two"))
    before = await database.read(sessions.get, node_id)
    clock.advance(1000)
    assert list(await database.write(sessions.touch_all, [(node_id, old)])) == [node_id]
    assert await database.write(sessions.acknowledge, node_id, old, ACK) is False
    assert await database.write(sessions.is_current, node_id, old) is False
    await database.write(sessions.close_all, [(node_id, old)])
    assert await database.read(sessions.get, node_id) == before
    assert list(await database.write(sessions.touch_all, [(node_id, new)])) == []
    assert await database.write(sessions.acknowledge, node_id, new, ACK) is True
    after = await database.read(sessions.get, node_id)
    assert after is not None
    assert before is not None
    assert after.last_seen_ms >= before.last_seen_ms + 1000
    assert (after.acked_generation, after.ack_status) == (7, "applied")


async def test_touching_many_names_those_that_were_fenced(
    database: Database, clock: DatabaseClock
) -> None:
    nodes = await database.write(some_nodes, 4)
    epochs = [await database.write(sessions.open_session, opening(node)) for node in nodes]
    await database.write(sessions.open_session, opening(nodes[2], "two"))
    live = list(zip(nodes, epochs, strict=True))
    clock.advance(5000)
    now_ms = clock.read()
    assert list(await database.write(sessions.touch_all, live)) == [nodes[2]]
    for session in await database.read(sessions.every):
        fenced = session.node_id == nodes[2]
        assert (session.last_seen_ms == now_ms) is not fenced
    assert list(await database.write(sessions.touch_all, live[:2])) == []
    assert list(await database.write(sessions.touch_all, [])) == []


async def test_closing_many_disconnects_only_the_current_ones(database: Database) -> None:
    nodes = await database.write(some_nodes, 3)
    epochs = [await database.write(sessions.open_session, opening(node)) for node in nodes]
    await database.write(sessions.open_session, opening(nodes[0], "two"))
    await database.write(sessions.close_all, list(zip(nodes, epochs, strict=True)))
    connected = {s.node_id: s.connected for s in await database.read(sessions.every)}
    assert connected == {nodes[0]: True, nodes[1]: False, nodes[2]: False}


async def test_opening_and_closing_wake_those_who_watch_sessions(database: Database) -> None:
    (node_id,) = await database.write(some_nodes)
    heard: asyncio.Queue[str] = asyncio.Queue()
    database.wakes.listen("session", heard.put_nowait)
    epoch = await database.write(sessions.open_session, opening(node_id))
    async with asyncio.timeout(10):
        assert await heard.get() == node_id
        await database.write(sessions.close_all, [(node_id, epoch)])
        assert await heard.get() == node_id


async def test_a_gateways_start_is_on_record(database: Database, clock: DatabaseClock) -> None:
    clock.set(2_000_000_000_000)
    assert await database.read(sessions.last_gateway_start_ms) == 0
    await database.write(sessions.register_gateway, "one")
    clock.advance(10)
    await database.write(sessions.register_gateway, "two")
    assert await database.read(sessions.last_gateway_start_ms) == 2_000_000_000_010
    clock.advance(10)
    await database.write(sessions.register_gateway, "one")
    assert await database.read(sessions.last_gateway_start_ms) == 2_000_000_000_020
