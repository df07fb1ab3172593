"""What nobody ever got: drafts, denied requests, and those that a person was asked about.

Counted; drafts and what was denied are dropped and swept.

They cost a tenant nothing, so nothing else bounds them. A refused key is remembered for ever.
"""

from bcd.model.ids import ReservationId
from bcd.store.database import Transaction

# In these words, so that both engines use the index that has only these.
_UNUSED = "state IN ('draft', 'denied', 'awaiting-confirmation', 'expired')"
_BATCH = 4096


def exceed(tx: Transaction, tenant_id: str, pool_id: str, since_ms: int, limit: int) -> bool:
    """Whether a tenant left more than ``limit`` of them in a pool after ``since_ms``."""
    row = tx.one(
        "SELECT created_ms FROM reservations WHERE tenant_id = :tenant_id"
        f" AND pool_id = :pool_id AND created_ms > :since_ms AND {_UNUSED}"
        " ORDER BY created_ms DESC LIMIT 1 OFFSET :limit",
        tenant_id=tenant_id,
        pool_id=pool_id,
        since_ms=since_ms,
        limit=limit,
    )
    return row is not None


def trim_drafts(tx: Transaction, since_ms: int, before_ms: int, limit: int) -> int:
    """Drop the drafts older than ``before_ms`` that ``exceed`` finds too many, the youngest first.

    Returns how many. One that is being decided right now is written again by its create.
    """
    crowded = tx.all(
        f"SELECT tenant_id, pool_id FROM reservations WHERE {_UNUSED} AND created_ms > :since_ms"
        " GROUP BY tenant_id, pool_id HAVING count(*) > :limit",
        since_ms=since_ms,
        limit=limit,
    )
    return sum(
        tx.run(
            _dropping(
                tx,
                "tenant_id = :tenant_id AND pool_id = :pool_id AND created_ms < :before_ms"
                " AND created_ms > (SELECT created_ms FROM reservations"
                f" WHERE tenant_id = :tenant_id AND pool_id = :pool_id AND {_UNUSED}"
                " AND created_ms > :since_ms ORDER BY created_ms LIMIT 1 OFFSET :kept)",
            ),
            tenant_id=row["tenant_id"],
            pool_id=row["pool_id"],
            since_ms=since_ms,
            before_ms=before_ms,
            kept=limit - 1,
        )
        for row in crowded
    )


def drop_draft(tx: Transaction, reservation_id: ReservationId) -> bool:
    """Forget a draft, as though it was never asked for; False for what is none, which stays."""
    return bool(
        tx.run("DELETE FROM reservations WHERE id = :id AND state = 'draft'", id=reservation_id)
    )


def sweep_drafts(tx: Transaction, before_ms: int) -> int:
    """Drop drafts that were never decided and are older than ``before_ms``; returns how many."""
    return tx.run(_dropping(tx, "created_ms < :before_ms"), before_ms=before_ms)


def _dropping(tx: Transaction, which: str) -> str:
    """A statement that drops drafts, but for those that somebody decides about right now.

    Who decides may hold several, in another order.
    """
    return (
        f"DELETE FROM reservations WHERE {_UNUSED} AND state = 'draft' AND id IN (SELECT id"
        f" FROM reservations WHERE {_UNUSED} AND state = 'draft' AND {which}{tx.skip_locked})"
    )


def sweep_denied(tx: Transaction, before_ms: int) -> int:
    """Sweep what was denied without a person's word and is older than ``before_ms``, some at a
    time; returns how many reservations went.

    One goes in the sweep after the one that wrote its key down: a create that began in between
    may wait for the row that is deleted, and would not see a key written beside that.
    """
    swept = tx.run(
        f"DELETE FROM reservations WHERE {_UNUSED} AND state = 'denied'"
        " AND created_ms < :before_ms"
        " AND EXISTS (SELECT 1 FROM refused_keys k WHERE k.id = reservations.id)",
        before_ms=before_ms,
    )
    tx.run(
        "INSERT INTO refused_keys (id, request_hash) SELECT id, request_hash FROM reservations"
        f" WHERE {_UNUSED} AND state = 'denied' AND created_ms < :before_ms AND NOT EXISTS"
        " (SELECT 1 FROM confirmations c WHERE c.reservation_id = reservations.id)"
        " LIMIT :limit ON CONFLICT DO NOTHING",
        before_ms=before_ms,
        limit=_BATCH,
    )
    return swept


def hash_of(tx: Transaction, reservation_id: ReservationId) -> str | None:
    """The hash of the request that was denied under a swept id; None when none was."""
    row = tx.one("SELECT request_hash FROM refused_keys WHERE id = :id", id=reservation_id)
    return None if row is None else str(row["request_hash"])
