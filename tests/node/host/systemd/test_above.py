"""Limits that a person set above the slices of holds, and CPUs that others have for themselves."""

from pathlib import Path

import pytest

from bcd.model.report import FailureReason
from bcd.node.host.systemd.slices import SystemdSlices
from tests.node.host.systemd.folder import ID, FolderSystemd, limits, publish


@pytest.fixture
def systemd(tmp_path: Path) -> FolderSystemd:
    return FolderSystemd(tmp_path)


@pytest.fixture
def slices(systemd: FolderSystemd) -> SystemdSlices:
    return SystemdSlices(systemd.root, units=systemd, settle_s=0)


_ABOVE = [
    ("cpuset.cpus", "0-1", "AllowedCPUs=0-7"),
    ("cpuset.mems", "0", "AllowedMemoryNodes=0-1"),
    ("memory.max", "104857600", "MemoryMax=infinity"),
    ("memory.high", "104857600", "MemoryHigh=infinity"),
    ("cpu.max", "10000 100000", "CPUQuota="),
    ("pids.max", "16", "TasksMax=infinity"),
]


@pytest.mark.parametrize(("file", "text", "remedy"), _ABOVE)
def test_a_new_hold_that_would_get_less_fails_by_the_file_above_and_its_remedy(
    systemd: FolderSystemd, slices: SystemdSlices, file: str, text: str, remedy: str
) -> None:
    systemd.above(file, text)
    failed = slices.ensure(ID, limits(cpus="1-3", mems="1"))
    assert failed is not None
    assert failed.reason == FailureReason.SLICE_FAILED
    assert f"bcd.slice/{file} is {text!r}" in failed.message
    assert failed.message.endswith(f"; systemctl set-property bcd.slice {remedy}")
    assert slices.read() == {}


@pytest.mark.parametrize(("file", "text", "remedy"), _ABOVE)
def test_a_hold_that_stands_is_told_of_what_it_gets_less_and_stays(
    systemd: FolderSystemd, slices: SystemdSlices, file: str, text: str, remedy: str
) -> None:
    wanted = limits(cpus="1-3", mems="1")
    assert slices.ensure(ID, wanted) is None
    systemd.above(file, text)
    assert file in slices.read()[ID].surprise  # nobody was given it yet: it is made anew
    publish(systemd)
    assert slices.ensure(ID, wanted) is None
    found = slices.read()[ID]
    assert (found.limits, found.surprise) == (wanted, "")
    assert remedy in found.narrowed


def test_cpus_that_another_control_group_has_for_itself_are_missed(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    assert slices.ensure(ID, limits(cpus="1-3")) is None
    publish(systemd)
    systemd.write(ID, "cpuset.cpus.effective", "1,3")
    assert "cpuset.cpus.effective is '1,3' without 2:" in slices.read()[ID].narrowed


def test_a_hold_of_any_cpus_needs_enough_for_its_quota(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    systemd.above("cpuset.cpus", "0-1,9")
    assert slices.ensure(ID, limits(cpu_millis=2000)) is None
    failed = slices.ensure(ID, limits(cpu_millis=2010))
    assert failed is not None
    assert "bcd.slice/cpuset.cpus is '0-1,9', too few for 2010" in failed.message
    assert failed.message.endswith("; systemctl set-property bcd.slice AllowedCPUs=0-7,9")
    systemd.above("cpuset.cpus", "")
    assert slices.ensure(ID, limits(cpu_millis=8010)) is None


def test_cpus_that_are_offline_narrow_no_hold(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    for cpus in ("1,9", "9"):
        assert slices.ensure(ID, limits(cpus=cpus)) is None
        assert slices.read()[ID].narrowed == ""
