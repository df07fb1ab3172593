"""Works through a pool's queue: the requests that its placer has not seen, and those that wait.

The queue of a pool with a queued placer, and of every pool what does not fit yet: every 30 seconds
and when something was freed or came in. Oldest first. A reservation that does not fit does not
stop the younger ones behind it. A pass over a long queue takes several transactions, so that
nobody waits long for the pool's lock; in each of them, what one reservation runs into undoes
nothing of the others. Of several placers the one that has the pool's claim plans; what is planned
is booked under the pool's lock, on what the database says there.
"""

import logging
from dataclasses import dataclass

from bcd.model.errors import Unavailable
from bcd.model.ids import PoolId
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import PENDING_RETRY_MS, Hand
from bcd.placer.lifecycle.seek import seek
from bcd.placer.pki.command import CommandSigner
from bcd.placer.placement.booking import Placed, Placements
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store import pools, queue, work
from bcd.store.database import Overlap, StoreUnavailable, Transaction
from bcd.store.reservations import StoredReservation
from bcd.store.work import Claim

logger = logging.getLogger(__name__)

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
    """Place what fits now of the next 32 pending reservations of a pool, each or not at all.

    Returns the rest of the pass, None when it is through or somebody else took it over. The next
    pass is due in 30 seconds, or when the first of those that wait would fit.
    """
    hand = Hand(tx, pools.lock(tx, PoolId(claim.key)), signer)
    if not work.holds(tx, claim):
        return None
    now_ms = hand.held.now_ms
    wake_ms = rest.wake_ms or now_ms + PENDING_RETRY_MS
    batch = queue.pending_after(tx, hand.held.pool.id, rest.after_seq, _BATCH)
    for row in batch:
        outcome = _place(hand, placements, row)
        if outcome is None:
            wake_ms = min(wake_ms, now_ms + work.TICK_MS)
        elif isinstance(outcome, Unschedulable) and outcome.earliest_ms is not None:
            wake_ms = min(wake_ms, outcome.earliest_ms)
    if len(batch) == _BATCH:
        work.keep(tx, claim)
        return Rest(batch[-1].seq, wake_ms)
    if queue.any_queued(tx, hand.held.pool.id):
        # One that ran into others, or came in behind the pass with a place before its end.
        work.schedule(tx, claim.key, now_ms + work.TICK_MS, soon=False)
    elif queue.pending_in(tx, hand.held.pool.id, 1):
        work.schedule(tx, claim.key, wake_ms, soon=wake_ms < now_ms + work.TICK_MS)
    else:
        work.drop(tx, claim.key)
    return None


def _place(
    hand: Hand, placements: Placements, row: StoredReservation
) -> Placed | Unschedulable | None:
    """One reservation's part of a pass; None, and nothing changed, when it ran into others.

    The pool's log of changes goes back with the savepoint, by which the placer's view of the pool
    notices that it knows too much.
    """
    held = hand.held
    seq, token = held.seq, held.token
    try:
        with hand.tx.savepoint():
            outcome = seek(hand, placements, row)
            apply.place(hand, row, outcome)
            return outcome
    except StoreUnavailable:
        raise  # that is not this reservation's alone
    except (Overlap, Unavailable) as error:
        held.seq, held.token = seq, token
        logger.warning(
            "a queued reservation waits", extra={"reservation_id": row.id, "problem": str(error)}
        )
        return None
