"""Memory of a slice that is in use, lowered without an end of what runs in it."""

from pathlib import Path

import pytest

from bcd.node.host.systemd.conversation import Property
from bcd.node.host.systemd.slices import SystemdSlices
from tests.node.host.systemd.folder import GIB, ID, FolderSystemd, limits, publish


@pytest.fixture
def systemd(tmp_path: Path) -> FolderSystemd:
    return FolderSystemd(tmp_path)


@pytest.fixture
def slices(systemd: FolderSystemd) -> SystemdSlices:
    return SystemdSlices(systemd.root, units=systemd, settle_s=0)


def test_memory_in_use_is_never_taken_away(systemd: FolderSystemd, slices: SystemdSlices) -> None:
    publish(systemd)
    assert slices.ensure(ID, limits(memory_bytes=4 * GIB)) is None
    systemd.populate(ID, True)
    systemd.write(ID, "memory.current", str(3 * GIB))
    before = list(systemd.calls)
    failed = slices.ensure(ID, limits(memory_bytes=2 * GIB))
    assert failed is not None
    assert str(3 * GIB) in failed.message
    assert systemd.calls == before
    assert slices.ensure(ID, limits(memory_bytes=3 * GIB)) is None


def test_a_slice_over_its_new_memory_gets_every_other_limit(
    systemd: FolderSystemd, slices: SystemdSlices
) -> None:
    publish(systemd)
    assert slices.ensure(ID, limits(memory_bytes=4 * GIB)) is None
    systemd.populate(ID, True)
    systemd.write(ID, "memory.current", str(3 * GIB))
    systemd.write(ID, "hugetlb.2MB.max", "max")
    assert slices.ensure(ID, limits(memory_bytes=2 * GIB, cpu_millis=2000, cpus="3")) is not None
    found = slices.read()[ID]
    assert found.limits == limits(memory_bytes=4 * GIB, cpu_millis=2000, cpus="3")
    assert found.surprise == ""
    before = list(systemd.calls)
    assert slices.ensure(ID, limits(memory_bytes=2 * GIB, cpu_millis=2000, cpus="3")) is not None
    assert systemd.calls == before


class GrowingWorkload(FolderSystemd):
    """Notes the limits on memory as they are written; the workload grows with each."""

    growth = 0

    def apply(self, name: str, properties: tuple[Property, ...]) -> str:
        """Write them, and see what the workload makes of it."""
        said = super().apply(name, properties)
        self.seen = [*getattr(self, "seen", []), tuple(map(self._number, ("high", "max")))]
        self.write(ID, "memory.current", str(self._number("current") + self.growth))
        return said

    def _number(self, file: str) -> int:
        text = self.read(ID, f"memory.{file}")
        return 0 if text == "max" else int(text)


def test_a_growing_workload_is_slowed_down_before_its_memory_is_lowered(tmp_path: Path) -> None:
    systemd = GrowingWorkload(tmp_path)
    slices = SystemdSlices(tmp_path, units=systemd, settle_s=0)
    publish(systemd)
    assert slices.ensure(ID, limits(memory_bytes=4 * GIB)) is None
    systemd.populate(ID, True)
    systemd.write(ID, "memory.current", str(GIB))
    assert slices.ensure(ID, limits(memory_bytes=2 * GIB)) is None
    assert systemd.seen[1:] == [
        (2 * GIB * 15 // 16, 4 * GIB),
        (2 * GIB * 15 // 16, 2 * GIB),
        (0, 2 * GIB),
    ]
    assert slices.read()[ID].surprise == ""


def test_a_workload_that_outgrew_its_new_memory_meanwhile_keeps_the_old(tmp_path: Path) -> None:
    systemd = GrowingWorkload(tmp_path)
    slices = SystemdSlices(tmp_path, units=systemd, settle_s=0)
    publish(systemd)
    assert slices.ensure(ID, limits(memory_bytes=4 * GIB)) is None
    systemd.populate(ID, True)
    systemd.growth = 2 * GIB
    systemd.write(ID, "memory.current", str(GIB))
    failed = slices.ensure(ID, limits(memory_bytes=2 * GIB, cpus="3"))
    assert failed is not None
    assert str(3 * GIB) in failed.message
    assert {held for _, held in systemd.seen} == {4 * GIB}
    assert slices.read()[ID].limits == limits(memory_bytes=4 * GIB, cpus="3")
    assert slices.read()[ID].surprise == ""


def test_memory_of_a_slice_without_any_limit_is_lowered_as_carefully(tmp_path: Path) -> None:
    systemd = GrowingWorkload(tmp_path)
    slices = SystemdSlices(tmp_path, units=systemd, settle_s=0)
    publish(systemd)
    systemd.populate(ID, True)
    assert slices.ensure(ID, limits(memory_bytes=2 * GIB)) is None
    assert systemd.seen[0] == (2 * GIB * 15 // 16, 0)
    assert slices.read()[ID].limits == limits(memory_bytes=2 * GIB)
