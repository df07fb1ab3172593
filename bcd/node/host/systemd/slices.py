"""The port ``Slices`` on a real host (spec 16.5 to 16.5b).

A slice is started bare and gets its limits as run-time properties, so that the shipped drop-in
(tiny limits for every slice ``bcd-alloc-*``) holds down only slices that nobody set up. Control
files are read back and compared each time: see ``cgroup``.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from bcd.model.assignment import Limits, slice_name
from bcd.model.cpuset import MalformedCpuList
from bcd.model.ids import AllocationId, is_allocation_id
from bcd.model.report import Failed, FailureReason
from bcd.node.cdi import file_name
from bcd.node.host.systemd.cgroup import Cgroups
from bcd.node.host.systemd.child import UPGRADING
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
# So near below the new limit a workload is slowed down while its memory is lowered. The kernel
# lets it grow, next to unhindered, by some per cent beyond where that begins.
_SLOW_PART = 16
log = logging.getLogger(__name__)


class Units(Protocol):
    """What is asked of systemd; each says what went wrong, or nothing."""

    def problem(self) -> str:
        """Why systemd cannot be asked at all; cheap."""
        ...

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
        return self._units.problem()

    def read(self) -> Mapping[AllocationId, SliceState]:
        """Every slice of an allocation, from its control files.

        What narrows one that nobody was given yet counts as one that is to be made.
        """
        states = self._cgroups.states()
        self._stuck = {(what, id_) for what, id_ in self._stuck if id_ in states}
        return {
            id_: state
            if not state.narrowed or self._is_published(id_)
            else replace(state, surprise=state.surprise or state.narrowed)
            for id_, state in states.items()
        }

    def ensure(self, allocation_id: AllocationId, limits: Limits) -> Failed | None:
        """Create or repair a slice, and read back that its limits are in force.

        Fails, and changes nothing, for a slice with processes when nothing was published for it
        yet. Fails as well, and leaves the limit on memory alone, when it uses more than it may
        have: lowering it would kill. A published hold does not fail by what is not its slice's:
        slices above, which ``read`` tells of, and an upgrade, which the next daemon goes on from.
        """
        refused = _out_of_bounds(allocation_id, limits)
        if refused is not None:
            return refused
        published = self._is_published(allocation_id)
        found = self._cgroups.state(allocation_id)
        if found is not None and not found.empty and not published:
            name = slice_name(allocation_id)
            return _failed(f"processes run in {name} before its devices were handed out; end them")
        wanted = enforced(limits)
        failed = self._limit(allocation_id, wanted, found)
        if failed is not None and published and failed.message.endswith(UPGRADING):
            log.warning("slice left alone", extra={"detail": failed.message})
            return None
        if failed is not None or published:
            return failed
        narrowed = self._cgroups.narrowed(allocation_id, wanted)
        if not narrowed:
            return None
        self._stop_unheard(allocation_id)
        return _failed(f"{slice_name(allocation_id)} gets less than its limits: {narrowed}")

    def _limit(self, id_: AllocationId, wanted: Limits, found: SliceState | None) -> Failed | None:
        """Put limits in force; fails unless control files say so."""
        if found is not None and not found.empty and _lowers(found.limits, wanted):
            failed = self._lower(id_, wanted, found.limits.memory_bytes)
        else:
            failed = self._apply(id_, wanted)
        if failed is not None:
            return failed  # at most a slice that the drop-in holds down; the next pass goes on
        wrong = self._wrong(id_, wanted)
        if wrong and found is not None and self._stop_unheard(id_):
            # Some settings of a slice that stood before, such as a cpuset that was opened again,
            # systemd does not take back. A new slice starts without them.
            failed = self._apply(id_, wanted)
            wrong = self._wrong(id_, wanted)
        if wrong:
            self._stop_unheard(id_)
            failed = _failed(f"{slice_name(id_)} is active without its limits: {wrong}")
        return failed

    def _lower(self, id_: AllocationId, wanted: Limits, before: int) -> Failed | None:
        """Lower the limit on memory of a slice with processes, in bytes, and end none of them.

        A workload that grows meanwhile is slowed down first, so that it does not reach the new
        limit before that is set. Where it uses more already, everything else is set.
        """
        kept = replace(wanted, memory_bytes=before)
        slow = wanted.memory_bytes - wanted.memory_bytes // _SLOW_PART
        over = self._over(id_, wanted.memory_bytes)
        if not over:
            failed = self._apply(id_, kept, slow)
            if failed is not None:
                return failed
            over = self._over(id_, wanted.memory_bytes)
            if not over:
                return self._apply(id_, wanted, slow) or self._apply(id_, wanted)
        if self._cgroups.differences(kept, self._cgroups.files(id_)):
            failed = self._apply(id_, kept)
            if failed is not None:
                return failed
        return _failed(over)

    def _over(self, id_: AllocationId, limit: int) -> str:
        """Whether a slice uses more memory than so many bytes once caches were taken back."""
        used = self._cgroups.memory_bytes(id_)
        if used > limit:
            self._cgroups.reclaim(id_, used - limit)
            used = self._cgroups.memory_bytes(id_)
        if used <= limit:
            return ""
        return (
            f"{slice_name(id_)} uses {used} bytes and may have {limit}; its memory is limited"
            " once the workload gave some back"
        )

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

    def _is_published(self, id_: AllocationId) -> bool:
        return (self._cdi / file_name(id_)).exists()

    def _apply(
        self, id_: AllocationId, wanted: Limits, memory_high: int | None = None
    ) -> Failed | None:
        name = slice_name(id_)
        try:
            properties = properties_of(wanted, memory_high)
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


def _lowers(before: Limits, wanted: Limits) -> bool:
    """Whether memory is limited to less than it was; 0 is no limit."""
    return wanted.memory_bytes > 0 and not 0 < before.memory_bytes <= wanted.memory_bytes


def _failed(message: str) -> Failed:
    return Failed(FailureReason.SLICE_FAILED, message)
