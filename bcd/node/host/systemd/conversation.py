"""One operation of systemd at a time, in a child process with a deadline.

pystemd blocks the whole interpreter for as long as PID 1 takes to answer, has no timeout, and
loses memory with every call that fails. In a child it can be killed. To start one costs more than
most operations take, so that it serves a burst of them; a while after the last it is let go, since
its memory is worth more than its start.
"""

import functools
import importlib.util
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bcd
from bcd.model.assignment import Limits
from bcd.model.cpuset import parse_cpulist
from bcd.node.host.systemd.process import ChildProcess, Ended, Launch, Nonsense, Silent

_INFINITY = (1 << 64) - 1  # how systemd spells "no limit" in an unsigned property
DEADLINE_S = 25.0
# Holds come one after the other: a PID 1 that hangs costs a pass one deadline, not one per hold.
_AVOID_S = 10.0
IDLE_S = 30.0
# No loss was seen in calls that succeed (21 MiB after ten of them and after 600); in case there is.
_MOST_OPERATIONS = 1000
# A child that was let go ends at once; one that does not is killed, and reaped some time later.
_PARTING_S = 1.0


@dataclass(frozen=True, slots=True)
class Property:
    """A unit's property with its D-Bus signature: ``t`` for numbers, ``ay`` for id masks."""

    name: str
    signature: str
    value: int | tuple[int, ...]


def properties_of(limits: Limits, memory_high: int | None = None) -> tuple[Property, ...]:
    """The properties that put ``enforced`` limits in force, and undo those of the drop-in.

    Quota in microseconds of CPU time per second (systemd's CPUQuotaPerSecUSec), memory in bytes.
    """
    return (
        Property("CPUQuotaPerSecUSec", "t", limits.cpu_millis * 1000 or _INFINITY),
        Property("MemoryMax", "t", limits.memory_bytes or _INFINITY),
        Property("MemoryHigh", "t", memory_high or _INFINITY),
        Property("MemorySwapMax", "t", 0),
        Property("TasksMax", "t", _INFINITY),
        Property("AllowedCPUs", "ay", id_mask(limits.cpus)),
        Property("AllowedMemoryNodes", "ay", id_mask(limits.mems)),
    )


def id_mask(cpulist: str) -> tuple[int, ...]:
    """Ids as systemd takes them: bytes, the lowest ids first; ``8,10`` is ``(0, 5)``."""
    mask = sum(1 << id_ for id_ in parse_cpulist(cpulist))
    return tuple(mask.to_bytes(-(-mask.bit_length() // 8), "little"))


class SystemdUnits:
    """Speaks to PID 1 on its private socket, which needs no bus daemon and admits root only.

    Threads take turns. A child ends ``idle_s`` after the last operation, with ``close``, and when
    this process ends in any way.
    """

    def __init__(
        self,
        root: Path,
        deadline_s: float = DEADLINE_S,
        *,
        idle_s: float = IDLE_S,
        launch: Launch | None = None,
    ) -> None:
        self._address = f"unix:path={root / 'run/systemd/private'}"
        self._controls = tuple(root / f"{top}/systemd/system.control" for top in ("run", "etc"))
        self._deadline_s = deadline_s
        self._avoid_until = 0.0
        self._lock = threading.Lock()
        self._children = _Children(launch or Launch())
        self._idle = _Idle(idle_s, self._rest)

    def problem(self) -> str:
        """Why no child can speak to systemd, and what to do; empty when one can."""
        return "" if _has_pystemd() else "pystemd is not installed; install the extra systemd"

    def apply(self, name: str, properties: tuple[Property, ...]) -> str:
        """Start a slice that is not active and set its properties at run time.

        Says what went wrong, or nothing. Over a slice that something started implicitly too.
        """
        return self._ask(
            {
                "operation": "apply",
                "name": name,
                "properties": [[p.name, p.signature, p.value] for p in properties],
            }
        )

    def start(self, name: str) -> str:
        """Start a unit, and wait until it is active; says what went wrong, or nothing.

        One that is active goes on as it is.
        """
        return self._ask({"operation": "start", "name": name})

    def running(self, name: str) -> str:
        """Says what a unit is while its processes run, or what went wrong; nothing if none runs."""
        return self._ask({"operation": "running", "name": name})

    def stop(self, name: str) -> str:
        """Stop a unit and remove what was set at run time; says what went wrong, or nothing.

        systemd removes the properties of a slice that it started for us. Those of one that a
        workload started stay, and would win over the next slice of that name.
        """
        request = {"operation": "stop", "name": name, "revert": self.left_over(name)}
        return self._ask(request)

    def left_over(self, name: str) -> bool:
        """Whether properties were set at run time, or for good, on a slice that nobody asked for.

        By us after a workload started it, or by a person.
        """
        return any((folder / f"{name}.d").is_dir() for folder in self._controls)

    def close(self) -> None:
        """End the child now; the next operation starts another."""
        with self._lock:
            self._idle.cancel()
            self._children.part()

    def _ask(self, request: dict[str, Any]) -> str:
        request |= {"address": self._address, "version": bcd.__version__}
        silent = f"systemd did not answer within {self._deadline_s:g} s; see systemctl status"
        with self._lock:
            if time.monotonic() < self._avoid_until:
                return silent
            try:
                return self._children.ask(request, time.monotonic() + self._deadline_s)
            except Silent:
                self._avoid_until = time.monotonic() + _AVOID_S
                return silent
            except OSError as error:
                return f"the program that speaks to systemd cannot be started ({error})"
            except (Ended, Nonsense) as error:
                return f"the program that speaks to systemd failed: {error}"
            finally:
                self._idle.restart()

    def _rest(self) -> None:
        """Nothing was asked for a while, unless somebody asks just now."""
        with self._lock:
            if self._idle.over() and not self._children.part():
                self._idle.restart()


class _Children:
    """The child that is asked, and those that were killed and have perhaps not ended yet."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._child: ChildProcess | None = None
        self._killed: list[ChildProcess] = []

    def ask(self, request: dict[str, Any], until: float) -> str:
        """What systemd's answer comes to; raises Silent, Ended, Nonsense, or OSError."""
        self._reap()
        child = self._child
        if child is not None:
            try:
                return self._ask(child, request, until)
            except Ended:
                pass  # somebody ended it since; operations can be asked for twice
        child = self._child = ChildProcess(self._launch)
        return self._ask(child, request, until)

    def part(self) -> bool:
        """End the child; whether none is left, not even one that was killed."""
        child, self._child = self._child, None
        if child is not None:
            child.let_go()
            if not child.gone(_PARTING_S):
                self._kill(child)
        self._reap()
        return not self._killed

    def _ask(self, child: ChildProcess, request: dict[str, Any], until: float) -> str:
        useful = False
        try:
            said = child.ask(request, until)
            useful = not said and child.asked < _MOST_OPERATIONS
        finally:
            if not useful:
                self._child = None
                self._kill(child)
        return said

    def _kill(self, child: ChildProcess) -> None:
        child.kill()
        self._killed.append(child)

    def _reap(self) -> None:
        self._killed = [child for child in self._killed if not child.gone()]


class _Idle:
    """Calls ``rest`` from a thread of its own when ``restart`` was not called for so long."""

    def __init__(self, idle_s: float, rest: Callable[[], None]) -> None:
        self._idle_s = idle_s
        self._rest = rest
        self._since = 0.0
        self._timer: threading.Timer | None = None

    def restart(self) -> None:
        """Somebody is busy now; a timer that runs is left alone and finds out by itself."""
        self._since = time.monotonic()
        if self._timer is None:
            self._begin(self._idle_s)

    def over(self) -> bool:
        """Whether it is so long ago, asked by ``rest``; if not, it is called again when it is."""
        if self._timer is not threading.current_thread():
            return False  # cancelled, too late for it to notice
        left = self._since + self._idle_s - time.monotonic()
        self._timer = None
        if left > 0:
            self._begin(left)
        return left <= 0

    def cancel(self) -> None:
        """There is no call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._rest)
        self._timer.daemon = True
        self._timer.start()


@functools.cache
def _has_pystemd() -> bool:
    return importlib.util.find_spec("pystemd") is not None
