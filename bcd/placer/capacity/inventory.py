"""Applies a node's newest inventory to its atoms and its host's amounts, under the pool's lock."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bcd.model.errors import InvalidInput
from bcd.model.host import Inventory
from bcd.model.ids import NodeId
from bcd.model.reservation import Condition
from bcd.placer.capacity.devices import sync_devices
from bcd.placer.capacity.hosts import follow_host
from bcd.placer.loops import each
from bcd.store import gpu_claims, inventories, nodes, pools, reservations, work
from bcd.store.database import Database, Transaction
from bcd.store.nodes import AppliedInventory, Node
from bcd.store.pools import PoolLock
from bcd.wire.inventory import parse_inventory

logger = logging.getLogger(__name__)

_PROBLEM = "InventoryProblem"
_IN_USE = "DeviceInUse"
ELSEWHERE = "DeviceElsewhere"
_MAX_MESSAGE = 1024
_MAX_NAMES = 8


class InventoryKeeper:
    """Applies every inventory that was received and not applied yet."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def apply_pass(self) -> float | None:
        """One pass; one node's bad inventory does not stop the others."""
        await each(
            "applying an inventory",
            await self._database.read(_waiting),
            lambda node: self._database.write(apply_inventory, node),
        )
        return None


def _waiting(tx: Transaction) -> Sequence[NodeId]:
    """Nodes with a new inventory, and those whose GPUs came free elsewhere."""
    return list(dict.fromkeys([*inventories.unapplied(tx), *gpu_claims.due(tx, tx.now_ms())]))


def apply_inventory(tx: Transaction, node_id: NodeId) -> None:
    """Bring the node's atoms and its host's amounts in step with the inventory on record.

    Idempotent. An inventory that cannot be used leaves both alone and puts a condition on the
    node; it makes no node ready.
    """
    held = pools.lock(tx, nodes.get(tx, node_id).pool_id)
    node = nodes.get(tx, node_id)
    stored = inventories.body(tx, node_id)
    if stored is None or node.removed:
        return
    content_hash, body = stored
    fresh = content_hash != node.inventory_hash
    if not fresh and node_id not in gpu_claims.due(tx, held.now_ms):
        return
    found, problems = _parsed(node_id, body)
    if found is None and not fresh:
        gpu_claims.let_go_of_ended(tx, node_id, held.now_ms)
        return
    if found is not None:
        _follow(tx, held, node, found)
        node = replace(
            node,
            ready=True,
            hostname=found.host.hostname,
            driver_version=found.host.driver_version,
        )
    elsewhere = gpu_claims.waited_for(tx, node_id)
    applied = AppliedInventory(
        inventory_hash=content_hash,
        ready=node.ready,
        hostname=node.hostname,
        driver_version=node.driver_version,
        conditions=tuple(_conditions(problems, found, elsewhere, node.conditions, held.now_ms)),
    )
    nodes.apply_inventory(tx, node_id, applied)
    pools.note_changes(tx, held, [node_id], "node")
    work.poke(tx, node.pool_id, held.now_ms)
    for reservation_id in reservations.on_node(tx, node_id):
        work.poke(tx, reservation_id, held.now_ms)


def _parsed(node_id: NodeId, body: bytes) -> tuple[Inventory | None, tuple[str, ...]]:
    try:
        return parse_inventory(body)
    except InvalidInput as error:
        logger.warning("inventory refused", extra={"node": node_id, "problem": error.message})
        return None, (error.message,)


def _follow(tx: Transaction, held: PoolLock, node: Node, found: Inventory) -> None:
    reported = {device.gpu for device in found.devices}
    gpu_claims.follow(tx, node.id, reported, held.now_ms, trusted=node.trusted)
    sync_devices(tx, node.id, found, held.pool.policy)
    follow_host(tx, held, node.id, found)
    pools.keep_models(tx, held.pool.id)


def _conditions(
    problems: tuple[str, ...],
    inventory: Inventory | None,
    elsewhere: Mapping[str, NodeId],
    before: Sequence[Condition],
    now_ms: int,
) -> Iterator[Condition]:
    since_ms = {condition.type: condition.last_transition_time for condition in before}
    found = {
        _PROBLEM: ("MalformedInventory", "; ".join(problems)),
        _IN_USE: ("ForeignProcess", _in_use(inventory)),
        ELSEWHERE: ("HeldByAnotherNode", _elsewhere(elsewhere)),
    }
    for kind, (reason, message) in found.items():
        if message:
            yield Condition(
                type=kind,
                status="True",
                reason=reason,
                message=message[:_MAX_MESSAGE],
                last_transition_time=since_ms.get(kind, now_ms),
            )


def _in_use(inventory: Inventory | None) -> str:
    """Which devices somebody outside every hold computes on, and what to do; empty for none."""
    names = [device.id for device in inventory.devices if device.in_use] if inventory else []
    if not names:
        return ""
    return (
        f"a process outside every reservation computes on {_listed(names)};"
        " end it, until then no new reservation gets them"
    )


def _elsewhere(elsewhere: Mapping[str, NodeId]) -> str:
    """Which GPUs another node has, and what to do; empty for none."""
    names = [f"{uuid} ({holder})" for uuid, holder in sorted(elsewhere.items()) if holder]
    if not names:
        return ""
    return (
        f"another node has these GPUs: {_listed(names)}; no reservation gets them here until that"
        " node is removed, or reports them no more and has nothing booked on them"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"
