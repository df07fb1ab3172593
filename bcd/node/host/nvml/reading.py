"""Asks NVML about every GPU; runs in the child.

Only the handle, the UUID and the PCI address are needed; all else is optional, since drivers and
GPU generations differ in it. What one GPU does not answer never hides another.
"""

import ctypes
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from bcd.node.host.nvml.calls import Errors, explain, pci_address
from bcd.node.host.nvml.messages import MAX_GPUS, MAX_MIGS, Fabric, GpuReading, Link, MigReading
from bcd.node.host.nvml.processes import compute_processes

_MIB = 1 << 20
# nvml.h: NVML_NVLINK_MAX_LINKS, fields 91 and 230, the capability and the answer of P2P by NVLink,
# NVML_ERROR_FUNCTION_NOT_FOUND, and the kinds of ECC errors.
_MAX_LINKS = 36
_LINK_COUNT = 91
_RECOVERY_ACTION = 230
_P2P_NVLINK = 2
_P2P_OK = 0
_NO_FUNCTION = 13
_UNCORRECTED = 1
_VOLATILE = 0
_GPU = 0
_UNKNOWN_REMOTE = 0xFF
_PROCESSES = "nvmlDeviceGetComputeRunningProcesses"
_MIG_NAME = re.compile(r"\bMIG ([0-9][0-9a-z.+]{1,30})\Z")


class Reader:
    """Reads all GPUs and keeps their handles, by device id, for what is asked in between."""

    def __init__(self, begin: Callable[[str], None]) -> None:
        self._begin = begin
        self.gpus: dict[str, Any] = {}
        self.handles: dict[str, Any] = {}

    def read(self, ignored: frozenset[str]) -> tuple[GpuReading, ...]:
        """Every GPU by index; raises NVMLError when not even their number is known."""
        self._begin("nvmlDeviceGetCount")
        count = min(pynvml.nvmlDeviceGetCount(), MAX_GPUS)
        self.handles = {}
        found = [self._handle(index) for index in range(count)]
        self.gpus = {}
        readings = []
        for index, handle in enumerate(found):
            if isinstance(handle, str):
                readings.append(GpuReading(index=index, error=handle))
                continue
            readings.append(self._gpu(index, handle, found, ignored))
        self.handles |= self.gpus
        return tuple(readings)

    def ping(self) -> None:
        """One short call that reaches the driver, for each GPU."""
        for uuid, handle in self.gpus.items():
            Errors(self._begin, uuid).optional(pynvml.nvmlDeviceGetPersistenceMode, handle)

    def busy(self, ids: tuple[str, ...], ignored: frozenset[str]) -> tuple[str, ...]:
        """Those of the devices that a compute process is on; an error counts as not busy."""
        return tuple(id_ for id_ in ids if self._processes(id_, ignored))

    def _processes(self, id_: str, ignored: frozenset[str]) -> int | None:
        handle = self.handles.get(id_)
        if handle is None:
            return None
        return Errors(self._begin, id_).optional(
            compute_processes, handle, ignored, name=_PROCESSES
        )

    def _handle(self, index: int) -> Any:
        """The handle, or what went wrong as a text; the first call may initialise the GPU."""
        self._begin(f"nvmlDeviceGetHandleByIndex of GPU {index}")
        try:
            return pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            return explain(error)

    def _gpu(self, index: int, handle: Any, all_: list[Any], ignored: frozenset[str]) -> GpuReading:
        errors = Errors(self._begin, f"GPU {index}")
        ask = errors.optional
        pci = ask(pynvml.nvmlDeviceGetPciInfo, handle)
        address = pci_address(_text(pci.busId)) if pci is not None else ""
        self._begin(f"nvmlDeviceGetUUID of GPU {index}")
        try:
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        except (pynvml.NVMLError, UnicodeDecodeError) as error:
            text = explain(error) if isinstance(error, pynvml.NVMLError) else "garbled UUID"
            return GpuReading(index=index, address=address, error=text)
        self.gpus[uuid] = handle
        memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        minor = ask(pynvml.nvmlDeviceGetMinorNumber, handle)
        mode = ask(pynvml.nvmlDeviceGetMigMode, handle)
        enabled = mode is not None and int(mode[0]) == 1
        persistence = ask(pynvml.nvmlDeviceGetPersistenceMode, handle)
        remapped = ask(pynvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
        total = int(memory.total) if memory is not None else 0
        return GpuReading(
            index=index,
            uuid=uuid,
            name=str(ask(pynvml.nvmlDeviceGetName, handle) or ""),
            minor=-1 if minor is None else int(minor),
            address=address,
            memory_bytes=total,
            mig_enabled=enabled,
            migs=tuple(self._migs(handle, ask, total, ignored)) if enabled else (),
            persistence=None if persistence is None else bool(persistence),
            compute_mode=int(ask(pynvml.nvmlDeviceGetComputeMode, handle) or 0),
            links=tuple(_links(handle, ask)),
            fabric=ask(_fabric, handle, name="nvmlDeviceGetGpuFabricInfoV"),
            p2p=_peers(index, handle, all_, ask),
            remapped=(bool(remapped[2]), bool(remapped[3])),
            recovery=int(_field(handle, ask, _RECOVERY_ACTION) or 0),
            uncorrected=ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, _VOLATILE),
            processes=None if enabled else ask(compute_processes, handle, ignored, name=_PROCESSES),
            error=errors.text,
        )

    def _migs(
        self, gpu: Any, ask: Callable[..., Any], total: int, ignored: frozenset[str]
    ) -> Iterator[MigReading]:
        """The instances; their places have holes."""
        most = int(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0)
        for place in range(min(most, MAX_MIGS)):
            handle = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, place)
            uuid = ask(pynvml.nvmlDeviceGetUUID, handle) if handle is not None else None
            gi = ask(pynvml.nvmlDeviceGetGpuInstanceId, handle) if uuid is not None else None
            ci = ask(pynvml.nvmlDeviceGetComputeInstanceId, handle) if gi is not None else None
            if uuid is None or gi is None or ci is None:
                continue
            self.handles[uuid] = handle
            memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
            yield MigReading(
                uuid=uuid,
                gi=int(gi),
                ci=int(ci),
                profile=_profile(handle, ask, total),
                memory_bytes=int(memory.total) if memory is not None else 0,
                processes=ask(compute_processes, handle, ignored, name=_PROCESSES),
            )


def _profile(handle: Any, ask: Callable[..., Any], total: int) -> str:
    """The profile's name, which ends an instance's name; older drivers leave it to be worked out.

    Slices and the share of memory, in eighths of the GPU's, make the name.
    """
    match = _MIG_NAME.search(str(ask(pynvml.nvmlDeviceGetName, handle) or ""))
    if match is not None:
        return match[1]
    made = ask(pynvml.nvmlDeviceGetAttributes, handle)
    if made is None or not total:
        return ""
    eighths = math.ceil(made.memorySizeMB * _MIB / total * 8)
    gib = round(eighths / 8 * math.ceil(total / (1 << 30)))
    compute, gpu = int(made.computeInstanceSliceCount), int(made.gpuInstanceSliceCount)
    part = f"{compute}c." if compute < gpu else ""
    return f"{part}{gpu}g.{gib}gb"


def _links(handle: Any, ask: Callable[..., Any]) -> Iterator[Link]:
    count = _field(handle, ask, _LINK_COUNT)
    for link in range(min(_MAX_LINKS if count is None else int(count), _MAX_LINKS)):
        state = ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None and count is None:
            return  # no NVLink, or no more of them
        if state != 1:
            continue
        far = ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        address = pci_address(_text(far.busId)) if far is not None else ""
        kind = ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        yield Link(_UNKNOWN_REMOTE if kind is None else int(kind), address)


def _peers(
    index: int, handle: Any, all_: list[Any], ask: Callable[..., Any]
) -> tuple[int, ...] | None:
    states = {
        other: ask(pynvml.nvmlDeviceGetP2PStatus, handle, far, _P2P_NVLINK)
        for other, far in enumerate(all_)
        if other != index and not isinstance(far, str)
    }
    if all(state is None for state in states.values()):
        return None
    return tuple(other for other, state in states.items() if state == _P2P_OK)


class _FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_t of nvml.h, the only one that drivers before 550 have."""

    _fields_ = (
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint32),
        ("state", ctypes.c_ubyte),
    )


class _FabricInfoV2(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t of nvml.h; some releases of pynvml have another layout."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint32),
        ("state", ctypes.c_ubyte),
        ("health_mask", ctypes.c_uint32),
    )


def _fabric(handle: Any) -> Fabric:
    info = _FabricInfoV2(version=ctypes.sizeof(_FabricInfoV2) | 2 << 24)
    try:
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    except pynvml.NVMLError as error:
        if error.value != _NO_FUNCTION:
            raise
        old = _FabricInfo()
        pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(old))
        return _fabric_of(old, 0)
    return _fabric_of(info, int(info.health_mask))


def _fabric_of(info: Any, health_mask: int) -> Fabric:
    cluster = bytes(info.cluster).hex()
    return Fabric(int(info.state), int(info.status), cluster, int(info.clique), health_mask)


def _field(handle: Any, ask: Callable[..., Any], field: int) -> int | None:
    values = ask(pynvml.nvmlDeviceGetFieldValues, handle, [field])
    if not values or values[0].nvmlReturn != 0:
        return None
    return int(values[0].value.uiVal)


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
