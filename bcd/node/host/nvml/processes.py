"""How many compute processes are on a device; runs in the child.

The number only leaves the child, never the processes. An MPS server stands on a GPU for others and
does not count, nor do programs that the settings name.
"""

from pathlib import Path
from typing import Any

import pynvml

_SERVERS = frozenset({"nvidia-cuda-mps-server", "nvidia-cuda-mps-control"})
_MAX_BYTES = 4096


def compute_processes(handle: Any, ignored: frozenset[str]) -> int | None:
    """Compute processes on a GPU or MIG instance; raises NVMLError when NVML would not say."""
    found = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    names = _SERVERS | ignored
    return sum(_name(int(process.pid)) not in names for process in found)


def _name(pid: int) -> str:
    """The program's name, empty when it cannot be told: then the process counts."""
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            first = file.read(_MAX_BYTES).split(b"\0")[0]
    except OSError:
        return ""
    return first.rpartition(b"/")[2].decode(errors="replace")
