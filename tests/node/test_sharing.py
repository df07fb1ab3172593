"""Slots: who may share a GPU how, and when its MPS daemon comes and goes."""

from dataclasses import replace

import pytest

from bcd.model.assignment import AssignedDevice, Sharing, SharingMode
from bcd.model.device import Device, DeviceClass
from bcd.model.report import Bound, Failed, FailureReason
from bcd.node.hold import hold_of
from bcd.node.ports import MpsState
from bcd.node.sharing import MpsShare, mps_edits
from bcd.node.steps import StepName
from tests.node.memory import GIB, MIG, SLOTS, WHOLE
from tests.node.passes import Node, failure, state
from tests.node.world import alloc_id, assignment

MPS = Sharing(SharingMode.MPS, 10)
SLICED = Sharing(SharingMode.TIME_SLICE, 4)
FIRST, SECOND = (assignment(number + 1, slot, sharing=MPS) for number, slot in enumerate(SLOTS))
RUNNING = {"GPU-9": MpsState(MpsShare(10, 8 * GIB), ready=True)}


def forget_memory(node: Node) -> None:
    gpus = node.world.gpus
    devices = tuple(replace(device, memory_bytes=0) for device in gpus.found.devices)
    gpus.found = replace(gpus.found, devices=devices)


def test_the_first_slot_starts_the_daemon_before_its_spec_and_the_last_one_stops_it() -> None:
    node = Node()
    node.settle(state(FIRST))
    assert node.done[0] is StepName.ENSURE_MPS
    assert node.world.mps.daemons == RUNNING
    node.done.clear()
    node.settle(state(FIRST, SECOND, generation=2))
    assert StepName.ENSURE_MPS not in node.done
    node.settle(state(SECOND, generation=3))
    assert node.world.mps.daemons == RUNNING
    node.done.clear()
    node.settle(state(generation=4))
    assert node.world.mps.daemons == {}
    assert node.done[-1] is StepName.STOP_MPS
    assert node.done.index(StepName.REMOVE_SPEC) < node.done.index(StepName.STOP_MPS)


def test_a_daemon_with_clients_outlives_its_holds_until_they_end() -> None:
    node = Node()
    node.settle(state(FIRST))
    node.world.mps.busy = {"GPU-9"}
    made = node.run(state(generation=2))
    made = node.run(state(generation=2))
    assert [c.subject for c in made.conditions if c.type == "LingeringMps"] == ["GPU-9"]
    assert node.world.mps.daemons == RUNNING
    node.world.mps.busy = set()
    node.settle(state(generation=2))
    assert node.world.mps.daemons == {}


def test_a_daemon_that_died_or_was_changed_is_started_again() -> None:
    for broken in ({}, {"GPU-9": MpsState(MpsShare(10, 8 * GIB), ready=False)},
                   {"GPU-9": MpsState(MpsShare(2, GIB), ready=True)}):  # fmt: skip
        node = Node()
        node.settle(state(FIRST))
        node.world.mps.daemons = dict(broken)
        node.settle(state(FIRST))
        assert node.world.mps.daemons == RUNNING


@pytest.mark.parametrize("there", [MpsState(MpsShare(10, 8 * GIB), ready=False),
                                   MpsState(MpsShare(10, 7 * GIB), ready=True)])  # fmt: skip
def test_a_daemon_with_clients_is_not_started_again_and_a_person_is_told(there: MpsState) -> None:
    node = Node()
    node.settle(state(FIRST))
    node.world.mps.daemons = {"GPU-9": there}
    node.world.mps.busy = {"GPU-9"}
    starts = node.world.mps.starts
    made = node.run(state(FIRST, SECOND, generation=2))
    assert [c.subject for c in made.conditions if c.type == "MpsDiffers"] == ["GPU-9"]
    assert isinstance(node.outcomes[alloc_id(1)], Bound)
    assert failure(node, 2) == FailureReason.SHARING_FAILED
    assert (node.world.mps.daemons, node.world.mps.starts) == ({"GPU-9": there}, starts)
    node.world.mps.busy = set()
    node.settle(state(FIRST, SECOND, generation=2))
    assert node.world.mps.daemons == RUNNING


def test_a_gpu_whose_memory_is_not_known_for_a_while_changes_nothing() -> None:
    node = Node()
    node.settle(state(FIRST))
    forget_memory(node)
    node.done.clear()
    node.settle(state(FIRST, SECOND, generation=2))
    assert StepName.ENSURE_MPS not in node.done
    assert isinstance(node.outcomes[alloc_id(2)], Bound)
    node.world.mps.daemons = {"GPU-9": MpsState(MpsShare(10, 8 * GIB), ready=False)}
    node.settle(state(FIRST, SECOND, generation=2))
    assert node.world.mps.daemons == RUNNING


def test_a_gpu_whose_memory_is_not_known_is_shared_by_no_new_hold() -> None:
    node = Node()
    forget_memory(node)
    node.run(state(FIRST))
    assert failure(node, 1) == FailureReason.SHARING_FAILED
    assert (node.world.mps.daemons, node.world.cdi.files) == ({}, {})


def test_a_daemon_that_does_not_start_fails_its_hold_and_no_other() -> None:
    node = Node()
    node.world.mps.failure = Failed(FailureReason.SHARING_FAILED, "it exits at once")
    node.run(state(FIRST, assignment(5, WHOLE[0])))
    assert failure(node, 1) == FailureReason.SHARING_FAILED
    assert isinstance(node.outcomes[alloc_id(5)], Bound)
    assert list(node.world.cdi.files) == [f"bcd-{alloc_id(5)}.json"]


def test_before_a_desired_state_is_known_no_daemon_is_stopped() -> None:
    node = Node()
    node.world.mps.daemons = dict(RUNNING)
    node.run(None)
    assert node.world.mps.daemons == RUNNING


def test_one_gpu_is_shared_in_one_way() -> None:
    node = Node()
    node.settle(state(FIRST))
    node.run(state(FIRST, assignment(2, SLOTS[1], sharing=SLICED), generation=2))
    assert failure(node, 2) == FailureReason.SHARING_FAILED
    other = assignment(2, SLOTS[1], sharing=Sharing(SharingMode.MPS, 4))
    node.run(state(FIRST, other, generation=3))
    assert failure(node, 2) == FailureReason.SHARING_FAILED
    assert isinstance(node.outcomes[alloc_id(1)], Bound)


def test_a_hold_whose_sharing_was_changed_gives_way_to_the_one_that_was_not() -> None:
    node = Node()
    kept = assignment(2, SLOTS[1], sharing=SLICED)
    node.settle(state(assignment(1, SLOTS[0], sharing=SLICED), kept))
    node.run(state(assignment(1, SLOTS[0], sharing=MPS), kept, generation=2))
    assert failure(node, 1) == FailureReason.SHARING_FAILED
    assert isinstance(node.outcomes[alloc_id(2)], Bound)
    assert f"bcd-{alloc_id(2)}.json" in node.world.cdi.files


def test_time_sliced_slots_need_no_daemon() -> None:
    node = Node()
    node.settle(state(assignment(1, SLOTS[0], sharing=SLICED), assignment(2, SLOTS[1])))
    assert node.world.mps.daemons == {}
    assert all(isinstance(outcome, Bound) for outcome in node.outcomes.values())


@pytest.mark.parametrize("name", ["GPU-9::10", "GPU-9::-1", "GPU-9::x", "GPU-9::" + "9" * 40])
def test_a_slot_that_the_gpu_is_not_divided_into_is_unknown(name: str) -> None:
    node = Node()
    slot = AssignedDevice(name, DeviceClass.SLOT)
    node.run(state(assignment(1, slot, sharing=MPS)))
    assert failure(node, 1) == FailureReason.UNKNOWN_DEVICE


def test_mps_slots_of_one_hold_lie_on_one_gpu() -> None:
    node = Node()
    elsewhere = AssignedDevice("GPU-0::0", DeviceClass.SLOT)
    node.run(state(assignment(1, SLOTS[0], elsewhere, sharing=MPS)))
    assert failure(node, 1) == FailureReason.SHARING_FAILED
    assert node.world.mps.daemons == {}


def test_a_client_sees_the_pipes_and_the_memory_of_its_own_daemon() -> None:
    edits = mps_edits(hold_of(FIRST), "/run/bcd")
    assert edits.env == ("CUDA_MPS_PIPE_DIRECTORY=/run/bcd/mps/GPU-9/pipe",)
    mounts = [(mount.host_path, mount.container_path) for mount in edits.mounts]
    assert mounts == [
        ("/run/bcd/mps/GPU-9/pipe", "/run/bcd/mps/GPU-9/pipe"),
        ("/run/bcd/mps/GPU-9/shm", "/dev/shm"),
    ]
    assert not any("ro" in mount.options for mount in edits.mounts)
    assert mps_edits(hold_of(assignment(1, SLOTS[0])), "/run/bcd").mounts == ()


@pytest.mark.parametrize("other", [WHOLE[0], MIG[0]])
def test_mps_slots_are_in_a_hold_of_their_own(other: Device) -> None:
    node = Node()
    node.run(state(assignment(1, other, SLOTS[0], sharing=MPS)))
    assert failure(node, 1) == FailureReason.SHARING_FAILED
    assert (node.world.mps.daemons, node.world.cdi.files) == ({}, {})


def test_time_sliced_slots_may_lie_beside_other_devices() -> None:
    node = Node()
    node.settle(state(assignment(1, WHOLE[0], SLOTS[0], sharing=SLICED)))
    assert isinstance(node.outcomes[alloc_id(1)], Bound)
    assert not any(b"CUDA_MPS" in (content or b"") for content in node.world.cdi.files.values())


def test_the_file_of_mps_slots_carries_what_a_client_needs() -> None:
    node = Node()
    node.settle(state(FIRST))
    content = node.world.cdi.files[f"bcd-{alloc_id(1)}.json"]
    assert b"CUDA_MPS_PIPE_DIRECTORY" in (content or b"")


def test_a_share_is_one_part_of_the_gpu_and_never_nothing() -> None:
    assert MpsShare(10, GIB).thread_percent == 10
    assert MpsShare(3, GIB).thread_percent == 33
    assert MpsShare(64, GIB).thread_percent == 1
