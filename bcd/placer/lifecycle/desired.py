"""Makes a node's desired state from its allocations. Pure."""

from collections.abc import Iterable

from bcd.model.assignment import Assignment, DesiredState, HostReserve
from bcd.model.ids import NodeId
from bcd.model.pool import PoolPolicy
from bcd.model.units import GIB


def desired_state(
    node_id: NodeId,
    version: tuple[int, int],
    policy: PoolPolicy,
    assignments: Iterable[Assignment],
) -> DesiredState:
    """The full state of a node at (epoch, generation); assignments ascend by allocation."""
    reserve = policy.host_reserve
    return DesiredState(
        node_id=node_id,
        epoch=version[0],
        generation=version[1],
        host_reserve=HostReserve(reserve.vcpu, reserve.memory_gib * GIB),
        assignments=tuple(sorted(assignments, key=lambda entry: entry.allocation_id)),
    )
