"""Report payloads: written and signed by the daemon, read by gateway and placer."""

from google.protobuf.message import DecodeError

from bcd.model.errors import InvalidInput
from bcd.model.ids import AllocationId, NodeId, is_allocation_id
from bcd.model.report import Bound, Failed, Outcome, Released, Report
from bcd.wire import bounds
from bcd.wire.node.v1 import report_pb2 as pb


def encode_report(report: Report) -> bytes:
    """The payload bytes that the node key signs."""
    message = pb.AttestedReport(
        node_id=report.node_id,
        number=report.number,
        boot_id=report.boot_id,
        allocation_id=report.allocation_id,
        signed_at_ms=report.signed_at_ms,
    )
    match report.outcome:
        case Bound(cdi_devices, env_file, cgroup_parent):
            message.bound.cdi_devices.extend(cdi_devices)
            message.bound.env_file = env_file
            message.bound.cgroup_parent = cgroup_parent
        case Failed(reason, text):
            message.failed.reason = reason
            message.failed.message = text
        case Released(slice_empty):
            message.released.slice_empty = slice_empty
            message.released.SetInParent()
    return message.SerializeToString(deterministic=True)


def decode_report(payload: bytes) -> Report:
    """Parse a payload within bounds; raises InvalidInput naming the field."""
    message = pb.AttestedReport()
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        raise InvalidInput("", f"report does not parse: {error}") from error
    if not is_allocation_id(message.allocation_id):
        raise InvalidInput("allocationId", "is not an allocation id")
    if message.number >= 1 << 63:
        raise InvalidInput("number", "is out of range")
    return Report(
        node_id=NodeId(_short(message.node_id, "nodeId")),
        number=message.number,
        boot_id=_short(message.boot_id, "bootId"),
        allocation_id=AllocationId(message.allocation_id),
        signed_at_ms=message.signed_at_ms,
        outcome=_outcome(message),
    )


def report_number(payload: bytes) -> int:
    """The number of a report that does not decode otherwise, 0 when it has none to show."""
    message = pb.AttestedReport()
    try:
        message.ParseFromString(payload)
    except DecodeError:
        return 0
    return message.number


def _outcome(message: pb.AttestedReport) -> Outcome:
    match message.WhichOneof("outcome"):
        case "bound":
            bound = message.bound
            if len(bound.cdi_devices) > bounds.MAX_DEVICES:
                raise InvalidInput("bound.cdiDevices", "has too many entries")
            return Bound(
                tuple(_short(name, "bound.cdiDevices") for name in bound.cdi_devices),
                _text(bound.env_file, "bound.envFile"),
                _short(bound.cgroup_parent, "bound.cgroupParent"),
            )
        case "failed":
            return Failed(
                _short(message.failed.reason, "failed.reason"),
                message.failed.message[: bounds.MAX_TEXT_BYTES],
            )
        case "released":
            return Released(message.released.slice_empty)
        case _:
            raise InvalidInput("outcome", "is missing or of a kind that is not known here")


def _short(text: str, path: str) -> str:
    return _text(text, path, bounds.MAX_ID_BYTES)


def _text(text: str, path: str, limit: int = bounds.MAX_TEXT_BYTES) -> str:
    if len(text) > limit:
        raise InvalidInput(path, f"is longer than {limit} characters")
    if not text.isprintable():
        raise InvalidInput(path, "has control characters")
    return text
