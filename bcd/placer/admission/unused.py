"""Bounds what a tenant leaves behind without ever getting it: drafts, and what was denied.

Neither has a charge, so no quota bounds them. ``create`` asks where it ends as one of the two.
"""

from bcd.model.errors import QuotaExceeded
from bcd.model.units import DAY_MS, MINUTE_MS
from bcd.store import refusals
from bcd.store.database import Transaction
from bcd.store.reservations import Draft, StoredReservation

LIMIT = 4096


def exceeded(tx: Transaction, draft: Draft | StoredReservation, now_ms: int) -> bool:
    """Whether a draft on record is one too many of its tenant in its pool within a day."""
    since_ms = now_ms - DAY_MS
    return refusals.exceed(tx, draft.tenant_id, draft.request.pool_id, since_ms, LIMIT)


def drop(tx: Transaction, draft: Draft | StoredReservation) -> QuotaExceeded | None:
    """Forget the draft, which leaves its key unused; returns what the caller hears.

    None where it is no draft: one that a person was asked about stays.
    """
    if not refusals.drop_draft(tx, draft.id):
        return None
    pool_id = draft.request.pool_id
    return QuotaExceeded(
        f"{draft.tenant_id} had {LIMIT} requests in pool {pool_id} within 24 hours that were"
        " denied, exceeded the quota or await a confirmation, and this one is another; ask for"
        " less, have the quota or the policy changed, or try again when the oldest is a day old",
        resource="refusedRequests",
        limit=str(LIMIT),
        tenantId=draft.tenant_id,
        poolId=pool_id,
    )


def trim(tx: Transaction, now_ms: int) -> None:
    """Drop the drafts beyond the limit that calls left which ended before they were decided."""
    refusals.trim_drafts(tx, now_ms - DAY_MS, now_ms - MINUTE_MS, LIMIT)
