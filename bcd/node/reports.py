"""Turns outcomes into signed reports: each change once, and everything for a new session."""

from collections.abc import Callable, Mapping

from bcd.model.ids import AllocationId, NodeId
from bcd.model.report import Bound, Outcome, Released, Report
from bcd.node.outbox import Outbox
from bcd.node.ports import Clock
from bcd.signing.envelope import PayloadType, seal
from bcd.signing.keyfile import Credentials
from bcd.wire.report import encode_report


class Reports:
    """Remembers what was said last of each allocation; the outbox keeps what is not yet heard."""

    def __init__(
        self,
        outbox: Outbox,
        clock: Clock,
        node_id: NodeId,
        credentials: Callable[[], Credentials],
    ) -> None:
        self.outbox = outbox
        self.boot_id = ""
        self._clock = clock
        self._node_id = node_id
        self._credentials = credentials
        self._last: dict[AllocationId, Outcome] = {}

    def bound(self) -> frozenset[AllocationId]:
        """Allocations whose last outcome was Bound."""
        return frozenset(id_ for id_, outcome in self._last.items() if isinstance(outcome, Bound))

    def settle(self, outcomes: Mapping[AllocationId, Outcome], *, everything: bool) -> int:
        """Queue the outcomes that changed, or all, in one durable write; returns how many.

        Raises OSError, and then the same outcomes count as changed next time.
        """
        due = [
            (id_, outcome)
            for id_, outcome in outcomes.items()
            if everything or self._last.get(id_) != outcome
        ]
        added = self.outbox.add(due, self._sign)
        self._last = dict(outcomes)
        return added

    def owe(self, releases: tuple[tuple[AllocationId, bool], ...]) -> None:
        """Make releases durable and hold them back; raises OSError."""
        outcomes = [(id_, Released(slice_empty)) for id_, slice_empty in releases]
        self.outbox.add(outcomes, self._sign, held=True)
        for id_, _ in releases:
            self._last.pop(id_, None)

    def free(self, allocation_id: AllocationId) -> None:
        """Let a held release be sent; raises OSError."""
        self.outbox.free(allocation_id, self._sign)

    def _sign(self, allocation_id: AllocationId, outcome: Outcome, number: int) -> bytes:
        report = Report(
            node_id=self._node_id,
            number=number,
            boot_id=self.boot_id,
            allocation_id=allocation_id,
            signed_at_ms=self._clock.wall_ms(),
            outcome=outcome,
        )
        key = self._credentials().key
        sealed = seal(key, PayloadType.ATTESTED_REPORT, encode_report(report))
        return sealed.SerializeToString()
