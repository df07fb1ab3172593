"""Tries a pool's pending reservations again: every 30 seconds and when something was freed.

Oldest first. A reservation that does not fit does not stop the younger ones behind it. A pass over
a long queue takes several transactions, so that nobody waits long for the pool's lock.
"""

from dataclasses import dataclass

from bcd.model.ids import PoolId
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import PENDING_RETRY_MS, Hand
from bcd.placer.pki.command import CommandSigner
from bcd.placer.placement.booking import Placed, Placements
from bcd.store import pools, reservations, work
from bcd.store.database import Transaction
from bcd.store.work import Claim

_BATCH = 32


@dataclass(frozen=True, slots=True)
class Rest:
    """The part of a pass that is still to do: behind which ``seq``, and when to pass next."""

    after_seq: int = 0
    wake_ms: int | None = None


def retry_pending(
    tx: Transaction,
    claim: Claim,
    placements: Placements,
    signer: CommandSigner,
    rest: Rest,
) -> Rest | None:
    """Place what fits now of the next 32 pending reservations of a pool.

    Returns the rest of the pass, None when it is through or somebody else took it over. The next
    pass is due in 30 seconds, or when the first of those that wait would fit.
    """
    hand = Hand(tx, pools.lock(tx, PoolId(claim.key)), signer)
    if not work.holds(tx, claim):
        return None
    now_ms = hand.held.now_ms
    wake_ms = rest.wake_ms or now_ms + PENDING_RETRY_MS
    batch = reservations.pending_after(tx, hand.held.pool.id, rest.after_seq, _BATCH)
    for row in batch:
        outcome = placements.place(tx, hand.held, row)
        apply.place(hand, row, outcome)
        if not isinstance(outcome, Placed) and outcome.earliest_ms is not None:
            wake_ms = min(wake_ms, outcome.earliest_ms)
    if len(batch) == _BATCH:
        work.keep(tx, claim)
        return Rest(batch[-1].seq, wake_ms)
    if reservations.pending_in(tx, hand.held.pool.id, 1):
        work.schedule(tx, claim.key, wake_ms, soon=wake_ms < now_ms + work.TICK_MS)
    else:
        work.drop(tx, claim.key)
    return None
