"""What nodes send to be kept: parsed outside the transaction, stored in one, fenced by the epoch.

Everything that a node sent since its last commit shares the next one, in the order it came.
"""

from collections.abc import Sequence
from typing import assert_never

from bcd.gateway.inventory import ReceivedInventory
from bcd.gateway.reports import UnreadableReport
from bcd.model.ids import NodeId
from bcd.store import inventories, reports, sessions
from bcd.store.database import Transaction
from bcd.store.reports import Arrival, Received
from bcd.store.sessions import Acknowledgement
from bcd.wire.node.v1 import gateway_pb2 as pb

Item = Received | UnreadableReport | ReceivedInventory | Acknowledgement

_ACK_STATUS = {
    pb.ACK_STATUS_APPLIED: "applied",
    pb.ACK_STATUS_PARTIAL: "partial",
    pb.ACK_STATUS_REJECTED: "rejected",
}
_MAX_ERRORS = 64
_MAX_TEXT = 256


def read_ack(ack: pb.Ack) -> Acknowledgement | None:
    """A node's answer to a desired state, None when it makes no sense."""
    status = _ACK_STATUS.get(ack.status)
    if status is None or max(ack.epoch, ack.generation) >= 1 << 63:
        return None
    return Acknowledgement(
        epoch=ack.epoch,
        generation=ack.generation,
        hash=_short(ack.hash),
        status=status,
        errors=tuple(
            (_short(error.allocation_id), _short(error.reason))
            for error in ack.errors[:_MAX_ERRORS]
        ),
    )


def _short(text: str) -> str:
    return "".join(character for character in text[:_MAX_TEXT] if character.isprintable())


def store_items(
    tx: Transaction, node_id: NodeId, epoch: int, items: Sequence[Item]
) -> Sequence[Arrival] | None:
    """Store what a session received; one answer an item, or None when the session is fenced."""
    if not sessions.is_current(tx, node_id, epoch):
        return None
    return [_store(tx, node_id, epoch, item) for item in items]


def _store(tx: Transaction, node_id: NodeId, epoch: int, item: Item) -> Arrival:
    match item:
        case Received():
            return reports.store(tx, epoch, item)
        case ReceivedInventory():
            inventories.store(tx, node_id, epoch, item.hash, item.body)
        case Acknowledgement():
            sessions.acknowledge(tx, node_id, epoch, item)
        case UnreadableReport():
            pass
        case _:
            assert_never(item)
    return "stored"
