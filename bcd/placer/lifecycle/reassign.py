"""Hands what somebody has reserved to a successor, when they leave (spec 14.5)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bcd.model.ids import PoolId, ReservationId
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.transitions import MOVES, Trigger
from bcd.placer.pki.command import CommandSigner
from bcd.store import pools, reservations
from bcd.store.database import Database, Transaction

_BATCH = 64
_STATES = tuple(state for state, trigger in MOVES if trigger is Trigger.REASSIGNED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Whose reservations of a tenant become whose, and why; owners are ``issuer|subject``."""

    tenant_id: str
    from_owner: str
    to_owner: str
    reason: str


async def reassign(database: Database, signer: CommandSigner, handover: Handover) -> int:
    """Hand over everything that has not ended; returns how many. Safe to repeat.

    In batches, each in a transaction under its pool's lock: what was handed over stays so.
    """
    done = 0
    while True:
        found = await database.read(
            reservations.owned, handover.tenant_id, handover.from_owner, _STATES, _BATCH
        )
        by_pool: defaultdict[PoolId, list[ReservationId]] = defaultdict(list)
        for row in found:
            by_pool[row.pool_id].append(row.id)
        for pool_id, ids in by_pool.items():
            done += await database.write(_hand_over, signer, handover, pool_id, ids)
        if len(found) < _BATCH:
            return done


def _hand_over(
    tx: Transaction,
    signer: CommandSigner,
    handover: Handover,
    pool_id: PoolId,
    ids: Sequence[ReservationId],
) -> int:
    hand = Hand(tx, pools.lock(tx, pool_id), signer)
    done = 0
    for reservation_id in ids:
        row = reservations.lock(tx, reservation_id)
        if row is None or row.owner != handover.from_owner or row.state not in _STATES:
            continue
        extra = {
            "reservationId": row.id,
            "from": handover.from_owner,
            "to": handover.to_owner,
            "reason": handover.reason,
        }
        apply.move(hand, row, Trigger.REASSIGNED, extra, owner=handover.to_owner)
        done += 1
    return done
