"""Where each running ``better-compute dev`` puts its configuration, for other terminals to find.

A file there counts for as long as its process holds the lock on it; what a crash left behind
does not.
"""

import fcntl
import os
from pathlib import Path

from bcd.durable import replace_file
from bcd.model.errors import BadConfiguration


def running_folder() -> Path:
    """Where each running ``dev`` puts its configuration, locked for as long as it lives."""
    base = os.environ.get("XDG_RUNTIME_DIR") or home() / ".cache"
    return Path(base) / "better-compute" / "dev"


def home() -> Path:
    """The user's home; raises BadConfiguration when nothing says where that is."""
    try:
        return Path.home()
    except RuntimeError as error:
        raise BadConfiguration("this user has no home folder; set HOME") from error


def running_systems() -> list[Path]:
    """The configurations of ``dev`` systems that are running now."""
    return [path for path in sorted(running_folder().glob("*.toml")) if _is_held(path)]


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _sweep(folder: Path) -> None:
    """Drop what crashed systems left behind."""
    for path in folder.glob("*.toml"):
        if not _is_held(path):
            path.unlink(missing_ok=True)


class Registration:
    """This process's entry among the running systems; raises BadConfiguration."""

    def __init__(self, content: bytes) -> None:
        folder = running_folder()
        self.path = folder / f"{os.getpid()}.toml"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sweep(folder)
            replace_file(self.path, content)
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BadConfiguration(
                f"{folder}: cannot be written ({error.strerror}); set XDG_RUNTIME_DIR to a folder"
                " of yours"
            ) from error
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def end(self) -> None:
        """Take the entry away."""
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
