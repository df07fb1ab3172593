"""Desired states: signed by the placer, relayed as opaque bytes by gateways."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bcd.model.ids import NodeId
from bcd.store.database import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """One node's signed state; ``signed`` is a SignedDesiredState frame."""

    node_id: NodeId
    epoch: int
    generation: int
    hash: str
    key_id: str
    signed: bytes


def newest_version(tx: Transaction, node_id: NodeId) -> tuple[int, int]:
    """(control epoch, the node's newest generation, 0 for none). Call under the pool's lock."""
    row = tx.one(
        "SELECT c.value AS epoch, coalesce(d.generation, 0) AS generation FROM control c"
        " LEFT JOIN desired_states d ON d.node_id = :id WHERE c.key = 'epoch'",
        id=node_id,
    )
    assert row is not None
    return int(row["epoch"]), int(row["generation"])


def save(tx: Transaction, state: StoredState) -> None:
    """Replace a node's state and wake the gateway that holds its session."""
    tx.run(
        "INSERT INTO desired_states (node_id, epoch, generation, hash, key_id, signed, updated_ms)"
        " VALUES (:node_id, :epoch, :generation, :hash, :key_id, :signed, compute_now())"
        " ON CONFLICT (node_id) DO UPDATE SET epoch = excluded.epoch,"
        " generation = excluded.generation, hash = excluded.hash, key_id = excluded.key_id,"
        " signed = excluded.signed, updated_ms = excluded.updated_ms",
        node_id=state.node_id,
        epoch=state.epoch,
        generation=state.generation,
        hash=state.hash,
        key_id=state.key_id,
        signed=state.signed,
    )
    tx.wake("desired", state.node_id)


def get(tx: Transaction, node_id: NodeId) -> StoredState | None:
    """A node's newest state."""
    row = tx.one(
        "SELECT node_id, epoch, generation, hash, key_id, signed FROM desired_states"
        " WHERE node_id = :id",
        id=node_id,
    )
    return None if row is None else StoredState(**{**row, "signed": bytes(row["signed"])})


def versions(tx: Transaction) -> Mapping[NodeId, tuple[int, int, str]]:
    """(epoch, generation, hash) of every node's newest state."""
    rows = tx.all("SELECT node_id, epoch, generation, hash FROM desired_states")
    return {row["node_id"]: (row["epoch"], row["generation"], row["hash"]) for row in rows}


def signed_stale(tx: Transaction, epoch: int, until_ms: int) -> Sequence[NodeId]:
    """Nodes whose state is of another control epoch, or signed with a key whose certificate is
    revoked or ends before ``until_ms``; by id.

    Several placers sign with keys of their own: a state of another one's fresh key is not stale.
    """
    rows = tx.all(
        "SELECT d.node_id FROM desired_states d WHERE d.epoch <> :epoch OR NOT EXISTS"
        " (SELECT 1 FROM certificates c LEFT JOIN revocations r ON r.serial = c.serial"
        " WHERE c.key_id = d.key_id AND c.not_after_ms > :until_ms AND r.serial IS NULL)"
        " ORDER BY d.node_id",
        epoch=epoch,
        until_ms=until_ms,
    )
    return [NodeId(row["node_id"]) for row in rows]
