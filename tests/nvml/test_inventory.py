"""What NVML says becomes the inventory: the real library calls, in the real child."""

import ast
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import bcd
from bcd.model.device import DeviceClass
from bcd.model.report import FailureReason
from tests.node.host.driver.fake import standing
from tests.nvml.conftest import MakeHost
from tests.nvml.stub import DRIVER, PERIODS, Host, Mig, State, gpu


def test_a_gpu_is_reported_with_all_that_books_it(host: MakeHost) -> None:
    with host(gpus=(gpu(0, bus="00001128:05:00.0", numa=3, minor=2), gpu(1))).running() as running:
        found = running.gpus.snapshot()
    first, second = found.devices
    assert (found.driver_version, found.cuda_version) == ("550.54.15", "12.4")
    assert first.id == first.gpu == gpu(0).uuid
    assert (first.device_class, first.model) == (DeviceClass.GPU, "NVIDIA H100 80GB HBM3")
    assert first.memory_bytes == 81_559 << 20
    assert (first.pci_address, first.numa_node) == ("1128:05:00.0", 3)
    assert (second.pci_address, second.numa_node) == ("0000:11:00.0", 0)
    assert found.conditions == ()
    assert (found.unavailable, found.waiting, found.problems) == (None, "", {})


def test_a_node_is_named_by_its_minor_and_not_by_its_index(host: MakeHost) -> None:
    with host(gpus=(gpu(0, minor=1), gpu(1, minor=0))).running() as running:
        edits = running.gpus.snapshot().edits
    assert [node.path for node in edits[gpu(0).uuid].nodes] == ["/dev/nvidia1"]
    assert [node.path for node in edits[gpu(1).uuid].nodes] == ["/dev/nvidia0"]


def test_an_unknown_numa_node_is_no_numa_node(host: MakeHost) -> None:
    with host(gpus=(gpu(0, numa=-1),)).running() as running:
        assert running.gpus.snapshot().devices[0].numa_node is None
        assert running.gpus.prepare((gpu(0).uuid,)) is None


def test_instances_follow_their_gpu_and_have_nodes_of_their_own(host: MakeHost) -> None:
    migs = (Mig(uuid="MIG-a", gi=3), Mig(uuid="MIG-b", gi=5, ci=1, procs=(999_999,)))
    with host(gpus=(gpu(0, mig=True, migs=migs), gpu(1))).running() as running:
        found = running.gpus.snapshot()
    whole, a, b, other = found.devices
    assert (whole.mig_enabled, other.mig_enabled) == (True, False)
    assert [d.id for d in (a, b)] == ["MIG-a", "MIG-b"]
    assert {(d.device_class, d.gpu, d.profile, d.memory_bytes) for d in (a, b)} == {
        (DeviceClass.MIG, whole.id, "1g.20gb", 19_968 << 20)
    }
    assert found.edits["MIG-b"].nodes[-1].path == "/dev/nvidia-caps/gpu0-gi5-ci1"
    assert found.in_use == {"MIG-b"}


@pytest.mark.parametrize(
    ("mem", "slices", "cslices", "profile"),
    [
        (19_968, 1, 1, "1g.20gb"),
        (9_728, 1, 1, "1g.10gb"),
        (40_192, 3, 3, "3g.40gb"),
        (40_192, 3, 1, "1c.3g.40gb"),
        (80_896, 7, 7, "7g.80gb"),
    ],
)
def test_a_profile_is_worked_out_where_the_name_does_not_say_it(
    host: MakeHost, mem: int, slices: int, cslices: int, profile: str
) -> None:
    mig = Mig(uuid="MIG-a", gi=1, name="A100", mem=mem, slices=slices, cslices=cslices)
    with host(gpus=(gpu(0, mem=81_920, mig=True, migs=(mig,)),)).running() as running:
        assert running.gpus.snapshot().devices[1].profile == profile


def test_new_instances_appear_with_the_event_of_their_making(host: MakeHost) -> None:
    made = host(gpus=(gpu(0, mig=True),))
    with made.running() as running:
        made.set(gpus=(gpu(0, mig=True, migs=(Mig(uuid="MIG-a", gi=1),)),))
        made.event(0, kind=0x100, data=0)
        running.until(lambda: "MIG-a" in running.gpus.snapshot().edits)


def test_new_instances_appear_with_the_next_look_where_no_event_tells(host: MakeHost) -> None:
    made = host(gpus=(gpu(0, mig=True),), rules=("fail 3 nvmlEventSetCreate",))
    with made.running(replace(PERIODS, probe=0.1)) as running:
        made.set(gpus=(gpu(0, mig=True, migs=(Mig(uuid="MIG-a", gi=1),)),))
        running.until(lambda: "MIG-a" in running.gpus.snapshot().edits)


def test_instances_that_a_reboot_took_are_gone_and_cannot_be_handed_over(host: MakeHost) -> None:
    made = host(gpus=(gpu(0, mig=True, migs=(Mig(uuid="MIG-a", gi=1),)),))
    with made.running() as running:
        assert running.gpus.prepare(("MIG-a",)) is None
        made.set(gpus=(gpu(0, mig=True),))
        made.event(0, kind=0x100, data=0)
        running.until(lambda: "MIG-a" not in running.gpus.snapshot().edits)
        failed = running.gpus.prepare(("MIG-a",))
        assert failed is not None
        assert failed.reason == FailureReason.UNKNOWN_DEVICE
        assert running.conditions() == {}


ASKING = re.compile(
    r"nvml(?:(?:Device|System)(?:Get|IsMig|RegisterEvents)|Init|Shutdown|Event)|\w+_t\Z"
)


def test_nvml_is_asked_and_never_told_to_change_anything() -> None:
    """Instances, modes and counters belong to whoever made them."""
    called: set[str] = set()
    for path in Path(bcd.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                    called |= set(re.findall(r"\bnvml[A-Z]\w+", name))
    assert "nvmlDeviceGetUUID" in called
    assert {name for name in called if not ASKING.match(name)} == {"nvmlReturn"}  # of a value


def test_an_old_driver_that_lacks_half_of_nvml_has_its_gpus_reported(
    tmp_path: Path, old_library: Path
) -> None:
    with Host(tmp_path, old_library, State()).running() as running:
        found = running.gpus.snapshot()
    assert [device.id for device in found.devices] == [gpu(0).uuid, gpu(1).uuid]
    assert found.driver_version == "550.54.15"
    assert found.cuda_version == ""
    assert set(running.health().values()) == {"healthy"}


OPTIONAL = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetMigMode",
)


@pytest.mark.parametrize("code", [3, 4, 13, 999])
def test_calls_that_fail_cost_their_own_facts_only(host: MakeHost, code: int) -> None:
    made = host(rules=tuple(f"fail {code} {call}" for call in OPTIONAL))
    with made.running() as running:
        found = running.gpus.snapshot()
    assert [device.id for device in found.devices] == [gpu(0).uuid, gpu(1).uuid]
    assert set(running.health().values()) == {"healthy"}
    assert found.in_use == frozenset()
    assert found.driver_version == DRIVER  # the kernel module's own word


def test_a_gpu_that_cannot_tell_of_events_is_looked_at_all_the_same(host: MakeHost) -> None:
    with host(rules=("fail 3 nvmlEventSetCreate",)).running() as running:
        assert len(running.gpus.snapshot().devices) == 2


def test_a_gpu_whose_node_is_unknown_cannot_be_handed_over(host: MakeHost) -> None:
    with host(rules=("fail 3 nvmlDeviceGetMinorNumber 0",)).running() as running:
        problems = running.gpus.snapshot().problems
        assert list(problems) == [gpu(0).uuid]
        assert "does not say which node" in problems[gpu(0).uuid].message
        assert running.gpus.prepare((gpu(0).uuid,)) == problems[gpu(0).uuid]
        assert running.gpus.prepare((gpu(1).uuid,)) is None


def test_persistence_mode_that_is_off_is_said_with_the_remedy(host: MakeHost) -> None:
    with host(gpus=(gpu(0), gpu(1, persistence=False))).running() as running:
        assert running.conditions()["PersistenceModeOff"].startswith("GPU 1: ")
        assert "nvidia-persistenced" in running.conditions()["PersistenceModeOff"]


def test_a_gpu_that_only_the_bus_knows_is_said_to_be_missing(host: MakeHost) -> None:
    made = host(gpus=(gpu(0), gpu(1)))
    made.set(gpus=(gpu(0),))
    with made.running() as running:
        assert running.conditions()["GpuMissing"].startswith("0000:11:00.0: the GPU at 0000:11")


def test_a_gpu_that_does_not_say_where_it_is_for_once_is_not_missing(host: MakeHost) -> None:
    made = host(rules=("fail 999 nvmlDeviceGetPciInfo_v3 0",))
    with made.running() as running:
        assert running.conditions() == {}
        assert [device.pci_address for device in running.gpus.snapshot().devices] == [
            "",
            gpu(1).address,
        ]
        made.set(rules=())
        made.event(0, kind=0x8000)
        running.until(lambda: running.gpus.snapshot().devices[0].pci_address == gpu(0).address)
        whole = running.gpus.snapshot()
        made.set(rules=("fail 999 nvmlDeviceGetPciInfo_v3 0",), gpus=(gpu(0), gpu(1, mem=9)))
        made.event(0, kind=0x8000)
        running.until(lambda: running.gpus.snapshot().devices[1].memory_bytes == 9 << 20)
        assert running.gpus.snapshot().devices[0] == whole.devices[0]
        assert running.conditions() == {}


def test_a_gpu_that_moved_to_another_slot_is_not_missing_where_it_was(host: MakeHost) -> None:
    made = host()
    with made.running() as running:
        shutil.rmtree(made.root / "sys/bus/pci/devices" / gpu(0).address)
        made.set(gpus=(gpu(0, bus="00000000:99:00.0"), gpu(1)))
        made.event(1, kind=0x8000)
        running.until(lambda: running.gpus.snapshot().devices[0].pci_address == "0000:99:00.0")
        assert running.conditions() == {}


def test_a_gpu_that_was_given_to_a_virtual_machine_is_not_missing(host: MakeHost) -> None:
    made = host(gpus=(gpu(0), gpu(1)))
    made.set(gpus=(gpu(0),))
    (made.root / "sys/bus/pci/devices/0000:11:00.0/driver").symlink_to("../drivers/vfio-pci")
    with made.running() as running:
        assert running.conditions() == {}


@pytest.mark.parametrize("how", ["lost", "gone"])
def test_a_lost_gpu_never_hides_the_others(host: MakeHost, how: str) -> None:
    made = host(gpus=(gpu(0), gpu(1), gpu(2)))
    with made.running() as running:
        made.set(gpus=(gpu(0), gpu(1, **{how: True}), gpu(2)))
        made.event(1, 79)
        running.until(lambda: len(running.gpus.snapshot().devices) == 2)
        assert [d.id for d in running.gpus.snapshot().devices] == [gpu(0).uuid, gpu(2).uuid]
        assert set(running.health().values()) == {"healthy"}
        assert running.conditions()["GpuMissing"].startswith(gpu(1).uuid)
        assert running.gpus.prepare((gpu(1).uuid,)) is not None
        made.set(gpus=(gpu(0), gpu(1), gpu(2)))
        made.event(0, kind=0x8000)
        running.until(lambda: len(running.gpus.snapshot().devices) == 3)
        assert running.health()[gpu(1).uuid] == "unhealthy Xid 79"


def test_a_missing_node_shows_before_anybody_binds(host: MakeHost) -> None:
    made = host()
    made.driver.missing.add("/dev/nvidia1")
    with made.running() as running:
        assert list(running.gpus.snapshot().problems) == [gpu(1).uuid]
        made.driver.missing.add("/dev/nvidiactl")
        failed = running.gpus.prepare((gpu(0).uuid,))
        assert failed is not None
        assert "nvidiactl" in failed.message


def test_a_control_node_that_goes_missing_is_said_before_anybody_binds(host: MakeHost) -> None:
    made = host()
    with made.running() as running:
        assert running.conditions() == {}
        made.driver.missing.add("/dev/nvidiactl")
        running.until(lambda: "nvidiactl is missing" in str(running.conditions()))
        assert list(running.conditions()) == ["DriverNotReady"]
        problems = running.gpus.snapshot().problems
        assert problems.keys() == {gpu(0).uuid, gpu(1).uuid}
        assert {failed.message for failed in problems.values()} == {"/dev/nvidiactl is missing"}
        made.driver.missing.clear()
        running.until(lambda: running.conditions() == {})
        assert running.gpus.snapshot().problems == {}


@pytest.mark.parametrize("what", ["dev/nvidia-uvm", "libraries"])
def test_a_part_that_all_need_is_missed_by_all_and_seen_when_it_comes_back(
    tmp_path: Path, library: Path, what: str
) -> None:
    driver = standing(tmp_path)
    made = Host(tmp_path, library, State(driver=driver.version), driver.open())
    with made.running() as running:
        assert running.gpus.snapshot().problems == {}
        driver.remove_libraries() if what == "libraries" else (tmp_path / what).unlink()
        running.until(lambda: len(running.gpus.snapshot().problems) == 2)
        problem = running.gpus.snapshot().problems[gpu(1).uuid]
        assert problem.reason in (
            FailureReason.DEVICE_NODE_MISSING,
            FailureReason.DRIVER_FILE_MISSING,
        )
        assert running.gpus.prepare((gpu(1).uuid,)) == problem
        driver.install()
        driver.control()
        running.until(lambda: running.gpus.snapshot().problems == {})
        assert running.conditions() == {}


@pytest.mark.parametrize("version", ["550.54.15-dev", "R550", "550", "x\x07"])
def test_a_version_that_no_file_bears_is_the_kernel_modules_or_a_problem_of_all(
    tmp_path: Path, library: Path, version: str
) -> None:
    driver = standing(tmp_path)
    made = Host(tmp_path, library, State(driver=version), driver.open())
    with made.running() as running:
        found = running.gpus.snapshot()
        assert found.problems == {}
        assert {m.container_path for m in found.common.mounts} >= {
            f"/usr/lib/x86_64-linux-gnu/libcuda.so.{driver.version}"
        }
        driver.write("/proc/driver/nvidia/version", "NVRM version: of our own\n")
        running.until(lambda: len(running.gpus.snapshot().problems) == 2)
        failed = running.gpus.prepare((gpu(0).uuid,))
        assert failed is not None
        assert failed.reason == FailureReason.DRIVER_FILE_MISSING


def test_files_of_the_driver_that_change_make_a_new_snapshot(host: MakeHost) -> None:
    made = host()
    with made.running() as running:
        made.driver.missing.add("/dev/nvidia1")
        running.until(lambda: gpu(1).uuid in running.gpus.snapshot().problems)


def test_a_slot_is_prepared_as_its_gpu(host: MakeHost) -> None:
    with host().running() as running:
        assert running.gpus.prepare((f"{gpu(0).uuid}::3",)) is None
        unknown = running.gpus.prepare((f"{gpu(7).uuid}::3",))
        assert unknown is not None
        assert unknown.reason == "unknown-device"
