"""Holds stand through upgrades, reboots and new device numbers, and their specs stay true."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bcd.model.assignment import AssignedDevice, DesiredState
from bcd.model.device import Device, DeviceClass
from bcd.model.report import Bound, Failed, FailureReason
from bcd.node.edits import DeviceEdits
from bcd.node.hold import physical_id
from bcd.node.host.driver import DriverRoot
from bcd.node.host.driver.tree import Tree
from bcd.node.host.kernel_module import kernel_version
from bcd.node.ports import GpuSnapshot
from bcd.node.steps import StepName
from tests.node.host.driver.fake import FakeDriver, standing
from tests.node.memory import MemoryGpus, MemoryHostWorld, device
from tests.node.passes import Node, state
from tests.node.world import alloc_id, assignment

WHOLE = [device(f"GPU-{i}") for i in range(2)]
PART = device("MIG-0", DeviceClass.MIG, gpu="GPU-1")
SLOTS = [AssignedDevice(f"GPU-0::{i}", DeviceClass.SLOT) for i in range(2)]
NEWER = "570.86.15"
NO_DRIVER = Failed(FailureReason.DRIVER_UNAVAILABLE, "the kernel module is not loaded")


@dataclass
class DriverGpus(MemoryGpus):
    """Devices as they are given, their edits from a driver's files."""

    driver: DriverRoot | None = None
    host: Tree | None = None
    devices: tuple[Device, ...] = ()

    def snapshot(self) -> GpuSnapshot:
        assert self.driver is not None
        assert self.host is not None
        version = kernel_version(Path(self.host.host("/")))
        devices = self.devices if version else ()
        return replace(
            self.found,
            driver_version=version,
            devices=devices,
            edits={d.id: self._edits(self.driver, d) for d in devices},
            common=self.driver.common(version),
            unavailable=None if version else NO_DRIVER,
        )

    def _edits(self, driver: DriverRoot, found: Device) -> DeviceEdits:
        if found.device_class is DeviceClass.MIG:
            return driver.mig(1, "", 2, 0)
        return driver.gpu(int(found.id[-1]), "")

    def prepare(self, device_ids: tuple[str, ...]) -> Failed | None:
        assert self.driver is not None
        found = self.snapshot()
        ids = [physical_id(AssignedDevice(id_, DeviceClass.SLOT)) for id_ in device_ids]
        checks = (self.driver.problem(e) for e in (found.common, *(found.edits[i] for i in ids)))
        return next((failed for failed in checks if failed is not None), None)


@pytest.fixture
def host(tmp_path: Path) -> FakeDriver:
    made = standing(tmp_path)
    made.mig(1, 2, 0, 147, nodes=False)
    return made


@pytest.fixture
def node(host: FakeDriver) -> Node:
    gpus = DriverGpus(
        GpuSnapshot(), driver=host.open(), host=Tree(host.root), devices=(*WHOLE, PART)
    )
    return Node(MemoryHostWorld(gpus=gpus))


def specs(node: Node) -> Mapping[str, Any]:
    return {name: json.loads(content or b"") for name, content in node.world.cdi.files.items()}


def libraries(spec: Any) -> set[str]:
    return {m["hostPath"] for m in spec["containerEdits"]["mounts"] if ".so." in m["hostPath"]}


HOLDS = state(assignment(1, WHOLE[0]), assignment(2, PART))


def bound(node: Node, desired: DesiredState = HOLDS) -> bool:
    outcomes = [node.outcomes[entry.allocation_id] for entry in desired.assignments]
    return all(isinstance(outcome, Bound) for outcome in outcomes)


def test_a_hold_on_a_real_driver_comes_to_rest(node: Node) -> None:
    node.settle(HOLDS)
    assert bound(node)
    assert node.plan(HOLDS).steps == ()


def test_an_upgrade_rewrites_every_hold_and_no_old_library_stays(
    node: Node, host: FakeDriver
) -> None:
    node.settle(HOLDS)
    old = host.version
    assert all(libraries(spec) for spec in specs(node).values())
    host.upgrade(NEWER)
    node.done.clear()
    node.run(HOLDS)
    assert node.done == [StepName.WRITE_SPEC] * 2
    assert bound(node)
    for spec in specs(node).values():
        assert old not in json.dumps(spec)
        assert any(NEWER in path for path in libraries(spec))
    assert node.plan(HOLDS).steps == ()


def test_without_a_desired_state_the_specs_are_rewritten_all_the_same(
    node: Node, host: FakeDriver
) -> None:
    """After a reboot into a new driver the gateway may be away for a day."""
    node.settle(HOLDS)
    host.upgrade(NEWER)
    node.run(None)
    assert len(specs(node)) == 2
    assert all(any(NEWER in path for path in libraries(s)) for s in specs(node).values())


def test_a_capability_with_another_number_is_rewritten(node: Node, host: FakeDriver) -> None:
    node.settle(HOLDS)

    def caps() -> list[tuple[int, int]]:
        [device] = specs(node)[f"bcd-{alloc_id(2)}.json"]["devices"]
        edits = device["containerEdits"]["deviceNodes"]
        return [(n["major"], n["minor"]) for n in edits if "major" in n]

    assert caps() == [(61, 147), (61, 148)]
    host.mig(1, 2, 0, 156, nodes=False)
    node.run(HOLDS)
    assert caps() == [(61, 156), (61, 157)]
    host.majors["nvidia-caps"] = 59
    host.kernel()
    node.run(HOLDS)
    assert caps() == [(59, 156), (59, 157)]
    host.mig(1, 2, 0, 156)
    node.run(HOLDS)
    assert caps() == []
    assert bound(node)
    assert node.plan(HOLDS).steps == ()


def test_another_major_of_unified_memory_changes_no_spec_and_bars_new_holds_while_stale(
    node: Node, host: FakeDriver
) -> None:
    node.settle(HOLDS)
    before = specs(node)
    host.majors["nvidia-uvm"] = 58
    host.kernel()
    only_new = state(assignment(3, SLOTS[0]))
    node.run(state(assignment(2, PART)))
    node.run(state(assignment(2, PART), assignment(3, SLOTS[0])))
    failed = node.outcomes[alloc_id(3)]
    assert isinstance(failed, Failed)
    assert failed.reason == FailureReason.DEVICE_NODE_MISSING
    assert "nvidia-uvm" in failed.message
    assert isinstance(node.outcomes[alloc_id(2)], Bound)
    host.control()
    node.settle(only_new)
    assert isinstance(node.outcomes[alloc_id(3)], Bound)
    node.settle(HOLDS)
    assert specs(node) == before


def test_a_host_whose_nodes_do_not_exist_yet_binds_as_soon_as_somebody_makes_them(
    node: Node, host: FakeDriver
) -> None:
    """A fresh headless host: the module is loaded, and nothing has made a node."""
    for path in host.root.glob("dev/nvidia*"):
        path.unlink()
    wanted = state(assignment(1, WHOLE[0]))
    makes: tuple[Callable[[], None], ...] = (lambda: host.gpu(0), host.control)
    for make in makes:
        node.run(wanted)
        failed = node.outcomes[alloc_id(1)]
        assert isinstance(failed, Failed)
        assert failed.reason == FailureReason.DEVICE_NODE_MISSING
        assert "nvidia-modprobe" in failed.message
        assert specs(node) == {}
        make()
    node.run(wanted)
    assert bound(node, wanted)
    [spec] = specs(node).values()
    assert [n["path"] for n in spec["devices"][0]["containerEdits"]["deviceNodes"]] == [
        "/dev/nvidia0"
    ]


def test_a_control_node_that_is_missing_after_a_reboot_is_in_every_spec_once_it_is_there(
    node: Node, host: FakeDriver
) -> None:
    node.settle(HOLDS)
    whole = specs(node)
    tools = host.root / "dev/nvidia-uvm-tools"
    tools.unlink()
    node.run(None)
    assert not any("/dev/nvidia-uvm-tools" in json.dumps(spec) for spec in specs(node).values())
    host.control()
    node.run(None)
    assert specs(node) == whole
    assert all("/dev/nvidia-uvm-tools" in json.dumps(spec) for spec in whole.values())


def test_two_slots_of_one_gpu_are_bound_side_by_side(node: Node) -> None:
    wanted = state(assignment(1, SLOTS[0]), assignment(2, SLOTS[1]))
    node.settle(wanted)
    assert bound(node, wanted)
    found = specs(node)
    assert {spec["kind"] for spec in found.values()} == {"bcd.dev/gpu.slot"}
    paths = [
        d["containerEdits"]["deviceNodes"][0]["path"] for s in found.values() for d in s["devices"]
    ]
    assert paths == ["/dev/nvidia0", "/dev/nvidia0"]


def test_a_driver_that_is_gone_keeps_the_holds_and_refuses_new_ones(
    node: Node, host: FakeDriver
) -> None:
    first = state(assignment(2, PART))
    node.settle(first)
    before = dict(node.world.cdi.files)
    host.kernel_gone()
    node.run(HOLDS)
    assert isinstance(node.outcomes[alloc_id(2)], Bound)
    assert node.world.cdi.files == before
    assert isinstance(node.outcomes[alloc_id(1)], Failed)
