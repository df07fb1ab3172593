"""One look at a folder, for the checks of ``own`` and ``places``."""

import stat
from pathlib import Path

from bcd.durable import why
from bcd.node.host.doctor.finding import Answer, failed, for_root, ok


def folder_of_mode(path: Path, mode: int, *, at_least: int = 0) -> Answer:
    """Whether it is there, with permissions of ``mode`` only, and all of ``at_least``."""
    try:
        found = path.stat().st_mode
    except PermissionError:
        return for_root(path)
    except OSError as error:
        return failed(f"{path}: {why(error)}", f"install -d -m {mode:o} {path}")
    if not stat.S_ISDIR(found):
        fix = f"mv {path} {path}.old; install -d -m {mode:o} {path}"
        return failed(f"{path}: is no folder", fix)
    permissions = found & 0o777
    if permissions & ~mode or at_least & ~permissions:
        return failed(f"{path}: mode {permissions:o}", f"chmod {mode:o} {path}")
    return ok(f"{path}, mode {permissions:o}")
