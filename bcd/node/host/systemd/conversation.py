"""One operation of systemd at a time, in a child process with a deadline.

pystemd blocks the whole interpreter for as long as PID 1 takes to answer, has no timeout, and
loses memory with every call that fails. A child that lives for one operation costs some 60 ms,
is needed only when a slice is made, changed or stopped, and can be killed.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcd.model.assignment import Limits
from bcd.model.cpuset import parse_cpulist

_MODULE = "bcd.node.host.systemd.units"
_INFINITY = (1 << 64) - 1  # how systemd spells "no limit" in an unsigned property
DEADLINE_S = 25.0
# Holds come one after the other: a PID 1 that hangs costs a pass one deadline, not one per hold.
_AVOID_S = 10.0


@dataclass(frozen=True, slots=True)
class Property:
    """A unit's property with its D-Bus signature: ``t`` for numbers, ``ay`` for id masks."""

    name: str
    signature: str
    value: int | tuple[int, ...]


def properties_of(limits: Limits) -> tuple[Property, ...]:
    """The properties that put ``enforced`` limits in force, and undo those of the drop-in.

    Quota in microseconds of CPU time per second (systemd's CPUQuotaPerSecUSec).
    """
    return (
        Property("CPUQuotaPerSecUSec", "t", limits.cpu_millis * 1000 or _INFINITY),
        Property("MemoryMax", "t", limits.memory_bytes or _INFINITY),
        Property("MemoryHigh", "t", _INFINITY),
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
    """Speaks to PID 1 on its private socket, which needs no bus daemon and admits root only."""

    def __init__(self, root: Path, deadline_s: float = DEADLINE_S) -> None:
        self._address = f"unix:path={root / 'run/systemd/private'}"
        self._controls = tuple(root / f"{top}/systemd/system.control" for top in ("run", "etc"))
        self._deadline_s = deadline_s
        self._avoid_until = 0.0

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
        """Start a unit, or start it again, and wait until it is active; says what went wrong."""
        return self._ask({"operation": "start", "name": name})

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

    def _ask(self, request: dict[str, Any]) -> str:
        request["address"] = self._address
        silent = f"systemd did not answer within {self._deadline_s:g} s; see systemctl status"
        if time.monotonic() < self._avoid_until:
            return silent
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", _MODULE],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                timeout=self._deadline_s,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                check=False,
            )
        except subprocess.TimeoutExpired:
            self._avoid_until = time.monotonic() + _AVOID_S
            return silent
        except OSError as error:
            return f"the program that speaks to systemd cannot be started ({error})"
        if done.returncode != 0:
            last = done.stderr.strip().rsplit("\n", 1)[-1]
            return f"the program that speaks to systemd failed: {last[:500]}"
        return done.stdout.strip()[:500]
