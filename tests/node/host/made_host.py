"""A healthy GPU host made of files below a folder, for the operator's tools: break it in one place.

Programs are shell scripts that say a version or print a file; device nodes are links to
``/dev/null``, which is a character device everywhere.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bcd.model.assignment import AssignedDevice, Limits, slice_name
from bcd.model.device import DeviceClass
from bcd.node.cdi import render
from bcd.node.hold import Hold, env_file
from bcd.node.host.doctor.patient import Patient, Told
from bcd.node.host.standing import SLICES, cgroup_slices
from bcd.node.host.systemd.cgroup import wanted_files
from bcd.node.identity import save_identity
from bcd.node.limits import enforced
from bcd.node.settings import CdiSettings, GatewaySettings, PathSettings, Settings, paths_of
from bcd.signing.certificates import Role
from tests.authority import Authority
from tests.node.memory import snapshot
from tests.node.world import alloc_id, limits, node_id

VERSION = "550.54.15"
SETTINGS = Settings(
    gateway=GatewaySettings(address="gateway.example:7443", enroll_address="gateway.example:7444"),
)
TOLD = Told(connected=True, problem="", conditions={}, driver_version=VERSION, gpus=2)
UNIT = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "UnitFileState": "enabled",
    "WatchdogUSec": "1min",
    "Before": "slurmd.service shutdown.target containerd.service",
}
FILES = {
    "proc/1/comm": "systemd\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
    f"  {VERSION}  Release Build\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids\n",
    "usr/lib/systemd/system/bcd-alloc-.slice.d/10-bcd-failclosed.conf": (
        "[Slice]\nMemoryMax=16M\nTasksMax=16\n"
    ),
    "usr/lib/systemd/system/slurmd.service": "",
    "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:02:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:02:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:03:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:03:00.0/class": "0x068000\n",
    f"usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}": "",
    f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{VERSION}": "",
    "run/nvidia-persistenced/socket": "",
    "etc/containerd/config.toml": "version = 2\n",
    "made/bcd-alloc-doctor.slice": (
        "DropInPaths=/usr/lib/systemd/system/bcd-alloc-.slice.d/10-bcd-failclosed.conf\n"
        "MemoryMax=16777216\n"
    ),
}
VERSIONS = {
    "podman": "podman version 5.4.2",
    "containerd": "containerd github.com/containerd/containerd 2.0.4 abc",
    "docker": "Docker version 28.2.2, build e6534b4",
}
NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1")


@dataclass
class MadeHost:
    """The folder, enrolled, with a daemon that is told of and one hold with limits."""

    root: Path
    changes: dict[str, Any] = field(default_factory=dict)
    unit: dict[str, str] = field(default_factory=lambda: dict(UNIT))

    def __post_init__(self) -> None:
        self.settings = SETTINGS
        self.paths = paths_of(PathSettings(root=str(self.root)))
        for name, text in FILES.items():
            self.write(name, text)
        for name, version in VERSIONS.items():
            self.program(name, f"echo '{version}'")
        self.program("systemctl", f'for last; do :; done; cat "{self.root}/made/$last"')
        (self.root / "dev/char").mkdir(parents=True)
        (self.root / "dev/char/1:3").symlink_to("/dev/null")
        for name in NODES:
            (self.root / "dev" / name).symlink_to("/dev/null")
        for folder in (self.paths.cdi, self.paths.env):
            folder.mkdir(parents=True)
            folder.chmod(0o755)
        save_identity(self.paths.state, Authority().issue(Role.NODE, node_id()))
        self.hold(1, limits())

    def write(self, name: str, text: str) -> Path:
        """A file below the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def remove(self, name: str) -> None:
        """Take a file away."""
        (self.root / name).unlink()

    def program(self, name: str, script: str) -> None:
        """A program that is a shell script."""
        os.chmod(self.write(f"usr/bin/{name}", f"#!/bin/sh\n{script}\n"), 0o755)

    def cdi(self, settings: CdiSettings) -> None:
        """Other settings of specs."""
        self.settings = Settings(gateway=SETTINGS.gateway, cdi=settings)

    def hold(
        self,
        number: int,
        booked: Limits | None = None,
        device_class: DeviceClass = DeviceClass.GPU,
    ) -> Hold:
        """A hold of one GPU as the daemon leaves it: spec, env file, and a slice for limits."""
        slot = "::0" if device_class is DeviceClass.SLOT else ""
        device = AssignedDevice(f"GPU-{number}{slot}", device_class)
        hold = Hold(alloc_id(number), (device,), booked)
        for spec in render(hold, snapshot(), node_id(), annotate=False) or ():
            (self.paths.cdi / spec.name).write_bytes(spec.content)
        self.env(number).write_bytes(env_file(hold, node_id()))
        if booked is not None:
            self.write(f"{self.slice(number)}/cgroup.events", "populated 0\nfrozen 0\n")
            for name, text in wanted_files(enforced(booked), frozenset()).items():
                self.write(f"{self.slice(number)}/{name}", f"{text}\n")
        return hold

    def env(self, number: int) -> Path:
        """The env file of a hold."""
        return self.paths.env / f"{alloc_id(number)}.env"

    def spec(self, number: int) -> Path:
        """The spec of a hold."""
        return self.paths.cdi / f"bcd-{alloc_id(number)}.json"

    def slice(self, number: int) -> str:
        """The control group of a hold's slice, below the root."""
        return f"{SLICES}/{slice_name(alloc_id(number))}"

    def run_in_slice(self, number: int, *processes: tuple[int, str]) -> None:
        """Processes in a scope of a hold's slice."""
        self.write(f"{self.slice(number)}/cgroup.events", "populated 1\nfrozen 0\n")
        pids = "".join(f"{pid}\n" for pid, _ in processes)
        self.write(f"{self.slice(number)}/run-1.scope/cgroup.procs", pids)
        for pid, command in processes:
            self.write(f"proc/{pid}/comm", f"{command}\n")

    def told(self, **changes: Any) -> None:
        """Let the daemon say something else."""
        fields = {name: getattr(TOLD, name) for name in Told.__slots__}
        self.changes["daemon"] = Told(**(fields | changes))

    def patient(self, **changes: Any) -> Patient:
        """What the doctor looks at; ``changes`` to its fields come last."""
        text = "".join(f"{key}={value}\n" for key, value in self.unit.items())
        self.write("made/bcd.service", text)
        fields: dict[str, Any] = {
            "settings": self.settings,
            "paths": self.paths,
            "profile": None,
            "slices": cgroup_slices(self.root),
            "daemon": TOLD,
            "free_bytes": lambda _: 100 << 30,
            "dial": lambda _: "",
            "has_module": lambda _: True,
        }
        return Patient(**(fields | self.changes | changes))
