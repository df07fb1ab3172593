"""Enrolments and renewals through a gateway that was taken over: only tokens and old keys count."""

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa

from bcd.model.ids import NodeId
from bcd.placer.api.nodes import NodeCalls
from bcd.placer.pki.authority import Authority
from bcd.placer.pki.enrolment import Enroller, EnrolmentKeeper
from bcd.placer.pki.join import JoinRequest, Minted, mint
from bcd.signing import keys
from bcd.signing.certificates import (
    Role,
    chain_problem,
    make_csr,
    public_key,
    spiffe_id,
    validity_ms,
)
from bcd.signing.envelope import PayloadType, seal
from bcd.store import certificates, enrolments, nodes
from bcd.store.enrolments import Answer, Kind
from bcd.wire.compute.v1 import admin_pb2
from bcd.wire.node.v1 import enrollment_pb2 as pb
from bcd.wire.node.v1 import envelope_pb2
from tests.clock import DatabaseClock
from tests.placer.hostile import DAY_MS, another_key
from tests.placer.placement.test_booking import ADMIN
from tests.placer.records import rows
from tests.placer.world import World, dgx

MINUTE_MS = 60_000


@dataclass
class Desk:
    """Where requests are handed in and answers read, as a gateway does it."""

    world: World

    @property
    def authority(self) -> Authority:
        return self.world.authority

    async def ask(self, kind: Kind, body: bytes) -> Answer:
        """Submit a request and let the placer answer it."""
        database = self.world.database
        asked = await database.write(enrolments.submit, kind, body)
        assert asked is not None
        await EnrolmentKeeper(database, Enroller(self.authority)).answer_pass()
        answer = await database.read(enrolments.answer_of, asked)
        assert answer is not None
        return answer

    async def token(self, **changes: object) -> Minted:
        """A join token for the world's pool."""
        request = JoinRequest(pool_id=self.world.pool_id, **changes)  # type: ignore[arg-type]
        return await self.world.database.write(mint, request, self.authority.pin)

    async def join(self, token: Minted, key: ec.EllipticCurvePrivateKey) -> Answer:
        """What an honest node sends."""
        return await self.ask("join", joining(token, make_csr(key)))

    async def renew(
        self, old: ec.EllipticCurvePrivateKey, new: ec.EllipticCurvePrivateKey
    ) -> Answer:
        """A renewal as an honest node sends it."""
        at_ms = await self.world.database.read(lambda tx: tx.now_ms())
        return await self.ask("renewal", renewing(seal_renewal(old, make_csr(new), at_ms=at_ms)))

    async def refusals(self, node_id: str) -> list[str]:
        """The reasons that were told of."""
        found = await rows(
            self.world.database,
            "SELECT data FROM events WHERE subject = :s AND type = 'node.enrolment-rejected'"
            " ORDER BY seq",
            s=f"node/{node_id}",
        )
        return [row["data"] for row in found]


@pytest.fixture
def desk(world: World) -> Desk:
    return Desk(world)


def parts(token: Minted) -> tuple[str, bytes]:
    """(id, secret) of a token's text."""
    token_id, secret, _ = token.text.split(".")
    return token_id, urlsafe_b64decode(secret + "=" * (-len(secret) % 4))


def joining(token: Minted, csr: bytes, secret: bytes | None = None) -> bytes:
    token_id, own = parts(token)
    tag = hmac.digest(hashlib.sha256(secret or own).digest(), csr, "sha256")
    return pb.EnrollRequest(token_id=token_id, csr=csr, hmac=tag).SerializeToString()


def seal_renewal(
    key: ec.EllipticCurvePrivateKey,
    csr: bytes,
    purpose: PayloadType = PayloadType.RENEWAL,
    at_ms: int | None = None,
) -> envelope_pb2.Envelope:
    signed_at_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
    return seal(key, purpose, pb.Renewal(csr=csr, signed_at_ms=signed_at_ms).SerializeToString())


def renewing(envelope: envelope_pb2.Envelope) -> bytes:
    return pb.RenewRequest(envelope=envelope).SerializeToString()


def leaf_of(answer: Answer) -> x509.Certificate:
    assert answer.credentials is not None, answer.refusal
    (der,) = pb.Credentials.FromString(answer.credentials).chain
    return x509.load_der_x509_certificate(der)


def refused(answer: Answer, part: str) -> None:
    assert answer.credentials is None
    assert answer.refusal is not None
    assert part in answer.refusal


# Joining


async def test_a_token_makes_the_node_that_it_names_with_a_days_certificate(
    desk: Desk, clock: DatabaseClock
) -> None:
    clock.advance(0)
    key = keys.generate_key()
    token = await desk.token(role="node-tenant", trusted=False)
    answer = await desk.join(token, key)
    leaf = leaf_of(answer)
    assert str(spiffe_id(leaf)) == f"spiffe://{desk.authority.domain}/node-tenant/{token.node_id}"
    assert keys.key_id(public_key(leaf)) == keys.key_id(key.public_key())
    assert chain_problem(leaf, desk.authority.bundle, clock.read()) is None
    life = leaf.not_valid_after_utc - leaf.not_valid_before_utc
    assert life.total_seconds() == 25 * 3600
    node = await desk.world.database.read(nodes.get, token.node_id)
    assert (node.pool_id, node.role, node.trusted, node.ready) == (
        desk.world.pool_id,
        "node-tenant",
        False,
        False,
    )
    (record,) = await desk.world.database.read(certificates.by_key, keys.key_id(key.public_key()))
    assert (record.role, record.subject_id) == ("node-tenant", token.node_id)


async def test_a_gateway_cannot_put_its_own_request_under_a_nodes_tag(desk: Desk) -> None:
    token = await desk.token()
    honest = pb.EnrollRequest.FromString(joining(token, make_csr(keys.generate_key())))
    honest.csr = make_csr(keys.generate_key())
    refused(await desk.ask("join", honest.SerializeToString()), "secret")
    assert len(await desk.refusals(token.node_id)) == 1
    leaf_of(await desk.join(token, keys.generate_key()))


@pytest.mark.parametrize("secret", [b"guess", b"\x00" * 32], ids=["a guess", "zeros"])
async def test_whoever_does_not_know_the_secret_gets_nothing(desk: Desk, secret: bytes) -> None:
    token = await desk.token()
    csr = make_csr(keys.generate_key())
    refused(await desk.ask("join", joining(token, csr, secret)), "secret")
    assert await rows(desk.world.database, "SELECT id FROM nodes") == []
    assert await rows(desk.world.database, "SELECT serial FROM certificates") == []


async def test_a_used_token_answers_the_same_request_again_and_no_other(desk: Desk) -> None:
    token, key = await desk.token(), keys.generate_key()
    body = joining(token, make_csr(key))
    first, again = await desk.ask("join", body), await desk.ask("join", body)
    assert leaf_of(first) == leaf_of(again)
    assert len(await rows(desk.world.database, "SELECT serial FROM certificates")) == 1
    refused(await desk.join(token, keys.generate_key()), "used already")
    assert "used already" in (await desk.refusals(token.node_id))[0]


async def test_an_expired_token_is_refused_also_for_a_request_that_it_served(
    desk: Desk, clock: DatabaseClock
) -> None:
    clock.advance(0)
    token, late = await desk.token(), await desk.token()
    body = joining(token, make_csr(keys.generate_key()))
    leaf_of(await desk.ask("join", body))
    clock.advance(15 * MINUTE_MS)
    refused(await desk.ask("join", body), "expired")
    refused(await desk.join(late, keys.generate_key()), "expired")


async def test_an_unknown_token_is_refused(desk: Desk) -> None:
    token = await desk.token()
    for token_id in ("", "join_00000000000000000000000000", token.node_id, "a\x00b", "x" * 100_000):
        body = pb.EnrollRequest(token_id=token_id, csr=b"", hmac=b"").SerializeToString()
        refused(await desk.ask("join", body), "not known")


async def test_a_node_that_joins_again_is_the_same_node_as_the_token_says(desk: Desk) -> None:
    world = desk.world
    node = await world.add_node(dgx("a"))
    assert (await world.create(1, key="1")).conditions == ()
    token = await desk.token(node_id=node.id, trusted=False)
    assert token.node_id == node.id
    leaf_of(await desk.join(token, keys.generate_key()))
    late = await world.create(1, key="2")
    assert "trust rejected 1" in late.conditions[0].message
    leaf_of(await desk.join(await desk.token(node_id=node.id), keys.generate_key()))
    await world.work()
    assert (await world.view(late.id)).conditions == ()


async def test_two_nodes_with_one_token_become_one(desk: Desk) -> None:
    token = await desk.token()
    answers = [await desk.join(token, keys.generate_key()) for _ in range(4)]
    assert [answer.credentials is not None for answer in answers] == [True, False, False, False]
    assert len(await rows(desk.world.database, "SELECT id FROM nodes")) == 1


# Requests that are not sound


def csr_of(key: object) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    signed = builder.sign(key, algorithm)  # type: ignore[arg-type]
    return signed.public_bytes(serialization.Encoding.DER)


def signed_by_another(_: object = None) -> bytes:
    csr = bytearray(make_csr(keys.generate_key()))
    csr[-1] ^= 1
    return bytes(csr)


def of_unknown_curve(_: object = None) -> bytes:
    """The curve's object identifier is replaced by one that nobody knows."""
    known = bytes.fromhex("2a8648ce3d030107")
    return make_csr(keys.generate_key()).replace(known, bytes.fromhex("2a8648ce3d03017f"))


def of_unknown_version(_: object = None) -> bytes:
    csr = make_csr(keys.generate_key())
    at = csr.index(b"\x02\x01\x00")
    return csr[:at] + b"\x02\x01\x07" + csr[at + 3 :]


UNSOUND: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "garbage": lambda: b"\x30\x82\xff\xff" + secrets.token_bytes(64),
    "a megabyte": lambda: b"\x30" * (1 << 20),
    "RSA": lambda: csr_of(rsa.generate_private_key(65537, 2048)),
    "DSA": lambda: csr_of(dsa.generate_private_key(2048)),
    "Ed25519": lambda: csr_of(ed25519.Ed25519PrivateKey.generate()),
    "another curve": lambda: csr_of(ec.generate_private_key(ec.SECP384R1())),
    "an unknown curve": of_unknown_curve,
    "an unknown version": of_unknown_version,
    "another key's signature": signed_by_another,
}


@pytest.mark.parametrize("make", UNSOUND.values(), ids=UNSOUND.keys())
async def test_a_request_that_is_not_sound_is_refused_and_leaves_the_token_usable(
    desk: Desk, make: Callable[[], bytes]
) -> None:
    token = await desk.token()
    refused(await desk.ask("join", joining(token, make())), "not sound")
    assert await rows(desk.world.database, "SELECT id FROM nodes") == []
    leaf_of(await desk.join(token, keys.generate_key()))


@pytest.mark.parametrize("kind", ["join", "renewal"])
@pytest.mark.parametrize("body", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", secrets.token_bytes(99)])
async def test_bytes_that_do_not_parse_are_refused(desk: Desk, kind: Kind, body: bytes) -> None:
    assert (await desk.ask(kind, body)).credentials is None


async def test_a_request_that_breaks_the_answering_stops_no_other(desk: Desk) -> None:
    """A token on record that cannot be read stands for whatever breaks."""
    broken, sound = await desk.token(), await desk.token()
    await desk.world.database.write(
        lambda tx: tx.run(
            "UPDATE join_tokens SET role = 'broken' WHERE id = :id", id=parts(broken)[0]
        )
    )
    refused(await desk.join(broken, keys.generate_key()), "cannot be processed")
    leaf_of(await desk.join(sound, keys.generate_key()))


async def test_what_the_certificate_says_comes_from_the_token_and_not_from_the_request(
    desk: Desk,
) -> None:
    key = keys.generate_key()
    wish = x509.SubjectAlternativeName(
        [x509.UniformResourceIdentifier(f"spiffe://{desk.authority.domain}/command/placer")]
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "placer")])
    )
    csr = builder.add_extension(wish, critical=True).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    body = csr.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    token = await desk.token()
    leaf = leaf_of(await desk.ask("join", joining(token, body)))
    assert str(spiffe_id(leaf)) == f"spiffe://{desk.authority.domain}/node/{token.node_id}"
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


# Renewing


async def joined(desk: Desk) -> tuple[NodeId, ec.EllipticCurvePrivateKey]:
    token, key = await desk.token(), keys.generate_key()
    leaf_of(await desk.join(token, key))
    return token.node_id, key


async def test_a_renewal_gives_the_new_key_the_same_name(desk: Desk) -> None:
    node_id, old = await joined(desk)
    new = keys.generate_key()
    leaf = leaf_of(await desk.renew(old, new))
    assert str(spiffe_id(leaf)) == f"spiffe://{desk.authority.domain}/node/{node_id}"
    assert keys.key_id(public_key(leaf)) == keys.key_id(new.public_key())
    newest = keys.generate_key()
    leaf_of(await desk.renew(new, newest))


async def test_a_renewal_that_comes_again_gets_the_certificate_that_it_got(
    desk: Desk, clock: DatabaseClock
) -> None:
    """Its answer may have been lost; and a recorded one must not fill the database."""
    clock.advance(0)
    _, old = await joined(desk)
    csr = make_csr(keys.generate_key())
    body = renewing(seal_renewal(old, csr, at_ms=clock.read()))
    first = leaf_of(await desk.ask("renewal", body))
    for _ in range(3):
        clock.advance(DAY_MS // 4)
        assert leaf_of(await desk.ask("renewal", body)) == first
    assert len(await rows(desk.world.database, "SELECT serial FROM certificates")) == 2
    clock.advance(DAY_MS)
    late = leaf_of(await desk.ask("renewal", body))
    assert validity_ms(late)[1] > clock.read(), "an expired one would help nobody"


@pytest.mark.parametrize("off_ms", [-7 * DAY_MS + MINUTE_MS, 7 * DAY_MS - MINUTE_MS])
async def test_a_clock_that_is_days_off_still_renews(desk: Desk, off_ms: int) -> None:
    _, old = await joined(desk)
    at_ms = time.time_ns() // 1_000_000 + off_ms
    envelope = seal_renewal(old, make_csr(keys.generate_key()), at_ms=at_ms)
    leaf_of(await desk.ask("renewal", renewing(envelope)))


async def test_a_renewal_that_was_signed_far_from_now_is_refused_and_leaves_no_trace(
    desk: Desk,
) -> None:
    node_id, old = await joined(desk)
    now_ms = time.time_ns() // 1_000_000
    for at_ms in (0, 1, now_ms - 7 * DAY_MS - 1, now_ms + 8 * DAY_MS, (1 << 64) - 1):
        envelope = seal_renewal(old, make_csr(keys.generate_key()), at_ms=at_ms)
        refused(await desk.ask("renewal", renewing(envelope)), "set the host's clock")
    assert len(await rows(desk.world.database, "SELECT serial FROM certificates")) == 1
    assert await desk.refusals(node_id) == []


async def test_what_a_revoked_node_once_sent_brings_it_no_certificate_back(desk: Desk) -> None:
    token, old = await desk.token(), keys.generate_key()
    join = joining(token, make_csr(old))
    leaf_of(await desk.ask("join", join))
    renewal = renewing(seal_renewal(old, make_csr(keys.generate_key())))
    leaf_of(await desk.ask("renewal", renewal))
    await desk.world.database.write(certificates.revoke_subject, token.node_id, "stolen")
    refused(await desk.ask("join", join), "revoked")
    refused(await desk.ask("renewal", renewal), "revoked")


async def test_a_renewal_by_an_unknown_key_is_refused(desk: Desk) -> None:
    refused(await desk.renew(keys.generate_key(), keys.generate_key()), "not known")


@pytest.mark.parametrize("key_id", ["", "x", "a\x00b", "g" * 64, "A" * 64, "a" * 100_000])
async def test_a_key_id_that_is_none_is_an_unknown_key(desk: Desk, key_id: str) -> None:
    _, old = await joined(desk)
    envelope = seal_renewal(old, make_csr(keys.generate_key()))
    envelope.key_id = key_id
    refused(await desk.ask("renewal", renewing(envelope)), "not known")


async def test_a_gateway_cannot_put_its_own_request_into_a_nodes_renewal(desk: Desk) -> None:
    node_id, old = await joined(desk)
    envelope = seal_renewal(old, make_csr(keys.generate_key()))
    forged = seal_renewal(keys.generate_key(), make_csr(keys.generate_key()))
    envelope.payload = forged.payload
    refused(await desk.ask("renewal", renewing(envelope)), "signature")
    forged.key_id = keys.key_id(old.public_key())
    refused(await desk.ask("renewal", renewing(forged)), "signature")
    assert len(await desk.refusals(node_id)) == 2


async def test_a_report_is_no_renewal(desk: Desk) -> None:
    _, old = await joined(desk)
    csr = make_csr(keys.generate_key())
    for purpose in (PayloadType.ATTESTED_REPORT, PayloadType.DESIRED_STATE):
        envelope = seal_renewal(old, csr, purpose)
        refused(await desk.ask("renewal", renewing(envelope)), "signature")
        envelope.payload_type = PayloadType.RENEWAL
        refused(await desk.ask("renewal", renewing(envelope)), "signature")


async def test_a_revoked_key_renews_nothing_and_a_new_token_lets_the_node_back(
    desk: Desk,
) -> None:
    node_id, old = await joined(desk)
    await NodeCalls(desk.world.database).revoke_node(
        ADMIN, admin_pb2.RevokeNodeRequest(node_id=node_id)
    )
    refused(await desk.renew(old, keys.generate_key()), "revoked")
    assert "revoked" in (await desk.refusals(node_id))[0]
    fresh = keys.generate_key()
    leaf_of(await desk.join(await desk.token(node_id=node_id), fresh))
    leaf_of(await desk.renew(fresh, keys.generate_key()))
    refused(await desk.renew(old, keys.generate_key()), "revoked")


async def test_a_certificate_may_renew_for_a_week_after_its_end(
    desk: Desk, clock: DatabaseClock
) -> None:
    clock.advance(0)
    _, old = await joined(desk)
    clock.advance(8 * DAY_MS - 2_000)
    leaf_of(await desk.renew(old, keys.generate_key()))
    clock.advance(2_000)
    refused(await desk.renew(old, keys.generate_key()), "offline grace")


async def test_a_renewal_needs_a_new_key(desk: Desk) -> None:
    node_id, old = await joined(desk)
    before = await rows(desk.world.database, "SELECT serial FROM certificates")
    refused(await desk.renew(old, old), "new key")
    assert await rows(desk.world.database, "SELECT serial FROM certificates") == before
    assert "new key" in (await desk.refusals(node_id))[0]


@pytest.mark.parametrize("role", [Role.COMMAND, Role.PLACER])
async def test_the_placers_own_keys_are_not_renewed_over_a_gateway(desk: Desk, role: Role) -> None:
    key = await another_key(desk.world.database, desk.authority, (role, "placer"))
    refused(await desk.renew(key, keys.generate_key()), "role")


async def test_a_gateways_certificate_keeps_the_names_that_nodes_dial(
    desk: Desk, clock: DatabaseClock
) -> None:
    old = keys.generate_key()
    names = ("gw.example", "10.0.0.7")
    subject = (Role.GATEWAY, "gw1")
    issued = desk.authority.issue(subject, old.public_key(), clock.read(), names)
    await desk.world.database.write(certificates.record, issued.row)
    leaf = leaf_of(await desk.renew(old, keys.generate_key()))
    sans = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert sans.get_values_for_type(x509.DNSName) == ["gw.example"]
    assert [str(a) for a in sans.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
