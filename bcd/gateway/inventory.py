"""Inventory frames: read within bounds, checked against their own hash, kept as received."""

from dataclasses import dataclass

from bcd.model.errors import InvalidInput
from bcd.wire.inventory import content_hash, decode_inventory
from bcd.wire.node.v1 import inventory_pb2 as pb


@dataclass(frozen=True, slots=True)
class ReceivedInventory:
    """An inventory that the placer will be able to read."""

    hash: str
    body: bytes


def read_inventory(frame: pb.Inventory) -> ReceivedInventory:
    """Check a frame; raises InvalidInput naming the field.

    The hash is computed again: a node would never be asked for an inventory that is on record
    under a hash that is not its own.
    """
    decode_inventory(frame)
    if content_hash(frame) != frame.hash:
        raise InvalidInput("hash", "is not the hash of this inventory")
    return ReceivedInventory(frame.hash, frame.SerializeToString())
