"""NVIDIA's GPUs as the kernel sees them on the PCI bus, whatever their driver says.

Documentation/PCI/sysfs-pci.rst and Documentation/ABI/testing/sysfs-bus-pci of the Linux kernel.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bcd.model.cpuset import MalformedCpuList, parse_cpulist

_NVIDIA = "0x10de"
# VGA and 3D controllers (pci.ids).
_CLASSES = ("0x0300", "0x0302")
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A GPU's address as sysfs writes it, its host NUMA node, and its driver, empty without one.

    ``numa_node`` is None where the firmware does not say (-1).
    """

    address: str
    numa_node: int | None
    driver: str = ""


def pci_gpus(root: Path) -> tuple[PciGpu, ...]:
    """Every NVIDIA GPU, ascending by address; virtual functions are none."""
    return tuple(_scan(f"{str(root).rstrip('/')}/sys/bus/pci/devices"))


def _scan(folder: str) -> Iterator[PciGpu]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        path = f"{folder}/{name}"
        if _text(f"{path}/vendor") != _NVIDIA or not _text(f"{path}/class").startswith(_CLASSES):
            continue
        if os.path.lexists(f"{path}/physfn"):
            continue
        yield PciGpu(name, _numa_node(path), _driver(path))


def numa_with_cpus(root: Path, node: int | None) -> int | None:
    """The node itself when it has CPUs, else the nearest that has; None when none has.

    Coherent platforms have nodes of memory only (Documentation/admin-guide/mm/numaperf.rst).
    """
    folder = f"{str(root).rstrip('/')}/sys/devices/system/node"
    if node is None or _text(f"{folder}/node{node}/cpulist"):
        return node
    far = _text(f"{folder}/node{node}/distance").split()
    online = _ids(_text(f"{folder}/online"))
    near = [
        (int(distance), other)
        for other, distance in zip(online, far, strict=False)
        if distance.isdecimal() and _text(f"{folder}/node{other}/cpulist")
    ]
    return min(near)[1] if near else None


def _ids(cpulist: str) -> list[int]:
    try:
        return sorted(parse_cpulist(cpulist))
    except MalformedCpuList:
        return []


def _numa_node(path: str) -> int | None:
    text = _text(f"{path}/numa_node")
    return int(text) if text.isascii() and text.isdecimal() else None


def _driver(path: str) -> str:
    try:
        return os.path.basename(os.readlink(f"{path}/driver"))
    except OSError:
        return ""


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""
