"""Which file NVML is: the loader's own choice, or the one below a driver's root; in the child.

A driver that is installed in a container lies below a folder of the host. Its folders hold a whole
distribution, whose C library must not become ours: the one file is loaded by its path, and pynvml
then gets the same by its name (ld.so finds what is loaded already by SONAME).
"""

import ctypes
import os
import re
from pathlib import Path

# Where distributions put it; the first that has it wins.
FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
_NAME = "libnvidia-ml.so.1"
_MAPS_BYTES = 8 << 20
_LIBRARY = re.compile(r"(/\S*/libnvidia-ml\.so\S*)")


def load_below(driver_root: str) -> None:
    """Load the NVML of a driver root; without one in there the loader looks where it always does.

    Links in there that are absolute lead out of it, so the file is sought beside its link too.
    """
    for folder in FOLDERS:
        path = os.path.join(driver_root, folder, _NAME)
        if not os.path.lexists(path):
            continue
        try:
            target = os.readlink(path) if os.path.islink(path) else _NAME
            beside = os.path.join(driver_root, folder, os.path.basename(target))
            ctypes.CDLL(beside if os.path.exists(beside) else path)
        except OSError:
            continue  # of another architecture, or broken
        return


def load_problem(driver_root: str = "/") -> str:
    """Why NVML could not be loaded, empty when it is simply not there.

    The loader passes over libraries of another architecture as if they were not there.
    """
    try:
        ctypes.CDLL(_NAME)
    except OSError as error:
        text = str(error)
    else:
        return ""
    if "cannot open shared object file" not in text:
        return text
    searched = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    below = (os.path.join(driver_root, folder) for folder in FOLDERS)
    there = (f"{folder}/{_NAME}" for folder in (*filter(None, searched), *below))
    found = next((path for path in there if os.path.lexists(path)), "")
    if not found:
        return ""
    try:
        ctypes.CDLL(found)
    except OSError as error:
        text = str(error)
    return f"{found} is there, but the loader does not take it: {text}"


def loaded_library() -> str:
    """The file that this process has mapped as NVML, empty when it has none."""
    try:
        with Path("/proc/self/maps").open(errors="replace") as maps:
            match = _LIBRARY.search(maps.read(_MAPS_BYTES))
    except OSError:
        return ""
    return match[1] if match else ""
