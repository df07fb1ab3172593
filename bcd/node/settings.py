"""The daemon's settings file, ``bcd.toml``; ``packaging/bcd-full.toml`` explains every key."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from bcd.model.address import LOOPBACK_OR_NONE, Dialled
from bcd.model.errors import BadConfiguration

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
_Period = Annotated[float, msgspec.Meta(ge=0.05, le=3_600)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Xid = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the gateway listens, and how patiently it is dialled."""

    address: Dialled
    enroll_address: Dialled
    spread_seconds: _Seconds = 10.0
    max_backoff_seconds: _Period = 30.0
    welcome_seconds: _Period = 15.0


class PathSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Folders; an empty one lies at its usual place below ``root``."""

    root: str = "/"
    state: str = ""
    cdi: str = ""
    env: str = ""
    socket: str = ""


class CdiSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How specs are written."""

    annotations: Literal["always", "never"] = "always"
    hook: str = "auto"
    driver_root: str = "/"


class PassSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often the daemon looks; ``watch_seconds`` is the cheap look for changed files."""

    every_seconds: _Period = 30.0
    watch_seconds: _Period = 2.0


class NvmlSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How patiently NVML is asked, and what its answers mean.

    ``deadline_seconds`` is for one call, ``init_seconds`` for the start of NVML.
    """

    deadline_seconds: _Period = 10.0
    init_seconds: _Period = 60.0
    probe_seconds: _Period = 60.0
    busy_check: bool = True
    ignored_processes: tuple[_Name, ...] = ()
    fatal_xids: tuple[_Xid, ...] = ()
    ignored_xids: tuple[_Xid, ...] = ()


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is logged."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where Prometheus may fetch metrics, on this host only; nowhere when empty."""

    listen: Annotated[str, msgspec.Meta(pattern=LOOPBACK_OR_NONE)] = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything in ``bcd.toml``."""

    gateway: GatewaySettings
    paths: PathSettings = PathSettings()
    cdi: CdiSettings = CdiSettings()
    passes: PassSettings = PassSettings()
    nvml: NvmlSettings = NvmlSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()

    def __post_init__(self) -> None:
        """Check what types cannot say; the message names the key."""
        for key in ("root", "state", "cdi", "env", "socket"):
            text = getattr(self.paths, key)
            if text and (not text.startswith("/") or "\0" in text):
                raise ValueError(f"paths.{key} must be an absolute path, without NUL characters")
        if self.cdi.hook not in ("auto", "never") and not _is_path(self.cdi.hook):
            raise ValueError('cdi.hook must be "auto", "never" or an absolute path')
        if not _is_path(self.cdi.driver_root):
            raise ValueError("cdi.driver_root must be an absolute path")


def _is_path(text: str) -> bool:
    """Whether a text can stand in a CDI spec as a path."""
    return text.startswith("/") and text.isprintable()


def settled(running: Settings, read: Settings) -> tuple[Settings, tuple[str, ...]]:
    """What a running daemon takes over of settings that were read again.

    And the names of those that it does not: they take a restart.
    """
    cdi = msgspec.structs.replace(running.cdi, annotations=read.cdi.annotations)
    kept = msgspec.structs.replace(running, passes=read.passes, log=read.log, cdi=cdi)
    names = (
        name for name in Settings.__struct_fields__ if getattr(kept, name) != getattr(read, name)
    )
    return kept, tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where everything lies, absolute."""

    root: Path
    state: Path
    cdi: Path
    cdi_dynamic: Path
    env: Path
    run: Path
    socket: Path


# A Unix socket's address is at most 107 bytes long (unix(7)).
_MAX_SOCKET_BYTES = 107


def paths_of(settings: PathSettings) -> Paths:
    """The folders that the settings mean; raises BadConfiguration."""
    root = Path(settings.root)
    paths = Paths(
        root=root,
        state=Path(settings.state or root / "var/lib/bcd"),
        cdi=Path(settings.cdi or root / "etc/cdi"),
        cdi_dynamic=root / "var/run/cdi",
        env=Path(settings.env or root / "run/bcd/allocations"),
        run=root / "run/bcd",
        socket=Path(settings.socket or root / "run/bcd/bcd.sock"),
    )
    if len(str(paths.socket).encode()) > _MAX_SOCKET_BYTES:
        raise BadConfiguration(
            f"paths.socket: {paths.socket} is longer than {_MAX_SOCKET_BYTES} bytes;"
            " set a shorter path"
        )
    return paths
