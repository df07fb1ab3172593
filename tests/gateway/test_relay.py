"""Desired states on their way down: opaque, newest only, and never again what the node has."""

import asyncio
import hashlib

from bcd.gateway.server import Gateway
from bcd.model.ids import NodeId
from bcd.signing import keys
from bcd.signing.envelope import PayloadType, seal
from bcd.store import desired_states, sessions
from bcd.store.database import Database
from bcd.store.desired_states import StoredState
from bcd.store.sessions import Session
from bcd.wire.node.v1 import desired_pb2
from bcd.wire.node.v1 import gateway_pb2 as pb
from tests.gateway.conftest import Connect, Site
from tests.gateway.node import TestNode
from tests.gateway.waiting import until

KEY = keys.generate_key()


def signed_state(node_id: NodeId, generation: int, epoch: int = 1) -> StoredState:
    """A state with an unknown field inside and outside, which a relay has to leave alone."""
    payload = desired_pb2.DesiredState(
        node_id=node_id, control_epoch=epoch, generation=generation
    ).SerializeToString() + bytes([0xF8, 0x3E, 0x01])
    signed = desired_pb2.SignedDesiredState(
        envelope=seal(KEY, PayloadType.DESIRED_STATE, payload), certificate=b"\0certificate"
    )
    return StoredState(
        node_id=node_id,
        epoch=epoch,
        generation=generation,
        hash=hashlib.sha256(payload).hexdigest(),
        key_id="key",
        signed=signed.SerializeToString() + bytes([0xF8, 0x3E, 0x02]),
    )


async def save(site: Site, node: TestNode, generation: int, epoch: int = 1) -> StoredState:
    state = signed_state(node.node_id, generation, epoch)
    await site.database.write(desired_states.save, state)
    return state


async def generation_of(node: TestNode) -> int:
    """The generation of the state that comes next."""
    signed = await node.receive_kind("desired_state")
    return desired_pb2.DesiredState.FromString(signed.envelope.payload).generation


async def nothing_more_comes(node: TestNode) -> None:
    """Whatever was written before the end would come first."""
    await node.send(pb.ConnectRequest(goodbye=pb.Goodbye()))
    await node.ended()


async def test_a_state_on_record_follows_the_welcome_as_it_was_stored(
    new_node: Connect, site: Site
) -> None:
    node = await new_node()
    state = await save(site, node, 3)
    await node.welcome()
    signed = await node.receive_kind("desired_state")
    assert signed.SerializeToString() == state.signed
    await nothing_more_comes(node)


async def test_a_node_without_a_state_is_sent_none(new_node: Connect) -> None:
    node = await new_node()
    await node.welcome()
    await nothing_more_comes(node)


async def test_a_state_that_the_node_has_is_not_sent(new_node: Connect, site: Site) -> None:
    node = await new_node()
    state = await save(site, node, 3)
    await node.welcome(applied_epoch=1, applied_generation=3, applied_hash=state.hash)
    await nothing_more_comes(node)


async def test_a_state_that_differs_in_anything_is_sent(gateway: Gateway, site: Site) -> None:
    node_id, credentials = await site.add_node()
    state = signed_state(node_id, 3)
    await site.database.write(desired_states.save, state)
    for applied in ((2, 3, state.hash), (1, 2, state.hash), (1, 3, "other"), (1, 4, state.hash)):
        node = await site.connect(gateway, node_id, credentials)
        epoch, generation, content_hash = applied
        await node.welcome(
            applied_epoch=epoch, applied_generation=generation, applied_hash=content_hash
        )
        assert await generation_of(node) == 3


async def test_a_new_state_is_sent_when_it_is_committed(new_node: Connect, site: Site) -> None:
    node, other = await new_node(), await new_node()
    await node.welcome()
    await other.welcome()
    for generation in (1, 2, 3):
        await save(site, node, generation)
        assert await generation_of(node) == generation
    await nothing_more_comes(other)


async def test_a_new_control_epoch_is_sent_though_its_generation_is_lower(
    new_node: Connect, site: Site
) -> None:
    node = await new_node()
    await node.welcome()
    await save(site, node, 7)
    assert await generation_of(node) == 7
    await save(site, node, 1, epoch=2)
    assert await generation_of(node) == 1


async def test_a_state_is_sent_without_a_wake_up(site: Site) -> None:
    """The wake-up may be lost: the tick finds what was not sent."""
    gateway = await site.start(tick_ms=500)
    node = await site.new_node(gateway)
    await save(site, node, 1)
    await node.welcome()
    assert await generation_of(node) == 1
    await site.database.write(
        lambda tx: tx.run("UPDATE desired_states SET generation = 2, hash = 'two'")
    )
    await node.receive_kind("desired_state")


async def acked(database: Database, node: TestNode) -> Session:
    session = await database.read(sessions.get, node.node_id)
    assert session is not None
    return session


async def test_the_nodes_answer_is_on_record(new_node: Connect, site: Site) -> None:
    node = await new_node()
    await node.welcome()
    state = await save(site, node, 4)
    await node.receive_kind("desired_state")
    for status, name in (
        (pb.ACK_STATUS_PARTIAL, "partial"),
        (pb.ACK_STATUS_REJECTED, "rejected"),
        (pb.ACK_STATUS_APPLIED, "applied"),
    ):
        ack = pb.Ack(epoch=1, generation=4, hash=state.hash, status=status)
        ack.errors.add(allocation_id="alloc\0", reason="too\nlong" * 100)
        await node.send(pb.ConnectRequest(ack=ack))

        async def recorded(name: str = name) -> bool:
            return (await acked(site.database, node)).ack_status == name

        await until(recorded)
    session = await acked(site.database, node)
    assert (session.acked_epoch, session.acked_generation) == (1, 4)


async def test_a_rejected_state_is_not_sent_again(site: Site) -> None:
    gateway = await site.start(tick_ms=300)
    node = await site.new_node(gateway)
    await node.welcome()
    state = await save(site, node, 4)
    assert await generation_of(node) == 4
    ack = pb.Ack(epoch=1, generation=4, hash=state.hash, status=pb.ACK_STATUS_REJECTED)
    await node.send(pb.ConnectRequest(ack=ack))
    for _ in range(3):
        await site.database.write(lambda tx: tx.wake("desired", node.node_id))
    ticks = gateway.counters["ticks"]
    await until(lambda: asyncio.sleep(0, gateway.counters["ticks"] > ticks + 1))
    await save(site, node, 5)
    assert await generation_of(node) == 5


async def test_an_answer_that_makes_no_sense_is_counted_and_ignored(
    new_node: Connect, gateway: Gateway, site: Site
) -> None:
    node = await new_node()
    await node.welcome()
    for ack in (
        pb.Ack(generation=1),
        pb.Ack(generation=1 << 63, status=pb.ACK_STATUS_APPLIED),
        pb.Ack(epoch=(1 << 64) - 1, status=pb.ACK_STATUS_APPLIED),
    ):
        await node.send(pb.ConnectRequest(ack=ack))

    async def all_counted() -> bool:
        return gateway.counters["acks_unreadable"] == 3

    await until(all_counted)
    assert (await acked(site.database, node)).ack_status == ""
    assert gateway.connected == 1


async def test_a_slow_node_is_sent_the_newest_state_only(new_node: Connect, site: Site) -> None:
    node = await new_node()
    for generation in range(1, 21):
        await save(site, node, generation)
    await node.welcome()
    assert await generation_of(node) == 20
    await nothing_more_comes(node)
