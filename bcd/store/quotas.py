"""Quotas: charge rows per reservation, so that a refund happens once and used = sum of charges.

A charge says which ceilings it counts against: the tenant's quota, the limit of the offer that it
was made under, or both. What counts against an offer is added up from the charges themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bcd.model.ids import PoolId, ReservationId
from bcd.store import offers
from bcd.store.database import Transaction
from bcd.store.offers import Offer

_MAY_YIELD = 256  # as many as are considered when room is made


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A tenant's ceiling for one resource and what its reservations use of it."""

    tenant_id: str
    resource: str
    ceiling: int
    used: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A charge that does not fit the tenant's quota, or with ``offered`` the offer's limit."""

    resource: str
    ceiling: int
    used: int
    asked: int
    offered: bool = False


def set_ceiling(tx: Transaction, tenant_id: str, resource: str, ceiling: int) -> Quota:
    """Set a ceiling; one below what is used now only stops further charges."""
    tx.run(
        "INSERT INTO quotas (tenant_id, resource, ceiling) VALUES (:tenant_id, :resource, :ceiling)"
        " ON CONFLICT (tenant_id, resource) DO UPDATE SET ceiling = excluded.ceiling",
        tenant_id=tenant_id,
        resource=resource,
        ceiling=ceiling,
    )
    return next(q for q in of_tenant(tx, tenant_id) if q.resource == resource)


def of_tenant(tx: Transaction, tenant_id: str) -> Sequence[Quota]:
    """A tenant's quotas by resource."""
    return page(tx, tenant_id, "", 1 << 30)


def page(tx: Transaction, tenant_id: str, after: str, limit: int) -> Sequence[Quota]:
    """At most ``limit`` of a tenant's quotas, by resource, behind the resource ``after``."""
    rows = tx.all(
        "SELECT tenant_id, resource, ceiling, used FROM quotas WHERE tenant_id = :tenant_id"
        " AND resource > :after ORDER BY resource LIMIT :limit",
        tenant_id=tenant_id,
        after=after,
        limit=limit,
    )
    return [Quota(**row) for row in rows]


def charge(
    tx: Transaction,
    reservation_id: ReservationId,
    tenant_id: str,
    amounts: Mapping[str, int],
    offer: Offer | None = None,
) -> Refused | None:
    """Charge each resource, in sorted order; returns the first that does not fit.

    ``offer`` is the one that the reservation is made under; then call under its pool's lock. What
    it names must fit its limit, and the tenant's quota only where the tenant has one; what it
    does not name needs a quota, and a missing row grants 0 (spec 5.2). After a refusal the caller
    refunds, or rolls back, what was charged before it.
    """
    for resource, amount in sorted(amounts.items()):
        limit = None if offer is None else offer.limits.get(resource)
        if offer is not None and limit is not None:
            used = offers.used(tx, offer, resource)
            if used + amount > limit:
                return Refused(resource, limit, used, amount, offered=True)
        in_quota = _count_in(tx, tenant_id, resource, amount)
        if not in_quota:
            row = _quota(tx, tenant_id, resource)
            if row is not None or limit is None:
                return Refused(resource, *(row or (0, 0)), amount)
        tx.run(
            "INSERT INTO quota_charges"
            " (reservation_id, resource, tenant_id, amount, in_quota, offer_pool_id)"
            " VALUES (:reservation_id, :resource, :tenant_id, :amount, :in_quota, :offer_pool_id)",
            reservation_id=reservation_id,
            resource=resource,
            tenant_id=tenant_id,
            amount=amount,
            in_quota=int(in_quota),
            offer_pool_id=None if offer is None else offer.pool_id,
        )
    return None


def lock_for_room(tx: Transaction, pool_id: PoolId, tenant_id: str, now_ms: int) -> None:
    """Lock the quotas of a tenant and of all whose spot reservations it may displace in a pool.

    Whoever displaces refunds others beside its own charge: two who did that in two pools would
    wait for each other, unless both lock in one order beforehand. Locks nothing where nobody
    could be displaced. Call under the pool's lock, before the charge.
    """
    if not tx.for_update:
        return
    spot = tx.all(
        "SELECT DISTINCT tenant_id FROM (SELECT tenant_id FROM reservations"
        " WHERE pool_id = :pool_id AND spot = 1 AND state IN ('placed', 'binding', 'active')"
        " AND end_ms > :now_ms ORDER BY seq DESC LIMIT :limit) AS youngest",
        pool_id=pool_id,
        now_ms=now_ms,
        limit=_MAY_YIELD,
    )
    if not spot:
        return
    for each in sorted({tenant_id, *(row["tenant_id"] for row in spot)}):
        tx.all(
            f"SELECT resource FROM quotas WHERE tenant_id = :id ORDER BY resource{tx.for_update}",
            id=each,
        )


def _count_in(tx: Transaction, tenant_id: str, resource: str, amount: int) -> bool:
    """Add to what is used of a quota that covers it; False where none does."""
    return bool(
        tx.run(
            "UPDATE quotas SET used = used + :amount WHERE tenant_id = :tenant_id"
            " AND resource = :resource AND used + :amount <= ceiling",
            tenant_id=tenant_id,
            resource=resource,
            amount=amount,
        )
    )


def _quota(tx: Transaction, tenant_id: str, resource: str) -> tuple[int, int] | None:
    """(ceiling, used) of a quota, None without one."""
    row = tx.one(
        "SELECT ceiling, used FROM quotas WHERE tenant_id = :tenant_id AND resource = :resource",
        tenant_id=tenant_id,
        resource=resource,
    )
    return None if row is None else (row["ceiling"], row["used"])


def refund(tx: Transaction, reservation_id: ReservationId) -> None:
    """Give a reservation's charges back; a second call finds none."""
    rows = tx.all(
        "DELETE FROM quota_charges WHERE reservation_id = :id"
        " RETURNING tenant_id, resource, amount, in_quota",
        id=reservation_id,
    )
    for row in sorted(rows, key=lambda row: row["resource"]):
        if row["in_quota"]:
            tx.run(
                "UPDATE quotas SET used = used - :amount"
                " WHERE tenant_id = :tenant_id AND resource = :resource",
                tenant_id=row["tenant_id"],
                resource=row["resource"],
                amount=row["amount"],
            )
