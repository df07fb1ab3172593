"""Works the queue: claims due subjects and gives each its transaction."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

from bcd.model.errors import BcdError
from bcd.model.ids import NodeId
from bcd.model.pace import Pace
from bcd.model.report import Rejection
from bcd.placer.lifecycle.judge import JUDGED_AT_ONCE, Rejected, judge_node
from bcd.placer.lifecycle.pending import Rest, retry_pending
from bcd.placer.lifecycle.reconcile import Reconciler
from bcd.placer.loops import each
from bcd.store import reports, work
from bcd.store.database import Database, Transaction
from bcd.store.work import TICK_MS, Claim

logger = logging.getLogger(__name__)

_BATCH = 32
_MAX_BACKOFF_MS = 60_000
# Of rejected reports, for each node.
_LINES_AT_ONCE = 5
_LINE_INTERVAL_S = 60.0


class Worker:
    """Reconciles reservations and pools as they fall due, and judges reports as they arrive."""

    def __init__(self, database: Database, reconciler: Reconciler) -> None:
        self._database = database
        self._reconciler = reconciler
        self._lines: dict[NodeId, Pace] = {}
        self._untold: Counter[NodeId] = Counter()

    async def work_pass(self) -> float | None:
        """Work on what is due now; returns seconds until the next moment."""
        worked, rest_s = await self.work_due()
        return 0.0 if worked == _BATCH else rest_s

    async def work_due(self) -> tuple[int, float]:
        """Claim up to 32 due subjects and work on them; returns (how many, the rest to take).

        What falls due meanwhile wakes the loop again.
        """
        claims, rest_s = await self._database.write(_claim)
        await asyncio.gather(*(self._work_on(claim) for claim in claims))
        return len(claims), rest_s

    async def _work_on(self, claim: Claim) -> None:
        try:
            await self._dispatch(claim)
        except Exception as error:
            expected = isinstance(error, BcdError)
            logger.log(
                logging.WARNING if expected else logging.ERROR,
                "work failed and will be tried again",
                extra={"subject": claim.key, "attempts": claim.attempts, "error": str(error)},
                exc_info=not expected,
            )
            backoff_ms = min(_MAX_BACKOFF_MS, 500 * 2 ** min(claim.attempts, 10))
            await self._database.write(_retry, claim, backoff_ms)

    async def _dispatch(self, claim: Claim) -> None:
        if not claim.key.startswith("pool_"):
            await self._database.write(self._reconciler.reconcile, claim)
            return
        placements, signer = self._reconciler.placements, self._reconciler.signer
        rest: Rest | None = Rest()
        while rest is not None:
            rest = await self._database.write(retry_pending, claim, placements, signer, rest)

    async def judge_pass(self) -> float | None:
        """Judge stored reports that nobody judged yet, of every node at most 64.

        A node that floods gets its next turn when all others had theirs.
        """
        waiting = await self._database.read(reports.nodes_with_unjudged)
        full: list[NodeId] = []

        async def judge(node_id: NodeId) -> None:
            if await self._judge(node_id) == JUDGED_AT_ONCE:
                full.append(node_id)

        await each("judging a node's reports", waiting, judge, at_once=_BATCH)
        return 0.0 if full else None

    async def _judge(self, node_id: NodeId) -> int:
        judged = await self._database.write(judge_node, node_id)
        for rejected in judged.rejected:
            self._tell(rejected)
        await asyncio.gather(*(self._work_on(claim) for claim in judged.claims))
        return judged.count

    def _tell(self, rejected: Rejected) -> None:
        """One line, but of a node that floods only how many more there were."""
        node_id = rejected.node_id
        pace = self._lines.setdefault(node_id, Pace(_LINES_AT_ONCE, _LINE_INTERVAL_S))
        if not pace.allows(asyncio.get_running_loop().time()):
            self._untold[node_id] += 1
            return
        # A gateway that stopped may send again what was stored: nothing is lost by it.
        expected = rejected.reason is Rejection.REPLAYED
        logger.log(
            logging.INFO if expected else logging.WARNING,
            "report rejected",
            extra={
                "node_id": node_id,
                "allocation_id": rejected.allocation_id,
                "reservation_id": rejected.reservation_id,
                "reason": rejected.reason.value,
                "untold_before": self._untold.pop(node_id, 0),
            },
        )


def _claim(tx: Transaction) -> tuple[Sequence[Claim], float]:
    claims = work.claim(tx, _BATCH)
    due_ms = work.next_wake_ms(tx)
    rest_ms = TICK_MS if due_ms is None else max(0, due_ms - tx.now_ms())
    return claims, rest_ms / 1000


def _retry(tx: Transaction, claim: Claim, backoff_ms: int) -> None:
    work.retry(tx, claim, tx.now_ms() + backoff_ms)
