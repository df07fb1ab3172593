"""Nodes as the placer keeps them, and their labels.

A removed node stays on record, for what was booked on it; lists leave it out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bcd.model.errors import NotFound
from bcd.model.ids import NodeId, PoolId
from bcd.model.reservation import Condition
from bcd.store import gpu_claims
from bcd.store.database import Row, Transaction
from bcd.store.pools import VISIBLE

CAPABILITY_LABEL = "bc.dev/cap."


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host of a pool. ``reachable`` is the placer's last verdict on its session."""

    id: NodeId
    pool_id: PoolId
    role: str
    trusted: bool
    ready: bool
    cordoned: bool
    reachable: bool
    hostname: str
    driver_version: str
    inventory_hash: str
    conditions: tuple[Condition, ...]
    draining: bool = False
    removed: bool = False

    @property
    def schedulable(self) -> bool:
        """Whether the node takes new bookings (spec 1.3); a draining one is cordoned too."""
        return self.ready and self.reachable and self.trusted and not self.cordoned


def _node(row: Row) -> Node:
    return Node(
        id=row["id"],
        pool_id=row["pool_id"],
        role=row["role"],
        trusted=bool(row["trusted"]),
        ready=bool(row["ready"]),
        cordoned=bool(row["cordoned"]),
        reachable=bool(row["reachable"]),
        hostname=row["hostname"],
        driver_version=row["driver_version"],
        inventory_hash=row["inventory_hash"],
        conditions=msgspec.json.decode(row["conditions"], type=tuple[Condition, ...]),
        draining=bool(row["draining"]),
        removed=row["removed_ms"] is not None,
    )


def enrol(tx: Transaction, node_id: NodeId, pool_id: PoolId, role: str, *, trusted: bool) -> None:
    """Add the node of a join token; one that joins again keeps its rows."""
    tx.run(
        "INSERT INTO nodes (id, pool_id, role, trusted, created_ms)"
        " VALUES (:id, :pool_id, :role, :trusted, compute_now())"
        " ON CONFLICT (id) DO UPDATE SET role = excluded.role, trusted = excluded.trusted",
        id=node_id,
        pool_id=pool_id,
        role=role,
        trusted=int(trusted),
    )


def get(tx: Transaction, node_id: NodeId) -> Node:
    """Read a node, also one that was removed; raises NotFound."""
    row = tx.one("SELECT * FROM nodes WHERE id = :id", id=node_id)
    if row is None:
        raise missing(node_id)
    return _node(row)


def current(tx: Transaction, node_id: NodeId) -> Node:
    """Read a node that was not removed; raises NotFound."""
    node = get(tx, node_id)
    if node.removed:
        raise missing(node_id)
    return node


def missing(node_id: str) -> NotFound:
    """What everybody hears of a node that is not there for them."""
    return NotFound(f"there is no node {node_id}", nodeId=node_id)


def in_pool(tx: Transaction, pool_id: PoolId) -> Sequence[Node]:
    """A pool's nodes by id."""
    rows = tx.all(
        "SELECT * FROM nodes WHERE pool_id = :pool_id AND removed_ms IS NULL ORDER BY id",
        pool_id=pool_id,
    )
    return [_node(row) for row in rows]


def every(tx: Transaction) -> Sequence[Node]:
    """All nodes by id."""
    rows = tx.all("SELECT * FROM nodes WHERE removed_ms IS NULL ORDER BY id")
    return [_node(row) for row in rows]


def page(tx: Transaction, tenant_id: str, pool_id: str, after: str, limit: int) -> Sequence[Node]:
    """At most ``limit`` nodes with ids above ``after``, by id; empty strings filter nothing.

    A tenant sees the nodes of its own pools and of those offered to it.
    """
    rows = tx.all(
        "SELECT n.* FROM nodes n JOIN pools p ON p.id = n.pool_id WHERE n.removed_ms IS NULL"
        f" AND (:tenant_id = '' OR {VISIBLE}) AND (:pool_id = '' OR n.pool_id = :pool_id)"
        " AND n.id > :after ORDER BY n.id LIMIT :limit",
        tenant_id=tenant_id,
        pool_id=pool_id,
        after=after,
        limit=limit,
    )
    return [_node(row) for row in rows]


def set_reachable(tx: Transaction, node_id: NodeId, reachable: bool) -> bool:
    """Record the verdict on a node's session; returns whether it changed."""
    return bool(
        tx.run(
            "UPDATE nodes SET reachable = :value WHERE id = :id AND reachable <> :value",
            id=node_id,
            value=int(reachable),
        )
    )


def set_cordoned(tx: Transaction, node_id: NodeId, cordoned: bool) -> None:
    """Keep new bookings off a node, or let them back, which ends draining; raises NotFound."""
    changed = tx.run(
        "UPDATE nodes SET cordoned = :value, draining = draining * :value WHERE id = :id",
        id=node_id,
        value=int(cordoned),
    )
    if not changed:
        raise missing(node_id)


def drain(tx: Transaction, node_id: NodeId) -> None:
    """Cordon a node and mark it as one that is to become empty."""
    tx.run("UPDATE nodes SET cordoned = 1, draining = 1 WHERE id = :id", id=node_id)


def set_trusted(tx: Transaction, node_id: NodeId, trusted: bool) -> None:
    """Take a node's trust away, or give it back; joining again gives what its token says."""
    tx.run("UPDATE nodes SET trusted = :value WHERE id = :id", id=node_id, value=int(trusted))


def remove(tx: Transaction, node_id: NodeId) -> None:
    """Take a node out for good, and let others have its GPUs.

    Call under the pool's lock, with nothing booked on it.
    """
    gpu_claims.free(tx, node_id)  # before the row, on which somebody who has one of these may wait
    tx.run(
        "UPDATE nodes SET removed_ms = compute_now(), trusted = 0, ready = 0, cordoned = 1"
        " WHERE id = :id",
        id=node_id,
    )
    tx.run("DELETE FROM node_labels WHERE node_id = :id", id=node_id)
    tx.run("DELETE FROM host_capacity WHERE node_id = :id", id=node_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedInventory:
    """What a node's row takes from the inventory that was applied."""

    inventory_hash: str
    ready: bool = True
    hostname: str
    driver_version: str
    conditions: tuple[Condition, ...]


def apply_inventory(tx: Transaction, node_id: NodeId, applied: AppliedInventory) -> None:
    """The node is ready from its first applied inventory on."""
    tx.run(
        "UPDATE nodes SET ready = :ready, inventory_hash = :hash, hostname = :hostname,"
        " driver_version = :driver_version, conditions = :conditions WHERE id = :id",
        id=node_id,
        ready=int(applied.ready),
        hash=applied.inventory_hash,
        hostname=applied.hostname,
        driver_version=applied.driver_version,
        conditions=msgspec.json.encode(applied.conditions).decode(),
    )


def system_labels(tx: Transaction, node_ids: Iterable[NodeId]) -> Mapping[NodeId, frozenset[str]]:
    """The ``bc.dev/…`` labels that count, by node: those whose source is ``system``."""
    found: dict[NodeId, frozenset[str]] = {}
    for node_id in node_ids:
        rows = tx.all(
            "SELECT key FROM node_labels WHERE node_id = :id AND source = 'system'", id=node_id
        )
        found[node_id] = frozenset(row["key"] for row in rows)
    return found


def labels(tx: Transaction, node_id: NodeId) -> Sequence[tuple[str, str, str]]:
    """(key, value, source) of every label, sorted."""
    rows = tx.all(
        "SELECT key, value, source FROM node_labels WHERE node_id = :id ORDER BY key, source",
        id=node_id,
    )
    return [(row["key"], row["value"], row["source"]) for row in rows]


def replace_capabilities(tx: Transaction, node_id: NodeId, capabilities: Iterable[str]) -> None:
    """Write a node's capabilities as ``bc.dev/cap.<name>`` labels, source ``system``."""
    rows = tx.all(
        "SELECT key FROM node_labels WHERE node_id = :id AND source = 'system'"
        " AND key LIKE 'bc.dev/cap.%'",
        id=node_id,
    )
    present = {row["key"] for row in rows}
    wanted = {CAPABILITY_LABEL + name for name in capabilities}
    tx.many(
        "DELETE FROM node_labels WHERE node_id = :id AND source = 'system' AND key = :key",
        [{"id": node_id, "key": key} for key in sorted(present - wanted)],
    )
    tx.many(
        "INSERT INTO node_labels (node_id, key, value, source) VALUES (:id, :key, '1', 'system')",
        [{"id": node_id, "key": key} for key in sorted(wanted - present)],
    )


def set_label(tx: Transaction, node_id: NodeId, key: str, value: str) -> None:
    """Set an operator's label."""
    tx.run(
        "INSERT INTO node_labels (node_id, key, value, source)"
        " VALUES (:id, :key, :value, 'operator')"
        " ON CONFLICT (node_id, key, source) DO UPDATE SET value = excluded.value",
        id=node_id,
        key=key,
        value=value,
    )


def remove_label(tx: Transaction, node_id: NodeId, key: str) -> bool:
    """Remove an operator's label; returns whether there was one."""
    return bool(
        tx.run(
            "DELETE FROM node_labels WHERE node_id = :id AND key = :key AND source = 'operator'",
            id=node_id,
            key=key,
        )
    )
