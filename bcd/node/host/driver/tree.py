"""A folder of this host seen as ``/``, as a container of the driver sees its own root.

Links are followed as chroot(2) follows them: an absolute target and ``..`` stay inside, so that
a file of a containerised driver cannot stand for one of the host. Sizes and counts are bounded.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from bcd.durable import read_plain

_MAX_LINKS = 40  # as the kernel, path_resolution(7)
_MAX_DEPTH = 256
_MAX_NAMES = 100_000

Stamp = tuple[int, int, int] | None


class Tree:
    """Paths are absolute texts inside the tree; ``host`` gives the one that the host knows.

    With ``watch`` it remembers how every folder was before it was first looked into.
    """

    def __init__(self, folder: Path, *, watch: bool = False) -> None:
        self._folder = str(folder).rstrip("/")
        self._watch = watch
        self._looked: dict[str, Stamp] = {}

    def host(self, path: str) -> str:
        """Where a path of the tree lies on the host."""
        return f"{self._folder}{path}"

    def resolve(self, path: str) -> str | None:
        """The path without links, or None when nothing is there or links go in a circle."""
        self._look(os.path.dirname(path))
        parts = [part for part in reversed(path.split("/")) if part]
        found: list[str] = []
        links = 0
        while parts:
            part = parts.pop()
            if part in (".", ".."):
                del found[len(found) - (part == "..") :]
                continue
            here = "/".join(["", *found, part])
            try:
                mode = os.lstat(self.host(here)).st_mode
                if not stat.S_ISLNK(mode):
                    found.append(part)
                    continue
                target = os.readlink(self.host(here))
            except (OSError, ValueError):
                return None
            self._look("/" + "/".join(found))
            links += 1
            if links > _MAX_LINKS or len(parts) > _MAX_DEPTH:
                return None
            if target.startswith("/"):
                found.clear()
            parts.extend(part for part in reversed(target.split("/")) if part)
        resolved = "/" + "/".join(found)
        return resolved if resolved.isprintable() else None

    def file(self, path: str) -> str | None:
        """The path without links when a plain file is there."""
        return self._of_kind(path, stat.S_IFREG)

    def socket(self, path: str) -> str | None:
        """The path without links when a socket is there."""
        return self._of_kind(path, stat.S_IFSOCK)

    def _of_kind(self, path: str, kind: int) -> str | None:
        found = self.resolve(path)
        try:
            if found is None or stat.S_IFMT(os.lstat(self.host(found)).st_mode) != kind:
                return None
        except OSError:
            return None
        return found

    def names(self, folder: str) -> tuple[dict[str, bool], str]:
        """Names in a folder, ascending, and whether each is a link; and the folder without links.

        Nothing for what is no folder, or one too large to be a library folder. Names that cannot
        be printed are left out: no spec could carry them.
        """
        self._look(folder)
        resolved = self.resolve(folder)
        if resolved is None:
            return {}, folder
        self._look(resolved)
        found: dict[str, bool] = {}
        try:
            with os.scandir(self.host(resolved)) as entries:
                for entry in entries:
                    if entry.name.isprintable():
                        found[entry.name] = entry.is_symlink()
                    if len(found) > _MAX_NAMES:
                        return {}, resolved
        except OSError:
            return {}, resolved
        return dict(sorted(found.items())), resolved

    def target(self, path: str) -> str:
        """What a link says, empty for what is none and for what cannot be printed."""
        try:
            said = os.readlink(self.host(path))
        except OSError:
            return ""
        return said if said.isprintable() else ""

    def content(self, path: str, limit: int) -> bytes:
        """A plain file's content, empty when there is none of at most ``limit`` bytes."""
        found = self.resolve(path)
        try:
            return b"" if found is None else read_plain(Path(self.host(found)), limit)
        except OSError:
            return b""

    def text(self, path: str, limit: int = 64 * 1024) -> str:
        """A small file's text, stripped."""
        return self.content(path, limit).decode(errors="replace").strip()

    def _look(self, folder: str) -> None:
        if self._watch and folder not in self._looked:
            self._looked[folder] = stamp(self.host(folder))

    def stamps(self) -> tuple[tuple[str, Stamp], ...]:
        """Every folder that was looked into, as it was then."""
        return tuple(sorted(self._looked.items()))

    def is_as_it_was(self) -> bool:
        """Whether no entry came to, or went from, a folder since it was looked into."""
        return all(stamp(self.host(path)) == before for path, before in self._looked.items())

    def newest_ns(self) -> int:
        """When an entry last came or went, on the file system's clock."""
        return max((before[1] for before in self._looked.values() if before is not None), default=0)


@contextlib.contextmanager
def open_plain(path: str, flags: int = 0) -> Iterator[int]:
    """A descriptor of a plain file; raises OSError for anything else, and waits for nobody."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a plain file", path)
        yield descriptor
    finally:
        os.close(descriptor)


def stamp(path: str) -> Stamp:
    """Inode, modification time and device number of what is at a path of the host."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_rdev
