"""A host that came back with less than its holds need: instances, CPUs, NUMA nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from bcd.model.assignment import Limits
from bcd.model.cpuset import parse_cpulist
from bcd.model.host import HostFacts
from bcd.model.ids import AllocationId
from bcd.model.report import Failed, FailureReason
from bcd.node.ports import SliceState
from tests.node.memory import HOST, MIG, SPLIT, WHOLE, MemoryHostWorld, MemorySlices, snapshot
from tests.node.passes import Node, bound, conditions, failure, state
from tests.node.world import alloc_id, assignment, limits


def test_a_mig_instance_that_a_reboot_took_keeps_its_hold_and_takes_no_new_one() -> None:
    node = Node()
    held, other = assignment(1, MIG[0]), assignment(2, MIG[1])
    node.run(state(held))
    before = node.world.state()
    node.world.gpus.found = snapshot((*WHOLE, SPLIT))
    node.restart()
    node.run(state(held, other))
    assert (node.world.state()[1:], bound(node, 1)) == (before[1:], True)
    assert list(node.world.cdi.files) == [f"bcd-{alloc_id(1)}.json"]
    assert conditions(node) == ["DeviceLost"]
    assert failure(node, 2) == FailureReason.UNKNOWN_DEVICE


@pytest.mark.parametrize(
    "host",
    [
        replace(HOST, online_cpus=frozenset(range(8))),
        replace(HOST, isolated_cpus=frozenset({9})),
        replace(HOST, numa_nodes=HOST.numa_nodes[:1]),
    ],
)
def test_cpus_and_nodes_that_went_away_under_a_hold_are_said_and_cost_nothing(
    host: HostFacts,
) -> None:
    node = Node()
    confined = assignment(1, WHOLE[0], limits=limits(cpus="6-9", mems="0-1"))
    node.run(state(confined))
    before = node.world.state()
    node.world.host.found = host
    assert node.run(state(confined)).steps == ()
    assert (node.world.state(), bound(node, 1)) == (before, True)
    assert conditions(node) == ["CpusetLost"]
    node.world.host.found = HOST
    node.run(state(confined))
    assert conditions(node) == []


@dataclass
class NarrowedSlices(MemorySlices):
    """Slices of holds below one that a person limited."""

    above: str = ""

    def read(self) -> Mapping[AllocationId, SliceState]:
        return {id_: replace(state, narrowed=self.above) for id_, state in super().read().items()}


def test_limits_above_a_hold_that_stands_are_said_and_cost_nothing() -> None:
    slices = NarrowedSlices()
    node = Node(MemoryHostWorld(slices=slices))
    wanted = state(assignment(1, WHOLE[0], limits=limits()))
    node.run(wanted)
    slices.above = "bcd.slice/memory.max is '4096' and should be 'max'"
    assert node.run(wanted).steps == ()
    assert bound(node, 1)
    assert conditions(node) == ["SliceNarrowed"]
    slices.above = ""
    node.run(wanted)
    assert conditions(node) == []


@dataclass
class FewerCpus(MemorySlices):
    """A host whose systemd applies no CPU that the kernel does not know."""

    known: frozenset[int] = HOST.online_cpus

    def ensure(self, allocation_id: AllocationId, limits: Limits) -> Failed | None:
        if not parse_cpulist(limits.cpus) <= self.known:
            return Failed(FailureReason.SLICE_FAILED, "cpuset.cpus is ''")
        return super().ensure(allocation_id, limits)


def test_after_a_reboot_onto_fewer_cpus_the_hold_that_needs_them_fails_and_comes_back() -> None:
    slices = FewerCpus()
    node = Node(MemoryHostWorld(slices=slices))
    wanted = state(
        assignment(1, WHOLE[0], limits=limits(cpus="0-3")),
        assignment(2, WHOLE[1], limits=limits(cpus="12-13")),
    )
    node.run(wanted)
    before = node.world.state()
    slices.slices.clear()
    slices.known = frozenset(range(8))
    node.world.host.found = replace(HOST, online_cpus=slices.known)
    node.restart()
    node.run(wanted)
    assert bound(node, 1)
    assert failure(node, 2) == FailureReason.SLICE_FAILED
    assert conditions(node) == ["CpusetLost"]
    slices.known = HOST.online_cpus
    node.world.host.found = HOST
    node.run(wanted)
    assert bound(node, 2)
    assert node.world.state() == before
