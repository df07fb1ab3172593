"""Whether the driver has been replaced under a running NVML child.

NVML is never loaded twice in one process: after an upgrade the child has to be a new one.
"""

import os
from pathlib import Path

from bcd.node.host.kernel_module import kernel_version


def driver_stamp(root: Path, library: str) -> object:
    """Differs when the kernel module's version, or the library that was loaded, changed.

    ``library`` is the file that the child has mapped, below /; beside it lies the link that the
    loader follows. What is gone is a change, too.
    """
    link = os.path.join(os.path.dirname(library), "libnvidia-ml.so.1") if library else ""
    return kernel_version(root), _file(library), _file(link)


def _file(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path) if path else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns) if found is not None else None
