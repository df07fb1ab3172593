"""The daemon's own folder, ``/var/lib/bcd``, and the rule that one daemon has it."""

import fcntl
import os
from pathlib import Path

from bcd.durable import may_pass, why
from bcd.model.errors import BadConfiguration, BcdError, BrokenFile, Unavailable
from bcd.node.host.files import sweep

_AS_ROOT = "run it as root"


def claim(folder: Path) -> int:
    """Make the folder, keep every other daemon out of it, and clear half-written files away.

    The claim lasts until the returned descriptor is closed or the process ends, however it
    ends. Raises Unavailable when another daemon has it, or the system lacks something now, and
    BadConfiguration when it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _tighten(folder, descriptor)
        sweep(folder, "")
    except BlockingIOError as error:
        os.close(descriptor)
        raise Unavailable(
            f"paths.state: another bcd runs with {folder}; stop it, or set another folder"
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise _unusable(folder, error) from error
    except BadConfiguration:
        os.close(descriptor)
        raise
    return descriptor


def _tighten(folder: Path, descriptor: int) -> None:
    """Close the folder to others; where they could write, what is in it may be theirs."""
    mode = os.fstat(descriptor).st_mode
    if mode & 0o022:
        raise BadConfiguration(
            f"paths.state: {folder} has mode {mode & 0o777:o}, so others may have changed what is"
            f" in it; look at it, then run: chmod 700 {folder}"
        )
    if mode & 0o077:
        os.fchmod(descriptor, 0o700)


def unusable(error: OSError) -> BcdError:
    """A file or folder of ours that ended a start or an enrolment.

    Unavailable for what may pass: the daemon's unit then starts it again.
    """
    if may_pass(error):
        return Unavailable(
            f"{error.filename or 'a file of bcd'}: cannot be used now ({why(error)}); holds are"
            " untouched; make room there, or start again once that has passed"
        )
    return BrokenFile(
        str(error.filename or "a file of bcd"),
        f"cannot be used ({why(error)})",
        "holds are untouched; "
        + (
            _AS_ROOT
            if isinstance(error, PermissionError)
            else "make room there, or move what is in its place away"
        ),
    )


def _unusable(folder: Path, error: OSError) -> BcdError:
    if may_pass(error):
        return unusable(OSError(error.errno, error.strerror, str(error.filename or folder)))
    remedy = "move what is there away, or set another folder"
    if isinstance(error, PermissionError):
        remedy = f"{_AS_ROOT}, or set another folder"
    return BadConfiguration(
        f"paths.state: {error.filename or folder} cannot be used ({why(error)}); {remedy}"
    )
