"""What every check may look at: the host below its root, the daemon's word, and a few questions.

What cannot be asked below a root (free space, the network, NVML) is a function, so that a folder
can be a sick host.
"""

import importlib.util
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bcd.durable import why
from bcd.model.ids import AllocationId
from bcd.model.report import Failed
from bcd.node.host.doctor.programs import ask
from bcd.node.host.standing import SliceFound
from bcd.node.settings import Paths, Settings

_BINARIES = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
_PROGRAM_S = 10.0
_DIAL_S = 3.0
_MAX_TEXT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class NvmlAnswer:
    """NVML answers: its driver version, and how many GPUs it counts."""

    driver_version: str
    gpus: int


class Nvml(Protocol):
    """One look through NVML in a process of its own, within a deadline."""

    def __call__(self) -> NvmlAnswer | Failed:
        """What it says; a driver that hangs is a Failed, never a wait."""
        ...


class _Condition(msgspec.Struct, frozen=True):
    type: str
    subject: str = ""
    message: str = ""


class _Gateway(msgspec.Struct, frozen=True):
    connected: bool
    problem: str = ""


class _Status(msgspec.Struct, frozen=True):
    gateway: _Gateway
    conditions: tuple[_Condition, ...] = ()


class _Host(msgspec.Struct, frozen=True, rename="camel"):
    driver_version: str = ""


class _Device(msgspec.Struct, frozen=True, rename="camel"):
    gpu: str
    device_class: str = ""


class _Inventory(msgspec.Struct, frozen=True):
    host: _Host = _Host()
    devices: tuple[_Device, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the running daemon says. ``conditions`` are messages by type, the first of each.

    ``classes`` are those of the devices in its inventory, such as ``gpu.mig``.
    """

    connected: bool
    problem: str
    conditions: Mapping[str, str]
    driver_version: str
    gpus: int
    classes: frozenset[str] = frozenset()


def told(status: Any, inventory: Any) -> Told | str:
    """The daemon's two documents read; a sentence when they are of another version."""
    try:
        said = msgspec.convert(status, _Status)
        has = msgspec.convert(inventory, _Inventory)
    except msgspec.ValidationError as error:
        return f"the daemon's answer is of another version ({error})"
    return Told(
        connected=said.gateway.connected,
        problem=said.gateway.problem,
        conditions={c.type: c.message for c in reversed(said.conditions)},
        driver_version=has.host.driver_version,
        gpus=len({device.gpu for device in has.devices}),
        classes=frozenset(device.device_class for device in has.devices),
    )


def free_bytes(path: Path) -> int:
    """Room that is left where ``path`` lies; raises OSError."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize if found.f_favail or not found.f_files else 0


def dial(address: str) -> str:
    """Connect to ``host:port`` and hang up; the problem, or empty."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_DIAL_S):
            return ""
    except OSError as error:
        return why(error)


def has_module(name: str) -> bool:
    """Whether a Python module could be imported by this interpreter."""
    return importlib.util.find_spec(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """The host; ``daemon`` is a sentence where none answers, ``profile`` None on real hardware.

    ``closed``: whether a daemon answers cannot be said, since its socket is not for this user.
    """

    settings: Settings
    paths: Paths
    profile: str | None
    slices: Mapping[AllocationId, SliceFound]
    daemon: Told | str
    closed: bool = False
    nvml: Nvml | None = None
    free_bytes: Callable[[Path], int] = free_bytes
    dial: Callable[[str], str] = dial
    has_module: Callable[[str], bool] = has_module
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    program_s: float = _PROGRAM_S

    def at(self, path: str) -> Path:
        """A path of the host, given without its leading slash."""
        return self.paths.root / path

    def text(self, path: str) -> str:
        """A small file's content, empty where there is none; raises PermissionError."""
        try:
            with self.at(path).open("rb") as file:
                return file.read(_MAX_TEXT_BYTES).decode(errors="replace")
        except PermissionError:
            raise
        except OSError:
            return ""

    def program(self, name: str) -> Path | None:
        """Where a program of the host lies."""
        for folder in _BINARIES:
            path = self.at(f"{folder}/{name}")
            if os.access(path, os.X_OK) and path.is_file():
                return path
        return None

    def run(self, name: str, *arguments: str) -> str | Failed | None:
        """What a program of the host prints; None where it is missing."""
        path = self.program(name)
        return None if path is None else ask(path, arguments, self.program_s)

    def unit(self, name: str, *properties: str) -> Mapping[str, str] | Failed:
        """systemd's properties of a unit; empty where there is nothing to ask it with."""
        asked = [f"--property={key}" for key in properties]
        said = self.run("systemctl", "show", *asked, "--", name)
        if isinstance(said, Failed):
            return said
        return dict(line.split("=", 1) for line in (said or "").splitlines() if "=" in line)
