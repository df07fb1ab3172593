"""What every ``Slices`` does, as plain functions: this suite runs them, and so does a real host.

They import little, since the real host is an emulated one.
"""

from collections.abc import Callable

from bcd.model.assignment import Limits
from bcd.model.ids import AllocationId, type_id
from bcd.node.limits import enforced
from bcd.node.ports import Slices

# Puts a process into the first allocation's slice, or ends it.
Populate = Callable[[bool], None]
Case = Callable[[Slices, Populate], None]
GIB = 1 << 30
ID = AllocationId(type_id("alloc", 1_700_000_000_001, (1).to_bytes(10, "big")))
LIMITS = Limits(cpu_millis=1500, memory_bytes=GIB, hugepages_1gi=2, cpus="0-3", mems="0")


def a_host_without_slices_has_none(slices: Slices, _populate: Populate) -> None:
    assert slices.read() == {}
    assert slices.problem() == ""


def an_ensured_slice_reads_back_with_its_limits(slices: Slices, _populate: Populate) -> None:
    assert slices.ensure(ID, LIMITS) is None
    assert slices.ensure(ID, LIMITS) is None
    [(id_, state)] = slices.read().items()
    assert (id_, state.limits, state.empty, state.surprise) == (ID, LIMITS, True, "")


def ensuring_other_limits_changes_them(slices: Slices, _populate: Populate) -> None:
    other = Limits(cpu_millis=8000, memory_bytes=2 * GIB, hugepages_1gi=0)
    assert slices.ensure(ID, LIMITS) is None
    assert slices.ensure(ID, other) is None
    assert slices.read()[ID].limits == other


def limits_that_no_host_can_hold_exactly_are_rounded_up(
    slices: Slices, _populate: Populate
) -> None:
    odd = Limits(cpu_millis=1234, memory_bytes=GIB + 1, hugepages_1gi=0, cpus="1,0")
    assert slices.ensure(ID, odd) is None
    found = slices.read()[ID].limits
    assert found == enforced(odd) != odd
    assert found.cpu_millis >= odd.cpu_millis
    assert found.memory_bytes >= odd.memory_bytes


def limits_of_zero_leave_cpu_and_memory_open(slices: Slices, _populate: Populate) -> None:
    assert slices.ensure(ID, LIMITS) is None
    opened = Limits(cpu_millis=0, memory_bytes=0, hugepages_1gi=0)
    assert slices.ensure(ID, opened) is None
    assert slices.read()[ID].limits == opened


def a_slice_with_a_process_is_never_stopped(slices: Slices, populate: Populate) -> None:
    assert slices.ensure(ID, LIMITS) is None
    populate(True)
    assert not slices.read()[ID].empty
    assert not slices.stop(ID)
    assert slices.read()[ID].limits == LIMITS
    assert slices.read()[ID].surprise == ""
    populate(False)
    assert slices.read()[ID].empty
    assert slices.stop(ID)
    assert slices.read() == {}


def stopping_what_is_gone_succeeds(slices: Slices, _populate: Populate) -> None:
    assert slices.stop(ID)
    assert slices.stop(ID)


CASES: tuple[Case, ...] = (
    a_host_without_slices_has_none,
    an_ensured_slice_reads_back_with_its_limits,
    ensuring_other_limits_changes_them,
    limits_that_no_host_can_hold_exactly_are_rounded_up,
    limits_of_zero_leave_cpu_and_memory_open,
    a_slice_with_a_process_is_never_stopped,
    stopping_what_is_gone_succeeds,
)
