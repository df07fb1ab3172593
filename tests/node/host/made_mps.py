"""MPS daemons without NVIDIA and systemd: a control program, and units that play along."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from bcd.node.host.mps import MpsDaemons
from bcd.node.sharing import MpsShare

GPU = "GPU-11111111-2222-3333-4444-555555555555"
SHARE = MpsShare(4, 20 << 30)
# Answers like the control program: only where a daemon listens on the pipe directory it is told.
CONTROL = """#!/bin/sh
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

    def start(self, name: str) -> str:
        assert (self.folder / f"{GPU}.env").exists()
        if self.problem:
            return self.problem
        self.starts += 1
        self.active = [name]
        if self.listens:
            (self.folder / GPU / "pipe/servers").write_text("")
            (self.folder / GPU / "pipe/control").write_text("")
        return ""

    def stop(self, name: str) -> str:
        self.active = []
        (self.folder / GPU / "pipe/control").unlink(missing_ok=True)
        return self.problem

    def occupy(self, busy: bool) -> None:
        """Put a client onto the GPU, for which the daemon starts a server, or end it."""
        (self.folder / GPU / "pipe/servers").write_text("4711\n" if busy else "")


def daemons(folder: Path) -> tuple[MpsDaemons, FakeUnits]:
    """Daemons that find the control program below a folder."""
    program = folder / "bin/nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    units = FakeUnits(folder / "mps")
    path = f"{program.parent}:{os.defpath}"
    return MpsDaemons(units.folder, units, sleep=lambda _: None, environment={"PATH": path}), units
