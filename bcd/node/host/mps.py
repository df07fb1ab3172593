"""MPS control daemons on a real host: one systemd unit ``bcd-mps@<GPU UUID>.service`` per GPU.

What a daemon shall give its clients is a file of variables that the unit reads, written before the
unit starts: so that a daemon of ours is known as ours after a crash. The unit itself puts the GPU
into exclusive compute mode and back, also when it is killed. A daemon counts as ready when its
control program answers. https://docs.nvidia.com/deploy/mps/
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from bcd.durable import remove_file, replace_file
from bcd.model.report import Failed, FailureReason
from bcd.node.host.files import read_own
from bcd.node.ports import MpsState
from bcd.node.sharing import MpsShare

_CONTROL = "nvidia-cuda-mps-control"
_DEADLINE_S = 5.0
_PATIENCE_S = 20.0
_LOOK_S = 0.1
_MAX_BYTES = 4096
_MIB = 1 << 20
_GPU = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_SHARE = re.compile(r"BCD_MPS_REPLICAS=([0-9]{1,3})\nBCD_MPS_MEMORY_BYTES=([0-9]{1,15})\n")


class Units(Protocol):
    """What of systemd is needed; each call says what went wrong, or nothing."""

    def start(self, name: str) -> str:
        """Start a unit, or start it again, and wait until it is active."""
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
        sleep: Callable[[float], None] = time.sleep,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._folder = folder
        self._units = units
        self._sleep = sleep
        self._environment = environment

    def read(self) -> Mapping[str, MpsState]:
        """Every daemon that was asked for; raises OSError when the folder cannot be read."""
        found: dict[str, MpsState] = {}
        if not self._folder.is_dir():
            return found
        for path in self._folder.glob("*.env"):
            if _GPU.match(path.stem):
                share = _share(path)
                ready = share is not None and self._ask(path.stem, _PROBE) is not None
                found[path.stem] = MpsState(share or MpsShare(1, 0), ready)
        return found

    def ensure(self, gpu: str, share: MpsShare) -> Failed | None:
        """Start one, and wait until it answers; raises OSError when its files cannot be written."""
        if not _GPU.match(gpu):
            return _failed(f"{gpu[:64]} is no GPU that can have an MPS daemon")
        for name in ("pipe", "log", "shm"):
            (self._folder / gpu / name).mkdir(parents=True, exist_ok=True)
        os.chmod(self._folder / gpu / "shm", 0o1777)  # noqa: S103 - as /dev/shm
        replace_file(self._file(gpu), self._variables(gpu, share), mode=0o644)
        problem = self._units.start(unit_name(gpu))
        if problem:
            return _failed(f"{unit_name(gpu)} does not start: {problem}")
        for _ in range(int(_PATIENCE_S / _LOOK_S)):
            if self._ask(gpu, _PROBE) is not None:
                return None
            self._sleep(_LOOK_S)
        return _failed(
            f"{unit_name(gpu)} runs and does not answer; see journalctl -u {unit_name(gpu)}"
        )

    def stop(self, gpu: str) -> bool:
        """Stop one that has no server for any client; one that does not answer has none."""
        servers = self._ask(gpu, "get_server_list")
        if servers is not None and servers.strip():
            return False
        if self._units.stop(unit_name(gpu)):
            return False
        # What clients left in the shared memory is not for those of the next daemon.
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._folder / gpu)
        remove_file(self._file(gpu))
        return True

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

    def _ask(self, gpu: str, command: str) -> str | None:
        """What the control program answers; None when it does not, or says that it cannot."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                [_CONTROL],
                input=f"{command}\n",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_DEADLINE_S,
                env={
                    "PATH": self._environment.get("PATH", os.defpath),
                    "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / gpu / "pipe"),
                },
                check=False,
            )
            if done.returncode == 0 and "cannot" not in done.stdout.lower():
                return done.stdout[:_MAX_BYTES]
        return None


# Answered by the control daemon itself, before any client made it start a server.
_PROBE = "get_default_active_thread_percentage"


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
