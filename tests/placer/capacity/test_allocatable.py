"""What a host leaves to be booked (spec 6.1)."""

from dataclasses import replace
from fractions import Fraction

import pytest

from bcd.model.host import HostFacts, HugePagePool, NumaNode
from bcd.model.pool import HostReservePolicy
from bcd.placer.capacity.allocatable import Allocatable, allocatable, sold
from tests.placer.placement.machines import mig_host
from tests.placer.world import dgx, host_of, inventory_of

RESERVE = HostReservePolicy()
PAGES = (HugePagePool(2 << 20, 1024), HugePagePool(1 << 30, 32), HugePagePool(64 << 10, 16))


def left(host: HostFacts, reserve: HostReservePolicy = RESERVE) -> Allocatable | None:
    return allocatable(inventory_of(dgx("a"), host=host), reserve)


def test_what_is_left_is_what_neither_reserve_nor_huge_pages_have() -> None:
    """2 CPUs and 4 GiB of reserve; 2 x 34 GiB and 1 MiB of pages leave 951.99 GiB."""
    assert left(host_of(64, 1024, pages=PAGES)) == Allocatable(
        vcpu=62, memory_gib=951, hugepages_2mi=2048, hugepages_1gi=64, gpus=8
    )


def test_isolated_and_offline_cpus_are_nobodys() -> None:
    host = replace(
        host_of(64), online_cpus=frozenset(range(60)), isolated_cpus=frozenset(range(40, 64))
    )
    found = left(host)
    assert found is not None
    assert found.vcpu == 38


def test_a_reserve_beyond_the_host_leaves_nothing_and_not_less() -> None:
    found = left(host_of(8, 16), HostReservePolicy(vcpu=9, memory_gib=17))
    assert found is not None
    assert (found.vcpu, found.memory_gib) == (0, 0)


@pytest.mark.parametrize(
    "host",
    [
        replace(host_of(), online_cpus=frozenset()),
        replace(host_of(), isolated_cpus=frozenset(range(64))),
        replace(host_of(), memory_bytes=0),
        replace(host_of(), memory_bytes=(1 << 64) - 1),
        host_of(64, 64, pages=(HugePagePool(1 << 30, 40),)),
        host_of(64, 64, pages=(HugePagePool(1 << 30, (1 << 64) - 1),)),
        replace(host_of(), numa_nodes=(NumaNode(0, frozenset(), 0, (HugePagePool(1 << 50, 9),)),)),
    ],
    ids=["no CPUs", "all isolated", "no memory", "absurd memory", "more pages than memory",
         "absurd pages", "absurd page size"],
)  # fmt: skip
def test_a_host_that_does_not_say_leaves_nothing_to_book(host: HostFacts) -> None:
    assert left(host) is None


def test_every_physical_gpu_counts_once_bookable_or_not() -> None:
    devices = [*mig_host("m", 2, 7), *dgx("a", 2)]
    found = allocatable(inventory_of(devices), RESERVE)
    assert found is not None
    assert found.gpus == 4


@pytest.mark.parametrize(
    ("amount", "ratio", "given"), [(62, "1", 62), (61, "1.5", 91), (7, "0.5", 3), (0, "100", 0)]
)
def test_a_ratio_sells_whole_units(amount: int, ratio: str, given: int) -> None:
    assert sold(amount, Fraction(ratio)) == given
