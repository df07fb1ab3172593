"""What a host's inventory leaves to be booked (spec 6.1). Pure."""

from dataclasses import dataclass
from fractions import Fraction

from bcd.model.host import HostFacts, Inventory
from bcd.model.pool import HostReservePolicy
from bcd.model.units import GIB

PAGE_2MI = 2 << 20
PAGE_1GI = 1 << 30
# Beyond it a figure is no host's, and sums of figures would leave 64 bits.
_MAX_MEMORY_BYTES = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocatable:
    """Amounts of one host beside its reserve; ``gpus`` are its physical GPUs, bookable or not."""

    vcpu: int
    memory_gib: int
    hugepages_2mi: int
    hugepages_1gi: int
    gpus: int


def allocatable(inventory: Inventory, reserve: HostReservePolicy) -> Allocatable | None:
    """What a host leaves for reservations; None where its inventory does not say, or absurdly.

    CPUs: those that are online and not isolated (no hold may use isolated ones), less the reserve.
    Memory: all of it, less the pools of huge pages of every size (whose memory nobody else can
    have), less the reserve, in whole GiB. Huge pages: as many as the pools have. None below zero.
    """
    host = inventory.host
    cpus = usable_cpus(host)
    pooled = sum(pool_bytes(host))
    if not cpus or not 0 < host.memory_bytes <= _MAX_MEMORY_BYTES or pooled > host.memory_bytes:
        return None
    memory_bytes = host.memory_bytes - pooled - reserve.memory_gib * GIB
    return Allocatable(
        vcpu=max(0, len(cpus) - reserve.vcpu),
        memory_gib=max(0, memory_bytes) // GIB,
        hugepages_2mi=_pages(host, PAGE_2MI),
        hugepages_1gi=_pages(host, PAGE_1GI),
        gpus=len({device.gpu for device in inventory.devices}),
    )


def usable_cpus(host: HostFacts) -> frozenset[int]:
    """CPUs that a hold could be given, those of the host's reserve included."""
    return host.online_cpus - host.isolated_cpus


def pool_bytes(host: HostFacts) -> list[int]:
    """The memory in the huge page pools of each NUMA node, in the nodes' order."""
    return [
        sum(pool.page_bytes * pool.total for pool in node.huge_pages) for node in host.numa_nodes
    ]


def _pages(host: HostFacts, page_bytes: int) -> int:
    return sum(
        pool.total
        for node in host.numa_nodes
        for pool in node.huge_pages
        if pool.page_bytes == page_bytes
    )


def sold(amount: int, ratio: Fraction) -> int:
    """How much of an amount may be booked under a pool's ratio: rounded down, once."""
    return int(amount * ratio)
