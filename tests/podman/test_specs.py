"""Two podmans start containers with every kind of spec: Debian 12's, and one that reads CDI 0.8.

The driver is a made one: its files and device nodes have the right names and do nothing.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bcd.model.assignment import AssignedDevice, Assignment
from bcd.model.device import Device, DeviceClass
from bcd.node import cdi
from bcd.node.edits import DeviceEdits, DeviceNode
from bcd.node.hold import hold_of
from bcd.node.host.driver import DriverRoot
from bcd.node.ports import GpuSnapshot
from tests.node.host.driver.fake import (
    CAPS_MAJOR,
    GPU_MAJOR,
    HOOK,
    LIBRARIES,
    MEMORY_MAJOR,
    VERSION,
    FakeDriver,
    standing,
)
from tests.node.memory import device
from tests.node.world import assignment, limits, node_id
from tests.podman.container import NewerPodman, Podman, build_tree

PCI = "0000:3b:00.0"
WHOLE = [device("GPU-aaaa"), device("GPU-bbbb")]
PART = device("MIG-cccc", DeviceClass.MIG, gpu="GPU-bbbb")
CONTROL = {
    "/dev/nvidiactl": f"{GPU_MAJOR:x}:ff",
    "/dev/nvidia-uvm": f"{MEMORY_MAJOR:x}:0",
    "/dev/nvidia-uvm-tools": f"{MEMORY_MAJOR:x}:1",
}
# Writes down what the hook program was told, and the container's state that it was given, with
# nothing but a shell: the other Debian's tree has little else.
CALLED = """#!/bin/sh
{
  printf '%s\\n' "$@"
  state=
  while IFS= read -r line || [ -n "$line" ]; do state="$state$line"; done
  printf '%s\\n' "$state"
} >> "${0%/*}/called"
"""


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A folder with a short path, which podman wants."""
    with tempfile.TemporaryDirectory(prefix="bcd-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def debian_12(scratch: Path) -> Podman:
    """The podman that is installed."""
    made = Podman(scratch / "12")
    made.folder.mkdir()
    made.prepare()
    return made


@pytest.fixture(scope="module")
def debian_13(scratch: Path) -> Podman:
    """The podman of the next Debian, unpacked for this run."""
    tree = scratch / "tree"
    build_tree("trixie", tree)
    made = NewerPodman(scratch / "13", tree, scratch)
    made.folder.mkdir()
    made.prepare()
    return made


@pytest.fixture
def host(scratch: Path, request: pytest.FixtureRequest) -> FakeDriver:
    """A host with two GPUs, the second's MIG instance without nodes for its capabilities."""
    made = standing(Path(tempfile.mkdtemp(dir=scratch)))
    made.gpu(0, PCI)
    made.mig(1, 2, 0, 147, nodes=False)
    return made


def snapshot(driver: DriverRoot) -> GpuSnapshot:
    edits: dict[str, DeviceEdits] = {
        WHOLE[0].id: driver.gpu(0, PCI),
        WHOLE[1].id: driver.gpu(1, ""),
        PART.id: driver.mig(1, "", 2, 0),
    }
    return GpuSnapshot(edits=edits, common=driver.common(VERSION))


def write(host: FakeDriver, wanted: Assignment, hook: str = "auto", annotate: bool = True) -> Path:
    """Render a hold of a checked driver into a folder of specs."""
    driver = host.open(hook)
    found = snapshot(driver)
    problems = [driver.problem(edits) for edits in (found.common, *found.edits.values())]
    assert problems == [None] * len(problems)
    folder = host.root / "etc/cdi"
    folder.mkdir(parents=True, exist_ok=True)
    for file in cdi.render(hold_of(wanted), found, node_id(), annotate=annotate) or ():
        (folder / file.name).write_bytes(file.content)
    return folder


def names(*devices: Device | AssignedDevice) -> list[str]:
    return [AssignedDevice(d.id, d.device_class).cdi_name for d in devices]


def added(podman: Podman, specs: Path, devices: list[str]) -> dict[str, str]:
    """Device nodes that a container has more than one without devices."""
    bare = podman.look(specs, []).devices
    seen = podman.look(specs, devices).devices
    return {path: number for path, number in seen.items() if path not in bare}


GPU_0 = {
    "/dev/nvidia0": f"{GPU_MAJOR:x}:0",
    "/dev/dri/card0": "3f:0",
    "/dev/dri/renderD128": "3f:80",
}


def both(test: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(test, ["debian_12", "debian_13"])


@both("which")
def test_a_whole_gpu_comes_with_its_nodes_and_the_driver_under_every_name(
    host: FakeDriver, which: str, request: pytest.FixtureRequest
) -> None:
    podman: Podman = request.getfixturevalue(which)
    specs = write(host, assignment(1, WHOLE[0]), "never")
    devices = names(WHOLE[0])
    assert added(podman, specs, devices) == CONTROL | GPU_0
    text = podman.say(
        specs, devices, f"cd {LIBRARIES} && md5sum libcuda.so libcuda.so.1 libcuda.so.{VERSION}"
    )
    sums = {line.split()[0] for line in text.splitlines()}
    assert len(sums) == 1
    assert len(text.splitlines()) == 3
    look = (
        "ls /lib/firmware/nvidia/*; ls /usr/bin/nvidia-smi /etc/vulkan/icd.d/nvidia_icd.json;"
        " stat -c %F /run/nvidia-persistenced/socket; env;"
        f" touch {LIBRARIES}/libcuda.so.1 2>/dev/null || echo read-only"
    )
    said = podman.say(specs, devices, look).splitlines()
    assert {"gsp_ga10x.bin", "gsp_tu10x.bin", "socket", "read-only"} <= set(said)
    assert {"NVIDIA_VISIBLE_DEVICES=void", f"NVIDIA_CTK_LIBCUDA_DIR={LIBRARIES}"} <= set(said)


@both("which")
def test_a_driver_of_a_container_of_its_own_is_mounted_from_there(
    scratch: Path, which: str, request: pytest.FixtureRequest
) -> None:
    podman: Podman = request.getfixturevalue(which)
    root = Path(tempfile.mkdtemp(dir=scratch))
    host = standing(root, driver_root="/run/nvidia/driver")
    host.mig(1, 2, 0, 147, nodes=False)
    specs = write(host, assignment(1, WHOLE[1]))
    assert added(podman, specs, names(WHOLE[1])) == CONTROL | {"/dev/nvidia1": "3c:1"}
    said = podman.say(specs, names(WHOLE[1]), f"ls {LIBRARIES}").split()
    assert {"libcuda.so", "libcuda.so.1", f"libcuda.so.{VERSION}"} <= set(said)


@both("which")
def test_the_hook_program_is_called_with_its_arguments_and_the_containers_state(
    host: FakeDriver, which: str, request: pytest.FixtureRequest
) -> None:
    podman: Podman = request.getfixturevalue(which)
    host.write(HOOK, CALLED + "# enable-cuda-compat\n").chmod(0o755)
    specs = write(host, assignment(1, *WHOLE))
    assert added(podman, specs, names(WHOLE[1])) == CONTROL | {"/dev/nvidia1": "3c:1"}
    told = (host.root / "usr/bin/called").read_text()
    calls = [line for line in told.splitlines() if line in ("create-symlinks", "update-ldcache")]
    assert calls == ["create-symlinks", "update-ldcache"]
    assert f"--host-driver-version={VERSION}" in told
    assert f"libcuda.so.1::{LIBRARIES}/libcuda.so" in told
    states = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert len(states) == 3
    assert all(state["bundle"] for state in states)


@both("which")
def test_the_lowest_version_of_all_is_read(
    host: FakeDriver, which: str, request: pytest.FixtureRequest
) -> None:
    """What the driver of the host itself, under /, comes to: no path differs."""
    podman: Podman = request.getfixturevalue(which)
    edits = DeviceEdits(nodes=(DeviceNode("/dev/full", "/dev/full"),))
    [file] = (
        cdi.render(
            hold_of(assignment(1, WHOLE[0])),
            GpuSnapshot(edits={WHOLE[0].id: edits}),
            node_id(),
            annotate=True,
        )
        or ()
    )
    assert json.loads(file.content)["cdiVersion"] == "0.3.0"
    specs = host.root / "specs"
    specs.mkdir()
    (specs / file.name).write_bytes(file.content)
    assert podman.look(specs, names(WHOLE[0])).env["BCD_NODE_ID"] == node_id()


def test_the_older_podman_takes_limits_without_the_annotation_only(
    host: FakeDriver, debian_12: Podman
) -> None:
    wanted = assignment(1, WHOLE[1], limits=limits())
    specs = write(host, wanted, annotate=False)
    env = debian_12.look(specs, names(WHOLE[1])).env
    assert env["BCD_CGROUP_PARENT"].endswith(".slice")
    write(host, wanted, annotate=True)
    refused = debian_12.run(specs, names(WHOLE[1]))
    assert refused.returncode != 0
    assert "unresolvable CDI devices" in refused.stderr


def test_a_mig_instance_comes_with_capabilities_that_the_host_has_no_nodes_for(
    host: FakeDriver, debian_13: Podman
) -> None:
    specs = write(host, assignment(1, PART))
    caps = {f"/dev/nvidia-caps/nvidia-cap{n}": f"{CAPS_MAJOR:x}:{n:x}" for n in (147, 148)}
    expected = CONTROL | caps | {"/dev/nvidia1": f"{GPU_MAJOR:x}:1"}
    assert added(debian_13, specs, names(PART)) == expected


def test_slots_of_one_gpu_are_two_names_for_its_node(host: FakeDriver, debian_13: Podman) -> None:
    slots = [AssignedDevice(f"{WHOLE[1].id}::{i}", DeviceClass.SLOT) for i in (0, 1)]
    for number, slot in enumerate(slots):
        specs = write(host, assignment(number, slot))
    assert len(list(specs.iterdir())) == 2
    for slot in slots:
        assert added(debian_13, specs, names(slot)) == CONTROL | {"/dev/nvidia1": "3c:1"}


def test_a_hold_with_limits_and_two_classes_is_read_with_its_annotation(
    host: FakeDriver, debian_13: Podman
) -> None:
    wanted = assignment(1, WHOLE[0], PART, limits=limits())
    specs = write(host, wanted)
    assert len(list(specs.iterdir())) == 2
    seen = added(debian_13, specs, names(WHOLE[0], PART))
    assert seen.keys() > GPU_0.keys() | CONTROL.keys()
    assert "/dev/nvidia1" in seen


def test_one_name_in_two_files_resolves_for_nobody(host: FakeDriver, debian_13: Podman) -> None:
    """Why a device leaves its old file before it comes into a new one."""
    specs = write(host, assignment(1, WHOLE[0]))
    write(host, assignment(2, WHOLE[0]))
    refused = debian_13.run(specs, names(WHOLE[0]))
    assert refused.returncode != 0
    assert "unresolvable CDI devices" in refused.stderr


@both("which")
def test_a_stale_node_is_loud(host: FakeDriver, which: str, request: pytest.FixtureRequest) -> None:
    podman: Podman = request.getfixturevalue(which)
    specs = write(host, assignment(1, WHOLE[1]))
    (host.root / "dev/nvidia1").unlink()
    refused = podman.run(specs, names(WHOLE[1]))
    assert refused.returncode != 0
    assert "nvidia1" in refused.stderr
