"""Envelopes: the DSSE encoding, and signatures that hold for one purpose and one payload only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.signing import keys
from bcd.signing.envelope import PayloadType, opens, pre_authentication_encoding, seal
from bcd.wire.node.v1 import envelope_pb2 as pb

KEY = keys.generate_key()
REPORT = PayloadType.ATTESTED_REPORT


def test_the_encoding_is_that_of_the_specification() -> None:
    """https://github.com/secure-systems-lab/dsse/blob/master/protocol.md, test vectors."""
    encoded = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_lengths_are_those_of_the_bytes() -> None:
    assert pre_authentication_encoding("ä", b"") == b"DSSEv1 2 \xc3\xa4 0 "


@given(st.text(), st.binary(), st.text(), st.binary())
def test_no_two_contents_share_an_encoding(
    type_a: str, body_a: bytes, type_b: str, body_b: bytes
) -> None:
    same = pre_authentication_encoding(type_a, body_a) == pre_authentication_encoding(
        type_b, body_b
    )
    assert same is ((type_a, body_a) == (type_b, body_b))


@given(st.binary(max_size=200))
def test_a_sealed_payload_opens_with_its_key(payload: bytes) -> None:
    envelope = seal(KEY, REPORT, payload)
    assert envelope.payload == payload
    assert envelope.key_id == keys.key_id(KEY.public_key())
    assert opens(envelope, REPORT, KEY.public_key())


@pytest.mark.parametrize("made_for", PayloadType)
@pytest.mark.parametrize("asked_for", PayloadType)
def test_a_signature_holds_for_one_purpose_only(
    made_for: PayloadType, asked_for: PayloadType
) -> None:
    envelope = seal(KEY, made_for, b"payload")
    assert opens(envelope, asked_for, KEY.public_key()) is (made_for == asked_for)
    relabelled = pb.Envelope()
    relabelled.CopyFrom(envelope)
    relabelled.payload_type = asked_for
    assert opens(relabelled, asked_for, KEY.public_key()) is (made_for == asked_for)


@pytest.mark.parametrize(
    "change",
    [
        {"payload": b"other"},
        {"payload": b""},
        {"payload_type": ""},
        {"payload_type": f"{REPORT} "},
        {"key_id": ""},
        {"key_id": "0" * 64},
        {"signature": b""},
        {"signature": b"\0" * 64},
        {"signature": b"\x30\x00"},
        {"signature": b"x" * 10_000},
    ],
)
def test_an_envelope_that_was_touched_does_not_open(change: dict[str, object]) -> None:
    envelope = seal(KEY, REPORT, b"payload")
    for field, value in change.items():
        setattr(envelope, field, value)
    assert not opens(envelope, REPORT, KEY.public_key())


def test_another_keys_signature_does_not_open_under_a_borrowed_key_id() -> None:
    envelope = seal(keys.generate_key(), REPORT, b"payload")
    envelope.key_id = keys.key_id(KEY.public_key())
    assert not opens(envelope, REPORT, KEY.public_key())


def test_the_purposes_are_spelled_as_agreed() -> None:
    assert set(PayloadType) == {
        "application/vnd.bcd.attested-report.v1+protobuf",
        "application/vnd.bcd.desired-state.v1+protobuf",
        "application/vnd.bcd.renewal.v1+protobuf",
    }
