"""Pools: the lock of all that books in them, their clock, and which of their nodes changed.

A deleted pool stays on record, for the reservations that were in it.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec

from bcd.model.errors import Conflict, InvalidInput, NotFound
from bcd.model.ids import NodeId, PoolId, ReservationId
from bcd.model.pool import PoolPolicy
from bcd.store.database import Row, Transaction

_KEPT_CHANGES = 4096

_LOCK = (
    "UPDATE pools SET clock_ms = CASE WHEN clock_ms > compute_now() THEN clock_ms"
    " ELSE compute_now() END"
)

Change = Literal["bookings", "node"]

# Whether :tenant_id sees pool p: it owns it or was offered it.
VISIBLE = (
    "(p.tenant_id = :tenant_id OR EXISTS (SELECT 1 FROM offers o"
    " WHERE o.pool_id = p.id AND o.tenant_id = :tenant_id))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool as stored; ``models`` are those of its nodes' devices, sorted.

    ``left_queued``: under another policy some may have been queued and not looked at yet.
    """

    id: PoolId
    name: str
    tenant_id: str
    region: str
    policy: PoolPolicy
    models: tuple[str, ...]
    deleted: bool = False
    left_queued: bool = False


def stored(row: Row) -> Pool:
    """A row of the table, read."""
    return Pool(
        id=row["id"],
        name=row["name"],
        tenant_id=row["tenant_id"],
        region=row["region"],
        policy=_policy(row["policy"]),
        models=_models(row["models"]),
        deleted=row["deleted_ms"] is not None,
        left_queued=bool(row["left_queued"]),
    )


@lru_cache(maxsize=1024)
def _policy(text: str) -> PoolPolicy:
    return msgspec.json.decode(text, type=PoolPolicy)


@lru_cache(maxsize=1024)
def _models(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])


def create(tx: Transaction, name: str, tenant_id: str, region: str, policy: PoolPolicy) -> Pool:
    """Add a pool; raises Conflict when the tenant has one of that name."""
    pool_id = tx.new_id("pool")
    added = tx.run(
        "INSERT INTO pools (id, name, tenant_id, region, policy, created_ms)"
        " VALUES (:id, :name, :tenant_id, :region, :policy, compute_now()) ON CONFLICT DO NOTHING",
        id=pool_id,
        name=name,
        tenant_id=tenant_id,
        region=region,
        policy=msgspec.json.encode(policy).decode(),
    )
    if not added:
        raise Conflict(f"{tenant_id} has a pool named {name} already", name=name)
    return get(tx, PoolId(pool_id))


def get(tx: Transaction, pool_id: PoolId) -> Pool:
    """Read a pool, also one that was deleted; raises NotFound."""
    row = tx.one("SELECT * FROM pools WHERE id = :id", id=pool_id)
    if row is None:
        raise missing(pool_id)
    return stored(row)


def missing(pool_id: str) -> NotFound:
    """What everybody hears of a pool that is not there for them."""
    return NotFound(f"there is no pool {pool_id[:64]}", poolId=pool_id[:64])


def every(tx: Transaction) -> Sequence[Pool]:
    """All pools that were not deleted, by name."""
    rows = tx.all("SELECT * FROM pools WHERE deleted_ms IS NULL ORDER BY name")
    return [stored(row) for row in rows]


def page(tx: Transaction, tenant_id: str, after: str, limit: int) -> Sequence[Pool]:
    """A tenant's own pools and those offered to it, by name; every pool for an empty tenant.

    At most ``limit`` pools behind the one with the id ``after``. Raises InvalidInput when the
    tenant sees no such pool: an empty page would look like the last one, and what comes behind
    somebody else's pool would tell its name.
    """
    last = _seen_name(tx, tenant_id, after) if after else None
    if after and last is None:
        raise InvalidInput("cursor", "names no pool; list without one")
    rows = tx.all(
        "SELECT * FROM pools p WHERE p.deleted_ms IS NULL"
        f" AND (:tenant_id = '' OR {VISIBLE}) AND (p.name, p.id) > (:name, :after)"
        " ORDER BY p.name, p.id LIMIT :limit",
        tenant_id=tenant_id,
        name=last or "",
        after=after,
        limit=limit,
    )
    return [stored(row) for row in rows]


def _seen_name(tx: Transaction, tenant_id: str, pool_id: str) -> str | None:
    row = tx.one(
        f"SELECT name FROM pools p WHERE id = :id AND (:tenant_id = '' OR {VISIBLE})",
        id=pool_id,
        tenant_id=tenant_id,
    )
    return None if row is None else str(row["name"])


def set_policy(tx: Transaction, pool_id: PoolId, policy: PoolPolicy) -> None:
    """Write a pool's policy and wake those who follow it. Call under the lock."""
    tx.run(
        "UPDATE pools SET policy = :policy, left_queued = 1 WHERE id = :id",
        id=pool_id,
        policy=msgspec.json.encode(policy).decode(),
    )
    tx.wake("pool", pool_id)


def queue_is_done(tx: Transaction, pool_id: PoolId) -> None:
    """Record that nobody is queued there any more. Call under the lock."""
    tx.run("UPDATE pools SET left_queued = 0 WHERE id = :id", id=pool_id)


def has_reservations(tx: Transaction, pool_id: PoolId) -> bool:
    """Whether a pool has reservations past the draft that have not ended."""
    row = tx.one(
        "SELECT id FROM reservations WHERE pool_id = :pool_id AND state IN"
        " ('awaiting-confirmation', 'pending', 'placed', 'binding', 'active') LIMIT 1",
        pool_id=pool_id,
    )
    return row is not None


def delete(tx: Transaction, pool_id: PoolId) -> None:
    """Take a pool out, which frees its name. Call under the lock, with nothing left in it."""
    tx.run(
        "UPDATE pools SET deleted_ms = compute_now(), name = id WHERE id = :id AND"
        " deleted_ms IS NULL",
        id=pool_id,
    )
    tx.run("DELETE FROM offers WHERE pool_id = :id", id=pool_id)


def lock(tx: Transaction, pool_id: PoolId) -> "PoolLock":
    """Take the pool's lock and read the clock under it; raises NotFound.

    The time never steps back behind one that was given for this pool before.
    """
    row = tx.one(f"{_LOCK} WHERE id = :id RETURNING *", id=pool_id)
    if row is None:
        raise missing(pool_id)
    return _held(row)


def lock_of(tx: Transaction, reservation_id: ReservationId) -> "PoolLock | None":
    """Take the lock of a reservation's pool; None when there is no such reservation."""
    row = tx.one(
        f"{_LOCK} WHERE id = (SELECT pool_id FROM reservations WHERE id = :id) RETURNING *",
        id=reservation_id,
    )
    return None if row is None else _held(row)


def _held(row: Row) -> "PoolLock":
    return PoolLock(stored(row), row["clock_ms"], row["change_seq"], row["change_token"])


def keep_models(tx: Transaction, pool_id: PoolId) -> None:
    """Bring the pool's list of device models in step with its atoms. Call under the lock.

    Also of devices that are gone: they may be back, and a request that is admitted meanwhile is
    judged by them.
    """
    rows = tx.all(
        "SELECT DISTINCT a.model FROM atoms a JOIN nodes n ON n.id = a.node_id"
        " WHERE n.pool_id = :pool_id AND n.removed_ms IS NULL"
        " ORDER BY a.model",
        pool_id=pool_id,
    )
    tx.run(
        "UPDATE pools SET models = :models WHERE id = :id",
        id=pool_id,
        models=msgspec.json.encode([row["model"] for row in rows]).decode(),
    )


@dataclass(slots=True)
class PoolLock:
    """The right to book in a pool, held until the commit.

    ``now_ms`` is the time of everything that this transaction does; (``seq``, ``token``) name the
    newest change, this transaction's own included.
    """

    pool: Pool
    now_ms: int
    seq: int
    token: str


def note_changes(
    tx: Transaction, held: PoolLock, node_ids: Sequence[NodeId], what: Change = "bookings"
) -> None:
    """Record that these nodes' bookings changed, or with ``what="node"`` their devices or state."""
    rows = []
    for node_id in node_ids:
        held.seq += 1
        held.token = secrets.token_hex(8)
        rows.append(
            {
                "pool_id": held.pool.id,
                "seq": held.seq,
                "token": held.token,
                "node_id": node_id,
                "what": what,
            }
        )
    if not rows:
        return
    tx.many(
        "INSERT INTO pool_changes (pool_id, seq, token, node_id, what)"
        " VALUES (:pool_id, :seq, :token, :node_id, :what)",
        rows,
    )
    tx.run(
        "UPDATE pools SET change_seq = :seq, change_token = :token WHERE id = :id",
        id=held.pool.id,
        seq=held.seq,
        token=held.token,
    )
    if held.seq % 256 < len(rows):
        tx.run(
            "DELETE FROM pool_changes WHERE pool_id = :pool_id AND seq < :seq",
            pool_id=held.pool.id,
            seq=held.seq - _KEPT_CHANGES,
        )


def changes_since(
    tx: Transaction, pool_id: PoolId, seq: int, token: str
) -> Mapping[NodeId, Change] | None:
    """Nodes changed after the change (seq, token); None when that change is not on record.

    The token tells a change that was rolled back from the one that took its number. A node whose
    devices or state changed is given as ``node``, whatever else changed on it.
    """
    rows = tx.all(
        "SELECT seq, token, node_id, what FROM pool_changes"
        " WHERE pool_id = :pool_id AND seq >= :seq ORDER BY seq",
        pool_id=pool_id,
        seq=seq,
    )
    if not rows or rows[0]["seq"] != seq or rows[0]["token"] != token:
        return None
    found: dict[NodeId, Change] = {}
    for row in rows[1:]:
        if found.get(row["node_id"]) != "node":
            found[row["node_id"]] = row["what"]
    return found


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a pool is now: nodes, those that take bookings, whole GPUs on them, free ones."""

    nodes: int = 0
    schedulable: int = 0
    devices: int = 0
    free: int = 0


def usage(tx: Transaction, pool_id: PoolId, now_ms: int) -> Usage:
    """Count a pool's nodes, and the whole GPUs that could be booked on the schedulable ones."""
    counted = tx.one(
        "SELECT count(*) AS nodes, coalesce(sum(CASE WHEN ready = 1 AND trusted = 1"
        " AND reachable = 1 AND cordoned = 0 THEN 1 ELSE 0 END), 0) AS schedulable"
        " FROM nodes WHERE pool_id = :pool_id AND removed_ms IS NULL",
        pool_id=pool_id,
    )
    devices = tx.one(
        "SELECT count(*) AS devices, coalesce(sum(CASE WHEN EXISTS (SELECT 1 FROM bookings b"
        " WHERE b.gpu_id = a.gpu_id AND b.start_ms <= :now_ms AND b.end_ms > :now_ms)"
        " THEN 0 ELSE 1 END), 0) AS free FROM atoms a JOIN nodes n ON n.id = a.node_id"
        " WHERE n.pool_id = :pool_id AND a.class = 'gpu' AND a.bookable = 1 AND n.ready = 1"
        " AND n.trusted = 1 AND n.reachable = 1 AND n.cordoned = 0",
        pool_id=pool_id,
        now_ms=now_ms,
    )
    assert counted is not None
    assert devices is not None
    return Usage(
        int(counted["nodes"]),
        int(counted["schedulable"]),
        int(devices["devices"]),
        int(devices["free"]),
    )
