"""The ports of a simulated host: GPUs and slices are made up, everything else is real."""

from collections.abc import Callable

from bcd.model.ids import NodeId
from bcd.node.host.machine import host_ports
from bcd.node.ports import Clock, Ports
from bcd.node.settings import Paths
from bcd.sim.gpus import SimulatedGpus
from bcd.sim.machine import build_machine
from bcd.sim.mps import SimulatedMps
from bcd.sim.slices import SimulatedSlices


def simulated_ports(
    profile: str, *, hostname: str = "", clock: Clock | None = None
) -> Callable[[Paths, NodeId], Ports]:
    """What ``open_daemon`` wants to be told: makes the scratch root and the ports on it.

    UUIDs follow from the node's id. Raises BadConfiguration, see ``build_machine``.
    """

    def make(paths: Paths, node_id: NodeId) -> Ports:
        name = hostname or f"sim-{node_id[-6:]}"
        machine = build_machine(paths.root, profile, seed=node_id, hostname=name)
        return host_ports(
            paths,
            gpus=SimulatedGpus(machine),
            slices=SimulatedSlices(paths.root),
            mps=SimulatedMps(paths.root),
            clock=clock,
        )

    return make
