"""What has to hold on a host with NVIDIA GPUs. Run there with ``pytest --hardware tests/hardware``.

The plain suite runs the same checks on the stub, so that they stay right where no GPU is. Each
takes a ``Subject`` whose ``gpus`` have answered.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from bcd.model.device import DeviceClass, HealthState
from bcd.node.cdi_format import is_device_name
from bcd.node.host.kernel_module import kernel_version
from bcd.node.host.nvml.gpus import NvmlGpus
from bcd.node.host.pci import pci_gpus

Occupy = Callable[[str], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Subject:
    """GPUs below a root; ``occupy`` puts a compute process on one of them for a while."""

    gpus: NvmlGpus
    root: Path
    occupy: Occupy


@contextlib.contextmanager
def answering(gpus: NvmlGpus, wait_s: float = 120.0) -> Iterator[float]:
    """Start, wait for the first answer, and end; gives the seconds that it took."""
    woken = threading.Event()
    began = time.monotonic()
    gpus.start(woken.set)
    try:
        assert woken.wait(wait_s)
        yield time.monotonic() - began
    finally:
        gpus.close()


def check_inventory(subject: Subject) -> None:
    """NVML, the kernel and the bus agree on what there is."""
    found = subject.gpus.snapshot()
    assert (found.unavailable, found.waiting) == (None, "")
    assert found.driver_version == kernel_version(subject.root)
    assert found.cuda_version
    whole = [device for device in found.devices if device.device_class is DeviceClass.GPU]
    assert whole
    on_bus = {gpu.address: gpu for gpu in pci_gpus(subject.root)}
    for device in found.devices:
        assert is_device_name(device.id)
        assert device.model
        assert device.memory_bytes > 1 << 28
        assert device.pci_address in on_bus
        assert found.edits[device.id].nodes
    assert {device.gpu for device in found.devices} == {device.id for device in whole}
    assert found == subject.gpus.snapshot()


def check_health(subject: Subject) -> None:
    """Every device is judged, and one that is not healthy says why."""
    devices = subject.gpus.snapshot().devices
    assert devices
    for device in devices:
        assert device.health.state is not HealthState.UNKNOWN
        assert bool(device.health.reason) is (device.health.state is not HealthState.HEALTHY)


def check_links(subject: Subject) -> None:
    """Peers are GPUs of this host, and both ends say so."""
    by_id = {device.id: device for device in subject.gpus.snapshot().devices}
    assert by_id
    for device in by_id.values():
        assert device.id not in device.nvlink_peers
        assert all(device.id in by_id[peer].nvlink_peers for peer in device.nvlink_peers)
        assert not (device.mig_enabled and (device.nvlink_peers or device.nvlink_domain))


def check_preparation(subject: Subject) -> None:
    """What is there and whole can be handed over; what is not there cannot."""
    found = subject.gpus.snapshot()
    assert found.problems == {}
    assert subject.gpus.prepare(tuple(found.edits)) is None
    assert subject.gpus.prepare(("GPU-of-another-host",)) is not None


def check_busy(subject: Subject) -> None:
    """A compute process makes its device busy, while it runs and no longer."""
    found = subject.gpus.snapshot()
    device = next(device for device in found.devices if not device.mig_enabled)
    ids = tuple(found.edits)
    before = subject.gpus.busy(ids)
    assert device.id not in before
    with subject.occupy(device.id):
        assert subject.gpus.busy(ids) == before | {device.id}
    end = time.monotonic() + 20
    while subject.gpus.busy(ids) != before:
        assert time.monotonic() < end


def check_child(subject: Subject) -> None:
    """The child is small, and one that is killed is replaced without a word."""
    before = subject.gpus.snapshot()
    [child] = _children()
    print(f"NVML child: {child.memory_info().rss >> 20} MiB resident")
    child.kill()
    end = time.monotonic() + 60
    while not [other for other in _children() if other != child]:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert subject.gpus.snapshot().unavailable is None
    assert [d.id for d in subject.gpus.snapshot().devices] == [d.id for d in before.devices]


def _children() -> list[psutil.Process]:
    return [child for child in psutil.Process(os.getpid()).children() if _is_nvml(child)]


def _is_nvml(child: psutil.Process) -> bool:
    try:
        return "bcd.node.host.nvml.child" in child.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


CHECKS = (
    check_inventory,
    check_health,
    check_links,
    check_preparation,
    check_busy,
    check_child,
)
