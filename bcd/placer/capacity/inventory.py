"""Applies a node's newest inventory to its atoms, under the pool's lock."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from google.protobuf.message import DecodeError

from bcd.model.device import Device, HealthState
from bcd.model.errors import InvalidInput
from bcd.model.host import Inventory
from bcd.model.ids import NodeId
from bcd.model.reservation import Condition
from bcd.placer.loops import each
from bcd.store import atoms, inventories, nodes, pools, reservations, work
from bcd.store.atoms import AtomFacts
from bcd.store.database import Database, Transaction
from bcd.store.nodes import AppliedInventory
from bcd.wire.inventory import decode_inventory
from bcd.wire.node.v1 import inventory_pb2 as pb

logger = logging.getLogger(__name__)

_PROBLEM = "InventoryProblem"
_MAX_MEMORY_BYTES = 1 << 60


class InventoryKeeper:
    """Applies every inventory that was received and not applied yet."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def apply_pass(self) -> float | None:
        """One pass; one node's bad inventory does not stop the others."""
        received = await self._database.read(inventories.unapplied)
        await each(
            "applying an inventory",
            received,
            lambda node: self._database.write(apply_inventory, node),
        )
        return None


def apply_inventory(tx: Transaction, node_id: NodeId) -> None:
    """Bring the node's atoms in step with the inventory on record; idempotent.

    An inventory that cannot be used leaves the atoms alone and puts a condition on the node; it
    makes no node ready.
    """
    held = pools.lock(tx, nodes.get(tx, node_id).pool_id)
    node = nodes.get(tx, node_id)
    stored = inventories.body(tx, node_id)
    if stored is None or stored[0] == node.inventory_hash:
        return
    content_hash, body = stored
    try:
        inventory, problems = _parsed(body)
    except InvalidInput as error:
        logger.warning("inventory refused", extra={"node": node_id, "problem": error.message})
        problems = (error.message,)
    else:
        atoms.sync(tx, node_id, [_facts(device) for device in inventory.devices])
        pools.keep_models(tx, node.pool_id)
        node = replace(
            node,
            ready=True,
            hostname=inventory.host.hostname,
            driver_version=inventory.host.driver_version,
        )
    nodes.apply_inventory(
        tx,
        node_id,
        AppliedInventory(
            inventory_hash=content_hash,
            ready=node.ready,
            hostname=node.hostname,
            driver_version=node.driver_version,
            conditions=_conditions(problems, node.conditions, held.now_ms),
        ),
    )
    pools.note_changes(tx, held, [node_id], "node")
    work.poke(tx, node.pool_id, held.now_ms)
    for reservation_id in reservations.on_node(tx, node_id):
        work.poke(tx, reservation_id, held.now_ms)


def _parsed(body: bytes) -> tuple[Inventory, tuple[str, ...]]:
    try:
        message = pb.Inventory.FromString(body)
    except DecodeError as error:
        raise InvalidInput("inventory", "does not parse") from error
    inventory, problems = decode_inventory(message)
    for position, device in enumerate(inventory.devices):
        if device.memory_bytes > _MAX_MEMORY_BYTES:
            raise InvalidInput(f"devices[{position}].memoryBytes", "is beyond all reason")
    return inventory, problems


def _facts(device: Device) -> AtomFacts:
    return AtomFacts(
        device_class=device.device_class,
        uuid=device.id,
        gpu_uuid=device.gpu,
        model=device.model,
        profile=device.profile,
        memory_bytes=device.memory_bytes,
        numa_node=device.numa_node,
        nvlink_domain=device.nvlink_domain,
        nvlink_peers=device.nvlink_peers,
        bookable=device.health.state is HealthState.HEALTHY and not device.mig_enabled,
        health=device.health.state.value,
        health_reason=device.health.reason,
    )


def _conditions(
    problems: tuple[str, ...], before: Sequence[Condition], now_ms: int
) -> tuple[Condition, ...]:
    if not problems:
        return ()
    since_ms = next((c.last_transition_time for c in before if c.type == _PROBLEM), now_ms)
    return (
        Condition(
            type=_PROBLEM,
            status="True",
            reason="MalformedInventory",
            message="; ".join(problems)[:1024],
            last_transition_time=since_ms,
        ),
    )
