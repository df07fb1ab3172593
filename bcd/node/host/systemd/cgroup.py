"""The control files of the holds' slices, below ``/sys/fs/cgroup``.

Documentation/admin-guide/cgroup-v2.rst of the Linux kernel. A limit is in force when its control
file says so, whatever systemd reports; ``slices`` compares every file that matters here.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from bcd.model.assignment import Limits, allocation_of_slice, slice_name
from bcd.model.ids import AllocationId
from bcd.node.host.systemd.above import PARENTS, Above
from bcd.node.host.systemd.tree import Cleared, remove_below
from bcd.node.limits import canonical
from bcd.node.ports import SliceState

_MAX_BYTES = 64 * 1024
_PERIOD_US = 100_000
_GIB = 1 << 30
_UNLIMITED = "max"
_PAGES = re.compile(r"hugepages-([0-9]{1,9})kB\Z")
_GIB_PAGES = "hugetlb.1GB.max"
_DESCENDANTS = re.compile(r"^nr_descendants ([0-9]{1,9})$", re.MULTILINE)
# What a file stands for that the kernel does not have: controllers that nobody turned on limit
# nothing, and a kernel without swap accounting has no swap to forbid.
_ABSENT = {
    "cpu.max": f"{_UNLIMITED} {_PERIOD_US}",
    "cpuset.cpus": "",
    "cpuset.mems": "",
    "memory.swap.max": "0",
}


def wanted_files(limits: Limits, huge: frozenset[str]) -> dict[str, str]:
    """Control files and the content with which they enforce limits that ``enforced`` gave.

    ``huge`` are the files of the host's huge page sizes; those that nobody books are closed,
    since a size that is not mentioned would be open.
    """
    quota = str(limits.cpu_millis * _PERIOD_US // 1000) if limits.cpu_millis else _UNLIMITED
    wanted = {
        "cpu.max": f"{quota} {_PERIOD_US}",
        "cpuset.cpus": limits.cpus,
        "cpuset.mems": limits.mems,
        "memory.max": str(limits.memory_bytes) if limits.memory_bytes else _UNLIMITED,
        "memory.high": _UNLIMITED,
        "memory.swap.max": "0",
        "pids.max": _UNLIMITED,
        "cgroup.max.descendants": _UNLIMITED,
    }
    if limits.hugepages_1gi:
        huge |= {_GIB_PAGES}
    return wanted | {file: _huge_bytes(file, limits.hugepages_1gi) for file in huge}


def differing(wanted: Mapping[str, str], found: Mapping[str, str]) -> tuple[str, ...]:
    """Which files say something else."""
    return tuple(file for file, content in wanted.items() if _shown(found, file) != content)


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Which files say something else, for people; empty when all agree."""
    return "; ".join(
        f"{file} is {_shown(found, file)!r} and should be {wanted[file]!r}"
        for file in differing(wanted, found)
    )


class Cgroups:
    """The slices' folders below a root."""

    def __init__(self, root: Path) -> None:
        self._top = root / "sys/fs/cgroup"
        self._folder = self._top / PARENTS[-1]
        self._above = Above(root)
        self._sizes = root / "sys/kernel/mm/hugepages"

    def controllers(self) -> frozenset[str] | None:
        """What the kernel offers; None without the unified hierarchy."""
        try:
            return frozenset((self._top / "cgroup.controllers").read_text().split())
        except OSError:
            return None

    def states(self) -> Mapping[AllocationId, SliceState]:
        """Every slice of an allocation that exists, by id."""
        limited = self._above.limited()
        found = ((id_, self.state(id_)) for id_ in self._ids())
        return {
            id_: replace(state, narrowed=limited or self.withheld(id_, state.limits))
            for id_, state in found
            if state is not None
        }

    def exists(self, id_: AllocationId) -> bool:
        """Whether the slice has a control group."""
        return self._path(id_).is_dir()

    def state(self, id_: AllocationId) -> SliceState | None:
        """A slice as its files read now; None when it is not there."""
        found = self.files(id_)
        if "cgroup.events" not in found:
            return None
        limits = _limits(found)
        return SliceState(
            limits,
            empty=_is_empty(found["cgroup.events"]),
            surprise=self.differences(limits, found),
        )

    def files(self, id_: AllocationId) -> dict[str, str]:
        """The files that say something about limits, without their line ends."""
        folder = str(self._path(id_))
        found = {}
        for name in (*_READ, *self._huge_files()):
            with contextlib.suppress(OSError):
                found[name] = _read(f"{folder}/{name}")
        return found

    def differences(self, limits: Limits, found: Mapping[str, str]) -> str:
        """Which of ``files`` do not say what ``enforced`` limits ask; empty when all do."""
        return differences(wanted_files(limits, self._huge_files()), found)

    def differing(self, id_: AllocationId, limits: Limits) -> tuple[Path, ...]:
        """The files of a slice that do not say now what ``enforced`` limits ask.

        The folder when there is no slice.
        """
        found = self.files(id_)
        if "cgroup.events" not in found:
            return (self._path(id_),)
        wanted = wanted_files(limits, self._huge_files())
        return tuple(self._path(id_) / file for file in differing(wanted, found))

    def narrowed(self, id_: AllocationId, limits: Limits) -> str:
        """What slices above leave less of than the limits say, and the remedy; empty if none do."""
        return self._above.limited() or self.withheld(id_, limits)

    def withheld(self, id_: AllocationId, limits: Limits) -> str:
        """The same of CPUs and memory nodes alone."""
        return self._above.withheld(self._path(id_), limits)

    def memory_bytes(self, id_: AllocationId) -> int:
        """What the slice uses now; 0 when it is not there."""
        try:
            return int(_read(str(self._path(id_) / "memory.current")))
        except (OSError, ValueError):
            return 0

    def reclaim(self, id_: AllocationId, count: int) -> None:
        """Ask the kernel to take back so many bytes of cache; never kills. Best effort."""
        with contextlib.suppress(OSError):  # not all kernels have it, and it may not find enough
            _write(self._path(id_) / "memory.reclaim", str(count))

    def limit_huge_pages(self, id_: AllocationId, gib_pages: int) -> None:
        """Write the limit and the reservation limit of every page size; raises OSError.

        Without the second a mapping succeeds, and the first touch kills the process (SIGBUS).
        """
        for folder in (self._top, *(self._top / parent for parent in PARENTS)):
            control = folder / "cgroup.subtree_control"
            if "hugetlb" not in _read(str(control)).split():
                _write(control, "+hugetlb")
        for file in self._huge_files():
            _write(self._path(id_) / file, _huge_bytes(file, gib_pages))

    def forbid_children(self, id_: AllocationId) -> None:
        """No unit can be started in the slice any more; raises OSError."""
        _write(self._path(id_) / "cgroup.max.descendants", "0")

    def allow_children(self, id_: AllocationId) -> None:
        """The opposite; raises OSError."""
        _write(self._path(id_) / "cgroup.max.descendants", _UNLIMITED)

    def clear(self, id_: AllocationId) -> Cleared:
        """Remove every control group below the slice; raises OSError when that is not there.

        Where new ones are forbidden, no process is in any afterwards nor on its way into one.
        """
        cleared = remove_below(self._path(id_))
        if cleared is Cleared.NONE_LEFT and self._descendants(id_):
            return Cleared.LEFT
        return cleared

    def _descendants(self, id_: AllocationId) -> int:
        """How many the kernel counts below the slice."""
        match = _DESCENDANTS.search(_read(str(self._path(id_) / "cgroup.stat")))
        return int(match[1]) if match is not None else 0

    def remove(self, id_: AllocationId) -> None:
        """Remove the folder that systemd left; fails, unheard, while anything is in it."""
        with contextlib.suppress(OSError):
            self._path(id_).rmdir()

    def _huge_files(self) -> frozenset[str]:
        """Limit and reservation limit of every huge page size that this kernel has."""
        with contextlib.suppress(OSError):
            sizes = [match[1] for name in os.listdir(self._sizes) if (match := _PAGES.match(name))]
            return frozenset(
                f"hugetlb.{_size(int(size))}.{kind}"
                for size in sizes
                for kind in ("max", "rsvd.max")
            )
        return frozenset()

    def _path(self, id_: AllocationId) -> Path:
        return self._folder / slice_name(id_)

    def _ids(self) -> Iterator[AllocationId]:
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        for name in names:
            id_ = allocation_of_slice(name)
            if id_ is not None:
                yield id_


_READ = frozenset(wanted_files(Limits(cpu_millis=0, memory_bytes=0, hugepages_1gi=0), frozenset()))
_READ |= {"cgroup.events"}


def _limits(found: Mapping[str, str]) -> Limits:
    quota, _, period = found.get("cpu.max", "").partition(" ")
    return Limits(
        cpu_millis=_number(quota) * 1000 // (_number(period) or _PERIOD_US),
        memory_bytes=_number(found.get("memory.max", "")),
        hugepages_1gi=_number(found.get(_GIB_PAGES, "")) // _GIB,
        cpus=_shown(found, "cpuset.cpus"),
        mems=_shown(found, "cpuset.mems"),
    )


def _number(text: str) -> int:
    """``max``, and what a file that is not there says, is 0: no limit."""
    return int(text) if text.isdecimal() else 0


def _shown(found: Mapping[str, str], file: str) -> str:
    text = found.get(file, _ABSENT.get(file, _UNLIMITED))
    return canonical(text) if file.startswith("cpuset.") else text


def _size(kib: int) -> str:
    """As the hugetlb controller spells it: the largest unit of which there is a whole one."""
    for unit, step in (("GB", 1 << 20), ("MB", 1 << 10)):
        if kib >= step:
            return f"{kib // step}{unit}"
    return f"{kib}KB"


def _huge_bytes(file: str, gib_pages: int) -> str:
    return str(gib_pages * _GIB) if file.startswith("hugetlb.1GB.") else "0"


def _is_empty(events: str) -> bool:
    return "populated 0" in events.splitlines()


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MAX_BYTES).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def _write(path: Path, text: str) -> None:
    """Into a file that is there: a control file is never created."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
