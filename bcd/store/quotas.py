"""Quotas: charge rows per reservation, so that a refund happens once and used = sum of charges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bcd.model.ids import ReservationId
from bcd.store.database import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A tenant's ceiling for one resource and what its reservations use of it."""

    tenant_id: str
    resource: str
    ceiling: int
    used: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A charge that does not fit."""

    resource: str
    ceiling: int
    used: int
    asked: int


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
    rows = tx.all(
        "SELECT tenant_id, resource, ceiling, used FROM quotas WHERE tenant_id = :tenant_id"
        " ORDER BY resource",
        tenant_id=tenant_id,
    )
    return [Quota(**row) for row in rows]


def charge(
    tx: Transaction, reservation_id: ReservationId, tenant_id: str, amounts: Mapping[str, int]
) -> Refused | None:
    """Charge each resource, in sorted order; returns the first that does not fit.

    A missing row grants 0. After a refusal the caller rolls back what was charged before it.
    """
    for resource, amount in sorted(amounts.items()):
        charged = tx.run(
            "UPDATE quotas SET used = used + :amount WHERE tenant_id = :tenant_id"
            " AND resource = :resource AND used + :amount <= ceiling",
            tenant_id=tenant_id,
            resource=resource,
            amount=amount,
        )
        if not charged:
            row = tx.one(
                "SELECT ceiling, used FROM quotas"
                " WHERE tenant_id = :tenant_id AND resource = :resource",
                tenant_id=tenant_id,
                resource=resource,
            )
            ceiling, used = (0, 0) if row is None else (row["ceiling"], row["used"])
            return Refused(resource, ceiling, used, amount)
        tx.run(
            "INSERT INTO quota_charges (reservation_id, resource, tenant_id, amount)"
            " VALUES (:reservation_id, :resource, :tenant_id, :amount)",
            reservation_id=reservation_id,
            resource=resource,
            tenant_id=tenant_id,
            amount=amount,
        )
    return None


def refund(tx: Transaction, reservation_id: ReservationId) -> None:
    """Give a reservation's charges back; a second call finds none."""
    rows = tx.all(
        "DELETE FROM quota_charges WHERE reservation_id = :id"
        " RETURNING tenant_id, resource, amount",
        id=reservation_id,
    )
    for row in sorted(rows, key=lambda row: row["resource"]):
        tx.run(
            "UPDATE quotas SET used = used - :amount"
            " WHERE tenant_id = :tenant_id AND resource = :resource",
            tenant_id=row["tenant_id"],
            resource=row["resource"],
            amount=row["amount"],
        )
