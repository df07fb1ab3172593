"""The child's thread that waits for NVML's events and passes them up.

One event set for all GPUs, in a thread of its own: NVML's wait releases the interpreter. An event
names its GPU by handle, which is looked up by pointer, because a lost GPU no longer says its UUID.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from bcd.node.host.nvml.calls import pointer
from bcd.node.host.nvml.messages import Event

_WAIT_MS = 5_000
_TIMEOUT = 10
# nvml.h: double bit ECC, Xid, MIG configuration, DRAM retirement and its failure, poison that was
# contained and not, GPU unavailable, recovery action.
_MASK = 0x2 | 0x8 | 0x100 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000
_WHOLE = 0xFFFFFFFF
_QUICK_S = 0.05
_MAX_BACKOFF_S = 5.0


class EventThread:
    """Waits for ever; ``send`` is called from its thread, ``begin`` before a call in another."""

    def __init__(self, send: Callable[[Event], None], begin: Callable[[str], None]) -> None:
        self._send = send
        self._begin = begin
        self._uuids: Mapping[int, str] = {}
        self._registered: set[int] = set()
        self._set: Any = None

    def watch(self, handles: Mapping[str, Any]) -> None:
        """Register GPUs by UUID, those that are new; begin with the first."""
        self._uuids = {pointer(handle): uuid for uuid, handle in handles.items()}
        for uuid, handle in handles.items():
            key = pointer(handle)
            if key in self._registered:
                continue
            self._begin(f"nvmlDeviceRegisterEvents of {uuid}")
            try:
                self._register(handle)
            except pynvml.NVMLError:
                continue  # no events from this one: the next readings tell
            self._registered.add(key)

    def _register(self, handle: Any) -> None:
        mask = _MASK & pynvml.nvmlDeviceGetSupportedEventTypes(handle)
        if not mask:
            return
        if self._set is None:
            self._set = pynvml.nvmlEventSetCreate()
            threading.Thread(target=self._run, name="nvml-events", daemon=True).start()
        pynvml.nvmlDeviceRegisterEvents(handle, mask, self._set)

    def _run(self) -> None:
        backoff = _QUICK_S
        while True:
            began = time.monotonic()
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, _WAIT_MS)
            except pynvml.NVMLError as error:
                # A wait may end too early, and one after another may fail when a GPU is lost.
                if error.value == _TIMEOUT and time.monotonic() - began > _QUICK_S:
                    backoff = _QUICK_S
                    continue
                time.sleep(backoff)
                backoff = min(2 * backoff, _MAX_BACKOFF_S)
                continue
            backoff = _QUICK_S
            self._send(self._event(data))

    def _event(self, data: Any) -> Event:
        gi, ci = int(data.gpuInstanceId), int(data.computeInstanceId)
        return Event(
            uuid=self._uuids.get(pointer(data.device), ""),
            kind=int(data.eventType),
            data=int(data.eventData),
            gi=None if gi == _WHOLE else gi,
            ci=None if ci == _WHOLE else ci,
        )
