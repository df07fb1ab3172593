"""Whether a stored report counts: the node's own signature over exactly this binding (spec 12).

The gateway that stored it is not trusted. Every reason a report is turned down for has a name.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from bcd.model.assignment import Binding, slice_name
from bcd.model.errors import InvalidInput
from bcd.model.report import Bound, Rejection, Report
from bcd.signing.certificates import (
    OFFLINE_GRACE_MS,
    WORKLOAD_ROLES,
    parse_certificate,
    public_key,
)
from bcd.signing.envelope import PayloadType, opens
from bcd.store.allocations import Allocation
from bcd.store.certificates import IssuedCertificate
from bcd.wire.node.v1 import envelope_pb2
from bcd.wire.report import decode_report


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A stored report and what the placer's own records say about its signer.

    ``signers`` are the certificates issued for the envelope's key; ``highest`` is the highest
    number of that node and key that counted before.
    """

    envelope: envelope_pb2.Envelope
    allocation: Allocation
    signers: Sequence[IssuedCertificate]
    highest: int


def parse_envelope(frame: bytes) -> envelope_pb2.Envelope | None:
    """The envelope of a stored frame, None when it is not one or carries no signature."""
    envelope = envelope_pb2.Envelope()
    try:
        envelope.ParseFromString(frame)
    except DecodeError:
        return None
    return envelope if envelope.key_id and envelope.signature else None


def verdict(evidence: Evidence, now_ms: int) -> Report | Rejection:
    """The report when it counts, else why it does not."""
    refused = _signer_problem(evidence, now_ms)
    if refused is not None:
        return refused
    try:
        report = decode_report(evidence.envelope.payload)
    except InvalidInput:
        return Rejection.NOT_THIS_ALLOCATION
    if report.node_id != evidence.allocation.node_id:
        return Rejection.WRONG_NODE
    if report.number <= evidence.highest:
        return Rejection.REPLAYED
    if not _is_about(report, evidence.allocation):
        return Rejection.NOT_THIS_ALLOCATION
    return report


def _signer_problem(evidence: Evidence, now_ms: int) -> Rejection | None:
    envelope = evidence.envelope
    if not evidence.signers:
        return Rejection.UNKNOWN_KEY
    signer = evidence.signers[0]
    key = public_key(parse_certificate(signer.der))
    if not opens(envelope, PayloadType.ATTESTED_REPORT, key):
        return Rejection.BAD_SIGNATURE
    if any(certificate.revoked for certificate in evidence.signers):
        return Rejection.REVOKED
    if signer.not_after_ms + OFFLINE_GRACE_MS <= now_ms:
        return Rejection.EXPIRED
    if signer.role not in WORKLOAD_ROLES:
        return Rejection.WRONG_ROLE
    if signer.subject_id != evidence.allocation.node_id:
        return Rejection.WRONG_NODE
    return None


def _is_about(report: Report, allocation: Allocation) -> bool:
    """Whether the signed body is about this allocation and, when bound, exactly as booked.

    A forged inventory or capability cannot make another or an unbounded hold count: the device
    names must be the booked ones, and the slice the one that the booking calls for (12.4).
    """
    if report.allocation_id != allocation.id:
        return False
    if not isinstance(report.outcome, Bound):
        return True
    booked = sorted(device.cdi_name for device in allocation.devices)
    return (
        sorted(report.outcome.cdi_devices) == booked
        and report.outcome.env_file.endswith(f"/{allocation.id}.env")
        and report.outcome.cgroup_parent == _slice(allocation)
    )


def _slice(allocation: Allocation) -> str:
    """The slice that the hold must have: its own where it has limits, else none (10.5).

    Nor has one for the kubelet, which keeps its pods in cgroups of its own.
    """
    limited = allocation.limits is not None and allocation.binding is Binding.HOLD
    return slice_name(allocation.id) if limited else ""
