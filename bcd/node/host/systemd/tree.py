"""Control groups below a slice: walked and removed, however many and deep a workload made them.

A workload with a delegated control group makes as many below it as it likes, so that nothing here
recurses, joins paths, or holds a descriptor for each level of more than a few.
"""

import contextlib
import itertools
import os
from collections.abc import Generator
from enum import Enum, auto
from pathlib import Path

_MAX_DEPTH = 64
_MAX_VISITED = 1024
# More control groups than a kernel has ids for those with a memory controller (MEM_CGROUP_ID_MAX).
_MAX_REMOVED = 1 << 16
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Cleared(Enum):
    """What became of the control groups below one.

    ``LEFT`` when there are still some after so many, or one went away meanwhile.
    """

    NONE_LEFT = auto()
    BUSY = auto()
    LEFT = auto()


def walk(folder: Path, most: int = _MAX_VISITED) -> Generator[int, None, None]:
    """Descriptors of a folder and of those below it, each valid until the next is asked for.

    Not more than ``most``, nor deeper than 64 levels; nothing of a folder that is not there.
    """
    stack: list[tuple[int, list[str]]] = []
    try:
        with contextlib.suppress(OSError):
            stack.append((os.open(folder, _FLAGS), []))
        for descriptor, names in tuple(stack):
            yield descriptor
            names.extend(_below(descriptor, most))
        left = most - 1
        while stack and left > 0:
            descriptor, names = stack[-1]
            if not names:
                os.close(stack.pop()[0])
                continue
            try:
                below = os.open(names.pop(), _FLAGS, dir_fd=descriptor)
            except OSError:
                continue  # it went away meanwhile
            left -= 1
            stack.append((below, []))
            yield below
            if len(stack) < _MAX_DEPTH:
                stack[-1][1].extend(_below(below, left))
    finally:
        for descriptor, _ in stack:
            os.close(descriptor)


def remove_below(folder: Path, most: int = _MAX_REMOVED) -> Cleared:
    """Remove the control groups below one, the deepest first, until one is not empty.

    The kernel refuses to remove one with a process (EBUSY), and a process that is on its way
    into one that was removed never gets there. Raises OSError for the folder itself.
    """
    descriptor = os.open(folder, _FLAGS)
    names: list[str] = []
    try:
        while True:
            below = next(iter(_below(descriptor, 1)), None)
            if below is not None:
                most -= 1
                if most < 0:
                    return Cleared.LEFT
                descriptor = _step(descriptor, below)
                names.append(below)
            elif names:
                descriptor = _step(descriptor, "..")
                try:
                    os.rmdir(names.pop(), dir_fd=descriptor)
                except FileNotFoundError:
                    continue  # somebody else was faster
                except OSError:
                    return Cleared.BUSY
            else:
                return Cleared.NONE_LEFT
    except FileNotFoundError:
        return Cleared.LEFT
    finally:
        os.close(descriptor)


def _step(descriptor: int, name: str) -> int:
    """A descriptor of the next folder in place of this one, which stays open if that fails.

    Control groups are never moved, so that ``..`` is where we came from.
    """
    there = os.open(name, _FLAGS, dir_fd=descriptor)
    os.close(descriptor)
    return there


def _below(descriptor: int, most: int) -> list[str]:
    try:
        with os.scandir(descriptor) as entries:
            folders = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            return list(itertools.islice(folders, most))
    except OSError:
        return []
