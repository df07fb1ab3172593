"""Puts the ports together: what is real on every host, and those that may be simulated."""

from collections.abc import Callable

from bcd.model.ids import NodeId
from bcd.node.host.cdi import SpecFolders
from bcd.node.host.clock import SystemClock
from bcd.node.host.env import EnvFolder
from bcd.node.host.facts import ProcSysHost
from bcd.node.ports import Clock, Gpus, Mps, Ports, Slices
from bcd.node.settings import Paths

MakePorts = Callable[[Paths, NodeId], Ports]


def host_ports(
    paths: Paths, *, gpus: Gpus, slices: Slices, mps: Mps, clock: Clock | None = None
) -> Ports:
    """The ports of a host below ``paths.root``; raises OSError when a folder cannot be made."""
    return Ports(
        gpus=gpus,
        slices=slices,
        mps=mps,
        cdi=SpecFolders(paths.cdi, paths.cdi_dynamic),
        env=EnvFolder(paths.env),
        host=ProcSysHost(paths.root),
        clock=clock or SystemClock(),
    )
