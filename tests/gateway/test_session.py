"""A session from its Welcome to its end: who ends it, how, and what is left behind."""

import asyncio
from dataclasses import replace

import pytest

from bcd.gateway.server import Gateway
from bcd.model.units import DAY_MS
from bcd.signing.certificates import Role, serial_hex
from bcd.store import certificates, sessions
from bcd.store.certificates import IssuedCertificate
from bcd.store.database import Database
from bcd.store.sessions import Session
from bcd.wire.node.v1 import gateway_pb2 as pb
from tests.authority import now_ms
from tests.gateway.conftest import Connect, Site
from tests.gateway.node import TestNode
from tests.gateway.waiting import until
from tests.store.test_sessions import opening


async def stored(database: Database, node: TestNode) -> Session:
    session = await database.read(sessions.get, node.node_id)
    assert session is not None
    return session


async def is_closed(site: Site, node: TestNode) -> bool:
    return not (await stored(site.database, node)).connected


async def test_a_goodbye_ends_the_session_at_once(
    new_node: Connect, gateway: Gateway, site: Site
) -> None:
    node = await new_node()
    await node.welcome()
    await node.send(pb.ConnectRequest(goodbye=pb.Goodbye(reason="upgrade")))
    await node.ended()
    await until(lambda: is_closed(site, node))
    assert gateway.connected == 0


async def test_a_connection_that_breaks_closes_the_session(
    new_node: Connect, gateway: Gateway, site: Site
) -> None:
    node = await new_node()
    await node.welcome()
    await node.hang_up()
    await until(lambda: is_closed(site, node))
    assert gateway.connected == 0


async def test_heartbeats_are_on_record(new_node: Connect, site: Site) -> None:
    node = await new_node()
    await node.welcome()
    opened = await stored(site.database, node)

    async def seen_later() -> bool:
        await node.heartbeat()
        return (await stored(site.database, node)).last_seen_ms > opened.last_seen_ms

    await until(seen_later)


async def test_a_node_that_falls_silent_loses_its_session(site: Site) -> None:
    gateway = await site.start(heartbeat_interval_ms=100, heartbeat_ttl_ms=300)
    node = await site.new_node(gateway)
    await node.welcome()
    await node.ended()
    await until(lambda: is_closed(site, node))
    assert gateway.counters["sessions_silent"] == 1


async def test_a_node_that_sends_heartbeats_keeps_its_session_past_the_ttl(site: Site) -> None:
    gateway = await site.start(heartbeat_ttl_ms=1_500)
    node, silent = await site.new_node(gateway), await site.new_node(gateway)
    await node.welcome()
    await silent.welcome()

    async def silent_one_is_gone() -> bool:
        await node.heartbeat()
        return await is_closed(site, silent)

    await until(silent_one_is_gone)
    assert gateway.connected == 1
    assert not await is_closed(site, node)


async def test_a_second_hello_ends_the_stream(new_node: Connect) -> None:
    node = await new_node()
    await node.welcome()
    await node.send(node.hello())
    assert (await node.goaway()).reason == pb.GOAWAY_REASON_PROTOCOL


async def test_a_frame_that_does_not_parse_ends_the_stream(new_node: Connect) -> None:
    node = await new_node()
    await node.welcome()
    await node.send(b"\xff\xff\xff\xff")
    assert (await node.goaway()).reason == pb.GOAWAY_REASON_PROTOCOL


async def test_a_frame_over_the_limit_ends_the_stream(
    new_node: Connect, gateway: Gateway, site: Site
) -> None:
    node = await new_node()
    await node.welcome()
    await node.send(pb.ConnectRequest(heartbeat=pb.Heartbeat(inventory_hash="x" * (1 << 20))))
    await node.ended()
    await until(lambda: is_closed(site, node))
    assert gateway.connected == 0


async def test_frames_of_a_kind_that_is_not_known_are_counted_and_ignored(
    new_node: Connect, gateway: Gateway
) -> None:
    node = await new_node()
    await node.welcome()
    unknown_arm = bytes([0x9A, 0x3E, 0x02, 0x08, 0x01])  # field 995, a message
    for _ in range(3):
        await node.send(unknown_arm)
    await node.send(node.hello())  # still read afterwards
    await node.goaway()
    assert gateway.counters["frames_unknown"] == 3


async def test_unknown_fields_in_a_known_frame_are_tolerated(new_node: Connect) -> None:
    node = await new_node()
    unknown_field = bytes([0xF8, 0x3E, 0x01])
    hello = node.hello().hello.SerializeToString() + unknown_field
    await node.send(bytes([0x0A, len(hello) & 0x7F | 0x80, len(hello) >> 7]) + hello)
    await node.receive_kind("welcome")


async def test_a_newer_session_fences_the_older_one(gateway: Gateway, site: Site) -> None:
    node_id, credentials = await site.add_node()
    old = await site.connect(gateway, node_id, credentials)
    await old.welcome()
    new = await site.connect(gateway, node_id, credentials)
    await new.welcome()
    goaway = await old.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_SUPERSEDED
    assert goaway.process_instance == new.process_instance
    await until(lambda: asyncio.sleep(0, gateway.connected == 1))
    session = await stored(site.database, new)
    assert (session.epoch, session.connected) == (2, True)


async def test_a_session_opened_at_another_gateway_fences_this_one(
    new_node: Connect, site: Site
) -> None:
    node = await new_node()
    await node.welcome()
    elsewhere = replace(opening(node.node_id, "elsewhere"), gateway_id="gw2")
    await site.database.write(sessions.open_session, elsewhere)
    goaway = await node.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_SUPERSEDED
    assert goaway.process_instance == "elsewhere"
    session = await stored(site.database, node)
    assert (session.epoch, session.gateway_id, session.connected) == (2, "gw2", True)


async def test_a_fenced_session_is_found_without_a_wake_up(new_node: Connect, site: Site) -> None:
    """The wake-up may be lost: the next heartbeat finds out."""
    node = await new_node()
    await node.welcome()
    await site.database.write(
        lambda tx: tx.run("UPDATE sessions SET epoch = 9, process_instance = 'elsewhere'")
    )
    await node.heartbeat()
    assert (await node.goaway()).process_instance == "elsewhere"


async def test_a_certificate_that_expires_ends_the_live_stream(
    new_node: Connect, site: Site
) -> None:
    node = await new_node()
    await node.welcome()
    site.clock.offset_ms = DAY_MS
    goaway = await node.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_CERTIFICATE
    assert "expired" in goaway.message


async def revoke(site: Site, node: TestNode, serial: str) -> None:
    issued = IssuedCertificate(
        serial=serial,
        role=Role.NODE,
        subject_id=node.node_id,
        key_id="key",
        der=b"",
        not_after_ms=now_ms() + DAY_MS,
    )
    await site.database.write(certificates.record, issued)
    await site.database.write(certificates.revoke_subject, node.node_id, "lost")


async def test_revoking_a_certificate_ends_its_live_stream_and_no_other(
    gateway: Gateway, site: Site
) -> None:
    node_id, credentials = await site.add_node()
    node = await site.connect(gateway, node_id, credentials)
    other = await site.new_node(gateway)
    await node.welcome()
    await other.welcome()
    await revoke(site, node, serial_hex(credentials.leaf))
    goaway = await node.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_CERTIFICATE
    assert "revoked" in goaway.message
    assert gateway.connected == 1


async def test_a_revocation_is_found_without_a_wake_up(site: Site) -> None:
    gateway = await site.start(tick_ms=500)
    node_id, credentials = await site.add_node()
    node = await site.connect(gateway, node_id, credentials)
    await node.welcome()
    await site.database.write(
        lambda tx: tx.run(
            "INSERT INTO revocations (serial, revoked_ms, reason) VALUES (:serial, 0, 'lost')",
            serial=serial_hex(credentials.leaf),
        )
    )
    assert (await node.goaway()).reason == pb.GOAWAY_REASON_CERTIFICATE


async def test_a_stopping_gateway_sends_every_node_away_and_closes_its_rows(site: Site) -> None:
    gateway = await site.start()
    nodes = [await site.new_node(gateway) for _ in range(5)]
    for node in nodes:
        await node.welcome()
    stopping = asyncio.create_task(gateway.stop())
    for node in nodes:
        goaway = await node.goaway()
        assert goaway.reason == pb.GOAWAY_REASON_SHUTDOWN
        assert goaway.retry_after_ms > 0
    await stopping
    for node in nodes:
        assert await is_closed(site, node)


async def test_a_node_that_does_not_read_delays_no_stop(site: Site) -> None:
    gateway = await site.start(stop_grace_ms=500)
    node = await site.new_node(gateway)
    await node.welcome()
    async with asyncio.timeout(10):
        await gateway.stop()
    assert await is_closed(site, node)


async def test_a_gateway_ends_though_its_database_hangs(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await site.start(stop_grace_ms=300)
    monkeypatch.setattr(gateway._connected, "flush", asyncio.Event().wait)
    async with asyncio.timeout(10):
        await gateway.stop()
    assert "sessions not closed" in caplog.text


async def test_what_breaks_while_a_stream_opens_is_logged_and_never_told(
    site: Site, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a secret of ours")

    monkeypatch.setattr("bcd.gateway.streams.read_hello", broken)
    node = await site.new_node(gateway)
    await node.send(node.hello())
    goaway = await node.goaway()
    assert (goaway.reason, goaway.message) == (pb.GOAWAY_REASON_OVERLOADED, "internal error")
    assert "a secret of ours" in caplog.text
