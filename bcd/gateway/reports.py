"""Reports on their way in: read just enough to file them, stored as received, acknowledged.

Whether a report counts is the placer's to judge, so unsigned and badly signed ones are stored
like any other; a report that nobody could file is refused.
"""

from dataclasses import dataclass

from bcd.model.errors import InvalidInput
from bcd.model.ids import NodeId
from bcd.store.reports import Arrival, Received
from bcd.wire import bounds
from bcd.wire.node.v1 import envelope_pb2, gateway_pb2
from bcd.wire.report import decode_report, report_number

MAX_KEY_ID = 128


@dataclass(frozen=True, slots=True)
class UnreadableReport:
    """A report that cannot be filed, with what the node needs to find it again."""

    key_id: str
    number: int
    reason: str


def read_report(node_id: NodeId, envelope: envelope_pb2.Envelope) -> Received | UnreadableReport:
    """Find a report's number and allocation, without looking at its signature."""
    key_id = envelope.key_id
    if len(key_id) > MAX_KEY_ID or not (key_id.isascii() and key_id.isprintable()):
        return UnreadableReport("", report_number(envelope.payload), "keyId: is not a key id")
    if envelope.ByteSize() > bounds.MAX_REPORT_BYTES:
        reason = f"is larger than {bounds.MAX_REPORT_BYTES} bytes"
        return UnreadableReport(key_id, report_number(envelope.payload), reason)
    try:
        report = decode_report(envelope.payload)
    except InvalidInput as error:
        return UnreadableReport(key_id, report_number(envelope.payload), error.message)
    return Received(
        node_id=node_id,
        key_id=key_id,
        number=report.number,
        allocation_id=report.allocation_id,
        envelope=envelope.SerializeToString(),
    )


def acknowledgement(
    report: Received | UnreadableReport, arrival: Arrival
) -> gateway_pb2.ConnectResponse | None:
    """The answer to a report, to be sent after the commit.

    None for one that found no room: the session ends then.
    """
    if arrival == "no-room":
        return None
    if isinstance(report, UnreadableReport):
        status, reason = gateway_pb2.REPORT_ACK_STATUS_REJECTED, report.reason
    elif arrival == "stored":
        status, reason = gateway_pb2.REPORT_ACK_STATUS_STORED, ""
    else:
        status = gateway_pb2.REPORT_ACK_STATUS_IGNORED
        reason = "this node has no such allocation"
    return gateway_pb2.ConnectResponse(
        report_ack=gateway_pb2.ReportAck(
            key_id=report.key_id, number=report.number, status=status, reason=reason
        )
    )
