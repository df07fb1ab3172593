"""Our edits beside those that the vendor's own tool wrote for the same files.

What differs on purpose: no majors, minors and modes, which change under a spec that stands; no
device of all GPUs; no variable for the hook program's own log.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from bcd.model.assignment import AssignedDevice
from bcd.model.device import DeviceClass
from bcd.node import cdi
from bcd.node.hold import hold_of
from bcd.node.ports import GpuSnapshot
from tests.captured import DATA
from tests.node.host.driver.fake import HOOK, LIBRARIES, VERSION, FakeDriver, elf
from tests.node.world import assignment, node_id

THEIRS: dict[str, Any] = json.loads((DATA / "nvidia-ctk-cdi-h100.json").read_text())
NAMES = [device["name"] for device in THEIRS["devices"]]


@pytest.fixture
def ours(tmp_path: Path) -> dict[str, Any]:
    """The spec of a hold on all eight GPUs of the machine that the vendor's tool ran on."""
    host = FakeDriver(tmp_path, driver_root="/run/nvidia/driver")
    for stem in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        host.put(f"{LIBRARIES}/{stem}.so.{VERSION}", elf(f"{stem}.so.1"))
    host.link(f"{LIBRARIES}/libnvidia-ml.so.1", f"libnvidia-ml.so.{VERSION}")
    host.link(f"{LIBRARIES}/libnvidia-ml.so", "libnvidia-ml.so.1")
    host.hook("enable-cuda-compat disable-device-node-modification update-application-profile")
    for minor in range(8):
        host.gpu(minor, below=host.driver)
    host.control(host.driver)
    (host.driver / "dev/nvidia-uvm-tools").unlink()
    driver = host.open()
    gpus = GpuSnapshot(
        edits={name: driver.gpu(minor, "") for minor, name in enumerate(NAMES)},
        common=driver.common(VERSION),
    )
    devices = [AssignedDevice(name, DeviceClass.GPU) for name in NAMES]
    [file] = cdi.render(hold_of(assignment(1, *devices)), gpus, node_id(), annotate=True) or ()
    made: dict[str, Any] = json.loads(file.content.replace(str(tmp_path).encode(), b""))
    return made


def nodes(edits: dict[str, Any]) -> set[tuple[str, str]]:
    return {(node["path"], node["hostPath"]) for node in edits["deviceNodes"]}


def calls(edits: dict[str, Any]) -> list[tuple[str, str, str, frozenset[str]]]:
    return [
        (hook["hookName"], hook["path"], hook["args"][1], frozenset(hook["args"]))
        for hook in edits["hooks"]
    ]


def test_every_gpu_has_the_nodes_that_the_vendors_tool_gives_it(ours: dict[str, Any]) -> None:
    theirs = {d["name"]: nodes(d["containerEdits"]) for d in THEIRS["devices"]}
    assert {d["name"]: nodes(d["containerEdits"]) for d in ours["devices"]} == theirs


def test_the_common_nodes_mounts_and_hooks_are_the_vendors(ours: dict[str, Any]) -> None:
    mine, theirs = ours["containerEdits"], THEIRS["containerEdits"]
    assert nodes(mine) == nodes(theirs)
    by_path = {mount["containerPath"]: mount for mount in theirs["mounts"]}
    assert {mount["containerPath"]: mount for mount in mine["mounts"]} == by_path
    assert calls(mine) == calls(theirs)
    assert {hook["path"] for hook in mine["hooks"]} == {HOOK}


def test_the_vendors_variables_are_there_beside_ours(ours: dict[str, Any]) -> None:
    mine = [entry for entry in ours["containerEdits"]["env"] if not entry.startswith("BCD_")]
    assert sorted(mine) == sorted(THEIRS["containerEdits"]["env"])


def test_the_version_is_the_one_that_the_vendor_wrote(ours: dict[str, Any]) -> None:
    assert ours["cdiVersion"] == THEIRS["cdiVersion"]
