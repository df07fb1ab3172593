"""MPS control daemons on a real host: one systemd unit ``bcd-mps@<GPU UUID>.service`` per GPU.

What a daemon shall give its clients is a file of variables that the unit reads, written while the
unit does not run: so that a daemon of ours is known as ours after a crash, and the file says what
runs. The unit itself puts the GPU into exclusive compute mode and back, also when it is killed.

Clients end with their daemon. One that runs is therefore stopped only once it has said itself that
it has no server; silence is no such answer. https://docs.nvidia.com/deploy/mps/
"""

import contextlib
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from bcd.durable import remove_file, replace_file
from bcd.model.report import Failed, FailureReason
from bcd.node.host.files import read_own
from bcd.node.host.mps_control import ControlProgram, Timing
from bcd.node.ports import MpsState
from bcd.node.sharing import UNKNOWN_SHARE, MpsShare, unknown_memory

_LOOK_S = 0.1
_MAX_BYTES = 4096
_MIB = 1 << 20
# A daemon whose unit runs is given up after so many questions in a row without an answer.
_MISSES = 3
_MOST_AT_ONCE = 16
_FOLDERS = ("pipe", "log", "shm")
# Answered by the control daemon itself, before any client made it start a server.
_PROBE = "get_default_active_thread_percentage"
_SERVERS = "get_server_list"
_GPU = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_SHARE = re.compile(r"BCD_MPS_REPLICAS=([0-9]{1,3})\nBCD_MPS_MEMORY_BYTES=([0-9]{1,15})\n")


class Units(Protocol):
    """What of systemd is needed; each call says what went wrong, or nothing."""

    def running(self, name: str) -> str:
        """What a unit is while its processes run; nothing when none does."""
        ...

    def start(self, name: str) -> str:
        """Start a unit that does not run, and wait until it is active."""
        ...

    def stop(self, name: str) -> str:
        """Stop a unit and wait until it is not active."""
        ...


class MpsDaemons:
    """Implements the ``Mps`` port; ``folder`` is ``/run/bcd/mps``."""

    def __init__(
        self,
        folder: Path,
        units: Units,
        *,
        timing: Timing = Timing(),  # noqa: B008 - a value
        sleep: Callable[[float], None] = time.sleep,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._units = units
        self._timing = timing
        self._sleep = sleep
        self._clock = clock
        self._control = ControlProgram(timing, environment=environment, clock=clock)
        self._misses: dict[str, int] = {}

    def read(self) -> Mapping[str, MpsState]:
        """Every daemon that was asked for; raises OSError when the folder cannot be read.

        All are asked at once: silent ones cost one deadline together, and then none for a while.
        """
        if not self._folder.is_dir():
            return {}
        gpus = sorted(path.stem for path in self._folder.glob("*.env") if _GPU.match(path.stem))
        with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            return dict(zip(gpus, pool.map(self._look, gpus), strict=True))

    def ensure(self, gpu: str, share: MpsShare) -> Failed | None:
        """Have one that gives this share and answers; raises OSError when files cannot be written.

        Its pipe and shared memory are folders then, for containers to mount. One that runs is
        started again only if it has no client.
        """
        if not _GPU.match(gpu):
            return _failed(f"{gpu[:64]} is no GPU that can have an MPS daemon")
        if not share.memory_bytes:
            return unknown_memory(gpu)
        if self._ask(gpu, _PROBE) is not None:
            if self._gives(gpu) == share:
                return None
            problem = self._make_way(gpu)
        else:
            problem = self._units.running(unit_name(gpu))
            if problem:
                problem += (
                    ", and does not answer; it may have clients, so that it is not started again;"
                    f" see journalctl -u {unit_name(gpu)}, and stop it once nothing uses the GPU"
                )
        return _failed(problem) if problem else self._start(gpu, share)

    def stop(self, gpu: str) -> bool:
        """Stop one that has no server for any client, as it says itself, or that does not run."""
        servers = self._ask(gpu, _SERVERS)
        if servers is None and self._units.running(unit_name(gpu)):
            return False
        if servers is not None and servers.strip():
            return False
        return self._remove(gpu)

    def _look(self, gpu: str) -> MpsState:
        share = self._gives(gpu)
        asked = not self._control.avoids(self._pipes(gpu))
        until = self._clock() + self._timing.answer_s
        if self._ask(gpu, _PROBE, until=until) is not None:
            self._misses.pop(gpu, None)
            servers = self._ask(gpu, _SERVERS, until=until)
            busy = servers is None or bool(servers.strip())
            return MpsState(share or UNKNOWN_SHARE, ready=share is not None, busy=busy)
        if not self._units.running(unit_name(gpu)):
            self._misses.pop(gpu, None)
            return MpsState(share or UNKNOWN_SHARE, ready=False)
        # One that does not answer once may be slow; whether it has clients nobody knows.
        self._misses[gpu] = misses = self._misses.get(gpu, 0) + asked
        ready = share is not None and misses < _MISSES
        return MpsState(share or UNKNOWN_SHARE, ready=ready, busy=True)

    def _gives(self, gpu: str) -> MpsShare | None:
        """What the daemon gives each client; None when what clients mount is not there either."""
        there = all((self._folder / gpu / name).is_dir() for name in _FOLDERS)
        return _share(self._file(gpu)) if there else None

    def _make_way(self, gpu: str) -> str:
        """Stop one that gives something else; says why it stays, or nothing."""
        servers = self._ask(gpu, _SERVERS)
        if servers is None or servers.strip():
            return (
                f"{unit_name(gpu)} gives its clients other shares, and has some;"
                " it is started again once they ended"
            )
        problem = self._units.stop(unit_name(gpu))
        return f"{unit_name(gpu)} does not stop: {problem}" if problem else ""

    def _start(self, gpu: str, share: MpsShare) -> Failed | None:
        first = not self._file(gpu).exists()
        for name in _FOLDERS:
            (self._folder / gpu / name).mkdir(parents=True, exist_ok=True)
        os.chmod(self._folder / gpu / "shm", 0o1777)  # noqa: S103 - as /dev/shm
        replace_file(self._file(gpu), self._variables(gpu, share), mode=0o644)
        self._misses.pop(gpu, None)
        problem = self._units.start(unit_name(gpu))
        if problem:
            return _failed(f"{unit_name(gpu)} does not start: {problem}")
        if self._comes_up(gpu):
            return None
        # No container has seen the pipe of a first one, so that it has no clients.
        if first and self._remove(gpu):
            return _failed(
                f"{unit_name(gpu)} did not answer within {self._timing.start_s:g} s and was"
                f" stopped; see journalctl -u {unit_name(gpu)}"
            )
        return _failed(
            f"{unit_name(gpu)} runs and does not answer; see journalctl -u {unit_name(gpu)}"
        )

    def _comes_up(self, gpu: str) -> bool:
        deadline = self._clock() + self._timing.start_s
        while self._clock() < deadline:
            self._control.forgive(self._pipes(gpu))
            if self._ask(gpu, _PROBE, until=deadline) is not None:
                return True
            self._sleep(_LOOK_S)
        return False

    def _remove(self, gpu: str) -> bool:
        if self._units.stop(unit_name(gpu)):
            return False
        self._control.forgive(self._pipes(gpu))
        # What clients left in the shared memory is not for those of the next daemon.
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._folder / gpu)
        remove_file(self._file(gpu))
        return True

    def _ask(self, gpu: str, command: str, *, until: float = math.inf) -> str | None:
        return self._control.ask(self._pipes(gpu), command, until=until)

    def _pipes(self, gpu: str) -> Path:
        return self._folder / gpu / "pipe"

    def _file(self, gpu: str) -> Path:
        return self._folder / f"{gpu}.env"

    def _variables(self, gpu: str, share: MpsShare) -> bytes:
        folder = self._folder / gpu
        lines = {
            "BCD_MPS_REPLICAS": share.replicas,
            "BCD_MPS_MEMORY_BYTES": share.memory_bytes,
            "CUDA_VISIBLE_DEVICES": gpu,
            "CUDA_MPS_PIPE_DIRECTORY": folder / "pipe",
            "CUDA_MPS_LOG_DIRECTORY": folder / "log",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": share.thread_percent,
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={share.memory_bytes // _MIB}M",
        }
        return "".join(f"{key}={value}\n" for key, value in lines.items()).encode()


def unit_name(gpu: str) -> str:
    """The unit of a GPU's control daemon."""
    return f"bcd-mps@{gpu}.service"


def _share(path: Path) -> MpsShare | None:
    try:
        content = read_own(path, _MAX_BYTES)
    except FileNotFoundError:
        return None
    match = _SHARE.match((content or b"").decode(errors="replace"))
    return MpsShare(int(match[1]), int(match[2])) if match and int(match[1]) else None


def _failed(message: str) -> Failed:
    return Failed(FailureReason.SHARING_FAILED, message)
