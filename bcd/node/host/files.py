"""Small files of known folders, read within bounds and without following links."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from bcd import durable


def read_own(path: Path, limit: int) -> bytes | None:
    """The content of a plain file of at most ``limit`` bytes; None for anything else there.

    Raises FileNotFoundError when there is nothing.
    """
    try:
        return durable.read_plain(path, limit, follow=False)
    except FileNotFoundError:
        raise
    except OSError:
        return None


def fingerprint(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Names, inodes, sizes and modification times: differs when a file was touched."""
    return tuple(sorted(_entries(folder)))


def _entries(folder: Path) -> Iterator[tuple[str, int, int, int]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                yield entry.name, found.st_ino, found.st_size, found.st_mtime_ns
    except OSError:
        return  # the pass that follows says what is wrong with the folder


_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{8}\.tmp\Z")


def sweep(folder: Path, prefix: str) -> None:
    """Remove temporary files that a killed process left beside files named ``prefix…``.

    For folders that have one writer only, before it writes; what is no plain file is none of
    them. Raises OSError.
    """
    for path in folder.glob(f".{prefix}*.tmp"):
        if _LEFTOVER.match(path.name) and stat.S_ISREG(path.lstat().st_mode):
            durable.remove_file(path)
