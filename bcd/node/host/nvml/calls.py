"""Calls of NVML that may fail, each in its own way, without costing the rest.

A symbol that the library lacks, a call that the GPU or this user may not make, an error that only
this call has: the answer is simply not known. That a GPU is lost or wants a reset is remembered.
"""

import ctypes
import re
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")

# nvml.h: NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED.
_TELLING = frozenset({15, 16})


def unheard(_: str) -> None:
    """For calls whose begin nobody wants to know."""


class Errors:
    """What the optional calls about one GPU say of the GPU itself, empty when nothing.

    ``begin`` hears the name of each call before it is made, with ``subject`` behind it.
    """

    def __init__(self, begin: Callable[[str], None] = unheard, subject: str = "") -> None:
        self.text = ""
        self._begin = begin
        self._subject = f" of {subject}" if subject else ""

    def optional(self, call: Callable[..., T], *arguments: Any, name: str = "") -> T | None:
        """What the call answers, None when it does not; ``name`` is NVML's where not its own."""
        self._begin(f"{name or call.__name__}{self._subject}")
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            if error.value in _TELLING and not self.text:
                self.text = explain(error)
        except UnicodeDecodeError:
            pass
        return None


def explain(error: Any) -> str:
    """An NVML error for people: its text, which NVML has, and its number."""
    try:
        text = str(error)
    except pynvml.NVMLError:
        text = "unknown error"
    return f"{text} (NVML error {error.value})"


def pointer(handle: Any) -> int:
    """What makes two handles the same GPU: they do not compare equal."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


_BUS_ID = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])\Z")


def pci_address(bus_id: str) -> str:
    """NVML's bus id as sysfs writes it: the domain has at least four digits, in lower case.

    NVML pads domains to eight digits; Documentation/PCI/sysfs-pci.rst. Empty for anything else.
    """
    match = _BUS_ID.match(bus_id)
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()
