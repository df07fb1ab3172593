"""The vendor's hook program for CDI, and what does its work where it is not installed.

With it, links and the dynamic linker's cache are made inside the container. Without it, every
library is mounted under each of its names too, and by its SONAME in the folders that dynamic
linkers search by themselves, so that images of another distribution find it as well.
"""

import mmap
import os
from collections.abc import Iterable, Iterator

from bcd.node.edits import Hook, Mount
from bcd.node.host.driver.elf import soname
from bcd.node.host.driver.libraries import Libraries, default_folder, searched_folders
from bcd.node.host.driver.software import FILE_OPTIONS
from bcd.node.host.driver.tree import Tree, open_plain, stamp

NAME = "nvidia-cdi-hook"
_PLACES = (f"/usr/bin/{NAME}", f"/usr/local/bin/{NAME}", f"/usr/local/nvidia/toolkit/{NAME}")
# Each came with some version, and an older program fails, with the container, when it is told one
# that it does not know. The program's text carries the names of those that it does.
_NEWER = ("enable-cuda-compat", "disable-device-node-modification", "update-application-profile")
_MAX_PROGRAM_BYTES = 256 << 20


class HookProgram:
    """The hook program of a host: ``auto`` finds it, ``never`` means none, else its path."""

    def __init__(self, host: Tree, choice: str) -> None:
        self._host = host
        self._choice = choice
        self._known: tuple[object, frozenset[str]] = (None, frozenset())

    def path(self) -> str:
        """Where the host has it, empty for none; a path that was set is taken as it is."""
        if self._choice == "never":
            return ""
        if self._choice != "auto":
            return self._host.host(self._choice)
        for place in _PLACES:
            if self._host.file(place) is not None:
                return self._host.host(place)
        return ""

    def hook(self, command: str, *arguments: str) -> Hook:
        """A call of it at the moment that the vendor's tool chose."""
        return Hook("createContainer", self.path(), (NAME, command, *arguments))

    def links(self, links: Iterable[tuple[str, str]]) -> tuple[Hook, ...]:
        """Make (path, target) links in the container; nothing without a program."""
        words = [word for path, target in links for word in ("--link", f"{target}::{path}")]
        return (self.hook("create-symlinks", *words),) if words and self.path() else ()

    def all(self, libraries: Libraries, version: str) -> Iterator[Hook]:
        """The hooks of the common edits, in the order that they run in."""
        known = self.newer()
        yield from self.links((link.path, link.target) for link in libraries.links)
        if "enable-cuda-compat" in known:
            yield self.hook("enable-cuda-compat", f"--host-driver-version={version}")
        if libraries.folders:
            folders = [word for folder in libraries.folders for word in ("--folder", folder)]
            # Ubuntu's /sbin/ldconfig is a script that wants a shell.
            real = ["--ldconfig-path", "/sbin/ldconfig.real"]
            own = real if self._host.file("/sbin/ldconfig.real") is not None else []
            yield self.hook("update-ldcache", *own, *folders)
        for command in ("disable-device-node-modification", "update-application-profile"):
            if command in known:
                yield self.hook(command)

    def newer(self) -> frozenset[str]:
        """Which of the newer commands the program knows; looked up once per program."""
        path = self.path()
        stamps = tuple(stamp(place) for place in (path, f"{path}.real"))
        if self._known[0] != stamps:
            known = _commands(path) | _commands(f"{path}.real")  # a script may stand before it
            self._known = stamps, known
        return self._known[1]


def stand_ins(tree: Tree, libraries: Libraries) -> Iterator[Mount]:
    """Mounts of the libraries under their other names: host links, wanted links, SONAMEs."""
    taken = {library.path for library in libraries.found}
    for path, file in _names(tree, libraries):
        if path not in taken:
            taken.add(path)
            yield Mount(tree.host(file), path, FILE_OPTIONS)


def _names(tree: Tree, libraries: Libraries) -> Iterator[tuple[str, str]]:
    """(path in the container, file) of every other name."""
    for link in libraries.links:
        yield link.path, link.library.file
    for library in libraries.found:
        file = tree.host(library.file)
        folders = dict.fromkeys((library.folder, default_folder(library.folder)))
        for folder in folders:
            yield f"{folder}/{library.name}", library.file
        own = soname(file)
        if library.folder in libraries.folders:
            folders |= dict.fromkeys(searched_folders(file))
        for folder in folders if own else ():
            yield f"{folder}/{own}", library.file


def _commands(path: str) -> frozenset[str]:
    try:
        with open_plain(path) as descriptor:
            if os.fstat(descriptor).st_size > _MAX_PROGRAM_BYTES:
                return frozenset()
            with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as text:
                return frozenset(name for name in _NEWER if text.find(name.encode()) >= 0)
    except (OSError, ValueError):  # not there, empty, or nothing that can be mapped
        return frozenset()
