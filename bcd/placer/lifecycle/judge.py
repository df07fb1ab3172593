"""Judges stored reports, node by node in the order of their numbers.

The verdict is final and needs no reservation's lock; what follows from it is the reconciler's,
which gets the reservations as claims.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bcd.model.ids import AllocationId, NodeId, ReservationId
from bcd.model.report import Rejection, Report
from bcd.model.reservation import TERMINAL
from bcd.placer.lifecycle import apply, attestation
from bcd.store import allocations, certificates, reports, reservations, work
from bcd.store.allocations import Allocation
from bcd.store.database import Transaction
from bcd.store.reports import COUNTED, StoredReport
from bcd.store.work import Claim

JUDGED_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A report that does not count; the reservation is empty for an allocation of nobody here."""

    node_id: NodeId
    allocation_id: AllocationId
    reservation_id: str
    reason: Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a batch came to: how many reports it had, what to work on now, what was rejected."""

    count: int
    claims: Sequence[Claim]
    rejected: Sequence[Rejected]


def judge_node(tx: Transaction, node_id: NodeId) -> Judged:
    """Judge up to 64 of a node's reports."""
    batch = reports.unjudged(tx, node_id, JUDGED_AT_ONCE)
    now_ms = tx.now_ms()
    concerned: set[ReservationId] = set()
    rejected: list[Rejected] = []

    def reject(stored: StoredReport, reason: Rejection, reservation_id: str = "") -> None:
        reports.judge(tx, stored.id, reason)
        rejected.append(
            Rejected(
                node_id=node_id,
                allocation_id=stored.allocation_id,
                reservation_id=reservation_id,
                reason=reason,
            )
        )

    for stored in batch:
        allocation = allocations.get(tx, stored.allocation_id)
        if allocation is None or allocation.node_id != node_id:
            reject(stored, Rejection.NOT_THIS_ALLOCATION)
            continue
        outcome = _verdict(tx, stored, allocation, now_ms)
        if isinstance(outcome, Report):
            reports.judge(tx, stored.id, COUNTED)
            reports.raise_number(tx, node_id, stored.key_id, outcome.number)
        else:
            reject(stored, outcome, allocation.reservation_id)
        if _tell(tx, stored, allocation, outcome):
            concerned.add(allocation.reservation_id)
    # Sorted: two nodes may report about the same gangs, and each is judged by another placer.
    claims = [work.take(tx, reservation_id, now_ms) for reservation_id in sorted(concerned)]
    return Judged(count=len(batch), claims=claims, rejected=rejected)


def _verdict(
    tx: Transaction, stored: StoredReport, allocation: Allocation, now_ms: int
) -> Report | Rejection:
    envelope = attestation.parse_envelope(stored.envelope)
    if envelope is None:
        return Rejection.UNSIGNED
    if envelope.key_id != stored.key_id:
        return Rejection.UNKNOWN_KEY
    evidence = attestation.Evidence(
        envelope=envelope,
        allocation=allocation,
        signers=certificates.by_key(tx, envelope.key_id),
        highest=reports.highest_number(tx, stored.node_id, envelope.key_id),
    )
    return attestation.verdict(evidence, now_ms)


def _tell(
    tx: Transaction,
    stored: StoredReport,
    allocation: Allocation,
    outcome: Report | Rejection,
) -> bool:
    """Write the event of a rejection; returns whether the reservation goes on."""
    row = reservations.get(tx, allocation.reservation_id)
    assert row is not None
    if isinstance(outcome, Rejection):
        apply.emit(
            tx,
            row,
            "binding-rejected",
            {
                "allocationId": allocation.id,
                "nodeId": stored.node_id,
                "reason": outcome.value,
            },
        )
    return row.state not in TERMINAL
