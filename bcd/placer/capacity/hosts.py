"""``capacity.hosts``: keeps what each host can give in step with its applied inventory (spec 6.1).

``inventory`` does so at once with every snapshot that it applies. The loop here, every 30 seconds
and when a pool's policy changes, finds what changed otherwise: the policy, or a row that is not as
it should be.
"""

from dataclasses import dataclass

from bcd.model.errors import InvalidInput
from bcd.model.host import Inventory
from bcd.model.ids import NodeId
from bcd.model.pool import PoolPolicy
from bcd.placer.capacity.allocatable import allocatable, sold
from bcd.placer.capacity.devices import sync_devices
from bcd.placer.loops import each
from bcd.store import hosts, inventories, nodes, pools, shares, work
from bcd.store.database import Database, Transaction
from bcd.store.hosts import HostCapacity
from bcd.store.nodes import Node
from bcd.store.pools import PoolLock
from bcd.wire.inventory import parse_inventory

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a host's rows follow from, and what was on record after they had been followed."""

    inventory_hash: str
    policy: PoolPolicy
    capacity: HostCapacity | None


class HostsKeeper:
    """Keeps every host's capacity and slots as its inventory and its pool's policy say."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: dict[NodeId, _Seen] = {}

    async def sync_pass(self) -> float | None:
        """One pass; one host that cannot be brought in step does not stop the others."""
        stale = await self._database.read(self._stale)
        await each("bringing a host in step", stale, self._sync, at_once=_AT_ONCE)
        return None

    def _stale(self, tx: Transaction) -> list[NodeId]:
        """Hosts of which something changed since they were brought in step, or never were."""
        found: list[NodeId] = []
        for pool in pools.every(tx):
            on_record = hosts.capacity_in_pool(tx, pool.id)
            for node in nodes.in_pool(tx, pool.id):
                now = _Seen(node.inventory_hash, pool.policy, on_record.get(node.id))
                if node.inventory_hash and self._seen.get(node.id) != now:
                    found.append(node.id)
        return found

    async def _sync(self, node_id: NodeId) -> None:
        self._seen[node_id] = await self._database.write(_sync, node_id)


def _sync(tx: Transaction, node_id: NodeId) -> _Seen:
    held = pools.lock(tx, nodes.get(tx, node_id).pool_id)
    node = nodes.get(tx, node_id)
    inventory = applied_inventory(tx, node)
    if inventory is not None:
        changed = sync_devices(tx, node_id, inventory, held.pool.policy)
        changed = follow_host(tx, held, node_id, inventory) or changed
        if changed:
            pools.note_changes(tx, held, [node_id], "node")
            work.poke(tx, held.pool.id, held.now_ms)
    return _Seen(node.inventory_hash, held.pool.policy, hosts.capacity_of(tx, node_id))


def applied_inventory(tx: Transaction, node: Node) -> Inventory | None:
    """The inventory that a node's rows follow from.

    None while a newer one waits to be applied, and for one that could not be used.
    """
    stored = inventories.body(tx, node.id)
    if stored is None or stored[0] != node.inventory_hash:
        return None
    return newest_inventory(tx, node.id)


def newest_inventory(tx: Transaction, node_id: NodeId) -> Inventory | None:
    """The inventory that a node sent last; None without one, and for one that cannot be used."""
    stored = inventories.body(tx, node_id)
    if stored is None:
        return None
    try:
        return parse_inventory(stored[1])[0]
    except InvalidInput:
        return None


def follow_host(tx: Transaction, held: PoolLock, node_id: NodeId, inventory: Inventory) -> bool:
    """Record what the inventory leaves of the host to be booked; returns whether that is news.

    A host whose inventory does not say has no row, and books none.
    """
    capacity = capacity_under(inventory, held.pool.policy)
    if capacity is None:
        changed = hosts.remove_capacity(tx, node_id)
    else:
        changed = hosts.set_capacity(tx, node_id, capacity)
    if changed:
        shares.keep(tx, held.pool.id)
    return changed


def capacity_under(inventory: Inventory, policy: PoolPolicy) -> HostCapacity | None:
    """What a host can give under a policy: CPUs and memory times their ratio, rounded down."""
    left = allocatable(inventory, policy.host_reserve)
    if left is None:
        return None
    return HostCapacity(
        vcpu=sold(left.vcpu, policy.ratio.vcpu_ratio),
        memory_gib=sold(left.memory_gib, policy.ratio.memory_ratio),
        hugepages_2mi=left.hugepages_2mi,
        hugepages_1gi=left.hugepages_1gi,
        gpus=left.gpus,
        allocatable_vcpu=left.vcpu,
        allocatable_memory_gib=left.memory_gib,
    )
