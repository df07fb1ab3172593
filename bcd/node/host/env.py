"""The folder of env files: ``/run/bcd/allocations``, on a file system that a reboot empties."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from bcd.durable import replace_file
from bcd.model.ids import AllocationId, is_allocation_id
from bcd.node.host.files import fingerprint, read_own, sweep

_MAX_BYTES = 1 << 20
_SUFFIX = ".env"


class EnvFolder:
    """Implements the ``EnvDir`` port."""

    def __init__(self, folder: Path) -> None:
        """Make the folder where it is missing; raises OSError."""
        self._folder = folder
        self._ready()
        sweep(folder, "alloc_")

    def _ready(self) -> None:
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)

    def read(self) -> Mapping[AllocationId, bytes | None]:
        """Contents by allocation; None for what is no plain file of sane size."""
        found: dict[AllocationId, bytes | None] = {}
        self._ready()
        for path in self._folder.iterdir():
            if path.suffix != _SUFFIX or not is_allocation_id(path.stem):
                continue
            with contextlib.suppress(FileNotFoundError):
                found[AllocationId(path.stem)] = read_own(path, _MAX_BYTES)
        return found

    def write(self, allocation_id: AllocationId, content: bytes) -> None:
        """Replace a file at once, readable by all; raises OSError.

        Not synced: a file that a power loss took is rebuilt from its spec, as after a reboot.
        """
        replace_file(self._path(allocation_id), content, mode=0o644, durable=False)

    def remove(self, allocation_id: AllocationId) -> None:
        """Unlink a file; fine when it is gone. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(allocation_id))

    def _path(self, allocation_id: AllocationId) -> Path:
        if not is_allocation_id(allocation_id):
            raise ValueError(f"{allocation_id!r} is no allocation id")
        return self._folder / f"{allocation_id}{_SUFFIX}"

    def fingerprint(self) -> object:
        """Differs when a file was touched."""
        return fingerprint(self._folder)
