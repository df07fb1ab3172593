"""What the slices above those of holds leave of their limits.

A hold's slice says what was asked of it even where ``bcd.slice`` or ``bcd-alloc.slice`` allows
less. Both are ours and have no limits; a person may have set some. ``*.effective`` says what is
left of ids; Documentation/admin-guide/cgroup-v2.rst of the Linux kernel.
"""

import os
from pathlib import Path

from bcd.model.assignment import Limits
from bcd.model.cpuset import MalformedCpuList, format_cpulist, parse_cpulist

PARENTS = ("bcd.slice", "bcd.slice/bcd-alloc.slice")
_MAX_BYTES = 64 * 1024
_OPENED_BY = {
    "memory.max": "MemoryMax=infinity",
    "memory.high": "MemoryHigh=infinity",
    "cpu.max": "CPUQuota=",
    "pids.max": "TasksMax=infinity",
}
_PRESENT = {"cpuset.cpus": "cpu/online", "cpuset.mems": "node/has_memory"}
_PROPERTY = {"cpuset.cpus": "AllowedCPUs", "cpuset.mems": "AllowedMemoryNodes"}


class Above:
    """The two slices above those of holds, below a root."""

    def __init__(self, root: Path) -> None:
        self._top = root / "sys/fs/cgroup"
        self._devices = root / "sys/devices/system"

    def limited(self) -> str:
        """Which file of theirs limits every hold and the command that mends it; empty when none."""
        for parent in PARENTS:
            for file, setting in _OPENED_BY.items():
                path = self._top / parent / file
                text = _text(path)
                if text.split()[:1] not in ([], ["max"]):
                    return f"{path} is {text!r} and should be 'max'; {_command(parent, setting)}"
        return ""

    def withheld(self, folder: Path, limits: Limits) -> str:
        """Which file keeps CPUs or memory nodes from a slice that asks for them, and the remedy.

        Those that are offline are nobody's fault here.
        """
        asked = {"cpuset.cpus": limits.cpus, "cpuset.mems": limits.mems}
        found = next(filter(None, (self._withheld(folder, *each) for each in asked.items())), "")
        return found or ("" if limits.cpus else self._too_few(limits.cpu_millis))

    def _too_few(self, cpu_millis: int) -> str:
        """The same of a slice that may run anywhere: CPUs enough for its quota."""
        file = "cpuset.cpus"
        present = _ids(self._devices / _PRESENT[file]) or frozenset()
        for parent in PARENTS:
            allowed = _ids(self._top / parent / file)
            if allowed and len(allowed & present) * 1000 < min(cpu_millis, len(present) * 1000):
                setting = f"{_PROPERTY[file]}={format_cpulist(allowed | present)}"
                return (
                    f"{self._top / parent / file} is {format_cpulist(allowed)!r}, too few for"
                    f" {cpu_millis} milliseconds of CPU per second; {_command(parent, setting)}"
                )
        return ""

    def _withheld(self, folder: Path, file: str, asked: str) -> str:
        effective = _ids(folder / f"{file}.effective")
        booked = _parsed(asked)
        present = _ids(self._devices / _PRESENT[file])
        if booked is None or effective is None:
            return ""
        if present is not None:
            booked &= present
        missing = booked - effective
        if not missing:
            return ""
        for parent in PARENTS:
            allowed = _ids(self._top / parent / file)
            if allowed and missing - allowed:
                setting = f"{_PROPERTY[file]}={format_cpulist(allowed | (present or booked))}"
                return (
                    f"{self._top / parent / file} is {format_cpulist(allowed)!r} and leaves out"
                    f" {format_cpulist(missing - allowed)}; {_command(parent, setting)}"
                )
        return (
            f"{folder / file}.effective is {format_cpulist(effective)!r} without"
            f" {format_cpulist(missing)}: another control group has them for itself; write member"
            " to its cpuset.cpus.partition and empty its cpuset.cpus.exclusive"
        )


def _command(parent: str, setting: str) -> str:
    return f"systemctl set-property {parent.rpartition('/')[2]} {setting}"


def _ids(path: Path) -> frozenset[int] | None:
    """None when the file is not there."""
    return _parsed(_text(path)) if path.exists() else None


def _parsed(cpulist: str) -> frozenset[int] | None:
    try:
        return parse_cpulist(cpulist)
    except MalformedCpuList:
        return None


def _text(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _MAX_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)
