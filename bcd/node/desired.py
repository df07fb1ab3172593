"""Which desired states count, and the last accepted one on disk (spec 11.6).

A state counts when a command certificate of our own trust domain signed it for this node, and
it is not older than the one accepted last. What is refused changes nothing. ``holds`` calls this
once a pass, and the signed bytes are durable before anything acts on them.
"""

import functools
import logging
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError

from bcd.durable import replace_file
from bcd.model.assignment import DesiredState
from bcd.model.errors import BrokenFile, InvalidInput
from bcd.model.ids import NodeId
from bcd.node.rejoin import join_again
from bcd.signing.certificates import (
    Role,
    SpiffeId,
    chain_problem,
    parse_certificate,
    public_key,
    spiffe_id,
    validity_ms,
)
from bcd.signing.envelope import PayloadType, opens
from bcd.wire import bounds
from bcd.wire.desired import decode_desired, desired_hash
from bcd.wire.node.v1 import desired_pb2 as pb

log = logging.getLogger(__name__)

FILE = "desired.bin"


@dataclass(frozen=True, slots=True)
class Trust:
    """Who this node is, and the CAs that a command certificate must chain to."""

    node_id: NodeId
    domain: str
    bundle: tuple[x509.Certificate, ...]


class Refusal(StrEnum):
    """Why a desired state does not count; travels in the Ack."""

    UNSIGNED = "unsigned desired state"
    MALFORMED = "malformed desired state"
    FOREIGN_CHAIN = "certificate of another authority"
    WRONG_ROLE = "not a command certificate"
    WRONG_DOMAIN = "certificate of another trust domain"
    NOT_VALID_NOW = "certificate expired or not yet valid"
    BAD_SIGNATURE = "bad signature"
    WRONG_NODE = "state of another node"
    OLDER = "older than the accepted state"
    DIFFERENT = "differs from the accepted state of the same generation"
    NOT_JUDGED = "cannot be judged"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A state that counts, its payload's hash, and the frame as received."""

    state: DesiredState
    hash: str
    frame: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A state that does not count; epoch and generation are 0 where they could not be read."""

    reason: Refusal
    detail: str
    epoch: int
    generation: int
    hash: str


def judge(
    frame: pb.SignedDesiredState, trust: Trust, accepted: Accepted | None, now_ms: int
) -> Accepted | Refused:
    """Whether a state counts now; the accepted one itself, re-delivered, is answered as such.

    A frame that no rule foresees is refused too: kept, it would end every pass from now on.
    """
    try:
        return _judge(frame, trust, accepted, now_ms)
    except Exception as error:
        log.exception("a desired state cannot be judged")
        return _refused(frame, Refusal.NOT_JUDGED, type(error).__name__)


def _judge(
    frame: pb.SignedDesiredState, trust: Trust, accepted: Accepted | None, now_ms: int
) -> Accepted | Refused:
    payload = frame.envelope.payload
    digest = desired_hash(payload)
    if accepted is not None and accepted.hash == digest:
        return accepted
    verified = _verify(frame, trust, now_ms)
    if isinstance(verified, Refused):
        return verified
    if accepted is not None and verified.state.version < accepted.state.version:
        return _refused(frame, Refusal.OLDER, _version(accepted.state))
    if accepted is not None and verified.state.version == accepted.state.version:
        return _refused(frame, Refusal.DIFFERENT, _version(accepted.state))
    return verified


def _verify(frame: pb.SignedDesiredState, trust: Trust, now_ms: int | None) -> Accepted | Refused:
    """Check certificate, signature and content; without a time, expiry does not matter."""
    envelope = frame.envelope
    if len(envelope.payload) > bounds.MAX_NODE_MESSAGE_BYTES:
        return _refused(frame, Refusal.MALFORMED, "too large")
    if not envelope.signature or not frame.certificate:
        return _refused(frame, Refusal.UNSIGNED)
    signer = _signer(frame.certificate, trust.bundle)
    if isinstance(signer, str):
        return _refused(frame, Refusal.FOREIGN_CHAIN, signer)
    subject = signer.subject
    if subject is None or subject.role != Role.COMMAND:
        return _refused(frame, Refusal.WRONG_ROLE, str(subject))
    if subject.domain != trust.domain:
        return _refused(frame, Refusal.WRONG_DOMAIN, str(subject))
    if now_ms is not None and not signer.since_ms <= now_ms <= signer.until_ms:
        return _refused(frame, Refusal.NOT_VALID_NOW, "check the clocks of host and placer")
    if not opens(envelope, PayloadType.DESIRED_STATE, signer.key):
        return _refused(frame, Refusal.BAD_SIGNATURE)
    try:
        state = decode_desired(envelope.payload)
    except InvalidInput as error:
        return _refused(frame, Refusal.MALFORMED, error.message)
    if state.node_id != trust.node_id:
        return _refused(frame, Refusal.WRONG_NODE, state.node_id[:64])
    return Accepted(state, desired_hash(envelope.payload), frame.SerializeToString())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signer:
    """A certificate whose chain holds; its role and its dates are judged each time."""

    key: ec.EllipticCurvePublicKey
    subject: SpiffeId | None
    since_ms: int
    until_ms: int


@functools.lru_cache(maxsize=4)
def _signer(der: bytes, bundle: tuple[x509.Certificate, ...]) -> _Signer | str:
    """The signer of a state, or why its certificate does not chain to the bundle.

    Kept for the few certificates that sign one state after the other.
    """
    try:
        certificate = parse_certificate(der)
        key = public_key(certificate)
        since_ms, until_ms = validity_ms(certificate)
    except ValueError as error:
        return str(error)
    problem = chain_problem(certificate, bundle, (since_ms + until_ms) // 2)
    if problem is not None:
        return problem
    return _Signer(key=key, subject=spiffe_id(certificate), since_ms=since_ms, until_ms=until_ms)


def _refused(frame: pb.SignedDesiredState, reason: Refusal, detail: str = "") -> Refused:
    claimed = pb.DesiredState()
    try:
        claimed.ParseFromString(frame.envelope.payload)
    except DecodeError:
        claimed.Clear()
    return Refused(
        reason,
        detail,
        claimed.control_epoch,
        claimed.generation,
        desired_hash(frame.envelope.payload),
    )


def _version(state: DesiredState) -> str:
    return f"accepted is epoch {state.epoch}, generation {state.generation}"


def persist(folder: Path, accepted: Accepted) -> None:
    """Make an accepted state durable; raises OSError."""
    replace_file(folder / FILE, accepted.frame)


def load(folder: Path, trust: Trust) -> Accepted | None:
    """The state accepted before a restart, verified again; None when there never was one.

    A command certificate that expired meanwhile is fine. Raises BrokenFile for anything else
    that does not hold, because acting without the state, or on a wrong one, could end holds.
    """
    path = folder / FILE
    try:
        with path.open("rb") as file:
            content = file.read(2 * bounds.MAX_NODE_MESSAGE_BYTES)
    except FileNotFoundError:
        return None
    frame = pb.SignedDesiredState()
    try:
        frame.ParseFromString(content)
    except DecodeError as error:
        raise _broken(path, "does not parse") from error
    verified = _verify(frame, trust, None)
    if isinstance(verified, Refused):
        remedy = ""
        if verified.reason is Refusal.WRONG_NODE:
            remedy = f"{join_again(verified.detail)}; or "
        raise _broken(path, f"{verified.reason} {verified.detail}".rstrip(), remedy)
    return verified


def _broken(path: Path, problem: str, remedy: str = "") -> BrokenFile:
    return BrokenFile(
        str(path),
        f"cannot be used ({problem})",
        f"holds are untouched; {remedy}move it away (mv {path} {path}.broken) and start again:"
        " nothing is removed until the control plane has sent its state",
    )
