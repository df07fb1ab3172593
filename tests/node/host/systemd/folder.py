"""A folder that plays ``/sys/fs/cgroup``, and a systemd that writes what it is told into it."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bcd.model.assignment import Limits, slice_name
from bcd.model.cpuset import format_cpulist, parse_cpulist
from bcd.model.ids import AllocationId
from bcd.node.cdi import file_name
from bcd.node.host.systemd.conversation import Property
from tests.node.world import alloc_id

ID = alloc_id(1)
GIB = 1 << 30

_INFINITY = (1 << 64) - 1
_FRESH = {
    "cgroup.events": "populated 0\nfrozen 0",
    "cgroup.max.descendants": "max",
    "cgroup.stat": "nr_descendants 0\nnr_dying_descendants 3",
    "cpu.max": "max 100000",
    "cpuset.cpus": "",
    "cpuset.mems": "",
    "memory.current": "0",
    "memory.max": "max",
    "memory.high": "max",
    "memory.swap.max": "max",
    "pids.max": "max",
}
_HUGE = {f"hugetlb.{size}.{kind}": "max" for size in ("2MB", "1GB") for kind in ("max", "rsvd.max")}
_FILES = {
    "MemoryMax": "memory.max",
    "MemoryHigh": "memory.high",
    "MemorySwapMax": "memory.swap.max",
    "TasksMax": "pids.max",
}


def limits(**changes: Any) -> Limits:
    """Those of a small hold."""
    fields: dict[str, Any] = {"cpu_millis": 500, "memory_bytes": GIB, "hugepages_1gi": 0}
    return Limits(**(fields | changes))


@dataclass
class FolderSystemd:
    """Implements ``Units``: what it does not do is what a test takes away.

    ``deaf`` properties are accepted and not applied, as systemd does with ids that are unknown;
    with ``clings`` a cpuset, once set, is never opened again. ``absent`` slices have no
    control group. ``refuses`` is what it says instead of complying.
    """

    root: Path
    deaf: set[str] = field(default_factory=set)
    clings: bool = False
    absent: bool = False
    refuses: str = ""
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.top = self.root / "sys/fs/cgroup"
        self.parent = self.top / "bcd.slice/bcd-alloc.slice"
        self.parent.mkdir(parents=True)
        (self.top / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
        for folder in (self.top, self.parent.parent, self.parent):
            (folder / "cgroup.subtree_control").write_text("cpu memory\n")
        for size in (2048, 1048576):
            (self.root / f"sys/kernel/mm/hugepages/hugepages-{size}kB").mkdir(parents=True)
        (self.root / "run/systemd/system").mkdir(parents=True)
        (self.root / "run/systemd/private").touch()
        for file, ids in (("cpu/online", "0-7"), ("node/has_memory", "0-1")):
            path = self.root / "sys/devices/system" / file
            path.parent.mkdir(parents=True)
            path.write_text(f"{ids}\n")

    def folder(self, id_: AllocationId) -> Path:
        """The control group of a slice."""
        return self.parent / slice_name(id_)

    def read(self, id_: AllocationId, file: str) -> str:
        """A control file."""
        return (self.folder(id_) / file).read_text().strip()

    def write(self, id_: AllocationId, file: str, text: str) -> None:
        """Somebody writes a control file."""
        (self.folder(id_) / file).write_text(text + "\n")

    def above(self, file: str, text: str) -> None:
        """A person limits ``bcd.slice``, and so every slice below."""
        (self.parent.parent / file).write_text(text + "\n")
        for folder in self.parent.iterdir():
            if folder.is_dir():
                self._withhold(folder)

    def populate(self, id_: AllocationId, busy: bool) -> None:
        """Put a process into a slice, which comes to be by that, or end it."""
        if not self.folder(id_).exists():
            self._make(slice_name(id_))
        self.write(id_, "cgroup.events", f"populated {int(busy)}\nfrozen 0")

    def problem(self) -> str:
        return ""

    def apply(self, name: str, properties: tuple[Property, ...]) -> str:
        """Start a slice and write its properties."""
        self.calls.append(f"apply {name}")
        if self.refuses:
            return self.refuses
        if self.absent:
            return ""
        if not (self.parent / name).exists():
            self._make(name)
        for each in properties:
            file, text = _written(each)
            if each.name not in self.deaf and not (self.clings and text == ""):
                (self.parent / name / file).write_text(text + "\n")
        self._withhold(self.parent / name)
        return ""

    def _withhold(self, folder: Path) -> None:
        """What is left of ids: the parent's and those online, where any of them was asked for."""
        for file, online in (("cpuset.cpus", "cpu/online"), ("cpuset.mems", "node/has_memory")):
            left = parse_cpulist((self.root / "sys/devices/system" / online).read_text())
            for asked in (self.parent.parent / file, folder / file):
                if asked.exists():
                    left = (left & parse_cpulist(asked.read_text())) or left
            (folder / f"{file}.effective").write_text(format_cpulist(left) + "\n")

    def stop(self, name: str) -> str:
        """Remove a slice."""
        self.calls.append(f"stop {name}")
        if self.refuses:
            return self.refuses
        shutil.rmtree(self.parent / name, ignore_errors=True)
        return ""

    def left_over(self, name: str) -> bool:
        """Never, here."""
        return False

    def _make(self, name: str) -> None:
        folder = self.parent / name
        folder.mkdir()
        for file, text in (_FRESH | _HUGE).items():
            (folder / file).write_text(text + "\n")


def _written(given: Property) -> tuple[str, str]:
    if isinstance(given.value, tuple):
        ids = (i for i in range(8 * len(given.value)) if given.value[i // 8] >> i % 8 & 1)
        return {"AllowedCPUs": "cpuset.cpus", "AllowedMemoryNodes": "cpuset.mems"}[
            given.name
        ], format_cpulist(ids)
    limit = "max" if given.value == _INFINITY else str(given.value)
    if given.name == "CPUQuotaPerSecUSec":
        quota = limit if limit == "max" else str(given.value // 10)
        return "cpu.max", f"{quota} 100000"
    return _FILES[given.name], limit


def publish(systemd: FolderSystemd) -> None:
    """Write the spec of the hold, so that its devices are handed out."""
    (systemd.root / "etc/cdi").mkdir(parents=True)
    (systemd.root / "etc/cdi" / file_name(ID)).write_text("{}")
