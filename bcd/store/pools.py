"""Pools: the lock of all that books in them, their clock, and which of their nodes changed."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bcd.model.errors import Conflict, NotFound
from bcd.model.ids import NodeId, PoolId
from bcd.model.pool import PoolPolicy
from bcd.store.database import Row, Transaction

_KEPT_CHANGES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool as stored; ``change_token`` names the newest of its changes."""

    id: PoolId
    name: str
    tenant_id: str
    region: str
    policy: PoolPolicy
    change_seq: int
    change_token: str


def _pool(row: Row) -> Pool:
    return Pool(
        id=row["id"],
        name=row["name"],
        tenant_id=row["tenant_id"],
        region=row["region"],
        policy=msgspec.json.decode(row["policy"], type=PoolPolicy),
        change_seq=row["change_seq"],
        change_token=row["change_token"],
    )


def create(tx: Transaction, name: str, tenant_id: str, region: str, policy: PoolPolicy) -> Pool:
    """Add a pool; raises Conflict when the name is taken."""
    now_ms = tx.now_ms()
    pool_id = tx.new_id("pool")
    added = tx.run(
        "INSERT INTO pools (id, name, tenant_id, region, policy, created_ms)"
        " VALUES (:id, :name, :tenant_id, :region, :policy, :now_ms) ON CONFLICT DO NOTHING",
        id=pool_id,
        name=name,
        tenant_id=tenant_id,
        region=region,
        policy=msgspec.json.encode(policy).decode(),
        now_ms=now_ms,
    )
    if not added:
        raise Conflict(f"a pool named {name} exists already", name=name)
    return get(tx, PoolId(pool_id))


def get(tx: Transaction, pool_id: PoolId) -> Pool:
    """Read a pool; raises NotFound."""
    row = tx.one("SELECT * FROM pools WHERE id = :id", id=pool_id)
    if row is None:
        raise NotFound(f"there is no pool {pool_id}", poolId=pool_id)
    return _pool(row)


def every(tx: Transaction) -> Sequence[Pool]:
    """All pools, by name."""
    return [_pool(row) for row in tx.all("SELECT * FROM pools ORDER BY name")]


def lock(tx: Transaction, pool_id: PoolId) -> tuple[Pool, int]:
    """Take the pool's lock and read the clock under it; raises NotFound.

    The time never steps back behind one that was given for this pool before.
    """
    row = tx.one(f"SELECT * FROM pools WHERE id = :id{tx.for_update}", id=pool_id)
    if row is None:
        raise NotFound(f"there is no pool {pool_id}", poolId=pool_id)
    now_ms = max(tx.now_ms(), int(row["clock_ms"]))
    if now_ms != row["clock_ms"]:
        tx.run("UPDATE pools SET clock_ms = :now_ms WHERE id = :id", id=pool_id, now_ms=now_ms)
    return _pool(row), now_ms


def note_changes(tx: Transaction, pool_id: PoolId, node_ids: Sequence[NodeId]) -> None:
    """Record that these nodes' devices, state or bookings changed. Call under the pool's lock."""
    row = tx.one("SELECT change_seq FROM pools WHERE id = :id", id=pool_id)
    assert row is not None
    seq = row["change_seq"]
    token = ""
    for node_id in node_ids:
        seq += 1
        token = secrets.token_hex(8)
        tx.run(
            "INSERT INTO pool_changes (pool_id, seq, token, node_id)"
            " VALUES (:pool_id, :seq, :token, :node_id)",
            pool_id=pool_id,
            seq=seq,
            token=token,
            node_id=node_id,
        )
    if token:
        tx.run(
            "UPDATE pools SET change_seq = :seq, change_token = :token WHERE id = :id",
            id=pool_id,
            seq=seq,
            token=token,
        )
        if seq % 256 < len(node_ids):
            tx.run(
                "DELETE FROM pool_changes WHERE pool_id = :pool_id AND seq < :seq",
                pool_id=pool_id,
                seq=seq - _KEPT_CHANGES,
            )


def changes_since(
    tx: Transaction, pool_id: PoolId, seq: int, token: str
) -> Sequence[NodeId] | None:
    """Nodes changed after the change (seq, token); None when that change is not on record.

    The token tells a change that was rolled back from the one that took its number.
    """
    rows = tx.all(
        "SELECT seq, token, node_id FROM pool_changes"
        " WHERE pool_id = :pool_id AND seq >= :seq ORDER BY seq",
        pool_id=pool_id,
        seq=seq,
    )
    if not rows or rows[0]["seq"] != seq or rows[0]["token"] != token:
        return None
    return list(dict.fromkeys(NodeId(row["node_id"]) for row in rows[1:]))
