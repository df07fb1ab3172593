"""Remembers for whom spot reservations would yield in vain: those who wait ask again in every pass.

A look for victims costs far more than a look for a place. What it came to stands until the pool
changes, the request is refused for another reason, or the time comes from which something more is
free. In the memory of the process; ``lifecycle.preempt`` asks.
"""

from dataclasses import dataclass, field

from bcd.model.ids import NodeId, PoolId, ReservationId
from bcd.model.pool import PoolPolicy
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store.pools import PoolLock

_MAX_KNOWN = 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """What room was looked for; a start of None is any time from now on.

    ``kept`` is what was shown as taken because it is kept for an older one.
    """

    demand: Demand
    duration_ms: int
    start_ms: int | None
    avoid: frozenset[NodeId]
    kept: tuple[ReservationId, int] | None


@dataclass(slots=True)
class _Known:
    """What is known of a pool as it was at that change, under that policy."""

    seq: int
    token: str
    policy: PoolPolicy
    refused: dict[Asked, tuple[Unschedulable, int]] = field(default_factory=dict)

    def is_of(self, held: PoolLock) -> bool:
        here = (self.seq, self.token, self.policy)
        return here == (held.seq, held.token, held.pool.policy)


class InVain:
    """Who was looked at in vain, by pool; one for a placer's process."""

    def __init__(self) -> None:
        self._pools: dict[PoolId, _Known] = {}

    def holds(self, held: PoolLock, asked: Asked, refused: Unschedulable) -> bool:
        """Whether the same request, refused for the same reasons, was looked at in vain."""
        known = self._pools.get(held.pool.id)
        if known is None or not known.is_of(held):
            return False
        before, until_ms = known.refused.get(asked, (None, 0))
        return before == refused and held.now_ms < until_ms

    def note(self, held: PoolLock, asked: Asked, refused: Unschedulable, until_ms: int) -> None:
        """Remember that no victims helped, and that none will before ``until_ms``."""
        known = self._pools.get(held.pool.id)
        if known is None or not known.is_of(held) or len(known.refused) >= _MAX_KNOWN:
            known = _Known(held.seq, held.token, held.pool.policy)
            self._pools[held.pool.id] = known
        known.refused[asked] = (refused, until_ms)
