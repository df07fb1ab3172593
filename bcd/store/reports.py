"""Reports as received from nodes, and what the placer made of them.

A gateway only inserts; ``verdict`` is the placer's: ``counted`` or the reason of a rejection.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bcd.model.ids import AllocationId, NodeId
from bcd.store.database import Row, Transaction

COUNTED = "counted"
# All holds of a node may be reported at once; a node that floods gets no further.
MAX_UNJUDGED = 1024

Arrival = Literal["stored", "unknown-allocation", "fenced", "no-room"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A report on its way in; ``envelope`` is the frame as received."""

    node_id: NodeId
    key_id: str
    number: int
    allocation_id: AllocationId
    envelope: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReport:
    """A report on record; a rejected one has no envelope any more."""

    id: int
    node_id: NodeId
    key_id: str
    number: int
    allocation_id: AllocationId
    envelope: bytes
    verdict: str | None


_COLUMNS = "id, node_id, key_id, number, allocation_id, envelope, verdict"


def store(tx: Transaction, epoch: int, report: Received) -> Arrival:
    """Keep a report of the session's own node about an allocation of that node.

    Storing the same bytes twice stores them once; another report under a number that is taken
    is kept too, so that nobody can squat on one. What does not belong is dropped and said so, and
    so is what comes while 1024 reports of the node wait for a verdict.
    """
    current = tx.one(
        f"SELECT epoch FROM sessions WHERE node_id = :id{tx.for_update}", id=report.node_id
    )
    if current is None or current["epoch"] != epoch:
        return "fenced"
    known = tx.one(
        "SELECT id FROM allocations WHERE id = :id AND node_id = :node_id",
        id=report.allocation_id,
        node_id=report.node_id,
    )
    if known is None:
        return "unknown-allocation"
    if _is_full(tx, report.node_id):
        return "no-room"
    tx.run(
        "INSERT INTO reports (node_id, key_id, number, digest, allocation_id, envelope,"
        " session_epoch, received_ms) VALUES (:node_id, :key_id, :number, :digest,"
        " :allocation_id, :envelope, :epoch, compute_now())"
        " ON CONFLICT (node_id, key_id, number, digest) DO NOTHING",
        node_id=report.node_id,
        key_id=report.key_id,
        number=report.number,
        digest=hashlib.sha256(report.envelope).hexdigest(),
        allocation_id=report.allocation_id,
        envelope=report.envelope,
        epoch=epoch,
    )
    tx.wake("report", report.node_id)
    return "stored"


def _is_full(tx: Transaction, node_id: NodeId) -> bool:
    row = tx.one(
        "SELECT id FROM reports WHERE node_id = :id AND verdict IS NULL"
        " ORDER BY number LIMIT 1 OFFSET :others",
        id=node_id,
        others=MAX_UNJUDGED - 1,
    )
    return row is not None


def nodes_with_unjudged(tx: Transaction) -> Sequence[NodeId]:
    """Nodes with reports that nobody judged yet."""
    rows = tx.all("SELECT DISTINCT node_id FROM reports WHERE verdict IS NULL ORDER BY node_id")
    return [NodeId(row["node_id"]) for row in rows]


def unjudged(tx: Transaction, node_id: NodeId, limit: int) -> Sequence[StoredReport]:
    """A node's unjudged reports in the order of their numbers.

    Locks the node's row, so that two placers never judge one node's reports out of order.
    """
    tx.one(f"SELECT id FROM nodes WHERE id = :id{tx.for_update}", id=node_id)
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM reports WHERE node_id = :id AND verdict IS NULL"
        " ORDER BY number, id LIMIT :limit",
        id=node_id,
        limit=limit,
    )
    return [_stored(row) for row in rows]


def _stored(row: Row) -> StoredReport:
    return StoredReport(**{**row, "envelope": bytes(row["envelope"])})


def judge(tx: Transaction, report_id: int, verdict: str) -> None:
    """Record the verdict on a report; nobody reads the envelope of a rejected one again."""
    dropped = "" if verdict == COUNTED else ", envelope = :nothing"
    tx.run(
        f"UPDATE reports SET verdict = :verdict{dropped} WHERE id = :id",
        id=report_id,
        verdict=verdict,
        **({"nothing": b""} if dropped else {}),
    )


def unapplied(
    tx: Transaction, allocation_ids: Sequence[AllocationId], after_id: int, limit: int
) -> Sequence[StoredReport]:
    """Judged reports about these allocations that no reservation took in yet, oldest first.

    A page of at most ``limit``, behind the report with the id ``after_id``.
    """
    found: list[StoredReport] = []
    for allocation_id in allocation_ids:
        rows = tx.all(
            f"SELECT {_COLUMNS} FROM reports WHERE allocation_id = :allocation_id"
            " AND verdict IS NOT NULL AND applied_ms IS NULL AND id > :after_id"
            " ORDER BY id LIMIT :limit",
            allocation_id=allocation_id,
            after_id=after_id,
            limit=limit,
        )
        found += [_stored(row) for row in rows]
    return sorted(found, key=lambda report: report.id)[:limit]


def envelope(tx: Transaction, report_id: int) -> bytes:
    """The envelope of a report that counted, as received."""
    row = tx.one("SELECT envelope FROM reports WHERE id = :id", id=report_id)
    assert row is not None
    return bytes(row["envelope"])


def applied(tx: Transaction, report_ids: Sequence[int], now_ms: int) -> None:
    """These reports were taken in."""
    for report_id in report_ids:
        tx.run(
            "UPDATE reports SET applied_ms = :now_ms WHERE id = :id", id=report_id, now_ms=now_ms
        )


def prune(tx: Transaction, before_ms: int) -> int:
    """Drop judged reports that were received before ``before_ms``; returns how many."""
    return tx.run(
        "DELETE FROM reports WHERE verdict IS NOT NULL AND received_ms < :before_ms",
        before_ms=before_ms,
    )


def highest_number(tx: Transaction, node_id: NodeId, key_id: str) -> int:
    """The highest number that counted for this node and key, 0 for none."""
    row = tx.one(
        "SELECT highest FROM report_numbers WHERE node_id = :node_id AND key_id = :key_id",
        node_id=node_id,
        key_id=key_id,
    )
    return 0 if row is None else int(row["highest"])


def raise_number(tx: Transaction, node_id: NodeId, key_id: str, number: int) -> None:
    """This number counted: it and older ones are replays from now on."""
    tx.run(
        "INSERT INTO report_numbers (node_id, key_id, highest) VALUES (:node_id, :key_id, :number)"
        " ON CONFLICT (node_id, key_id) DO UPDATE SET highest = excluded.highest",
        node_id=node_id,
        key_id=key_id,
        number=number,
    )
