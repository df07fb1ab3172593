"""The driver's programs, firmware, configuration files and sockets, each where it is there.

Firmware is looked for where the kernel does: Documentation/driver-api/firmware/fw_search_path.rst.
"""

import re
from collections.abc import Iterator

from bcd.node.edits import Mount
from bcd.node.host.driver.tree import Tree

FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
# Not read-only: nobody can connect to a socket on a read-only mount.
_SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")

_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
)
_SHARED = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
# Loaders look for these in /etc, wherever the package put them.
_LOADERS = (
    "OpenCL/vendors/nvidia.icd",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
_SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
_FIRMWARE = re.compile(r"gsp[A-Za-z0-9_-]{0,64}\.bin\Z")
_RELEASE = re.compile(r"[A-Za-z0-9._+~-]{1,128}\Z")


def find_software(tree: Tree, version: str, release: str, firmware: str) -> Iterator[Mount]:
    """Everything beside the libraries; ``release`` is the kernel's, ``firmware`` its own path."""
    for name in _PROGRAMS:
        yield from _first(tree, tuple(f"{folder}/{name}" for folder in _PATH))
    yield from _firmware(tree, version, release, firmware)
    for name in _SHARED:
        yield from _first(tree, (f"/usr/share/{name}", f"/etc/{name}"))
    for name in _LOADERS:
        yield from _first(tree, (f"/etc/{name}", f"/usr/share/{name}"), f"/etc/{name}")
    for path in _SOCKETS:
        found = tree.socket(path)
        if found is not None:
            yield Mount(tree.host(found), path, _SOCKET_OPTIONS)


def _first(tree: Tree, paths: tuple[str, ...], seen_at: str = "") -> Iterator[Mount]:
    for path in paths:
        found = tree.file(path)
        if found is not None:
            yield Mount(tree.host(found), seen_at or path, FILE_OPTIONS)
            return


def _firmware(tree: Tree, version: str, release: str, own: str) -> Iterator[Mount]:
    folders = ["/lib/firmware/updates", "/lib/firmware"]
    if _RELEASE.match(release):
        folders = [f for base in folders for f in (f"{base}/{release}", base)]
    if own.startswith("/") and own.isprintable():
        folders.insert(0, own.rstrip("/"))
    for folder in (f"{folder}/nvidia/{version}" for folder in folders):
        names = [name for name in tree.names(folder)[0] if _FIRMWARE.match(name)]
        files = [(name, tree.file(f"{folder}/{name}")) for name in names]
        if files:
            for name, found in files:
                if found is not None:
                    yield Mount(tree.host(found), f"{folder}/{name}", FILE_OPTIONS)
            return
