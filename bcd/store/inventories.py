"""Inventories as received from nodes; the placer applies them to atoms."""

from collections.abc import Sequence

from bcd.model.ids import NodeId
from bcd.store.database import Transaction


def store(tx: Transaction, node_id: NodeId, epoch: int, content_hash: str, body: bytes) -> bool:
    """Keep a node's newest inventory; False when a newer session fenced this one."""
    stored = tx.run(
        "INSERT INTO inventories (node_id, session_epoch, hash, body, received_ms)"
        " SELECT node_id, epoch, :hash, :body, compute_now() FROM sessions"
        " WHERE node_id = :node_id AND epoch = :epoch"
        " ON CONFLICT (node_id) DO UPDATE SET session_epoch = excluded.session_epoch,"
        " hash = excluded.hash, body = excluded.body, received_ms = excluded.received_ms",
        node_id=node_id,
        epoch=epoch,
        hash=content_hash,
        body=body,
    )
    if stored:
        tx.wake("inventory", node_id)
    return bool(stored)


def stored_hash(tx: Transaction, node_id: NodeId) -> str:
    """The hash of the inventory on record, empty when there is none."""
    row = tx.one("SELECT hash FROM inventories WHERE node_id = :id", id=node_id)
    return "" if row is None else str(row["hash"])


def body(tx: Transaction, node_id: NodeId) -> tuple[str, bytes] | None:
    """(hash, frame) of the inventory on record."""
    row = tx.one("SELECT hash, body FROM inventories WHERE node_id = :id", id=node_id)
    return None if row is None else (row["hash"], bytes(row["body"]))


def unapplied(tx: Transaction) -> Sequence[NodeId]:
    """Nodes whose newest inventory was not applied yet; one that was removed is left out."""
    rows = tx.all(
        "SELECT i.node_id FROM inventories i JOIN nodes n ON n.id = i.node_id"
        " WHERE i.hash <> n.inventory_hash AND n.removed_ms IS NULL ORDER BY i.received_ms"
    )
    return [NodeId(row["node_id"]) for row in rows]
