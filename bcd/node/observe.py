"""Looks at disk and hardware once, at the start of a pass."""

from dataclasses import replace

from bcd.model.host import HostFacts
from bcd.node.plan import Observed
from bcd.node.ports import GpuSnapshot, Ports
from bcd.node.reports import Reports


def observe(ports: Ports, reports: Reports) -> Observed:
    """Everything the planner looks at; raises OSError when a folder of our own is unreadable."""
    gpus = ports.gpus.snapshot()
    owed, held = reports.outbox.owed()
    return Observed(
        gpus=gpus,
        host=host_facts(ports, gpus),
        machines_memory_bytes=ports.host.machines_memory_bytes(),
        cdi=ports.cdi.read(),
        env=ports.env.read(),
        slices=ports.slices.read(),
        slice_problem=ports.slices.problem(),
        bound=reports.bound(),
        owed=owed,
        held=held,
    )


def host_facts(ports: Ports, gpus: GpuSnapshot) -> HostFacts:
    """The host's facts with the driver's versions, which only the GPUs' driver knows."""
    return replace(
        ports.host.facts(),
        driver_version=gpus.driver_version,
        cuda_version=gpus.cuda_version,
    )
