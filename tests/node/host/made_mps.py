"""MPS daemons without NVIDIA and systemd: a control program, and units that play along."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from bcd.node.host.mps import MpsDaemons
from bcd.node.host.mps_control import Timing
from bcd.node.sharing import MpsShare

GPU = "GPU-11111111-2222-3333-4444-555555555555"
SHARE = MpsShare(4, 20 << 30)
# Time enough for a shell, and little to wait for one that hangs.
QUICK = Timing(answer_s=1.5, start_s=3.0, avoid_s=60.0)
# Answers like the control program: only where a daemon listens on the pipe directory it is told.
CONTROL = """#!/bin/sh
[ ! -e "$CUDA_MPS_PIPE_DIRECTORY/hangs" ] || exec sleep 60
read -r command
[ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
case "$command" in
  get_default_active_thread_percentage) echo 25.0 ;;
  get_server_list) cat "$CUDA_MPS_PIPE_DIRECTORY/servers" ;;
esac
"""  # noqa: E501


@dataclass
class FakeUnits:
    """Units that make, and take away, what the control program looks for."""

    folder: Path
    listens: bool = True
    problem: str = ""
    active: list[str] = field(default_factory=list)
    starts: int = 0

    def running(self, name: str) -> str:
        return f"{name} is active" if name in self.active else ""

    def start(self, name: str) -> str:
        assert (self.folder / f"{GPU}.env").exists()
        if self.problem:
            return self.problem
        if name not in self.active:
            self.starts += 1
            self.active = [name]
            if self.listens:
                (self.folder / GPU / "pipe/servers").write_text("")
                (self.folder / GPU / "pipe/control").write_text("")
        return ""

    def stop(self, name: str) -> str:
        if not self.problem:
            self.die()
        return self.problem

    def die(self) -> None:
        """The unit ends, by itself or not, and its daemon answers no more."""
        self.active = []
        for name in ("control", "hangs"):
            (self.folder / GPU / "pipe" / name).unlink(missing_ok=True)

    def hang(self, hangs: bool, gpu: str = GPU) -> None:
        """The daemon takes questions, and answers none."""
        pipes = self.folder / gpu / "pipe"
        (pipes / "hangs").touch() if hangs else (pipes / "hangs").unlink()

    def occupy(self, busy: bool) -> None:
        """Put a client onto the GPU, for which the daemon starts a server, or end it."""
        (self.folder / GPU / "pipe/servers").write_text("4711\n" if busy else "")


@dataclass
class Clock:
    """Real time, and what was slept besides."""

    slept: float = 0.0

    def now(self) -> float:
        return time.monotonic() + self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


def daemons(folder: Path, clock: Clock | None = None) -> tuple[MpsDaemons, FakeUnits]:
    """Daemons that find the control program below a folder."""
    clock = clock or Clock()
    program = folder / "bin/nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    units = FakeUnits(folder / "mps")
    path = f"{program.parent}:{os.defpath}"
    made = MpsDaemons(
        units.folder,
        units,
        timing=QUICK,
        sleep=clock.sleep,
        environment={"PATH": path},
        clock=clock.now,
    )
    return made, units
