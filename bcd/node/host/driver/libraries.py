"""The driver's libraries: every one of exactly the kernel module's version, and their links.

A library of another version loads and then fails in the container ("driver/library version
mismatch"), so the suffix decides, never what a link happens to point at.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bcd.node.host.driver.elf import triplet
from bcd.node.host.driver.tree import Tree

_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
_CURRENT = "/nvidia/current"  # where Debian keeps the chosen one of several drivers
_FOLDERS = (
    "/usr/lib64",
    *(f"/usr/lib/{name}" for name in _TRIPLETS),
    *(f"/usr/lib/{name}{_CURRENT}" for name in _TRIPLETS),
    "/lib64",
    *(f"/lib/{name}" for name in _TRIPLETS),
    *(f"/lib/{name}{_CURRENT}" for name in _TRIPLETS),
)
_XORG = ("/usr/lib/xorg/modules", "/usr/lib64/xorg/modules")
# Parts of the driver that carry versions of their own.
_OWN_VERSION = re.compile(
    r"libnvidia-(?:nvvm70\.so\.[0-9]{1,8}"
    r"|egl-(?:gbm|wayland2?|xcb|xlib)\.so\.[0-9]{1,8}\.[0-9]{1,8})(?:\.[0-9]{1,8})*\Z"
)
_VERSION = re.compile(r"[0-9]{1,8}(?:\.[0-9]{1,8}){1,2}\Z")
_SUFFIX = re.compile(r"\.so\.([0-9]{1,8}(?:\.[0-9]{1,8}){1,2})\Z")
_LIBRARY = re.compile(r"([A-Za-z0-9_+-]{1,128})\.so(?:\.[0-9.]{1,32})?\Z")
_CACHED = re.compile(rb"\0(/[^\0]{1,4000})/(?:libcuda|libnvidia-ml)\.so\.1(?=\0)")
_MAX_CACHE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Library:
    """A library: the folder and name that a container sees, and where it really lies."""

    folder: str
    name: str
    file: str

    @property
    def path(self) -> str:
        """Where the container sees it."""
        return f"{self.folder}/{self.name}"


@dataclass(frozen=True, slots=True)
class Link:
    """A link that the container needs: its path, what it says, and the library at its end."""

    path: str
    target: str
    library: Library


@dataclass(frozen=True, slots=True)
class Libraries:
    """All libraries, their folders in search order, and their links."""

    found: tuple[Library, ...] = ()
    folders: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()

    def named(self, name: str) -> Library | None:
        """The first library of a name."""
        return next((library for library in self.found if library.name == name), None)

    def absent(self, name: str) -> Library:
        """Where a library that was not found should be."""
        folder = self.folders[0] if self.folders else _FOLDERS[0]
        return Library(folder, name, f"{folder}/{name}")


def needed(version: str) -> tuple[str, ...]:
    """Without these no program uses a GPU, and no tool asks for one."""
    return f"libcuda.so.{version}", f"libnvidia-ml.so.{version}"


def is_version(text: str) -> bool:
    """Whether a text is a driver version, which becomes part of paths."""
    return _VERSION.match(text) is not None


def foreign_version(path: str, version: str) -> bool:
    """Whether a library's name carries another version than the driver's."""
    name = os.path.basename(path)
    match = _SUFFIX.search(name)
    return match is not None and match[1] != version and not _OWN_VERSION.match(name)


def find_libraries(tree: Tree, version: str) -> Libraries:
    """Look through the library folders of a tree; empty for a version that is none."""
    if not is_version(version):
        return Libraries()
    found: dict[str, Library] = {}
    folders: list[str] = []
    links: dict[str, Link] = {}
    for folder, names in _folders(tree, version):
        there = [*_of(tree, folder, names, version), *_below(tree, folder, version)]
        folders += dict.fromkeys(library.folder for library in there)
        found |= {library.path: library for library in there}
        links |= {link.path: link for link in _links(tree, folder, names, there)}
    for library in _server_modules(tree, folders, version):
        found.setdefault(library.path, library)
    links |= {link.path: link for link in _always(found.values(), version)}
    searched = tuple(f for f in dict.fromkeys(folders) if not f.endswith("/vdpau"))
    return Libraries(tuple(found.values()), searched, tuple(links.values()))


def default_folder(folder: str) -> str:
    """The folder above that every dynamic linker of the same distribution searches."""
    return folder.removesuffix(_CURRENT)


def searched_folders(file: str) -> tuple[str, ...]:
    """Where dynamic linkers look for a library like this one without being told.

    Debian's builds of the C library look into one of them, and everybody else's into the other.
    """
    platform = triplet(file)
    return ("/usr/lib64", f"/usr/lib/{platform}") if platform else ()


def _folders(tree: Tree, version: str) -> Iterator[tuple[str, dict[str, bool]]]:
    seen: set[str] = set()
    for candidate in (*_FOLDERS, *_cached_folders(tree)):
        names, folder = tree.names(candidate)
        if folder in seen:
            continue
        seen.add(folder)
        if any(name.endswith(f".so.{version}") for name in names):
            yield folder, names


def _cached_folders(tree: Tree) -> list[str]:
    """Folders in which the dynamic linker's cache knows the driver, 64-bit ones."""
    found = []
    for match in _CACHED.finditer(tree.content("/etc/ld.so.cache", _MAX_CACHE_BYTES)):
        folder = match[1].decode(errors="replace")
        file = tree.file(f"{folder}/libcuda.so.1") or tree.file(f"{folder}/libnvidia-ml.so.1")
        if folder.isprintable() and file is not None and triplet(tree.host(file)):
            found.append(folder)
    return found


def _of(tree: Tree, folder: str, names: dict[str, bool], version: str) -> Iterator[Library]:
    suffix = f".so.{version}"
    for name in names:
        if not (name.endswith(suffix) or _OWN_VERSION.match(name)):
            continue
        file = tree.file(f"{folder}/{name}")  # a pipe of that name would keep its readers waiting
        if file is not None and not foreign_version(file, version):
            yield Library(folder, name, file)


def _below(tree: Tree, folder: str, version: str) -> Iterator[Library]:
    names, below = tree.names(f"{folder}/vdpau")
    suffix = f".so.{version}"
    yield from _of(
        tree, below, {name: link for name, link in names.items() if name.endswith(suffix)}, version
    )


def _server_modules(tree: Tree, folders: list[str], version: str) -> Iterator[Library]:
    """The X server's modules, in the first folder that has each."""
    above = [*(f"{folder}/xorg/modules" for folder in folders), *_XORG]
    for part, name in (
        ("drivers", "nvidia_drv.so"),
        ("extensions", f"libglxserver_nvidia.so.{version}"),
    ):
        for folder in (f"{modules}/{part}" for modules in above):
            file = tree.file(f"{folder}/{name}")
            if file is not None:
                yield Library(folder, name, file)
                break


def _links(
    tree: Tree, folder: str, names: dict[str, bool], libraries: list[Library]
) -> Iterator[Link]:
    """The links to the libraries that the host has, where a program looks for them."""
    stems = {match[1] for library in libraries if (match := _LIBRARY.match(library.name))}
    known = {library.path for library in libraries}
    by_file = {library.file: library for library in libraries}
    places = [(folder, names)]
    if default_folder(folder) != folder:
        places.append((default_folder(folder), tree.names(default_folder(folder))[0]))
    for place, there in places:
        for name, is_link in there.items():
            match = _LIBRARY.match(name) if is_link else None
            if match is None or match[1] not in stems or f"{place}/{name}" in known:
                continue
            library = by_file.get(tree.file(f"{place}/{name}") or "")
            if library is not None:
                target = tree.target(f"{place}/{name}")
                near = target and "/" not in target
                yield Link(f"{place}/{name}", target if near else library.path, library)


def _always(libraries: Iterable[Library], version: str) -> Iterator[Link]:
    """Links that programs want and that not every package of the driver makes."""
    wanted = {
        "libcuda": ("libcuda.so", "libcuda.so.1"),
        "libGLX_nvidia": ("libGLX_indirect.so.0", f"libGLX_nvidia.so.{version}"),
        "libnvidia-opticalflow": ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
        "libnvidia-allocator": ("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
        "libglxserver_nvidia": ("libglxserver_nvidia.so", f"libglxserver_nvidia.so.{version}"),
    }
    for library in libraries:
        link = wanted.get(library.name.removesuffix(f".so.{version}"))
        if link is not None:
            yield Link(f"{library.folder}/{link[0]}", link[1], library)
