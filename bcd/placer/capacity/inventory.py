"""Applies a node's newest inventory to its atoms, under the pool's lock."""

import logging
from dataclasses import replace

from bcd.model.device import Device, HealthState
from bcd.model.errors import InvalidInput
from bcd.model.ids import NodeId
from bcd.model.reservation import Condition
from bcd.store import atoms, inventories, nodes, pools, reservations, work
from bcd.store.atoms import AtomFacts
from bcd.store.database import Database, Transaction
from bcd.store.nodes import AppliedInventory
from bcd.wire.inventory import decode_inventory
from bcd.wire.node.v1 import inventory_pb2 as pb

logger = logging.getLogger(__name__)


class InventoryKeeper:
    """Applies every inventory that was received and not applied yet."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def apply_pass(self) -> float | None:
        """One pass; one node's bad inventory does not stop the others."""
        for node_id in await self._database.read(inventories.unapplied):
            await self._database.write(apply_inventory, node_id)
        return None


def apply_inventory(tx: Transaction, node_id: NodeId) -> None:
    """Bring the node's atoms in step with the inventory on record; idempotent.

    An inventory that does not parse leaves the atoms alone and puts a condition on the node.
    """
    node = nodes.get(tx, node_id)
    held = pools.lock(tx, node.pool_id)
    stored = inventories.body(tx, node_id)
    if stored is None or stored[0] == nodes.get(tx, node_id).inventory_hash:
        return
    content_hash, body = stored
    message = pb.Inventory.FromString(body)
    try:
        inventory, problems = decode_inventory(message)
    except InvalidInput as error:
        logger.warning("inventory refused", extra={"node": node_id, "problem": error.message})
        problems = (error.message,)
    else:
        atoms.sync(tx, node_id, [_facts(device) for device in inventory.devices])
        node = replace(
            node,
            hostname=inventory.host.hostname,
            driver_version=inventory.host.driver_version,
        )
    nodes.apply_inventory(
        tx,
        node_id,
        AppliedInventory(
            inventory_hash=content_hash,
            hostname=node.hostname,
            driver_version=node.driver_version,
            conditions=_conditions(problems, held.now_ms),
        ),
    )
    pools.note_changes(tx, held, [node_id], "node")
    work.poke(tx, node.pool_id, held.now_ms)
    for reservation_id in reservations.on_node(tx, node_id):
        work.poke(tx, reservation_id, held.now_ms)


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


def _conditions(problems: tuple[str, ...], now_ms: int) -> tuple[Condition, ...]:
    if not problems:
        return ()
    return (
        Condition(
            type="InventoryProblem",
            status="True",
            reason="MalformedInventory",
            message="; ".join(problems)[:1024],
            last_transition_time=now_ms,
        ),
    )
