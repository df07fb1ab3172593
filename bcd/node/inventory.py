"""The node's inventory: a full snapshot, sent when its content changed, never on a timer."""

from bcd.model.device import Device
from bcd.model.host import HostFacts, Inventory
from bcd.wire.inventory import encode_inventory
from bcd.wire.node.v1 import inventory_pb2 as pb


class LatestInventory:
    """Keeps the newest inventory's frame, and encodes only what changed."""

    def __init__(self) -> None:
        self._inventory: Inventory | None = None
        self.frame = pb.Inventory()

    @property
    def hash(self) -> str:
        """The content hash, empty before the first pass."""
        return self.frame.hash

    def update(self, host: HostFacts, devices: tuple[Device, ...]) -> bool:
        """Take in what a pass saw; True when the content differs from before."""
        inventory = Inventory(host, devices)
        if inventory == self._inventory:
            return False
        self._inventory = inventory
        before = self.frame.hash
        self.frame = encode_inventory(inventory)
        return self.frame.hash != before
