"""Slices through systemd, on a folder that plays the control groups and a systemd that fails."""

from pathlib import Path

import pytest

from bcd.model.assignment import Limits
from bcd.model.ids import AllocationId
from bcd.model.report import FailureReason
from bcd.node.host.systemd.child import UPGRADING
from bcd.node.host.systemd.slices import SystemdSlices
from tests.node.host.systemd.folder import GIB, ID, FolderSystemd, limits, publish


@pytest.fixture
def systemd(tmp_path: Path) -> FolderSystemd:
    return FolderSystemd(tmp_path)


@pytest.fixture
def slices(systemd: FolderSystemd) -> SystemdSlices:
    return SystemdSlices(systemd.root, units=systemd, settle_s=0)


@pytest.mark.parametrize(
    "name", ["AllowedCPUs", "AllowedMemoryNodes", "MemoryMax", "MemorySwapMax"]
)
def test_a_property_that_is_not_applied_fails_by_its_file_and_leaves_no_slice(
    systemd: FolderSystemd, slices: SystemdSlices, name: str
) -> None:
    systemd.deaf = {name}
    failed = slices.ensure(ID, limits(cpus="3", mems="1"))
    assert failed is not None
    assert failed.reason == FailureReason.SLICE_FAILED
    file = {
        "AllowedCPUs": "cpuset.cpus is '' and should be '3'",
        "AllowedMemoryNodes": "cpuset.mems is '' and should be '1'",
        "MemoryMax": f"memory.max is 'max' and should be '{GIB}'",
        "MemorySwapMax": "memory.swap.max is 'max' and should be '0'",
    }[name]
    assert file in failed.message
    assert slices.read() == {}


def test_a_slice_with_processes_that_cannot_be_repaired_stays(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    publish(systemd)
    assert slices.ensure(ID, limits()) is None
    systemd.populate(ID, True)
    systemd.deaf = {"AllowedCPUs"}
    failed = slices.ensure(ID, limits(cpus="3"))
    assert failed is not None
    assert "cpuset.cpus" in failed.message
    assert not slices.read()[ID].empty


def test_a_setting_that_systemd_does_not_take_back_costs_an_empty_slice_its_life(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    systemd.clings = True
    assert slices.ensure(ID, limits(cpus="3")) is None
    assert slices.ensure(ID, limits()) is None
    assert slices.read()[ID].limits == limits()
    assert [call.split()[0] for call in systemd.calls] == ["apply", "apply", "stop", "apply"]


def test_a_systemd_that_refuses_is_asked_once_and_the_slice_stays(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    assert slices.ensure(ID, limits()) is None
    systemd.refuses = "systemd did not answer"
    assert slices.ensure(ID, limits(cpus="3")) is not None
    assert len(systemd.calls) == 2
    assert slices.read()[ID].limits == limits()


def test_a_slice_that_is_active_without_a_control_group_fails(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    systemd.absent = True
    failed = slices.ensure(ID, limits(cpu_millis=0, memory_bytes=0))
    assert failed is not None
    assert "no control group" in failed.message


def test_what_systemd_says_is_passed_on(systemd: FolderSystemd, slices: SystemdSlices) -> None:
    systemd.refuses = "systemd says: no"
    failed = slices.ensure(ID, limits())
    assert failed is not None
    assert failed.message.endswith("systemd says: no")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("memory.swap.max", "max"),
        ("memory.high", "4096"),
        ("pids.max", "8"),
        ("cgroup.max.descendants", "0"),
        ("hugetlb.2MB.max", "max"),
        ("hugetlb.2MB.rsvd.max", "2097152"),
        ("hugetlb.1GB.rsvd.max", "max"),
        ("cpu.max", "25000 50000"),
    ],
)
def test_a_file_that_no_limits_explain_is_a_surprise_and_is_repaired(
    systemd: FolderSystemd, slices: SystemdSlices, file: str, text: str
) -> None:
    assert slices.ensure(ID, limits()) is None
    systemd.write(ID, file, text)
    assert file in slices.read()[ID].surprise
    assert slices.ensure(ID, limits()) is None
    assert slices.read()[ID].surprise == ""
    assert slices.read()[ID].limits == limits()


def test_huge_pages_of_a_slice_whose_controller_was_turned_off_are_a_surprise(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    assert slices.ensure(ID, limits()) is None
    for path in systemd.folder(ID).glob("hugetlb.*"):
        path.unlink()
    assert "hugetlb.2MB.max" in slices.read()[ID].surprise


def test_an_upgrade_fails_new_holds_and_leaves_those_that_stand_alone(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    assert slices.ensure(ID, limits()) is None
    systemd.refuses = UPGRADING
    failed = slices.ensure(ID, limits(cpus="3"))
    assert failed is not None
    assert "bcd is being upgraded" in failed.message
    publish(systemd)
    assert slices.ensure(ID, limits(cpus="3")) is None
    assert not slices.stop(ID)
    assert slices.read()[ID].limits == limits()


def test_a_process_before_the_devices_were_handed_out_is_refused(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    systemd.populate(ID, True)
    failed = slices.ensure(ID, limits())
    assert failed is not None
    assert "end them" in failed.message
    assert systemd.calls == []
    publish(systemd)
    assert slices.ensure(ID, limits()) is None


@pytest.mark.parametrize(
    "wanted",
    [
        limits(cpu_millis=1 << 60),
        limits(cpu_millis=-1),
        limits(memory_bytes=1 << 64),
        limits(memory_bytes=-1),
        limits(hugepages_1gi=1 << 34),
        limits(cpus="9-1"),
        limits(mems="0-99999"),
    ],
)
def test_absurd_limits_never_reach_systemd(
    systemd: FolderSystemd, slices: SystemdSlices, wanted: Limits
) -> None:
    failed = slices.ensure(ID, wanted)
    assert failed is not None
    assert failed.reason == FailureReason.INVALID_LIMITS
    assert systemd.calls == []


def test_an_id_that_cannot_name_a_slice_is_refused(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    for name in ("a-b", "../x", "", "alloc_x\n"):
        assert slices.ensure(AllocationId(name), limits()) is not None
    assert systemd.calls == []


def test_other_slices_are_none_of_ours(systemd: FolderSystemd, slices: SystemdSlices) -> None:
    assert slices.ensure(ID, limits()) is None
    for name in ("bcd-alloc-x.slice", "user.slice", f"bcd-alloc-{ID}-x.slice", f"{ID}.slice"):
        (systemd.parent / name).mkdir()
    assert list(slices.read()) == [ID]


def test_a_host_that_cannot_limit_says_what_to_do(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    controllers = systemd.top / "cgroup.controllers"
    for name in ("cpu", "cpuset", "memory", "hugetlb"):
        controllers.write_text(" ".join({"cpu", "cpuset", "memory", "hugetlb", "io"} - {name}))
        assert slices.problem().startswith(f"no {name} controller")
    controllers.unlink()
    assert "unified_cgroup_hierarchy" in slices.problem()
    (systemd.root / "run/systemd/system").rmdir()
    assert "systemd does not run this host" in slices.problem()
