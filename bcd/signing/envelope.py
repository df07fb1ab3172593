"""DSSE envelopes: a signature covers the payload and what it is for.

https://github.com/secure-systems-lab/dsse/blob/master/protocol.md. The payload type is part of
the signed bytes, so that a report can never be shown as a desired state. Verify first, then
parse; the payload is never re-encoded.
"""

from enum import StrEnum

from cryptography.hazmat.primitives.asymmetric import ec

from bcd.signing import keys
from bcd.wire.node.v1 import envelope_pb2 as pb


class PayloadType(StrEnum):
    """What a signature is for."""

    ATTESTED_REPORT = "application/vnd.bcd.attested-report.v1+protobuf"
    DESIRED_STATE = "application/vnd.bcd.desired-state.v1+protobuf"
    RENEWAL = "application/vnd.bcd.renewal.v1+protobuf"


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """The bytes that are signed: ``DSSEv1 LEN(type) type LEN(body) body``."""
    encoded_type = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(encoded_type), encoded_type, len(payload), payload)


def seal(key: ec.EllipticCurvePrivateKey, purpose: PayloadType, payload: bytes) -> pb.Envelope:
    """Sign a payload for one purpose."""
    return pb.Envelope(
        payload_type=purpose,
        payload=payload,
        key_id=keys.key_id(key.public_key()),
        signature=keys.sign(key, pre_authentication_encoding(purpose, payload)),
    )


def opens(envelope: pb.Envelope, purpose: PayloadType, key: ec.EllipticCurvePublicKey) -> bool:
    """Whether the envelope was sealed with this key for this purpose."""
    if envelope.payload_type != purpose or envelope.key_id != keys.key_id(key):
        return False
    signed = pre_authentication_encoding(envelope.payload_type, envelope.payload)
    return keys.verify(key, envelope.signature, signed)
