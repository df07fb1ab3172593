"""Nodes as the placer keeps them, and their labels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bcd.model.errors import NotFound
from bcd.model.ids import NodeId, PoolId
from bcd.model.reservation import Condition
from bcd.store.database import Row, Transaction

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
    """Read a node; raises NotFound."""
    row = tx.one("SELECT * FROM nodes WHERE id = :id", id=node_id)
    if row is None:
        raise NotFound(f"there is no node {node_id}", nodeId=node_id)
    return _node(row)


def in_pool(tx: Transaction, pool_id: PoolId) -> Sequence[Node]:
    """A pool's nodes by id."""
    rows = tx.all("SELECT * FROM nodes WHERE pool_id = :pool_id ORDER BY id", pool_id=pool_id)
    return [_node(row) for row in rows]


def every(tx: Transaction) -> Sequence[Node]:
    """All nodes by id."""
    return [_node(row) for row in tx.all("SELECT * FROM nodes ORDER BY id")]


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
    """Keep new bookings off a node, or let them back; raises NotFound."""
    changed = tx.run(
        "UPDATE nodes SET cordoned = :value WHERE id = :id", id=node_id, value=int(cordoned)
    )
    if not changed:
        raise NotFound(f"there is no node {node_id}", nodeId=node_id)


def distrust(tx: Transaction, node_id: NodeId) -> None:
    """Take a node's trust away until it joins again."""
    tx.run("UPDATE nodes SET trusted = 0 WHERE id = :id", id=node_id)


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
