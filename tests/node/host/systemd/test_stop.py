"""A slice is stopped when nothing is in it, and nothing on its way into it."""

from pathlib import Path

import pytest

from bcd.model.ids import AllocationId
from bcd.node.host.systemd.slices import SystemdSlices
from bcd.node.host.systemd.tree import Cleared
from tests.node.host.systemd.folder import ID, FolderSystemd, limits


@pytest.fixture
def systemd(tmp_path: Path) -> FolderSystemd:
    return FolderSystemd(tmp_path)


@pytest.fixture
def slices(systemd: FolderSystemd) -> SystemdSlices:
    return SystemdSlices(systemd.root, units=systemd, settle_s=0)


class LateWorkload(FolderSystemd):
    """A workload starts right before new children are forbidden."""

    def arrive(self, slices: SystemdSlices, *, runs: bool, counted: bool) -> None:
        """Its control group is there; its process may be as well, and may be counted."""
        forbid = slices._cgroups.forbid_children

        def late(id_: AllocationId) -> None:
            child = self.folder(id_) / "late.scope"
            child.mkdir()
            if runs:
                (child / "cgroup.procs").write_text("7\n")  # not empty, so it cannot be removed
            if counted:
                self.populate(id_, True)
            forbid(id_)

        slices._cgroups.forbid_children = late  # type: ignore[method-assign]


@pytest.mark.parametrize("counted", [True, False])
def test_a_workload_that_came_before_the_stop_keeps_its_slice_and_its_children(
    tmp_path: Path, counted: bool
) -> None:
    systemd = LateWorkload(tmp_path)
    slices = SystemdSlices(tmp_path, units=systemd, settle_s=0)
    assert slices.ensure(ID, limits()) is None
    systemd.arrive(slices, runs=True, counted=counted)
    assert not slices.stop(ID)
    assert (systemd.folder(ID) / "late.scope").is_dir()
    assert systemd.read(ID, "cgroup.max.descendants") == "max"
    assert not any(call.startswith("stop") for call in systemd.calls)


class WatchfulSystemd(LateWorkload):
    """Notes what is below a slice when it is told to stop it."""

    def stop(self, name: str) -> str:
        """Look, then stop it."""
        self.below = [path.name for path in (self.parent / name).iterdir() if path.is_dir()]
        return super().stop(name)


def test_a_workload_whose_process_is_still_on_its_way_finds_its_control_group_gone(
    tmp_path: Path,
) -> None:
    systemd = WatchfulSystemd(tmp_path)
    slices = SystemdSlices(tmp_path, units=systemd, settle_s=0)
    assert slices.ensure(ID, limits()) is None
    systemd.arrive(slices, runs=False, counted=False)
    assert slices.stop(ID)
    assert systemd.below == []


def test_a_slice_in_which_the_kernel_counts_a_control_group_is_not_stopped(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    assert slices.ensure(ID, limits()) is None
    systemd.write(ID, "cgroup.stat", "nr_descendants 1\nnr_dying_descendants 0")
    assert not slices.stop(ID)
    assert not any(call.startswith("stop") for call in systemd.calls)
    systemd.write(ID, "cgroup.stat", "nr_descendants 0\nnr_dying_descendants 1")
    assert slices.stop(ID)


def test_a_process_that_moved_into_the_slice_itself_keeps_it(
    systemd: FolderSystemd, slices: SystemdSlices, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert slices.ensure(ID, limits()) is None
    clear = slices._cgroups.clear

    def late(id_: AllocationId) -> Cleared:
        systemd.populate(id_, True)
        return clear(id_)

    monkeypatch.setattr(slices._cgroups, "clear", late)
    assert not slices.stop(ID)
    assert systemd.read(ID, "cgroup.max.descendants") == "max"
    assert not any(call.startswith("stop") for call in systemd.calls)


class LeavingSystemd(FolderSystemd):
    """Stops a slice and leaves its folder, as if something were still in it."""

    def stop(self, name: str) -> str:
        """Say that it is stopped."""
        self.calls.append(f"stop {name}")
        return ""


def test_a_slice_that_is_stuck_is_waited_for_once(tmp_path: Path) -> None:
    systemd = LeavingSystemd(tmp_path)
    slices = SystemdSlices(tmp_path, units=systemd, settle_s=1.0)
    assert slices.ensure(ID, limits()) is None
    looks = []
    exists = slices._cgroups.exists
    slices._cgroups.exists = lambda id_: looks.append(id_) or exists(id_)  # type: ignore[func-returns-value,method-assign]
    assert not slices.stop(ID)
    first = len(looks)
    assert list(slices.read()) == [ID]
    assert not slices.stop(ID)
    assert len(looks) - first <= 2 < first


def test_a_slice_that_systemd_does_not_stop_is_not_called_gone(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    assert slices.ensure(ID, limits()) is None
    systemd.refuses = "systemd says: no"
    assert not slices.stop(ID)
    systemd.refuses = ""
    assert slices.stop(ID)
