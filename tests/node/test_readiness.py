"""What keeps a new hold from being made for now: the driver, and who still uses the devices."""

import json
from dataclasses import replace

from bcd.model.device import HealthState
from bcd.model.report import Bound, Failed, FailureReason
from bcd.node.condition import NodeCondition
from bcd.node.edits import DeviceEdits, DeviceNode
from bcd.node.others import bookable
from bcd.node.patience import Patience
from bcd.node.ports import GpuSnapshot
from bcd.node.readiness import MAX_WAIT_S
from bcd.node.steps import StepName
from tests.node.clock import HandClock
from tests.node.memory import MIG, SLOTS, WHOLE, snapshot
from tests.node.passes import Node, state
from tests.node.world import alloc_id, assignment, limits

ONE = assignment(1, WHOLE[0])
LIMITED = assignment(1, WHOLE[0], limits=limits())
ID = alloc_id(1)
NO_DRIVER = Failed(FailureReason.DRIVER_UNAVAILABLE, "no driver; run nvidia-smi")


def busy_with(*names: str) -> Node:
    node = Node()
    node.world.gpus.found = replace(snapshot(), in_use=frozenset(names))
    return node


def conditions(node: Node) -> dict[str, str]:
    assert node.last is not None
    return {condition.type: condition.message for condition in node.last.conditions}


def test_without_a_driver_new_holds_are_refused_with_its_reason_and_old_ones_stand() -> None:
    node = Node()
    node.settle(state(ONE))
    node.world.gpus.found = GpuSnapshot(unavailable=NO_DRIVER)
    node.restart()
    node.run(state(ONE, assignment(2, WHOLE[1]), generation=2))
    assert isinstance(node.outcomes[ID], Bound)
    assert node.outcomes[alloc_id(2)] == NO_DRIVER
    assert list(node.world.cdi.files) == [f"bcd-{ID}.json"]
    assert "DeviceLost" not in conditions(node)


def test_before_the_first_look_at_the_gpus_new_holds_wait_and_old_ones_stand() -> None:
    node = Node()
    node.settle(state(ONE))
    seen, node.world.gpus.found = node.world.gpus.found, GpuSnapshot(waiting="the driver starts")
    node.restart()
    wanted = state(ONE, assignment(2, WHOLE[1]), generation=2)
    node.run(wanted)
    assert isinstance(node.outcomes[ID], Bound)
    assert alloc_id(2) not in node.outcomes
    assert node.last is not None
    assert dict(node.last.waiting) == {alloc_id(2): "the driver starts"}
    node.world.gpus.found = seen
    node.settle(wanted)
    assert isinstance(node.outcomes[alloc_id(2)], Bound)


def test_a_look_that_never_comes_fails_the_bind_at_its_deadline() -> None:
    node = Node()
    node.world.gpus.found = GpuSnapshot(waiting="the driver starts")
    node.overdue = frozenset({ID})
    node.run(state(ONE))
    assert node.outcomes[ID] == Failed(FailureReason.DRIVER_UNAVAILABLE, "the driver starts")


def test_a_busy_device_makes_a_new_hold_wait_until_it_is_free() -> None:
    node = busy_with("GPU-0")
    node.run(state(ONE))
    assert ID not in node.outcomes
    assert node.done == []
    assert "GPU-0" in conditions(node)["HoldWaits"]
    node.world.gpus.found = snapshot()
    node.settle(state(ONE))
    assert isinstance(node.outcomes[ID], Bound)


def test_a_device_that_stays_busy_fails_the_hold_at_the_deadline_only() -> None:
    node = busy_with("GPU-0")
    node.run(state(ONE))
    node.overdue = frozenset({ID})
    node.run(state(ONE))
    outcome = node.outcomes[ID]
    assert isinstance(outcome, Failed)
    assert outcome.reason == FailureReason.DEVICE_BUSY


def test_a_busy_mig_instance_waits_and_a_busy_slot_does_not() -> None:
    node = busy_with("MIG-0", "GPU-9", "GPU-9::0")
    node.run(state(assignment(1, MIG[0]), assignment(2, SLOTS[0])))
    assert ID not in node.outcomes
    assert isinstance(node.outcomes[alloc_id(2)], Bound)


def test_a_hold_whose_spec_was_removed_under_its_workload_is_repaired_at_once() -> None:
    for restarted in (False, True):
        node = Node()
        node.settle(state(LIMITED))
        node.world.gpus.found = replace(snapshot(), in_use=frozenset({"GPU-0"}))
        node.world.slices.busy = {ID}
        node.world.cdi.files.clear()
        if restarted:
            node.restart()
        node.run(state(LIMITED))
        assert isinstance(node.outcomes[ID], Bound)
        assert list(node.world.cdi.files) == [f"bcd-{ID}.json"]


def test_a_slice_with_processes_before_its_hold_is_refused() -> None:
    node = Node()
    node.world.slices.slices[ID] = limits(memory_gib=1)
    node.world.slices.busy = {ID}
    node.run(state(LIMITED))
    outcome = node.outcomes[ID]
    assert isinstance(outcome, Failed)
    assert outcome.reason == FailureReason.SLICE_FAILED
    assert StepName.ENSURE_SLICE not in node.done


def test_a_spec_is_not_rewritten_with_what_the_driver_lacks_now() -> None:
    node = Node()
    node.settle(state(ONE))
    before = dict(node.world.cdi.files)
    missing = Failed(FailureReason.DEVICE_NODE_MISSING, "/dev/nvidia-uvm is missing")
    changed = replace(snapshot(), driver_version="560", problems={"GPU-0": missing})
    edits = {id_: replace(edit, env=("NEW=1",)) for id_, edit in changed.edits.items()}
    node.world.gpus.found = replace(changed, edits=edits)
    node.run(state(ONE))
    assert node.world.cdi.files == before
    assert isinstance(node.outcomes[ID], Bound)
    assert conditions(node)["DeviceNotReady"] == "/dev/nvidia-uvm is missing"
    node.world.gpus.found = replace(changed, edits=edits, problems={})
    node.settle(state(ONE))
    assert b"NEW=1" in (node.world.cdi.files[f"bcd-{ID}.json"] or b"")


async def test_waiting_ends_on_the_steady_clock_and_begins_anew_when_nothing_waited() -> None:
    clock = HandClock()
    patience = Patience(clock)
    patience.keep([ID], [])
    assert patience.overdue() == frozenset()
    await clock.advance(MAX_WAIT_S)
    assert patience.overdue() == {ID}
    patience.keep([], [ID])
    assert patience.overdue() == {ID}
    patience.keep([], [])
    patience.keep([ID], [])
    assert patience.overdue() == frozenset()


def test_a_device_in_use_outside_every_hold_is_marked_in_the_inventory() -> None:
    devices = snapshot().devices
    marked = bookable(GpuSnapshot(devices=devices), (), frozenset({"GPU-0", "GPU-8"}))
    assert [device.id for device in marked if device.in_use] == ["GPU-0"]


def test_a_device_in_use_inside_a_hold_is_not_marked() -> None:
    node = busy_with("GPU-1", "GPU-2")
    node.world.gpus.found = snapshot()
    node.settle(state(assignment(1, WHOLE[1]), assignment(2, SLOTS[0])))
    assert node.last is not None
    assert node.last.held == {"GPU-1", "GPU-9"}


def test_a_device_whose_files_are_missing_is_told_as_unhealthy() -> None:
    missing = Failed(FailureReason.DRIVER_FILE_MISSING, "libcuda.so.550 is missing\n; install it")
    told = bookable(GpuSnapshot(devices=WHOLE, problems={"GPU-0": missing}), ())
    assert [device.health.state for device in told[:2]] == [
        HealthState.UNHEALTHY,
        HealthState.HEALTHY,
    ]
    assert told[0].health.reason.startswith("libcuda.so.550 is missing")
    assert "\n" not in told[0].health.reason


def test_a_lost_devices_spec_stays_and_gives_out_no_node_of_another_gpu() -> None:
    node = Node()
    both = assignment(1, WHOLE[0], WHOLE[1])
    node.settle(state(both))
    left = snapshot(tuple(device for device in WHOLE if device.id != "GPU-0"))
    # The GPU that is left got the node of the one that is gone.
    moved = {"GPU-1": DeviceEdits(nodes=(DeviceNode("/dev/GPU-0", "/dev/GPU-0"),))}
    node.world.gpus.found = replace(left, edits={**left.edits, **moved})
    node.settle(state(both))
    assert isinstance(node.outcomes[ID], Bound)
    assert "DeviceLost" in conditions(node)
    document = json.loads(node.world.cdi.files[f"bcd-{ID}.json"] or b"")
    nodes = {
        device["name"]: [entry["path"] for entry in device["containerEdits"]["deviceNodes"]]
        for device in document["devices"]
    }
    assert nodes == {"GPU-0": ["/dev/nvidia-lost"], "GPU-1": ["/dev/GPU-0"]}
    assert "BCD_DEVICES=bcd.dev/gpu=GPU-0,bcd.dev/gpu=GPU-1" in document["containerEdits"]["env"]
    node.world.gpus.found = snapshot()
    node.settle(state(both))
    assert b"nvidia-lost" not in (node.world.cdi.files[f"bcd-{ID}.json"] or b"")


def test_a_corrupt_spec_is_judged_only_once_the_gpus_are_known() -> None:
    node = Node()
    node.settle(state(ONE))
    node.world.cdi.files[f"bcd-{ID}.json"] = b"{"
    seen, node.world.gpus.found = node.world.gpus.found, GpuSnapshot(waiting="NVML starts")
    node.restart()
    node.run(state(ONE))
    assert ID not in node.outcomes
    node.world.gpus.found = seen
    node.settle(state(ONE))
    assert isinstance(node.outcomes[ID], Bound)


def test_a_bind_that_failed_leaves_nothing_that_says_it_once_stood() -> None:
    node = Node()
    node.world.gpus.failure = Failed(FailureReason.DEVICE_NODE_MISSING, "no node")
    node.run(state(ONE))
    assert node.world.env.files == {}
    node.world.gpus.failure = None
    node.world.gpus.found = replace(snapshot(), in_use=frozenset({"GPU-0"}))
    node.run(state(ONE))
    assert ID not in node.outcomes


def test_what_every_device_lacks_is_said_once() -> None:
    node = Node()
    missing = Failed(FailureReason.DEVICE_NODE_MISSING, "/dev/nvidia-uvm is missing")
    shared = NodeCondition("DriverNotReady", "", f"{missing.message}; holds stay, new ones fail")
    node.world.gpus.found = replace(
        snapshot(), problems={device.id: missing for device in WHOLE}, conditions=(shared,)
    )
    node.run(state())
    assert list(conditions(node)) == ["DriverNotReady"]
