"""Enrolment: the token's secret proves us, its pin proves them, and nobody between counts."""

import base64
import secrets
from collections.abc import Callable

import grpc
import pytest

from bcd.model.errors import BadConfiguration, BcdError, Reason, Unavailable
from bcd.node.enrolment import JoinToken, Untrusted, enroll, parse_token, renew
from bcd.signing.certificates import Role, SpiffeId, spiffe_id, to_der
from bcd.signing.keys import key_id
from bcd.wire.node.v1 import enrollment_pb2
from tests.authority import Authority, now_ms
from tests.node.fake_gateway import FakeGateway, old_authority
from tests.node.world import node_id

SECRET = base64.urlsafe_b64encode(b"s" * 32).rstrip(b"=").decode()
PIN = "ab" * 32


def test_a_token_is_id_secret_and_pin() -> None:
    token = parse_token(f"join_1.{SECRET}.{PIN}\n")
    assert token == JoinToken("join_1", b"s" * 32, PIN)
    assert parse_token(f"join_1.{SECRET}=.{PIN}") == token


def test_a_token_shows_no_secret() -> None:
    assert SECRET not in repr(parse_token(f"join_1.{SECRET}.{PIN}"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"join_1.{SECRET}",
        f"join_1.{SECRET}.{PIN[:-1]}",
        f"a/b.{SECRET}.{PIN}",
        "\0",
        "." * 5,
    ],
)
def test_what_is_no_token_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(BadConfiguration, match="copy the whole line") as caught:
        parse_token(text)
    assert not text or text not in str(caught.value)


async def test_a_host_enrols_with_its_token(gateway: FakeGateway) -> None:
    credentials = await enroll(
        gateway.enroll_address, parse_token(gateway.token(node_id())), now_ms()
    )
    assert spiffe_id(credentials.leaf) == SpiffeId("test.example", Role.NODE, node_id())
    assert credentials.bundle == (gateway.authority.certificate,)


async def test_a_wrong_secret_is_refused_with_the_reason(gateway: FakeGateway) -> None:
    token = parse_token(gateway.token(node_id()))
    forged = JoinToken(token.id, secrets.token_bytes(32), token.pin)
    with pytest.raises(BcdError, match="join token is not known") as caught:
        await enroll(gateway.enroll_address, forged, now_ms())
    assert caught.value.reason is Reason.ACCESS_DENIED


async def test_nobody_there_is_said_with_the_address() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1: no TLS server answers"):
        await enroll("127.0.0.1:1", JoinToken("join_1", b"s" * 32, PIN), now_ms())
    with pytest.raises(Unavailable, match=r"gateway\.invalid:1: the name cannot be resolved"):
        await enroll("gateway.invalid:1", JoinToken("join_1", b"s" * 32, PIN), now_ms())


async def test_another_port_of_the_gateway_or_the_placer_is_told_apart(
    gateway: FakeGateway,
) -> None:
    pair = (gateway._identity.key_pem, gateway._identity.chain_pem)
    api = grpc.aio.server()
    port = api.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await api.start()
    for address in (gateway.address, f"127.0.0.1:{port}"):
        with pytest.raises(BcdError, match=r"enroll_address.*not its port for nodes"):
            await enroll(address, parse_token(gateway.token(node_id())), now_ms())
    await api.stop(0)


async def test_an_answer_of_another_authority_than_the_pins_is_not_taken(
    gateway: FakeGateway,
) -> None:
    token = parse_token(gateway.token(node_id()))
    with pytest.raises(Untrusted, match="another authority"):
        await enroll(gateway.enroll_address, JoinToken(token.id, token.secret, PIN), now_ms())


Change = Callable[[enrollment_pb2.Credentials], enrollment_pb2.Credentials]


class LyingGateway(FakeGateway):
    """Changes the placer's answer on its way."""

    change: Change

    def issue(self, csr: bytes, node_id: str) -> enrollment_pb2.Credentials:
        return self.change(super().issue(csr, node_id))


def of(**fields: object) -> Change:
    """Replace fields of the answer."""

    def change(answer: enrollment_pb2.Credentials) -> enrollment_pb2.Credentials:
        found = {"id": answer.id, "chain": list(answer.chain), "bundle": list(answer.bundle)}
        return enrollment_pb2.Credentials(**(found | fields))  # type: ignore[arg-type]

    return change


def on_another_curve(der: bytes) -> bytes:
    """The same certificate with a curve that nobody knows."""
    return der.replace(bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d03017f"))


STRANGER = old_authority()
OURS = old_authority()
ANSWERS: dict[str, Change] = {
    "another authority's chain": of(chain=[to_der(STRANGER.issue(Role.NODE, node_id()).leaf)]),
    "a key that is not ours": of(chain=[to_der(OURS.issue(Role.NODE, node_id()).leaf)]),
    "a gateway's certificate": of(chain=[to_der(OURS.gateway().leaf)]),
    "no chain": of(chain=[]),
    "no bundle": of(bundle=[]),
    "garbage": of(chain=[b"garbage"]),
    "a chain on another curve": of(chain=[on_another_curve(OURS.der)]),
    "a bundle on another curve": of(bundle=[on_another_curve(OURS.der)]),
    "far too much": of(bundle=[OURS.der] * 100),
    "a bundle of its own": of(bundle=[STRANGER.der, OURS.der]),
}


@pytest.mark.parametrize("lie", ANSWERS)
async def test_a_gateway_that_changes_the_answer_is_not_believed(lie: str) -> None:
    gateway = LyingGateway(authority=OURS)
    gateway.change = ANSWERS[lie]
    await gateway.start()
    try:
        with pytest.raises(Untrusted):
            await enroll(gateway.enroll_address, parse_token(gateway.token(node_id())), now_ms())
    finally:
        await gateway.stop()


@pytest.mark.parametrize("answer", [b"\xff\xff", b"", b"garbage"])
async def test_an_answer_that_is_no_message_is_said_in_a_sentence(
    gateway: FakeGateway, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.answer = answer
    with pytest.raises(Untrusted, match="answer"):
        await enroll(gateway.enroll_address, parse_token(gateway.token(node_id())), now_ms())
    assert caplog.records == []


async def test_what_a_gateway_says_reaches_the_terminal_as_one_plain_line(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.refusal = "no\x1b[2Jsuch\ntoken"
    with pytest.raises(BcdError) as caught:
        await enroll(gateway.enroll_address, parse_token(gateway.token(node_id())), now_ms())
    assert caught.value.message.isprintable()
    assert "such" in caught.value.message


async def test_an_authority_added_by_the_gateway_is_never_trusted() -> None:
    gateway = LyingGateway(authority=OURS)
    gateway.change = of(bundle=[OURS.der, STRANGER.der])
    await gateway.start()
    try:
        token = parse_token(gateway.token(node_id()))
        credentials = await enroll(gateway.enroll_address, token, now_ms())
        assert credentials.bundle == (OURS.certificate,)
        subject = SpiffeId("test.example", Role.NODE, node_id())
        renewed = await renew(gateway.enroll_address, credentials, subject, now_ms())
        assert renewed.bundle == (OURS.certificate,)
    finally:
        await gateway.stop()


async def test_a_gateway_in_between_with_a_certificate_of_its_own_is_found_out() -> None:
    """It presents its own certificate, and relays to the real authority behind it."""
    between = FakeGateway(authority=OURS)
    between._identity = STRANGER.gateway()
    await between.start()
    try:
        with pytest.raises(Untrusted, match="its certificate is not of the token's authority"):
            await enroll(between.enroll_address, parse_token(between.token(node_id())), now_ms())
    finally:
        await between.stop()


async def test_a_renewal_is_for_a_new_key_and_the_same_subject(gateway: FakeGateway) -> None:
    current = gateway.node_credentials(node_id())
    subject = spiffe_id(current.leaf)
    assert subject is not None
    renewed = await renew(gateway.enroll_address, current, subject, now_ms())
    assert spiffe_id(renewed.leaf) == subject
    assert key_id(renewed.key.public_key()) != key_id(current.key.public_key())


async def test_a_renewal_that_names_another_subject_is_not_taken(gateway: FakeGateway) -> None:
    current = gateway.node_credentials(node_id())
    with pytest.raises(Untrusted, match="another identity"):
        await renew(
            gateway.enroll_address,
            current,
            SpiffeId("test.example", Role.NODE, node_id(2)),
            now_ms(),
        )


async def test_an_unknown_key_renews_nothing(gateway: FakeGateway) -> None:
    stranger = gateway.authority.issue(Role.NODE, node_id())
    subject = SpiffeId("test.example", Role.NODE, node_id())
    with pytest.raises(BcdError, match="renewal does not count"):
        await renew(gateway.enroll_address, stranger, subject, now_ms())


async def test_a_renewal_goes_to_our_own_authority_only() -> None:
    stranger = FakeGateway(authority=Authority())
    await stranger.start()
    current = OURS.issue(Role.NODE, node_id())
    try:
        with pytest.raises(BcdError) as caught:
            await renew(
                stranger.enroll_address,
                current,
                SpiffeId("test.example", Role.NODE, node_id()),
                now_ms(),
            )
        assert caught.value.reason is Reason.UNAVAILABLE
    finally:
        await stranger.stop()
