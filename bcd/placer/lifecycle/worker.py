"""Works the queue: claims due subjects and gives each its transaction."""

import asyncio
import logging

from bcd.model.errors import BcdError
from bcd.placer.lifecycle.judge import judge_node
from bcd.placer.lifecycle.pending import retry_pending
from bcd.placer.lifecycle.reconcile import Reconciler
from bcd.store import reports, work
from bcd.store.database import Database, Transaction
from bcd.store.work import TICK_MS, Claim

logger = logging.getLogger(__name__)

_BATCH = 32
_MAX_BACKOFF_MS = 60_000


class Worker:
    """Reconciles reservations and pools as they fall due, and judges reports as they arrive."""

    def __init__(self, database: Database, reconciler: Reconciler) -> None:
        self._database = database
        self._reconciler = reconciler

    async def work_pass(self) -> float | None:
        """Claim and work until nothing is due; returns seconds until the next moment."""
        while claims := await self._database.write(work.claim, _BATCH):
            await asyncio.gather(*(self._work_on(claim) for claim in claims))
        return await self._database.read(_rest_s)

    async def _work_on(self, claim: Claim) -> None:
        try:
            await self._database.write(self._dispatch, claim)
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

    def _dispatch(self, tx: Transaction, claim: Claim) -> None:
        if claim.key.startswith("pool_"):
            placements, signer = self._reconciler.placements, self._reconciler.signer
            retry_pending(tx, claim, placements, signer)
        else:
            self._reconciler.reconcile(tx, claim)

    async def judge_pass(self) -> float | None:
        """Judge every stored report that nobody judged yet."""
        for node_id in await self._database.read(reports.nodes_with_unjudged):
            while await self._database.write(judge_node, node_id):
                pass
        return None


def _rest_s(tx: Transaction) -> float:
    due_ms = work.next_wake_ms(tx)
    if due_ms is None:
        return TICK_MS / 1000
    return max(0, due_ms - tx.now_ms()) / 1000


def _retry(tx: Transaction, claim: Claim, backoff_ms: int) -> None:
    work.retry(tx, claim, tx.now_ms() + backoff_ms)
