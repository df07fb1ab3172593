"""The planner, pass by pass: what is wanted comes, the rest goes, and nothing else is touched."""

from dataclasses import replace
from typing import Any

import pytest

from bcd.model.assignment import Binding
from bcd.model.device import DeviceClass, Health, HealthState
from bcd.model.report import Bound, Failed, FailureReason
from bcd.node import cdi, steps
from bcd.node.execute import Executor
from bcd.node.hold import hold_of
from bcd.node.ports import ForeignSpec
from bcd.node.steps import StepName
from tests.node.memory import MIG, SLOTS, WHOLE, device, snapshot
from tests.node.passes import Node, bound, conditions, failure, releases, state
from tests.node.world import alloc_id, assignment, limits

LIMITED = assignment(1, WHOLE[0], WHOLE[1], limits=limits(cpus="0-3", mems="0"))
PLAIN = assignment(2, WHOLE[2])
MIXED = assignment(3, MIG[0], WHOLE[3], SLOTS[0])
MAIN = f"bcd-{alloc_id(1)}.json"


def test_a_bind_goes_slice_devices_env_spec() -> None:
    node = Node()
    node.run(state(LIMITED))
    assert node.done == [
        StepName.ENSURE_SLICE,
        StepName.PREPARE_DEVICES,
        StepName.WRITE_ENV,
        StepName.WRITE_SPEC,
    ]
    assert bound(node, 1)


def test_a_hold_without_limits_has_no_slice() -> None:
    node = Node()
    node.run(state(PLAIN))
    assert node.done == [StepName.PREPARE_DEVICES, StepName.WRITE_ENV, StepName.WRITE_SPEC]
    assert node.world.slices.slices == {}
    assert node.outcomes[alloc_id(2)] == Bound(
        ("bcd.dev/gpu=GPU-2",), f"/run/bcd/allocations/{alloc_id(2)}.env", ""
    )


def test_the_first_classs_file_is_the_last_step_of_a_mixed_hold() -> None:
    node = Node()
    files = [
        step.file for step in node.plan(state(MIXED)).steps if isinstance(step, steps.WriteSpec)
    ]
    assert files == [
        f"bcd-{alloc_id(3)}.gpu.json",
        f"bcd-{alloc_id(3)}.gpu.slot.json",
        f"bcd-{alloc_id(3)}.json",
    ]


def test_a_standing_hold_needs_no_step() -> None:
    node = Node()
    node.run(state(LIMITED, PLAIN, MIXED))
    assert node.run(state(LIMITED, PLAIN, MIXED)).steps == ()


def test_a_release_owes_its_report_then_goes_spec_env_and_stops_the_slice_last() -> None:
    node = Node()
    node.run(state(LIMITED))
    node.done.clear()
    node.run(state())
    assert node.done == [
        StepName.OWE_RELEASES,
        StepName.REMOVE_SPEC,
        StepName.REMOVE_ENV,
        StepName.FREE_RELEASE,
        StepName.STOP_SLICE,
    ]
    assert node.world.state() == ({}, {}, {}, {})
    assert releases(node) == [(alloc_id(1), True)]


def test_removals_come_before_additions() -> None:
    node = Node()
    node.run(state(PLAIN))
    names = [step.name for step in node.plan(state(assignment(4, WHOLE[2]))).steps]
    assert names.index(StepName.REMOVE_SPEC) < names.index(StepName.WRITE_SPEC)


def test_a_workload_that_outlives_its_hold_keeps_the_slice_and_its_memory() -> None:
    node = Node()
    node.run(state(LIMITED))
    node.world.slices.busy.add(alloc_id(1))
    node.run(state())
    assert alloc_id(1) in node.world.slices.slices
    assert conditions(node) == ["LingeringWorkload"]
    assert releases(node) == [(alloc_id(1), False)]
    node.run(state(assignment(5, WHOLE[0], limits=limits(memory_gib=200))))
    assert failure(node, 5) == FailureReason.RESOURCES_EXHAUSTED
    node.world.slices.busy.clear()
    node.run(state())
    assert node.world.slices.slices == {}
    assert releases(node) == [(alloc_id(1), False)]


def test_without_an_accepted_state_nothing_is_removed() -> None:
    node = Node()
    node.run(state(LIMITED, PLAIN))
    node.world.cdi.files["bcd-" + alloc_id(9) + ".json"] = b"{"
    before = node.world.state()
    node.restart()
    node.run(None)
    assert node.world.state() == before
    assert conditions(node) == ["CorruptSpec"]


def test_after_a_reboot_slices_and_env_files_come_back_from_the_specs_alone() -> None:
    node = Node()
    node.run(state(LIMITED, MIXED))
    before = node.world.state()
    node.world.env.files.clear()
    node.world.slices.slices.clear()
    node.restart()
    node.run(None)
    assert node.world.state() == before
    assert bound(node, 1)
    assert bound(node, 3)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", None])
def test_a_corrupt_spec_of_a_wanted_hold_is_written_again(content: bytes | None) -> None:
    node = Node()
    node.run(state(LIMITED))
    good = node.world.cdi.files[MAIN]
    node.world.cdi.files[MAIN] = content
    # Even where the device could take no new hold: what is on disk is the hold.
    sick = tuple(replace(d, health=Health(HealthState.UNHEALTHY, "Xid 79")) for d in WHOLE)
    node.world.gpus.found = snapshot(sick)
    node.run(state(LIMITED))
    assert node.world.cdi.files[MAIN] == good
    assert bound(node, 1)
    assert conditions(node) == ["CorruptSpec"]


def test_a_corrupt_spec_that_nobody_wants_is_taken_away() -> None:
    node = Node()
    node.world.cdi.files[MAIN] = b"{"
    node.run(state())
    assert node.world.cdi.files == {}
    assert releases(node) == [(alloc_id(1), True)]


def test_what_a_person_changed_is_repaired() -> None:
    node = Node()
    node.run(state(LIMITED))
    before = node.world.state()
    node.world.cdi.files[MAIN] = (node.world.cdi.files[MAIN] or b"").replace(b"GPU-0", b"GPU-3")
    node.world.env.files[alloc_id(1)] = b"CUDA_VISIBLE_DEVICES=all\n"
    node.world.slices.slices[alloc_id(1)] = limits(memory_gib=1)
    node.run(state(LIMITED))
    assert node.world.state() == before


def test_a_control_file_that_no_limits_explain_is_repaired_and_named() -> None:
    node = Node()
    node.run(state(LIMITED))
    node.world.slices.odd.add(alloc_id(1))
    node.run(state(LIMITED))
    assert node.last is not None
    assert [step.reason for step in node.last.steps] == ["swap is open"]
    node.run(state(LIMITED))
    assert node.last.steps == ()


def test_limits_that_a_host_rounds_are_set_once() -> None:
    node = Node()
    odd = assignment(1, WHOLE[0], limits=limits(cpu_millis=1234, cpus="1,0"))
    node.run(state(odd))
    node.run(state(odd))
    assert node.last is not None
    assert node.last.steps == ()


def test_what_a_person_removed_comes_back() -> None:
    node = Node()
    node.run(state(LIMITED))
    before = node.world.state()
    node.world.cdi.files.clear()
    node.world.env.files.clear()
    node.world.slices.slices.clear()
    node.run(state(LIMITED))
    assert node.world.state() == before
    assert bound(node, 1)


def test_a_release_is_owed_even_where_a_person_was_faster() -> None:
    node = Node()
    node.run(state(PLAIN))
    node.world.cdi.files.clear()
    node.run(state())
    assert releases(node) == [(alloc_id(2), True)]


def test_an_allocation_that_never_stood_owes_no_release() -> None:
    node = Node()
    node.world.gpus.failure = Failed(FailureReason.DEVICE_NODE_MISSING, "no node")
    node.run(state(LIMITED))
    assert failure(node, 1) == FailureReason.DEVICE_NODE_MISSING
    node.run(state())
    assert node.world.state() == ({}, {}, {}, {})
    assert releases(node) == []


def test_a_failed_step_is_tried_again_and_stops_no_other_hold() -> None:
    node = Node()
    node.world.slices.failure = Failed(FailureReason.SLICE_FAILED, "memory.max reads 0")
    node.run(state(LIMITED, PLAIN))
    assert failure(node, 1) == FailureReason.SLICE_FAILED
    assert bound(node, 2)
    assert MAIN not in node.world.cdi.files
    node.world.slices.failure = None
    node.run(state(LIMITED, PLAIN))
    assert bound(node, 1)


def test_an_unwritable_folder_fails_the_hold_with_its_reason() -> None:
    node = Node()
    node.world.cdi.broken.add(MAIN)
    node.run(state(LIMITED, PLAIN))
    assert failure(node, 1) == FailureReason.WRITE_FAILED
    assert bound(node, 2)


def test_a_new_hold_waits_until_its_device_has_left_the_old_spec() -> None:
    node = Node()
    node.run(state(PLAIN))
    old = f"bcd-{alloc_id(2)}.json"
    node.world.cdi.broken.add(old)
    successor, other = assignment(4, WHOLE[2]), assignment(5, WHOLE[3])
    node.run(state(successor, other))
    assert failure(node, 4) == FailureReason.DEVICE_IN_USE
    assert bound(node, 5)
    assert list(node.world.cdi.files) == [old, f"bcd-{alloc_id(5)}.json"]
    assert releases(node) == []  # its files are still there
    node.world.cdi.broken.clear()
    node.run(state(successor, other))
    assert bound(node, 4)
    assert releases(node) == [(alloc_id(2), True)]


def test_of_two_holds_on_one_device_the_standing_one_is_kept() -> None:
    node = Node()
    node.run(state(assignment(7, WHOLE[0])))
    node.run(state(assignment(6, WHOLE[0]), assignment(7, WHOLE[0])))
    assert bound(node, 7)
    assert failure(node, 6) == FailureReason.DEVICE_IN_USE


def test_of_two_standing_holds_on_one_device_the_older_is_kept() -> None:
    node, other = Node(), Node()
    node.run(state(assignment(7, WHOLE[0])))
    other.run(state(assignment(6, WHOLE[0])))
    node.world.cdi.files |= other.world.cdi.files
    node.run(state(assignment(6, WHOLE[0]), assignment(7, WHOLE[0])))
    assert bound(node, 6)
    assert failure(node, 7) == FailureReason.DEVICE_IN_USE
    assert list(node.world.cdi.files) == [f"bcd-{alloc_id(6)}.json"]


def test_a_hold_that_changes_its_devices_leaves_the_old_ones_first() -> None:
    node = Node()
    node.run(state(assignment(1, WHOLE[0]), assignment(2, WHOLE[1])))
    node.run(state(assignment(1, WHOLE[1]), assignment(2, WHOLE[0])))
    assert bound(node, 1)
    assert bound(node, 2)
    assert b"GPU-1" in (node.world.cdi.files[MAIN] or b"")
    assert releases(node) == []


def test_an_orphan_file_of_another_class_is_removed() -> None:
    node = Node()
    node.run(state(PLAIN))
    orphan = f"bcd-{alloc_id(2)}.gpu.mig.json"
    node.world.cdi.files[orphan] = b"{}"
    node.run(state(PLAIN))
    assert list(node.world.cdi.files) == [f"bcd-{alloc_id(2)}.json"]


@pytest.mark.parametrize("health", [HealthState.UNHEALTHY, HealthState.UNKNOWN])
def test_health_never_ends_a_hold(health: HealthState) -> None:
    node = Node()
    node.run(state(LIMITED))
    before = node.world.state()
    node.world.gpus.found = snapshot(tuple(replace(d, health=Health(health, "x")) for d in WHOLE))
    assert node.run(state(LIMITED)).steps == ()
    assert (node.world.state(), bound(node, 1)) == (before, True)


def test_a_lost_device_keeps_its_hold_and_its_place_in_it() -> None:
    node = Node()
    node.run(state(LIMITED))
    before = node.world.state()
    node.world.gpus.found = snapshot(WHOLE[1:])
    node.settle(state(LIMITED))
    assert (node.world.state()[1:], bound(node, 1)) == (before[1:], True)
    assert conditions(node) == ["DeviceLost"]
    assert cdi.read_spec(node.world.cdi.files[MAIN], alloc_id(1)) == hold_of(LIMITED)
    node.world.gpus.found = snapshot()
    node.settle(state(LIMITED))
    assert node.world.state() == before


def test_a_gpu_of_unknown_numa_node_is_bound_and_confined_to_none() -> None:
    node = Node()
    unplaced = device("GPU-0", numa_node=None)
    node.world.gpus.found = snapshot((unplaced,))
    node.run(state(assignment(1, unplaced, limits=limits())))
    assert bound(node, 1)
    held = node.world.slices.slices[alloc_id(1)]
    assert (held.cpus, held.mems) == ("", "")


def test_specs_follow_the_driver_without_a_new_admission() -> None:
    node = Node()
    node.run(state(PLAIN))
    moved = device("GPU-2", gpu="GPU-other", health=Health(HealthState.UNHEALTHY, "x"))
    node.world.gpus.found = snapshot((moved,))
    node.done.clear()
    node.run(state(PLAIN))
    assert node.done == [StepName.WRITE_SPEC]


def test_a_foreign_file_that_claims_a_device_fails_a_new_hold_only() -> None:
    node = Node()
    node.run(state(PLAIN))
    text = "kind: bcd.dev/gpu\ndevices:\n- name: GPU-0\n- name: GPU-2\n"
    node.world.cdi.foreign.append(ForeignSpec("/var/run/cdi/theirs.yaml", text))
    node.run(state(PLAIN, LIMITED))
    assert failure(node, 1) == FailureReason.FOREIGN_DEVICE_NAME
    assert bound(node, 2)
    assert set(conditions(node)) == {"ForeignDeviceName"}


def test_a_binding_that_this_daemon_does_not_know_fails_with_its_reason() -> None:
    node = Node()
    node.run(state(assignment(1, WHOLE[0], binding=Binding.KUBERNETES), PLAIN))
    assert failure(node, 1) == FailureReason.UNSUPPORTED_BINDING
    assert bound(node, 2)


def test_limits_that_go_take_their_empty_slice_along() -> None:
    node = Node()
    node.run(state(LIMITED))
    node.run(state(replace(LIMITED, limits=None)))
    assert node.world.slices.slices == {}
    assert node.outcomes[alloc_id(1)] == Bound(
        ("bcd.dev/gpu=GPU-0", "bcd.dev/gpu=GPU-1"), f"/run/bcd/allocations/{alloc_id(1)}.env", ""
    )


def test_a_release_that_came_back_before_it_was_sent_is_replaced_by_the_bind() -> None:
    node = Node()
    node.run(state(PLAIN))
    node.reports.owe(((alloc_id(2), True),))  # and then the process was killed
    node.restart()
    node.run(state(PLAIN))
    sent = [entry.slice_empty for entry in node.reports.outbox.pending()]
    assert sent == [None]


def test_every_outcome_is_reported_once_per_change() -> None:
    node = Node()
    node.run(state(PLAIN))
    first = node.reports.outbox.next_number
    node.run(state(PLAIN))
    assert node.reports.outbox.next_number == first
    node.world.cdi.broken.add(f"bcd-{alloc_id(2)}.json")
    node.world.cdi.files.clear()
    node.run(state(PLAIN))
    node.run(state(PLAIN))
    assert node.reports.outbox.next_number == first + 1


def test_a_run_that_is_stopped_ends_after_its_step_and_says_so() -> None:
    node = Node()
    done: list[StepName] = []
    executor = Executor(node.world.ports(), node.reports, done.append)
    execution = executor.run(node.plan(state(LIMITED)), lambda: len(done) == 2)
    assert not execution.complete
    assert done == [StepName.ENSURE_SLICE, StepName.PREPARE_DEVICES]
    node.settle(state(LIMITED))
    assert bound(node, 1)


def test_the_planner_gives_the_same_plan_for_the_same_world() -> None:
    node = Node()
    node.run(state(PLAIN))
    wanted: Any = state(LIMITED, MIXED)
    assert node.plan(wanted) == node.plan(wanted)


def test_a_slot_keeps_its_whole_gpu_away() -> None:
    node = Node()
    node.run(state(assignment(1, SLOTS[0])))
    node.run(state(assignment(1, SLOTS[0]), assignment(2, device("GPU-9", DeviceClass.GPU))))
    assert failure(node, 2) == FailureReason.DEVICE_IN_USE
