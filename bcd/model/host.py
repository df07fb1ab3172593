"""A node's host: CPUs, NUMA nodes, memory, huge pages, and the inventory that joins the devices."""

from dataclasses import dataclass
from fractions import Fraction

from bcd.model.device import Device


@dataclass(frozen=True, slots=True)
class HugePagePool:
    """Huge pages of one size on one NUMA node."""

    page_bytes: int
    total: int


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node; ``cpus`` are its online CPUs, empty for a memory-only node."""

    id: int
    cpus: frozenset[int]
    memory_bytes: int
    huge_pages: tuple[HugePagePool, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What the host's /proc and /sys say, and the driver's versions (empty when unknown).

    ``memory_bytes`` is MemTotal and includes the huge page pools. NUMA nodes ascend by id.
    """

    hostname: str
    boot_id: str
    kernel: str
    driver_version: str
    cuda_version: str
    online_cpus: frozenset[int]
    isolated_cpus: frozenset[int]
    memory_bytes: int
    numa_nodes: tuple[NumaNode, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything a node knows of its hardware; devices in the node's own order."""

    host: HostFacts
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class PerGpu:
    """What a host leaves for each of its physical GPUs, exactly: CPUs, and memory in GiB."""

    vcpu: Fraction
    memory_gib: Fraction
