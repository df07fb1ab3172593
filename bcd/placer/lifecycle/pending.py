"""Tries a pool's pending reservations again: every 30 seconds and when something was freed.

Oldest first. A reservation that does not fit does not stop the younger ones behind it.
"""

from bcd.model.ids import PoolId
from bcd.model.reservation import State
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import PENDING_RETRY_MS, Hand
from bcd.placer.pki.command import CommandSigner
from bcd.placer.placement.booking import Placed, Placements
from bcd.store import pools, reservations, work
from bcd.store.database import Transaction
from bcd.store.work import Claim

_BATCH = 64


def retry_pending(
    tx: Transaction, claim: Claim, placements: Placements, signer: CommandSigner
) -> int:
    """Place what fits now of the pool's 64 oldest pending reservations; returns how many did."""
    hand = Hand(tx, pools.lock(tx, PoolId(claim.key)), signer)
    if not work.holds(tx, claim):
        return 0
    placed = waiting = 0
    for reservation_id in reservations.pending_in(tx, hand.held.pool.id, _BATCH):
        row = reservations.lock(tx, reservation_id)
        if row is None or row.state is not State.PENDING:
            continue
        outcome = placements.place(tx, hand.held, row.id, row.request)
        apply.place(hand, row, outcome)
        placed += isinstance(outcome, Placed)
        waiting += not isinstance(outcome, Placed)
    if waiting:
        work.schedule(tx, claim.key, hand.held.now_ms + PENDING_RETRY_MS, soon=False)
    else:
        work.drop(tx, claim.key)
    return placed
