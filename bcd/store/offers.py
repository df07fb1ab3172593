"""Offers: pools that their owners let other tenants book in, with limits by resource."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bcd.model.ids import PoolId
from bcd.store import pools
from bcd.store.database import Row, Transaction
from bcd.store.pools import Pool

_LIMITS = msgspec.json.Decoder(dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A pool offered to a tenant; ``limits`` are ceilings by resource, for all its reservations."""

    pool_id: PoolId
    tenant_id: str
    limits: Mapping[str, int]
    created_ms: int


def _offer(row: Row) -> Offer:
    return Offer(
        pool_id=row["pool_id"],
        tenant_id=row["tenant_id"],
        limits=_LIMITS.decode(row["limits"]),
        created_ms=row["created_ms"],
    )


def put(tx: Transaction, pool_id: PoolId, tenant_id: str, limits: Mapping[str, int]) -> Offer:
    """Make an offer or replace its limits; lower ones only stop further charges.

    Call under the pool's lock, as everything that decides on an offer does.
    """
    row = tx.one(
        "INSERT INTO offers (pool_id, tenant_id, limits, created_ms)"
        " VALUES (:pool_id, :tenant_id, :limits, compute_now())"
        " ON CONFLICT (pool_id, tenant_id) DO UPDATE SET limits = excluded.limits RETURNING *",
        pool_id=pool_id,
        tenant_id=tenant_id,
        limits=msgspec.json.encode(dict(sorted(limits.items()))).decode(),
    )
    assert row is not None
    return _offer(row)


def find(tx: Transaction, pool_id: PoolId, tenant_id: str) -> Offer | None:
    """The offer of a pool to a tenant."""
    row = tx.one(
        "SELECT * FROM offers WHERE pool_id = :pool_id AND tenant_id = :tenant_id",
        pool_id=pool_id,
        tenant_id=tenant_id,
    )
    return None if row is None else _offer(row)


def terms(tx: Transaction, pool: Pool, tenant_id: str) -> Offer | None:
    """What a tenant books in a pool under: its offer, None for the owner.

    Raises NotFound for everybody else, and for a deleted pool. Whoever books or extends asks
    again under the pool's lock: the offer may be withdrawn meanwhile.
    """
    offer = None if pool.tenant_id == tenant_id else find(tx, pool.id, tenant_id)
    if pool.deleted or (offer is None and pool.tenant_id != tenant_id):
        raise pools.missing(pool.id)
    return offer


def sees(tx: Transaction, pool: Pool, tenant_id: str) -> bool:
    """Whether a tenant owns a pool or was offered it."""
    return pool.tenant_id == tenant_id or find(tx, pool.id, tenant_id) is not None


def withdraw(tx: Transaction, pool_id: PoolId, tenant_id: str) -> bool:
    """Take an offer back; returns if there was one.

    What is placed under it stays, and what waits goes on waiting, with its charges.
    """
    return bool(
        tx.run(
            "DELETE FROM offers WHERE pool_id = :pool_id AND tenant_id = :tenant_id",
            pool_id=pool_id,
            tenant_id=tenant_id,
        )
    )


def used(tx: Transaction, offer: Offer, resource: str) -> int:
    """What the tenant's live reservations under the offer were charged of a resource.

    Those made before the offer was withdrawn and made again count too.
    """
    row = tx.one(
        "SELECT coalesce(sum(amount), 0) AS used FROM quota_charges"
        " WHERE offer_pool_id = :pool_id AND tenant_id = :tenant_id AND resource = :resource",
        pool_id=offer.pool_id,
        tenant_id=offer.tenant_id,
        resource=resource,
    )
    assert row is not None
    return int(row["used"])


def page(
    tx: Transaction, tenant_id: str, pool_id: str, after: tuple[str, str], limit: int
) -> Sequence[Offer]:
    """At most ``limit`` offers behind (pool, tenant), in that order; empty strings filter nothing.

    A tenant's offers are those made to it and those of its own pools.
    """
    rows = tx.all(
        "SELECT o.* FROM offers o JOIN pools p ON p.id = o.pool_id WHERE (:tenant_id = ''"
        " OR o.tenant_id = :tenant_id OR p.tenant_id = :tenant_id)"
        " AND (:pool_id = '' OR o.pool_id = :pool_id)"
        " AND (o.pool_id, o.tenant_id) > (:after_pool, :after_tenant)"
        " ORDER BY o.pool_id, o.tenant_id LIMIT :limit",
        tenant_id=tenant_id,
        pool_id=pool_id,
        after_pool=after[0],
        after_tenant=after[1],
        limit=limit,
    )
    return [_offer(row) for row in rows]
