"""Judges stored reports, node by node in the order of their numbers.

The verdict is final and needs no reservation's lock; what follows from it is the reconciler's,
which gets the reservations as claims.
"""

from collections.abc import Sequence

from bcd.model.ids import NodeId, ReservationId
from bcd.model.report import Rejection, Report
from bcd.model.reservation import TERMINAL
from bcd.placer.lifecycle import apply, attestation
from bcd.store import allocations, certificates, reports, reservations, work
from bcd.store.allocations import Allocation
from bcd.store.database import Transaction
from bcd.store.reports import COUNTED, StoredReport
from bcd.store.work import Claim

JUDGED_AT_ONCE = 64


def judge_node(tx: Transaction, node_id: NodeId) -> tuple[int, Sequence[Claim]]:
    """Judge up to 64 of a node's reports; returns how many there were, and what to work on now."""
    batch = reports.unjudged(tx, node_id, JUDGED_AT_ONCE)
    now_ms = tx.now_ms()
    concerned: dict[ReservationId, None] = {}
    for stored in batch:
        allocation = allocations.get(tx, stored.allocation_id)
        if allocation is None or allocation.node_id != node_id:
            reports.judge(tx, stored.id, Rejection.NOT_THIS_ALLOCATION)
            continue
        outcome = _verdict(tx, stored, allocation, now_ms)
        if isinstance(outcome, Report):
            reports.judge(tx, stored.id, COUNTED)
            reports.raise_number(tx, node_id, stored.key_id, outcome.number)
        else:
            reports.judge(tx, stored.id, outcome)
        if _tell(tx, stored, allocation, outcome):
            concerned[allocation.reservation_id] = None
    return len(batch), [work.take(tx, reservation_id, now_ms) for reservation_id in concerned]


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
