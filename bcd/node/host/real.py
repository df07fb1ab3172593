"""The ports of a real host: NVML in a child, systemd's slices, MPS daemons, the driver's files."""

import time
from pathlib import Path

from bcd.model.ids import NodeId
from bcd.model.report import Failed, FailureReason
from bcd.node.host.doctor.patient import NvmlAnswer
from bcd.node.host.driver import DriverRoot
from bcd.node.host.machine import MakePorts, host_ports
from bcd.node.host.mps import MpsDaemons
from bcd.node.host.nvml.gpus import NvmlGpus
from bcd.node.host.nvml.process import Launch
from bcd.node.host.systemd.conversation import SystemdUnits
from bcd.node.host.systemd.slices import SystemdSlices
from bcd.node.ports import GpuSnapshot, Ports
from bcd.node.settings import Paths, Settings

_LOOK_S = 0.05


def real_ports(settings: Settings) -> MakePorts:
    """What ``open_daemon`` wants to be told; the GPUs are first looked at when the daemon runs."""

    def make(paths: Paths, _node_id: NodeId) -> Ports:
        units = SystemdUnits(paths.root)
        return host_ports(
            paths,
            gpus=_gpus(paths.root, settings),
            slices=SystemdSlices(paths.root, cdi=paths.cdi, units=units),
            mps=MpsDaemons(paths.run / "mps", units),
        )

    return make


def look_once(root: Path, settings: Settings) -> NvmlAnswer | Failed:
    """One look through NVML, without a daemon; returns within NVML's own deadlines."""
    gpus = _gpus(root, settings)
    gpus.start(lambda: None)
    try:
        found = _first(gpus, settings.nvml.init_seconds + settings.nvml.deadline_seconds)
    finally:
        gpus.close()
    if found.unavailable is not None:
        return found.unavailable
    if found.waiting:
        return Failed(FailureReason.DRIVER_UNAVAILABLE, found.waiting)
    whole = sum(device.gpu == device.id for device in found.devices)
    return NvmlAnswer(found.driver_version, whole)


def _first(gpus: NvmlGpus, patience_s: float) -> GpuSnapshot:
    deadline = time.monotonic() + patience_s
    while (found := gpus.snapshot()).waiting and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return found


def _gpus(root: Path, settings: Settings) -> NvmlGpus:
    folder = settings.cdi.driver_root
    driver = DriverRoot(root, folder, settings.cdi.hook)
    # A driver in a container brings its NVML along.
    launch = Launch() if folder == "/" else Launch(driver_root=str(root / folder.lstrip("/")))
    return NvmlGpus(root, driver, settings.nvml, launch)
