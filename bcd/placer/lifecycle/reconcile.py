"""Drives one reservation from its facts, in one transaction under its pool's lock."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bcd.model.ids import AllocationId, ReservationId
from bcd.model.report import Bound, Failed, Report
from bcd.model.reservation import ConditionType, HoldBinding, State
from bcd.placer.lifecycle import apply, confirming
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.attestation import parse_envelope
from bcd.placer.lifecycle.decide import (
    Activate,
    Decision,
    End,
    GiveUp,
    Lapse,
    Nothing,
    Preempt,
    Repair,
    Replace,
    SetConditions,
    Start,
    decide,
    still_damaged,
)
from bcd.placer.lifecycle.facts import facts_of
from bcd.placer.lifecycle.preempt import make_room_for_repair
from bcd.placer.lifecycle.seek import seek
from bcd.placer.lifecycle.transitions import REPAIR_AHEAD_MS, Trigger
from bcd.placer.pki.command import CommandSigner
from bcd.placer.placement.booking import Placed, Placements
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store import allocations, pools, reports, reservations, work
from bcd.store.allocations import Allocation, AllocationState, Evidence
from bcd.store.database import Transaction
from bcd.store.reports import COUNTED, StoredReport
from bcd.store.reservations import StoredReservation
from bcd.store.work import Claim
from bcd.wire.report import decode_report

_MAX_STEPS = 8
_PAGE = 64  # reports, of up to 64 KiB each
_LIVE = frozenset({State.PLACED, State.BINDING, State.ACTIVE})


@dataclass(frozen=True, slots=True)
class Reconciler:
    """What reconciling needs beside the transaction."""

    placements: Placements
    signer: CommandSigner

    def reconcile(self, tx: Transaction, claim: Claim) -> None:
        """Bring one reservation as far as its facts carry it, and set its next moment.

        Does nothing when the claim was fenced meanwhile: then the subject comes up again.
        """
        held = pools.lock_of(tx, ReservationId(claim.key))
        row = reservations.get(tx, ReservationId(claim.key))
        if held is None or row is None:
            work.drop(tx, claim.key)
            return
        if not work.holds(tx, claim):
            return
        hand = Hand(tx, held, self.signer)
        row, moved = confirming.expire_if_due(hand, row)
        for _ in range(_MAX_STEPS):
            if row.state not in _LIVE:
                break
            taken = _take_in_reports(hand, row)
            row = taken.row
            facts = facts_of(hand, row, taken.allocations, taken.failures)
            decision = decide(facts, hand.held.now_ms)
            if isinstance(decision, Nothing):
                break
            if isinstance(decision, Repair):
                row, mended = self._repair(hand, row, decision)
                if not mended:
                    break  # tried again at the next moment
            else:
                row = self._carry_out(hand, row, decision)
            moved = moved or not isinstance(decision, SetConditions)
        if not moved:  # a move sets the next moment itself
            apply.schedule(hand, row)

    def _carry_out(
        self, hand: Hand, row: StoredReservation, decision: Decision
    ) -> StoredReservation:
        match decision:
            case Start():
                return apply.start(hand, row)
            case Activate():
                kept = tuple(c for c in row.conditions if c.type == ConditionType.PREEMPTING)
                return apply.move(hand, row, Trigger.BOUND, bind_deadline_ms=None, conditions=kept)
            case Replace(reason):
                return self._replace(hand, row, reason)
            case GiveUp(reason):
                return apply.move(
                    hand,
                    row,
                    Trigger.GAVE_UP,
                    {"reason": reason},
                    attempts=row.attempts + 1,
                    bind_deadline_ms=None,
                )
            case Lapse():
                return apply.move(hand, row, Trigger.LAPSED, bind_deadline_ms=None)
            case Preempt():
                return apply.preempt(hand, row)
            case End():
                return apply.end(hand, row)
            case SetConditions(conditions):
                return reservations.save(hand.tx, row, conditions=conditions)
            case Nothing() | Repair():
                return row

    def _replace(self, hand: Hand, row: StoredReservation, reason: str) -> StoredReservation:
        apply.free(hand, row, gap=False)
        tried = allocations.nodes_tried(hand.tx, row.id)
        outcome = seek(hand, self.placements, row, tried)
        return apply.place(hand, row, outcome, attempts=row.attempts + 1)

    def _repair(
        self, hand: Hand, row: StoredReservation, decision: Repair
    ) -> tuple[StoredReservation, bool]:
        """Place the lost members anew; a condition says so where that comes to nothing.

        Spot reservations yield only at the last: until then what is lost may come back.
        """
        assert row.during is not None
        lost = [a for a in allocations.live(hand.tx, row.id) if a.id in decision.lost]
        outcome = self.placements.repair(hand.tx, hand.held, row, lost)
        last = row.during.start_ms - hand.held.now_ms <= REPAIR_AHEAD_MS
        if last and isinstance(outcome, Unschedulable):
            outcome = make_room_for_repair(hand, self.placements, row, lost, outcome)
        if isinstance(outcome, Placed):
            return apply.repair(hand, row, outcome), True
        damaged = still_damaged(row.conditions, decision.problem, hand.held.now_ms)
        others = tuple(c for c in row.conditions if c.type != damaged.type)
        conditions = (*others, damaged)
        if conditions != row.conditions:
            row = reservations.save(hand.tx, row, conditions=conditions)
        return row, False


@dataclass(frozen=True, slots=True)
class _Taken:
    """A reservation after its reports were taken in: its live allocations, and failed binds."""

    row: StoredReservation
    allocations: tuple[Allocation, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)


def _take_in_reports(hand: Hand, row: StoredReservation) -> _Taken:
    """Apply judged reports to the allocations.

    A report that arrived while the reservation is still placed waits for its start.
    """
    if row.state is State.PLACED:
        return _Taken(row)
    failures: dict[str, str] = {}
    mine = {a.id: a for a in allocations.live(hand.tx, row.id)}
    found = _judged(hand.tx, tuple(mine))
    bound_before = _bound(mine.values())
    for stored, report in _as_signed(found):
        allocation = mine[stored.allocation_id]
        after, failure = _outcome(hand.tx, allocation, stored, report)
        mine[allocation.id] = after
        if failure and row.state is State.BINDING:
            failures[allocation.id] = failure
        elif after.state is AllocationState.BOUND:
            failures.pop(allocation.id, None)
    reports.applied(hand.tx, [stored.id for stored, _ in found], hand.held.now_ms)
    if found and row.state is State.ACTIVE and _bound(mine.values()) != bound_before:
        row = reservations.save(hand.tx, row)  # the bindings that the API shows changed
    return _Taken(row, tuple(mine.values()), failures)


_Opened = tuple[StoredReport, Report | None]


def _judged(tx: Transaction, allocation_ids: Sequence[AllocationId]) -> Sequence[_Opened]:
    """Reports that wait to be taken in, with their signed bodies, None for rejected ones.

    Read in pages and kept without their envelopes, which may be much larger than what they say.
    """
    opened: list[_Opened] = []
    last_id = 0
    while True:
        page = reports.unapplied(tx, allocation_ids, last_id, _PAGE)
        opened += [(replace(stored, envelope=b""), _body(stored)) for stored in page]
        if len(page) < _PAGE:
            return opened
        last_id = page[-1].id


def _as_signed(opened: Sequence[_Opened]) -> Sequence[_Opened]:
    """The same reports, those of a key in that key's order.

    A gateway chooses the order and the numbers of its rows, but not the numbers that were signed.
    """
    of_key: defaultdict[str, list[tuple[StoredReport, Report]]] = defaultdict(list)
    for stored, report in opened:
        if report is not None:
            of_key[stored.key_id].append((stored, report))
    in_order = {
        key: iter(sorted(mine, key=lambda entry: entry[1].number)) for key, mine in of_key.items()
    }
    return [
        (stored, None) if report is None else next(in_order[stored.key_id])
        for stored, report in opened
    ]


def _body(stored: StoredReport) -> Report | None:
    if stored.verdict != COUNTED:
        return None
    envelope = parse_envelope(stored.envelope)
    assert envelope is not None
    return decode_report(envelope.payload)


def _bound(mine: Iterable[Allocation]) -> frozenset[str]:
    return frozenset(a.id for a in mine if a.state is AllocationState.BOUND)


def _outcome(
    tx: Transaction, allocation: Allocation, stored: StoredReport, report: Report | None
) -> tuple[Allocation, str]:
    """The allocation after one report, and why its bind failed, if it did."""
    match report.outcome if report else None:
        case Bound(cdi_devices, env_file, cgroup_parent):
            binding = HoldBinding(
                allocation_id=allocation.id,
                node_id=allocation.node_id,
                cdi_devices=cdi_devices,
                env_file=env_file,
                cgroup_parent=cgroup_parent,
            )
            allocations.bind(tx, allocation.id, binding, _evidence(tx, stored))
            return replace(allocation, state=AllocationState.BOUND), ""
        case Failed(reason, message):
            return _lose(tx, allocation), f"{reason}: {message}" if message else reason
        case _:
            return _lose(tx, allocation), ""


def _evidence(tx: Transaction, stored: StoredReport) -> Evidence:
    frame = reports.envelope(tx, stored.id)
    envelope = parse_envelope(frame)
    assert envelope is not None
    return Evidence(frame, envelope.key_id, envelope.signature)


def _lose(tx: Transaction, allocation: Allocation) -> Allocation:
    if allocation.state is not AllocationState.BOUND:
        return allocation
    allocations.set_state(tx, allocation.id, AllocationState.LOST)
    return replace(allocation, state=AllocationState.LOST)
