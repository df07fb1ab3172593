"""How long holds that cannot be made yet have waited, on the steady clock."""

from collections.abc import Iterable

from bcd.model.ids import AllocationId
from bcd.node.ports import Clock
from bcd.node.readiness import MAX_WAIT_S


class Patience:
    """Remembers since when each allocation waits; a restart begins anew, which is late, not lost.

    The control plane has a deadline of its own for every bind.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[AllocationId, float] = {}

    def overdue(self) -> frozenset[AllocationId]:
        """Those that have waited as long as they may."""
        now = self._clock.monotonic()
        return frozenset(id_ for id_, since in self._since.items() if now - since >= MAX_WAIT_S)

    def keep(self, waiting: Iterable[AllocationId], overdue: Iterable[AllocationId]) -> None:
        """Who waits after a pass; who is overdue stays so until nothing asks for it any more."""
        now = self._clock.monotonic()
        self._since = {id_: self._since.get(id_, now) for id_ in (*waiting, *overdue)}
