"""Looks at disk and hardware once, at the start of a pass."""

from collections.abc import Iterable
from dataclasses import replace

from bcd.model.assignment import DesiredState
from bcd.model.host import HostFacts
from bcd.model.ids import AllocationId
from bcd.node.plan import Observed
from bcd.node.ports import CdiFiles, GpuSnapshot, Ports
from bcd.node.reports import Reports


def observe(
    ports: Ports,
    reports: Reports,
    desired: DesiredState | None = None,
    overdue: frozenset[AllocationId] = frozenset(),
) -> Observed:
    """Everything the planner looks at; raises OSError when a folder of our own is unreadable.

    Only devices that ``desired`` gives to holds that do not stand are asked whether they are busy.
    """
    gpus = ports.gpus.snapshot()
    owed, held = reports.outbox.owed()
    cdi = ports.cdi.read()
    wanted = tuple(_wanted_anew(desired, cdi))
    return Observed(
        gpus=gpus,
        host=host_facts(ports, gpus),
        machines=ports.host.machines(),
        cdi=cdi,
        env=ports.env.read(),
        slices=ports.slices.read(),
        slice_problem=ports.slices.problem(),
        mps=ports.mps.read(),
        bound=reports.bound(),
        owed=owed,
        held=held,
        busy=ports.gpus.busy(wanted) if wanted else frozenset(),
        overdue=overdue,
    )


def _wanted_anew(desired: DesiredState | None, cdi: CdiFiles) -> Iterable[str]:
    standing = {spec.allocation_id for spec in cdi.own if not spec.device_class}
    for assignment in desired.assignments if desired is not None else ():
        if assignment.allocation_id not in standing:
            yield from (device.id for device in assignment.devices)


def host_facts(ports: Ports, gpus: GpuSnapshot) -> HostFacts:
    """The host's facts with the driver's versions, which only the GPUs' driver knows."""
    return replace(
        ports.host.facts(),
        driver_version=gpus.driver_version,
        cuda_version=gpus.cuda_version,
    )
