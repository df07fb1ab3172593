"""Limits of a hold (spec 6.5), judged by the daemon's own admission on the same host."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.model.assignment import AssignedDevice, HostReserve, Limits
from bcd.model.cpuset import parse_cpulist
from bcd.model.device import DeviceClass
from bcd.model.host import HostFacts, HugePagePool, NumaNode
from bcd.model.ids import AllocationId
from bcd.model.reservation import Resources
from bcd.model.units import GIB
from bcd.node.fit import Capacity, Ledger
from bcd.node.hold import Hold
from bcd.node.limits import enforced
from bcd.node.ports import MachinesUse
from bcd.placer.lifecycle.limits import Host, limits_of
from tests.placer.world import gpu, host_of

RESERVE = HostReserve(2, 4 * GIB)
PAGES = (HugePagePool(1 << 30, 16), HugePagePool(2 << 20, 512))
HOST = host_of(64, 1024, pages=PAGES)


def limits(
    booked: Resources, *numa: int | None, host: HostFacts = HOST, others: tuple[Limits, ...] = ()
) -> Limits:
    found = limits_of(booked, numa, Host(facts=host, reserve=RESERVE, others=others))
    assert found is not None
    return found


def test_a_hold_that_books_nothing_has_no_limits() -> None:
    assert limits_of(Resources(), (0,), Host(facts=HOST, reserve=RESERVE)) is None


def test_amounts_are_those_booked() -> None:
    found = limits(Resources(vcpu=12, memory_gib=100, hugepages_1gi=3), 0)
    assert (found.cpu_millis, found.memory_bytes, found.hugepages_1gi) == (12_000, 100 * GIB, 3)


def test_a_hold_lies_on_its_devices_nodes_and_off_the_reserve() -> None:
    assert (limits(Resources(vcpu=1, memory_gib=1), 0).cpus) == "2-31"
    second = limits(Resources(vcpu=32, memory_gib=1), 1, 1)
    assert (second.cpus, second.mems) == ("32-63", "1")
    both = limits(Resources(vcpu=62, memory_gib=900), 0, 1)
    assert (both.cpus, both.mems) == ("2-63", "0-1")


@pytest.mark.parametrize(("vcpu", "cpus"), [(30, "2-31"), (31, ""), (62, "")])
def test_the_reserve_counts_against_the_cpus(vcpu: int, cpus: str) -> None:
    assert limits(Resources(vcpu=vcpu), 0).cpus == cpus


@pytest.mark.parametrize(("memory", "mems"), [(495, "0"), (496, ""), (900, "")])
def test_huge_pages_count_against_the_memory(memory: int, mems: str) -> None:
    """A node has 512 GiB, 17 of them in pools of pages; the reserve has room on the other."""
    assert limits(Resources(memory_gib=memory), 0).mems == mems


def test_pages_that_the_nodes_lack_leave_the_memory_open() -> None:
    assert limits(Resources(memory_gib=1, hugepages_1gi=16), 0).mems == "0"
    assert limits(Resources(memory_gib=1, hugepages_1gi=17), 0).mems == ""


def test_memory_that_other_holds_have_is_not_there() -> None:
    other = limits(Resources(memory_gib=400), 0)
    assert limits(Resources(memory_gib=95), 0, others=(other,)).mems == "0"
    assert limits(Resources(memory_gib=96), 0, others=(other,)).mems == ""


def test_who_may_lie_anywhere_makes_room() -> None:
    anywhere = replace(limits(Resources(memory_gib=500), None), mems="")
    assert limits(Resources(memory_gib=400), 0, others=(anywhere,)).mems == "0"


def test_a_hold_without_a_limit_on_memory_may_need_any_of_it() -> None:
    assert limits(Resources(vcpu=4), 0).mems == ""


@pytest.mark.parametrize("numa", [(None,), (0, None), (7,), (0, 7), ()])
def test_devices_that_lie_nobody_knows_where_leave_both_open(numa: tuple[int | None, ...]) -> None:
    found = limits(Resources(vcpu=1, memory_gib=1), *numa)
    assert (found.cpus, found.mems) == ("", "")


def test_neither_isolated_nor_offline_cpus_are_given_nor_reserved() -> None:
    host = replace(
        HOST,
        online_cpus=frozenset(range(64)) - {1, 9},
        isolated_cpus=frozenset({0, 10, 11}),
    )
    assert limits(Resources(vcpu=1), 0, host=host).cpus == "4-8,12-31"


def test_a_node_without_memory_is_not_named_for_it() -> None:
    nodes = (*HOST.numa_nodes, NumaNode(2, frozenset({64, 65}), 0))
    host = replace(HOST, online_cpus=frozenset(range(66)), numa_nodes=nodes)
    found = limits(Resources(vcpu=2, memory_gib=1), 1, 2, host=host)
    assert (found.cpus, found.mems) == ("32-65", "1")


# What is worked out here is admitted there.

numbers = st.integers(0, 3)


@st.composite
def hosts(draw: st.DrawFn) -> HostFacts:
    """A host of some NUMA nodes, some without CPUs or memory, some CPUs isolated or offline."""
    nodes, start = [], 0
    for node_id in range(draw(st.integers(1, 4))):
        count, memory = draw(st.integers(0, 12)), draw(st.integers(0, 24))
        pages = draw(st.integers(0, memory))
        cpus = frozenset(range(start, start + count))
        nodes.append(NumaNode(node_id, cpus, memory * GIB, (HugePagePool(GIB, pages),)))
        start += count
    online = draw(st.frozensets(st.sampled_from(range(start)))) if start else frozenset()
    nodes = [replace(node, cpus=node.cpus & online) for node in nodes]
    return replace(
        HOST,
        online_cpus=online,
        isolated_cpus=draw(st.frozensets(st.integers(0, 50), max_size=6)),
        memory_bytes=sum(node.memory_bytes for node in nodes),
        numa_nodes=tuple(nodes),
    )


BOOKED = st.builds(
    Resources,
    vcpu=st.integers(0, 12),
    memory_gib=st.integers(0, 16),
    hugepages_1gi=st.sampled_from([0, 0, 1, 4]),
)
ASKS = st.lists(
    st.tuples(BOOKED, st.lists(st.sampled_from([0, 1, 2, 3, None]), min_size=1, max_size=4)),
    max_size=8,
)


@given(hosts(), st.builds(HostReserve, numbers, st.integers(0, 8).map(lambda n: n * GIB)), ASKS)
def test_the_daemon_admits_what_fits_the_host_by_its_sums(
    facts: HostFacts, reserve: HostReserve, asks: list[tuple[Resources, list[int | None]]]
) -> None:
    """As long as the sums that were booked fit, as the pool's lock sees to."""
    devices = {f"GPU-{i}": gpu(f"GPU-{i}") for i in range(len(asks))}
    ledger = Ledger(
        Capacity(
            devices=devices,
            host=facts,
            reserve=reserve,
            machines=MachinesUse(memory_bytes=0, hugepages_1gi=0),
            slice_problem="",
        )
    )
    pooled = sum(p.page_bytes * p.total for n in facts.numa_nodes for p in n.huge_pages)
    memory = facts.memory_bytes - pooled - reserve.memory_bytes
    pages = sum(p.total for n in facts.numa_nodes for p in n.huge_pages)
    given_out: list[Limits] = []
    for number, (booked, numa) in enumerate(asks):
        memory -= booked.memory_gib * GIB
        pages -= booked.hugepages_1gi
        if memory < 0 or pages < 0:
            return
        host = Host(facts=facts, reserve=reserve, others=tuple(given_out))
        found = limits_of(booked, numa, host)
        device = AssignedDevice(f"GPU-{number}", DeviceClass.GPU)
        hold = Hold(AllocationId(f"alloc_{number}"), (device,), found)
        assert ledger.admit(hold) is None
        ledger.enter(hold)
        if found is not None:
            assert enforced(found) == found
            reserved = sorted(facts.online_cpus - facts.isolated_cpus)[: reserve.vcpu]
            cpus = parse_cpulist(found.cpus)
            assert cpus.isdisjoint(reserved)
            assert not cpus or len(cpus) >= booked.vcpu
            given_out.append(found)
