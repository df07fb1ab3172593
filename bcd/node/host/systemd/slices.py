"""The port ``Slices`` on a real host (spec 16.5 to 16.5b).

A slice is started bare and gets its limits as run-time properties, so that the shipped drop-in
(tiny limits for every slice ``bcd-alloc-*``) holds down only slices that nobody set up. Control
files are read back and compared each time: see ``cgroup``.
"""

import functools
import importlib.util
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from bcd.model.assignment import Limits, slice_name
from bcd.model.cpuset import MalformedCpuList
from bcd.model.ids import AllocationId, is_allocation_id
from bcd.model.report import Failed, FailureReason
from bcd.node.cdi import file_name
from bcd.node.host.systemd.cgroup import Cgroups
from bcd.node.host.systemd.conversation import Property, SystemdUnits, properties_of
from bcd.node.host.systemd.tree import Cleared
from bcd.node.limits import enforced
from bcd.node.ports import SliceState

_CONTROLLERS = {
    "cpu": "remove cgroup_disable=cpu from the kernel's command line",
    "cpuset": "remove cgroup_disable=cpuset from the kernel's command line",
    "memory": "remove cgroup_disable=memory from the kernel's command line",
    "hugetlb": "boot a kernel of 5.7 or later that was built with CONFIG_CGROUP_HUGETLB",
}
# What no host has, and what a quota or memory.max could not carry without wrapping around.
_MAX_CPU_MILLIS = 8192 * 1000
_MAX_BYTES = 1 << 60
_SETTLE_S = 2.0
_LOOK_S = 0.02


class Units(Protocol):
    """What is asked of systemd; each says what went wrong, or nothing."""

    def apply(self, name: str, properties: tuple[Property, ...]) -> str:
        """Start a slice that is not active and set its properties."""
        ...

    def stop(self, name: str) -> str:
        """Stop a slice and remove its properties."""
        ...

    def left_over(self, name: str) -> bool:
        """Whether properties lie on disk that outlive the slice."""
        ...


class SystemdSlices:
    """Implements the ``Slices`` port.

    ``cdi`` is the folder of CDI specs: a slice whose spec stands is published and may be in use.
    ``settle_s`` is how long control files may take to agree; only failures take that long.
    """

    def __init__(
        self,
        root: Path,
        *,
        cdi: Path | None = None,
        units: Units | None = None,
        settle_s: float = _SETTLE_S,
    ) -> None:
        self._root = root
        self._cdi = cdi if cdi is not None else root / "etc/cdi"
        self._units: Units = units if units is not None else SystemdUnits(root)
        self._cgroups = Cgroups(root)
        self._settle_s = settle_s
        self._stuck: set[tuple[str, AllocationId]] = set()

    def problem(self) -> str:
        """Why this host cannot enforce limits, and what to do; empty when it can."""
        if not (self._root / "run/systemd/system").is_dir():
            return "systemd does not run this host (no /run/systemd/system); boot it with systemd"
        controllers = self._cgroups.controllers()
        if controllers is None:
            return (
                "the unified cgroup hierarchy is not mounted at /sys/fs/cgroup; boot with"
                " systemd.unified_cgroup_hierarchy=1"
            )
        missing = [name for name in _CONTROLLERS if name not in controllers]
        if missing:
            return f"no {missing[0]} controller in cgroup v2; {_CONTROLLERS[missing[0]]}"
        if not os.access(self._root / "run/systemd/private", os.W_OK):
            return "/run/systemd/private is not open to this user; run bcd as root"
        if not _has_pystemd():
            return "pystemd is not installed; install better-compute[systemd]"
        return ""

    def read(self) -> Mapping[AllocationId, SliceState]:
        """Every slice of an allocation, from its control files."""
        states = self._cgroups.states()
        self._stuck = {(what, id_) for what, id_ in self._stuck if id_ in states}
        return states

    def ensure(self, allocation_id: AllocationId, limits: Limits) -> Failed | None:
        """Create or repair a slice, and read back that its limits are in force.

        Fails, and changes nothing, for a slice with processes when nothing was published for it
        yet, or when it uses more memory than it may have: lowering the limit would kill.
        """
        refused = _out_of_bounds(allocation_id, limits)
        if refused is not None:
            return refused
        wanted = enforced(limits)
        found = self._cgroups.state(allocation_id)
        refused = self._in_use(allocation_id, wanted, found)
        if refused is not None:
            return refused
        failed = self._apply(allocation_id, wanted)
        if failed is not None:
            return failed  # at most a slice that the drop-in holds down; the next pass goes on
        wrong = self._wrong(allocation_id, wanted)
        if wrong and found is not None and self._stop_unheard(allocation_id):
            # Some settings of a slice that stood before, such as a cpuset that was opened again,
            # systemd does not take back. A new slice starts without them.
            failed = self._apply(allocation_id, wanted)
            wrong = self._wrong(allocation_id, wanted)
        if wrong:
            self._stop_unheard(allocation_id)
            failed = _failed(f"{slice_name(allocation_id)} is active without its limits: {wrong}")
        return failed

    def stop(self, allocation_id: AllocationId) -> bool:
        """Stop an empty slice; False while something runs in it, or systemd does not comply.

        systemd counts a workload out whose process is not yet where it belongs, and would take
        it along. So first nothing can start in the slice any more, then what is below it goes: a
        workload that came in between keeps its slice, and one that comes later fails to start.
        """
        name = slice_name(allocation_id)
        state = self._cgroups.state(allocation_id)
        if state is None:
            return not self._units.left_over(name) or not self._units.stop(name)
        if not state.empty:
            return False
        try:
            self._cgroups.forbid_children(allocation_id)
            cleared = self._cgroups.clear(allocation_id)
            if cleared is Cleared.BUSY or not self._is_empty(allocation_id):
                self._cgroups.allow_children(allocation_id)
            if cleared is not Cleared.NONE_LEFT or not self._is_empty(allocation_id):
                return False
        except OSError:
            if self._cgroups.exists(allocation_id):
                raise
            # Somebody else stopped it; its properties may still be there.
        if self._units.stop(name):
            return False
        return self._settled("gone", allocation_id, lambda: self._gone(allocation_id))

    def _is_empty(self, id_: AllocationId) -> bool:
        """Whether no process is in the slice itself, or there is no slice."""
        state = self._cgroups.state(id_)
        return state is None or state.empty

    def _gone(self, id_: AllocationId) -> bool:
        self._cgroups.remove(id_)
        return not self._cgroups.exists(id_)

    def _stop_unheard(self, id_: AllocationId) -> bool:
        """Take away what is not right; what has processes stays, and so what cannot be stopped."""
        try:
            return self.stop(id_)
        except OSError:
            return False

    def _in_use(self, id_: AllocationId, wanted: Limits, found: SliceState | None) -> Failed | None:
        if found is None or found.empty:
            return None
        if not (self._cdi / file_name(id_)).exists():
            return _failed(
                f"processes run in {slice_name(id_)} before its devices were handed out; end them"
            )
        if not 0 < wanted.memory_bytes < self._cgroups.memory_bytes(id_):
            return None
        used = self._cgroups.memory_bytes(id_)
        self._cgroups.reclaim(id_, used - wanted.memory_bytes)
        used = self._cgroups.memory_bytes(id_)
        if used <= wanted.memory_bytes:
            return None
        return _failed(
            f"{slice_name(id_)} uses {used} bytes and may have {wanted.memory_bytes}; its limits"
            " are set once the workload gave memory back"
        )

    def _apply(self, id_: AllocationId, wanted: Limits) -> Failed | None:
        name = slice_name(id_)
        try:
            properties = properties_of(wanted)
        except MalformedCpuList as error:
            return Failed(FailureReason.INVALID_LIMITS, f"cpulist {error}")
        problem = self._units.apply(name, properties)
        if problem:
            return _failed(f"{name}: {problem}")
        try:
            self._cgroups.limit_huge_pages(id_, wanted.hugepages_1gi)
            self._cgroups.allow_children(id_)
        except OSError as error:
            if self._cgroups.exists(id_):
                return _failed(f"{name}: {error.filename or 'control file'}: {error.strerror}")
        return None

    def _wrong(self, id_: AllocationId, wanted: Limits) -> str:
        """Files that do not say what they should, once they had the time to."""

        def wrong() -> str:
            if not self._cgroups.exists(id_):
                return "it has no control group"
            return self._cgroups.differences(wanted, self._cgroups.files(id_))

        settled = self._settled("limited", id_, lambda: not wrong())
        return "" if settled else wrong()

    def _settled(self, what: str, id_: AllocationId, done: Callable[[], bool]) -> bool:
        """Whether it comes to be so; what did not before costs no pass any time."""
        deadline = time.monotonic() + (0.0 if (what, id_) in self._stuck else self._settle_s)
        while not done():
            if time.monotonic() > deadline:
                self._stuck.add((what, id_))
                return False
            time.sleep(_LOOK_S)
        self._stuck.discard((what, id_))
        return True


def _out_of_bounds(id_: AllocationId, limits: Limits) -> Failed | None:
    """What would wrap around, or round to no limit, is refused whatever admission thought of it."""
    if not is_allocation_id(id_):
        return Failed(FailureReason.INVALID_LIMITS, "the allocation's id cannot name a slice")
    if (
        0 <= limits.cpu_millis <= _MAX_CPU_MILLIS
        and 0 <= limits.memory_bytes <= _MAX_BYTES
        and 0 <= limits.hugepages_1gi <= _MAX_BYTES >> 30
    ):
        return None
    return Failed(FailureReason.INVALID_LIMITS, "limits are beyond what any host has")


def _failed(message: str) -> Failed:
    return Failed(FailureReason.SLICE_FAILED, message)


@functools.cache
def _has_pystemd() -> bool:
    return importlib.util.find_spec("pystemd") is not None
