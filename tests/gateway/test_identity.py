"""The gateway's own certificate: renewed through the database, shown without a restart."""

import asyncio
import ssl
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from bcd.gateway.enrol import Relay
from bcd.gateway.identity import Identity, credentials_of
from bcd.model.errors import AccessDenied, BadConfiguration, BrokenFile, InvalidInput
from bcd.model.units import DAY_MS, HOUR_MS
from bcd.signing import keys
from bcd.signing.certificates import (
    Role,
    key_of_csr,
    serial_hex,
    spiffe_id,
    to_der,
)
from bcd.signing.envelope import PayloadType, opens
from bcd.signing.keyfile import load_credentials, save_credentials
from bcd.store import certificates, enrolments
from bcd.store.enrolments import Answer, Enrolment
from bcd.wire.node.v1 import enrollment_pb2 as pb
from tests.authority import Authority, now_ms
from tests.gateway.conftest import Site
from tests.gateway.node import Ended
from tests.gateway.test_enrol import Placer
from tests.gateway.waiting import until


def granting(site: Site, subject_id: str = "gw1") -> Placer:
    """A placer that renews gateways, after it has checked the old key's signature."""
    old = load_credentials(site.folder, "").key.public_key()

    def decide(enrolment: Enrolment) -> Answer:
        envelope = pb.RenewRequest.FromString(enrolment.body).envelope
        assert opens(envelope, PayloadType.RENEWAL, old)
        csr = pb.Renewal.FromString(envelope.payload).csr
        leaf = site.authority.sign(
            key_of_csr(csr), Role.GATEWAY, subject_id, names=("localhost", "127.0.0.1")
        )
        answer = pb.Credentials(id=subject_id, chain=[to_der(leaf)], bundle=[site.authority.der])
        return Answer(answer.SerializeToString(), None)

    return Placer(site, decide)


async def serial_shown(port: int) -> str:
    """The serial number of the certificate that a port shows."""
    pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
    return serial_hex(x509.load_pem_x509_certificate(pem.encode()))


def half_spent(site: Site) -> None:
    """Give the gateway a certificate whose renewal is due."""
    start = now_ms() - 13 * HOUR_MS
    credentials = site.authority.issue(
        Role.GATEWAY, "gw1", names=("localhost", "127.0.0.1"), not_before_ms=start
    )
    save_credentials(site.folder, credentials)


async def test_a_certificate_at_half_its_life_is_renewed_and_shown_at_once(site: Site) -> None:
    half_spent(site)
    old = load_credentials(site.folder, "")
    placer = granting(site)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(placer.run())
        gateway = await site.start()
        node = await site.new_node(gateway)
        await node.welcome()
        # Adding a CA brings the pass forward.
        await site.database.write(certificates.trust, "other", Authority().der)

        async def is_shown() -> bool:
            shown = {
                await serial_shown(port) for port in (gateway.enrolment_port, gateway.node_port)
            }
            return serial_hex(old.leaf) not in shown

        await until(is_shown)
        working.cancel()
    saved = load_credentials(site.folder, "")
    assert serial_hex(saved.leaf) == await serial_shown(gateway.enrolment_port)
    assert keys.key_id(saved.key.public_key()) != keys.key_id(old.key.public_key())
    assert spiffe_id(saved.leaf) == spiffe_id(old.leaf)
    again = await site.new_node(gateway)
    await again.welcome()
    await node.heartbeat()
    assert gateway.connected == 2


async def test_a_refused_renewal_leaves_the_old_certificate_in_place(site: Site) -> None:
    half_spent(site)
    before = (site.folder / "credentials.pem").read_bytes()
    placer = Placer(site, lambda _: Answer(None, "revoked"))
    relay = Relay(site.gateway_database, 5_000)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(placer.run())
        with pytest.raises(AccessDenied, match="revoked"):
            await Identity.load(site.folder).renew(relay, now_ms())
        working.cancel()
    assert (site.folder / "credentials.pem").read_bytes() == before


async def test_an_answer_for_another_gateway_is_not_taken(site: Site) -> None:
    before = (site.folder / "credentials.pem").read_bytes()
    placer = granting(site, "gw2")
    relay = Relay(site.gateway_database, 5_000)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(placer.run())
        with pytest.raises(InvalidInput, match="another gateway"):
            await Identity.load(site.folder).renew(relay, now_ms())
        working.cancel()
    assert (site.folder / "credentials.pem").read_bytes() == before


def test_renewal_is_due_from_half_of_the_life_on(tmp_path: Path) -> None:
    start = now_ms() - HOUR_MS
    credentials = Authority().issue(
        Role.GATEWAY, "gw1", not_before_ms=start, not_after_ms=start + DAY_MS
    )
    identity = Identity(tmp_path, credentials)
    middle = start + 12 * HOUR_MS
    assert not identity.renewal_due(middle - 2_000)
    assert identity.renewal_due(middle)


def test_answers_that_cannot_be_used_say_why() -> None:
    authority, key = Authority(), keys.generate_key()
    good = to_der(authority.sign(key.public_key(), Role.GATEWAY, "gw1"))
    foreign = to_der(Authority().sign(key.public_key(), Role.GATEWAY, "gw1"))
    other_key = to_der(authority.gateway().leaf)
    bundle = [authority.der]
    assert credentials_of(key, [good], bundle, now_ms()).key is key
    for chain, trusted, problem in (
        ([], bundle, "empty"),
        ([good], [], "empty"),
        ([b"junk"], bundle, "cannot be used"),
        ([other_key], bundle, "another key"),
        ([foreign], bundle, "cannot be used"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            credentials_of(key, chain, trusted, now_ms())


async def test_a_ca_that_is_trusted_later_lets_its_nodes_in_without_a_restart(
    site: Site,
) -> None:
    gateway = await site.start()
    new_ca = Authority()
    node_id, _ = await site.add_node()
    issued = new_ca.issue(Role.NODE, node_id)
    credentials = type(issued)(issued.key, issued.chain, (site.authority.certificate,))
    early = await site.connect(gateway, node_id, credentials)
    await early.ended()
    await site.database.write(certificates.trust, new_ca.pin, new_ca.der)

    async def is_let_in() -> bool:
        node = await site.connect(gateway, node_id, credentials)
        try:
            await node.welcome()
        except (Ended, grpc.aio.AioRpcError):
            return False
        return True

    await until(is_let_in)


def test_a_gateway_without_credentials_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(BrokenFile, match="bcd-gateway enroll"):
        Identity.load(tmp_path)


def test_credentials_of_another_role_are_refused(tmp_path: Path) -> None:
    save_credentials(tmp_path, Authority().issue(Role.NODE, "node_x"))
    with pytest.raises(BrokenFile, match="not a gateway"):
        Identity.load(tmp_path)


def test_a_damaged_credentials_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    save_credentials(tmp_path, Authority().gateway())
    path = tmp_path / "credentials.pem"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BrokenFile, match=r"credentials\.pem.*bcd-gateway enroll"):
        Identity.load(tmp_path)


@pytest.mark.parametrize("blocked", ["state", "state/credentials.pem"])
def test_what_stands_in_the_credentials_place_is_named(tmp_path: Path, blocked: str) -> None:
    if blocked == "state":
        (tmp_path / "state").touch()
    else:
        (tmp_path / blocked).mkdir(parents=True)
    with pytest.raises(BrokenFile, match=r"state/credentials\.pem: cannot be read"):
        Identity.load(tmp_path / "state")


async def test_a_renewal_that_could_not_be_saved_is_not_asked_for(site: Site) -> None:
    identity = Identity.load(site.folder)
    site.folder.rename(site.folder.with_name("away"))
    site.folder.touch()
    with pytest.raises(BadConfiguration, match="cannot be written"):
        await identity.renew(Relay(site.gateway_database, 5_000), now_ms())
    assert await site.database.write(enrolments.claim, 10) == []
