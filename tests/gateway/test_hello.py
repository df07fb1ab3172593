"""How a stream begins, and every way in which it does not."""

import pytest

from bcd.gateway.server import Gateway
from bcd.model.units import DAY_MS
from bcd.signing.certificates import Role, serial_hex
from bcd.store import certificates, inventories, nodes, sessions
from bcd.store.certificates import IssuedCertificate
from bcd.store.database import Transaction
from bcd.wire.node.v1 import gateway_pb2 as pb
from tests.authority import Authority, now_ms
from tests.gateway.conftest import Connect, Site
from tests.store.world import new_id


def put_inventory(tx: Transaction, node_id: str, content_hash: str) -> None:
    tx.run(
        "INSERT INTO inventories (node_id, session_epoch, hash, body, received_ms)"
        " VALUES (:node_id, 1, :hash, :body, 0)",
        node_id=node_id,
        hash=content_hash,
        body=b"",
    )


async def test_a_hello_opens_a_session_and_is_welcomed(new_node: Connect, site: Site) -> None:
    node = await new_node()
    welcome = await node.welcome()
    assert welcome.protocol_version == 1
    assert welcome.session_epoch == 1
    assert (welcome.heartbeat_interval_ms, welcome.heartbeat_ttl_ms) == (200, 20_000)
    assert abs(welcome.server_time_ms - now_ms()) < 60_000
    session = await site.database.read(sessions.get, node.node_id)
    assert session is not None
    assert (session.epoch, session.connected, session.gateway_id) == (1, True, "gw1")
    assert session.process_instance == node.process_instance


async def test_the_next_session_of_a_node_has_the_next_epoch(gateway: Gateway, site: Site) -> None:
    node_id, credentials = await site.add_node()
    for epoch in (1, 2, 3):
        node = await site.connect(gateway, node_id, credentials)
        assert (await node.welcome()).session_epoch == epoch
        await node.hang_up()


async def test_the_inventory_is_asked_for_unless_it_is_on_record(
    new_node: Connect, site: Site
) -> None:
    for stored, shown, needed in (("", "aa", True), ("aa", "aa", False), ("aa", "bb", True)):
        node = await new_node()
        if stored:
            await site.database.write(put_inventory, node.node_id, stored)
        welcome = await node.welcome(inventory_hash=shown)
        assert welcome.need_inventory is needed
    assert await site.database.read(inventories.stored_hash, node.node_id) == "aa"


async def test_capabilities_become_system_labels_and_go_with_the_next_hello(
    gateway: Gateway, site: Site
) -> None:
    node_id, credentials = await site.add_node()
    for names in (["devices.limits", "attested-reports"], ["attested-reports"], []):
        node = await site.connect(gateway, node_id, credentials)
        await node.welcome(capabilities=names)
        labels = await site.database.read(nodes.labels, node_id)
        assert labels == [(f"bc.dev/cap.{name}", "1", "system") for name in sorted(names)]


@pytest.mark.parametrize(
    ("spoken", "chosen"), [((1, 1), 1), ((1, 9), 1), ((0, 1), 1), ((2, 9), None), ((0, 0), None)]
)
async def test_the_highest_common_version_is_chosen(
    new_node: Connect, spoken: tuple[int, int], chosen: int | None
) -> None:
    node = await new_node()
    await node.send(node.hello(min_protocol_version=spoken[0], protocol_version=spoken[1]))
    if chosen is not None:
        assert (await node.receive_kind("welcome")).protocol_version == chosen
        return
    goaway = await node.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_PROTOCOL
    assert "versions 1 to 1" in goaway.message


@pytest.mark.parametrize("change", [
    {"capabilities": [f"c{n}" for n in range(65)]},
    {"capabilities": ["../etc"]},
    {"capabilities": [""]},
    {"capabilities": ["a" * 64]},
    {"capabilities": ["tab\t"]},
    {"process_instance": ""},
    {"process_instance": "x" * 129},
    {"boot_id": "nul\0"},
    {"daemon_version": "new\nline"},
    {"applied_hash": "y" * 200},
    {"inventory_hash": "\x1b[31m"},
])  # fmt: skip
async def test_a_hello_out_of_bounds_is_refused(
    new_node: Connect, site: Site, change: dict[str, object]
) -> None:
    node = await new_node()
    await node.send(node.hello(**change))
    goaway = await node.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_PROTOCOL
    assert await site.database.read(sessions.get, node.node_id) is None


@pytest.mark.parametrize(
    "first",
    [
        pb.ConnectRequest(heartbeat=pb.Heartbeat()),
        pb.ConnectRequest(goodbye=pb.Goodbye()),
        pb.ConnectRequest(),
        b"\x9a\x3e\x00",  # an arm that this gateway does not know
        b"\xff\xff\xff\xff",
    ],
)
async def test_a_stream_that_does_not_begin_with_hello_is_refused(
    new_node: Connect, first: pb.ConnectRequest | bytes
) -> None:
    node = await new_node()
    await node.send(first)
    assert (await node.goaway()).reason == pb.GOAWAY_REASON_PROTOCOL


async def test_a_stream_that_stays_silent_is_refused(new_node: Connect) -> None:
    node = await new_node()
    goaway = await node.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_PROTOCOL
    assert "no hello in time" in goaway.message


async def test_a_node_that_leaves_before_hello_opens_nothing(
    new_node: Connect, gateway: Gateway, site: Site
) -> None:
    node = await new_node()
    await node.hang_up()
    other = await new_node()
    await other.welcome()
    assert await site.database.read(sessions.get, node.node_id) is None
    assert gateway.connected == 1


async def refusal(site: Site, gateway: Gateway, node_id: str, role: str) -> pb.Goaway:
    """The Goaway for a Hello under a certificate of that role and id."""
    named, _ = await site.add_node()
    credentials = site.authority.issue(role, node_id or named)
    node = await site.connect(gateway, named, credentials)
    await node.send(node.hello())
    return await node.goaway()


@pytest.mark.parametrize("role", [Role.GATEWAY, Role.PLACER, Role.COMMAND])
async def test_only_roles_that_run_workloads_get_a_session(
    gateway: Gateway, site: Site, role: Role
) -> None:
    goaway = await refusal(site, gateway, "", role)
    assert goaway.reason == pb.GOAWAY_REASON_CERTIFICATE
    assert role in goaway.message


async def test_a_tenants_node_gets_a_session(gateway: Gateway, site: Site) -> None:
    node_id, _ = await site.add_node()
    credentials = site.authority.issue(Role.NODE_TENANT, node_id)
    node = await site.connect(gateway, node_id, credentials)
    await node.welcome()


async def test_the_hello_must_name_the_certificates_node(gateway: Gateway, site: Site) -> None:
    goaway = await refusal(site, gateway, new_id("node"), Role.NODE)
    assert goaway.reason == pb.GOAWAY_REASON_CERTIFICATE
    assert "another node" in goaway.message


async def test_a_certificate_that_names_no_node_is_refused(gateway: Gateway, site: Site) -> None:
    goaway = await refusal(site, gateway, "somebody", Role.NODE)
    assert goaway.reason == pb.GOAWAY_REASON_CERTIFICATE


async def test_a_certificate_of_another_trust_domain_is_refused(
    gateway: Gateway, site: Site
) -> None:
    foreign = Authority("other.example", key=site.authority.key)
    foreign.certificate = site.authority.certificate  # one CA, two domains
    node_id, _ = await site.add_node()
    node = await site.connect(gateway, node_id, foreign.issue(Role.NODE, node_id))
    await node.send(node.hello())
    goaway = await node.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_CERTIFICATE
    assert "trust domain" in goaway.message


async def test_a_certificate_of_an_unknown_ca_gets_no_connection(
    gateway: Gateway, site: Site
) -> None:
    node_id, _ = await site.add_node()
    stranger = Authority().issue(Role.NODE, node_id)
    mixed = type(stranger)(stranger.key, stranger.chain, (site.authority.certificate,))
    node = await site.connect(gateway, node_id, mixed)
    await node.ended()
    assert gateway.counters.get("streams", 0) == 0


async def test_a_certificate_that_expires_by_the_gateways_clock_is_refused(
    gateway: Gateway, site: Site
) -> None:
    site.clock.offset_ms = DAY_MS
    goaway = await refusal(site, gateway, "", Role.NODE)
    assert goaway.reason == pb.GOAWAY_REASON_CERTIFICATE
    assert "expired" in goaway.message


async def test_a_revoked_certificate_gets_no_session(gateway: Gateway, site: Site) -> None:
    node_id, credentials = await site.add_node()
    issued = IssuedCertificate(
        serial=serial_hex(credentials.leaf),
        role=Role.NODE,
        subject_id=node_id,
        key_id="key",
        der=b"",
        not_after_ms=now_ms() + DAY_MS,
    )
    await site.database.write(certificates.record, issued)
    await site.database.write(certificates.revoke_subject, node_id, "lost")
    node = await site.connect(gateway, node_id, credentials)
    await node.send(node.hello())
    goaway = await node.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_CERTIFICATE
    assert "revoked" in goaway.message
    assert await site.database.read(sessions.get, node_id) is None


async def test_a_node_that_was_removed_gets_no_session(gateway: Gateway, site: Site) -> None:
    node_id, credentials = await site.add_node()
    await site.database.write(lambda tx: tx.run("DELETE FROM nodes WHERE id = :id", id=node_id))
    node = await site.connect(gateway, node_id, credentials)
    await node.send(node.hello())
    goaway = await node.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_CERTIFICATE
    assert "removed" in goaway.message


async def test_a_full_gateway_sends_further_nodes_away(site: Site) -> None:
    gateway = await site.start(max_sessions=1)
    first = await site.new_node(gateway)
    await first.welcome()
    second = await site.new_node(gateway)
    goaway = await second.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_OVERLOADED
    assert goaway.retry_after_ms > 0
