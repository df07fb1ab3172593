"""From an inventory's devices to bookable atoms, slots of shared GPUs among them (spec 1.4)."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from bcd.model.device import Device, DeviceClass, HealthState
from bcd.model.host import Inventory
from bcd.model.ids import NodeId
from bcd.model.pool import PoolPolicy, SharingMode
from bcd.store import atoms, gpu_claims
from bcd.store.atoms import AtomFacts
from bcd.store.database import Transaction

# Of one node: a host has 16 GPUs or so, and a slot costs a row.
_MAX_SLOTS = 1024


def sync_devices(
    tx: Transaction, node_id: NodeId, inventory: Inventory, policy: PoolPolicy
) -> bool:
    """Bring a node's atoms in step with its inventory; returns whether that changed any.

    Nothing that lies on a GPU which another node has takes bookings. Call under the pool's lock.
    """
    before = atoms.on_node(tx, node_id)
    slots = [atom.uuid for atom in before if atom.device_class is DeviceClass.SLOT]
    elsewhere = gpu_claims.waited_for(tx, node_id)
    facts = [
        _withheld(fact) if fact.gpu_uuid in elsewhere else fact
        for fact in facts_of(inventory, policy, slots)
    ]
    atoms.sync(tx, node_id, facts)
    return atoms.on_node(tx, node_id) != before


def _withheld(fact: AtomFacts) -> AtomFacts:
    health = HealthState.UNKNOWN.value
    return replace(fact, bookable=False, health=health, health_reason=gpu_claims.WITHHELD)


def facts_of(
    inventory: Inventory, policy: PoolPolicy, known_slots: Iterable[str] = ()
) -> list[AtomFacts]:
    """Every device of an inventory, and each whole GPU's slots where the pool's GPUs are shared.

    ``known_slots`` are ids of slots on record. One that the policy does not call for any more is
    as healthy as its GPU, since a reservation may have it, but takes no new booking.
    """
    facts = [_facts(device) for device in inventory.devices]
    gpus = {
        device.id: fact
        for device, fact in zip(inventory.devices, facts, strict=True)
        if device.device_class is DeviceClass.GPU and not device.mig_enabled
    }
    slots = {fact.uuid: fact for fact in _slots(gpus.values(), policy)}
    for uuid in known_slots:
        whole = gpus.get(uuid.rpartition("::")[0])
        if whole is not None and uuid not in slots:
            slots[uuid] = replace(_slot(whole, uuid, 1), bookable=False)
    return [*facts, *slots.values()]


def _slots(gpus: Iterable[AtomFacts], policy: PoolPolicy) -> Iterator[AtomFacts]:
    if policy.sharing.mode is SharingMode.NONE:
        return
    replicas = policy.sharing.slots_per_gpu
    for whole in list(gpus)[: _MAX_SLOTS // replicas]:
        for number in range(replicas):
            yield _slot(whole, f"{whole.uuid}::{number}", replicas)


def _slot(whole: AtomFacts, uuid: str, replicas: int) -> AtomFacts:
    """A slot of a GPU; it waits for no process there, which may be a neighbour's."""
    return replace(
        whole,
        device_class=DeviceClass.SLOT,
        uuid=uuid,
        memory_bytes=whole.memory_bytes // replicas,
        nvlink_domain="",
        nvlink_peers=(),
        bookable=whole.health == HealthState.HEALTHY,
    )


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
        bookable=_takes_bookings(device),
        health=device.health.state.value,
        health_reason=device.health.reason,
    )


def _takes_bookings(device: Device) -> bool:
    """Healthy, whole or an instance, and nobody outside every hold computes on it (spec 16.3b).

    A hold on such a device would wait for that process; who has it booked keeps it.
    """
    healthy = device.health.state is HealthState.HEALTHY
    return healthy and not device.mig_enabled and not device.in_use
