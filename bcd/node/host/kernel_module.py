"""The driver's kernel module: the one part whose version says what may run with it."""

import re
from pathlib import Path

# "NVIDIA UNIX x86_64 Kernel Module  550.54.15  …", or "… Open Kernel Module for x86_64  550.54.15".
_VERSION = re.compile(r"Kernel Module(?: for \S{1,32})?\s+([0-9.]{1,32})\s")
_MAX_BYTES = 4096


def kernel_version(root: Path) -> str:
    """The version of the module that is loaded, empty when none is."""
    try:
        with (root / "proc/driver/nvidia/version").open("rb") as file:
            match = _VERSION.search(file.read(_MAX_BYTES).decode(errors="replace"))
    except OSError:
        return ""
    return match[1] if match else ""
