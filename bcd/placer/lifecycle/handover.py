"""Fixes how a reservation's allocations are handed to their nodes, at its start (spec 6.5).

What was fixed stays with the allocation: a later desired state of the node says the same again.
"""

from collections.abc import Sequence
from dataclasses import replace

from bcd.model.assignment import AssignedDevice, Binding, HostReserve, Limits
from bcd.model.device import DeviceClass
from bcd.model.host import Inventory
from bcd.model.pool import PoolPolicy
from bcd.model.units import GIB
from bcd.placer.capacity.hosts import newest_inventory
from bcd.placer.lifecycle.limits import Host, limits_of
from bcd.placer.lifecycle.slots import sharing_of
from bcd.store import allocations
from bcd.store.allocations import Allocation
from bcd.store.database import Transaction
from bcd.store.reservations import StoredReservation


def hand_over(
    tx: Transaction, policy: PoolPolicy, row: StoredReservation, mine: Sequence[Allocation]
) -> None:
    """Record limits, binding and sharing of each allocation of a reservation that starts.

    Call under the pool's lock, before the nodes are assigned.
    """
    for allocation in mine:
        others = [a for a in allocations.on_node(tx, allocation.node_id) if a.id != allocation.id]
        allocations.hand_over(
            tx,
            replace(
                allocation,
                limits=_limits(tx, policy, row, allocation, others),
                binding=row.request.binding,
                sharing=sharing_of(
                    allocation.devices, policy.sharing, ((a.devices, a.sharing) for a in others)
                ),
            ),
        )


def _limits(
    tx: Transaction,
    policy: PoolPolicy,
    row: StoredReservation,
    allocation: Allocation,
    others: Sequence[Allocation],
) -> Limits | None:
    """Without CPUs and memory of its own where the kubelet, and no slice of ours, keeps a hold."""
    if not row.resources:
        return None
    inventory = None
    if row.request.binding is not Binding.KUBERNETES:
        inventory = newest_inventory(tx, allocation.node_id)
    if inventory is None:
        return limits_of(row.resources, (), None)
    reserve = policy.host_reserve
    host = Host(
        facts=inventory.host,
        reserve=HostReserve(reserve.vcpu, reserve.memory_gib * GIB),
        others=tuple(other.limits for other in others if other.limits is not None),
    )
    return limits_of(row.resources, _numa(inventory, allocation.devices), host)


def _numa(inventory: Inventory, devices: Sequence[AssignedDevice]) -> list[int | None]:
    """Where each device lies: a slot where its GPU does, None for one that is not there."""
    known = {device.id: device.numa_node for device in inventory.devices}
    return [
        known.get(d.id.rpartition("::")[0] if d.device_class is DeviceClass.SLOT else d.id)
        for d in devices
    ]
