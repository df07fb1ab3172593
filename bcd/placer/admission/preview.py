"""What a create would be given, looked at by the create's own steps and then undone (spec 7.6).

A draft is opened and sought a place for under the pool's lock, so that whatever a create is refused
for, sees or is kept from is the same here; the transaction is always rolled back. Policy and quota
are not asked: a dry run does that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from bcd.model.caller import Caller
from bcd.model.reservation import Resources
from bcd.model.units import MAX_DURATION_MS
from bcd.placer.admission.create import draft_of, open_draft
from bcd.placer.admission.request import parse_wanted
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.preempt import starts_with_room
from bcd.placer.lifecycle.seek import seek
from bcd.placer.pki.command import CommandSigner
from bcd.placer.placement.allowed import demand_in
from bcd.placer.placement.booking import Placed, Placements
from bcd.placer.placement.earliest import longest_free
from bcd.placer.placement.shadow import kept_from
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store import pools
from bcd.store.database import Database, Transaction
from bcd.store.reservations import Draft, StoredReservation

_NO_KEY = ""  # no create may have it: nobody's reservation is in the way


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a create would come to.

    ``earliest_ms`` is the first start that would do, None where none is known; for
    ``longest_free_ms`` it could run from the start asked for, at most ten years. ``host_share`` and
    ``resources`` are of each node.
    """

    outcome: Placed | Unschedulable
    earliest_ms: int | None
    longest_free_ms: int
    host_share: Resources
    resources: Resources


class _Told(Exception):
    """Carries a preview out of a transaction that is rolled back."""

    def __init__(self, preview: Preview) -> None:
        super().__init__()
        self.preview = preview


class _Undone(Exception):
    """Undoes a savepoint: what was tried in it was only tried."""


class Previews:
    """Answers what creates would come to; writes nothing."""

    def __init__(self, database: Database, placements: Placements, signer: CommandSigner) -> None:
        self._database = database
        self._placements = placements
        self._signer = signer

    async def preview(self, caller: Caller, document: Mapping[str, Any]) -> Preview:
        """What a create would come to now; raises the same refusals, but for policy and quota."""
        wanted = parse_wanted(document)
        draft = draft_of(caller, wanted.tenant_id, wanted.request, _NO_KEY)
        try:
            await self._database.write(self._rehearse, draft)
        except _Told as told:
            return told.preview
        raise AssertionError("a preview always ends in a roll-back")

    def _rehearse(self, tx: Transaction, draft: Draft) -> None:
        hand = Hand(tx, pools.lock(tx, draft.request.pool_id), self._signer)
        _, row, _ = open_draft(tx, draft)
        outcome = self._tried(hand, row)
        raise _Told(
            Preview(
                outcome=outcome,
                earliest_ms=self._earliest(hand, row, outcome),
                longest_free_ms=self._longest_free(hand, row),
                host_share=row.host_share,
                resources=row.resources,
            )
        )

    def _tried(self, hand: Hand, row: StoredReservation) -> Placed | Unschedulable:
        """What seeking a place comes to; nothing of it stays, so that the pool is as it was."""
        before = (hand.held.seq, hand.held.token)
        outcome: Placed | Unschedulable | None = None
        try:
            with hand.tx.savepoint():
                outcome = seek(hand, self._placements, row, rehearse=True)
                raise _Undone
        except _Undone:
            hand.held.seq, hand.held.token = before
        assert outcome is not None
        return outcome

    def _earliest(
        self, hand: Hand, row: StoredReservation, outcome: Placed | Unschedulable
    ) -> int | None:
        """The first start that is given; one for which spot reservations yield is tried out."""
        if isinstance(outcome, Placed):
            return outcome.window.start_ms
        for start_ms in starts_with_room(hand, self._placements, row, outcome):
            later = replace(row, request=msgspec.structs.replace(row.request, start=start_ms))
            given = self._tried(hand, later)
            if isinstance(given, Placed) and given.window.start_ms == start_ms:
                return start_ms
        return outcome.earliest_ms

    def _longest_free(self, hand: Hand, row: StoredReservation) -> int:
        tx, held = hand.tx, hand.held
        view = self._placements.view(tx, held)
        demand = demand_in(held.pool, row)
        with kept_from(tx, held, view, row):
            free_ms = longest_free(view, demand, max(held.now_ms, row.request.start or 0))
        if free_ms is None:
            return MAX_DURATION_MS
        return min(max(free_ms - held.pool.policy.turnaround_ms, 0), MAX_DURATION_MS)
