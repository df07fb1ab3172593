"""Runs the scripts of ``packaging/recipes`` in a folder: ``/run/bcd`` in them becomes one of it."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bcd.model.assignment import AssignedDevice, Limits
from bcd.model.device import DeviceClass
from bcd.node.hold import Hold, env_file
from tests.node.world import alloc_id, node_id

RECIPES = Path(__file__).parents[2] / "packaging/recipes"


@dataclass(frozen=True, slots=True)
class Recipes:
    """Copies of the scripts, beside a folder of env files."""

    folder: Path

    def script(self, name: str) -> Path:
        """A copy that looks below this folder and waits for nothing."""
        text = (RECIPES / name).read_text()
        text = text.replace("/run/bcd/", f"{self.folder}/").replace(
            "wait_seconds=20", "wait_seconds=0"
        )
        copy = self.folder / Path(name).name
        copy.write_text(text)
        copy.chmod(0o755)
        return copy

    def hold(self, number: int, *gpus: int, limits: Limits | None = None) -> Hold:
        """An env file as the daemon writes it."""
        devices = tuple(AssignedDevice(f"GPU-{n}", DeviceClass.GPU) for n in gpus)
        hold = Hold(alloc_id(number), devices, limits)
        path = self.folder / f"allocations/{alloc_id(number)}.env"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(env_file(hold, node_id()))
        return hold

    def link(self, job: int) -> Path:
        """What the prolog leaves for a job."""
        return self.folder / f"slurm/{job}.env"

    def run(
        self, name: str, *arguments: str, shell: str = "sh", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script to its end with a shell."""
        return subprocess.run(
            [shell, str(self.script(name)), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={"PATH": f"{self.folder}/bin:{os.environ['PATH']}", **variables},
        )

    def program(self, name: str, script: str) -> None:
        """A program that the scripts find first."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


def exported(output: str) -> Mapping[str, str]:
    """The variables that a TaskProlog's output sets."""
    words = (line.removeprefix("export ") for line in output.splitlines() if line[:7] == "export ")
    return dict(word.split("=", 1) for word in words)
