"""Judges whether nodes can be reached, from what gateways record of their sessions (spec 1.3).

A node that goes silent keeps its bookings; it takes no new ones, and its reservations get a
condition. After a gateway's start everyone gets time to come back.
"""

from bcd.model.ids import NodeId
from bcd.model.units import SECOND_MS
from bcd.placer.loops import each
from bcd.store import nodes, pools, reservations, sessions, work
from bcd.store.database import Database, Transaction
from bcd.store.sessions import Session

GRACE_MS = 60 * SECOND_MS
RESTART_GRACE_MS = 300 * SECOND_MS


def is_reachable(session: Session | None, last_gateway_start_ms: int, now_ms: int) -> bool:
    """Whether the node's last sign of life is within its TTL and the grace.

    A gateway's start gives more time to the nodes that were there until then, and to no others.
    """
    if session is None:
        return False
    silent_from_ms = session.last_seen_ms + session.ttl_ms
    restarted = now_ms - last_gateway_start_ms < RESTART_GRACE_MS
    was_there = silent_from_ms + GRACE_MS > last_gateway_start_ms
    return now_ms < silent_from_ms + (RESTART_GRACE_MS if restarted and was_there else GRACE_MS)


class ReachabilityKeeper:
    """Keeps every node's ``reachable`` in step with its session."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def judge_pass(self) -> float | None:
        """One pass over all nodes."""
        changed = await self._database.read(_changed)
        await each("judging a node", changed, lambda node: self._database.write(judge, node))
        return None


def _changed(tx: Transaction) -> list[NodeId]:
    by_node = {session.node_id: session for session in sessions.every(tx)}
    started_ms, now_ms = sessions.last_gateway_start_ms(tx), tx.now_ms()
    return [
        node.id
        for node in nodes.every(tx)
        if node.reachable != is_reachable(by_node.get(node.id), started_ms, now_ms)
    ]


def judge(tx: Transaction, node_id: NodeId) -> None:
    """Record one node's verdict and wake what it concerns; idempotent."""
    held = pools.lock(tx, nodes.get(tx, node_id).pool_id)
    started_ms = sessions.last_gateway_start_ms(tx)
    reachable = is_reachable(sessions.get(tx, node_id), started_ms, held.now_ms)
    if not nodes.set_reachable(tx, node_id, reachable):
        return
    pools.note_changes(tx, held, [node_id], "node")
    for reservation_id in reservations.on_node(tx, node_id):
        work.poke(tx, reservation_id, held.now_ms)
    if reachable:
        work.poke(tx, held.pool.id, held.now_ms)
