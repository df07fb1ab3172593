"""What goes wrong on a simulated machine: ``faults.toml`` in its scratch root, read every pass."""

import logging
import tomllib
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

FILE = "faults.toml"
_MAX_BYTES = 64 * 1024


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys name a GPU by its index ("0") or UUID; a fault of a GPU is one of its MIG instances too.

    ``xid``: the GPU is unhealthy with this Xid. ``degraded``: with this reason. ``lost``: it has
    fallen off the bus. ``in_use``: a compute process is on it. ``slow_bind_seconds``: every bind
    takes so long. ``failing_bind``: every bind fails with this message, on ``failing_devices``
    where there are any. ``failing_slices``: slices fail with this message, and
    ``failing_mps``: MPS daemons. ``populated``: slices of these allocations have processes.
    """

    xid: dict[str, int] = {}
    degraded: dict[str, str] = {}
    lost: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()
    slow_bind_seconds: float = 0.0
    failing_bind: str = ""
    failing_devices: tuple[str, ...] = ()
    failing_slices: str = ""
    failing_mps: str = ""
    populated: tuple[str, ...] = ()


class FaultFile:
    """The file; what cannot be read leaves the faults as they were."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE
        self._stamp: object = None
        self._faults = Faults()

    def read(self) -> Faults:
        """The faults of this moment; none without a file."""
        stamp = self.fingerprint()
        if stamp == self._stamp:
            return self._faults
        self._stamp = stamp
        try:
            with self._path.open("rb") as file:
                text = file.read(_MAX_BYTES).decode()
            self._faults = msgspec.convert(tomllib.loads(text), Faults)
        except FileNotFoundError:
            self._faults = Faults()
        except (OSError, ValueError) as error:  # TOML and msgspec errors are ValueErrors
            log.warning(
                "faults cannot be read and stay as they were",
                extra={"file": str(self._path), "problem": str(error)},
            )
        return self._faults

    def fingerprint(self) -> object:
        """Differs when the file was touched."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
