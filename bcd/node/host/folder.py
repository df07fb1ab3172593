"""The daemon's own folder, ``/var/lib/bcd``, and the rule that one daemon has it."""

import fcntl
import os
from pathlib import Path

from bcd.model.errors import BadConfiguration, Unavailable
from bcd.node.host.files import sweep


def claim(folder: Path) -> int:
    """Make the folder, keep every other daemon out of it, and clear half-written files away.

    The claim lasts until the returned descriptor is closed or the process ends, however it
    ends. Raises Unavailable when another daemon has it, BadConfiguration when it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BadConfiguration(
            f"paths.state: {folder} cannot be used ({error.strerror})"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sweep(folder, "")
    except BlockingIOError as error:
        os.close(descriptor)
        raise Unavailable(
            f"paths.state: another bcd runs with {folder}; stop it, or set another folder"
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise BadConfiguration(
            f"paths.state: {folder} cannot be used ({error.strerror})"
        ) from error
    return descriptor
