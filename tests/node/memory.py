"""The daemon's ports in memory: for plans and passes by the thousand, without a disk."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from bcd.model.assignment import Limits
from bcd.model.device import Device, DeviceClass
from bcd.model.host import HostFacts, HugePagePool, NumaNode
from bcd.model.ids import AllocationId
from bcd.model.report import Failed, FailureReason
from bcd.node.cdi import parse_file_name
from bcd.node.edits import DeviceEdits, DeviceNode
from bcd.node.limits import enforced
from bcd.node.ports import (
    CdiFiles,
    ForeignSpec,
    GpuSnapshot,
    MachinesUse,
    MpsState,
    OwnSpec,
    Ports,
    SliceState,
)
from bcd.node.sharing import MpsShare, unknown_memory
from tests.node.clock import HandClock

GIB = 1 << 30


@dataclass
class MemoryCdi:
    """Spec files by name; ``broken`` ones cannot be written or removed."""

    files: dict[str, bytes | None] = field(default_factory=dict)
    foreign: list[ForeignSpec] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    def read(self) -> CdiFiles:
        own = []
        for name, content in sorted(self.files.items()):
            parsed = parse_file_name(name)
            if parsed is not None:
                own.append(OwnSpec(name, parsed[0], parsed[1], content))
        return CdiFiles(tuple(own), tuple(self.foreign))

    def write(self, name: str, content: bytes) -> None:
        self._check(name)
        self.files[name] = content

    def remove(self, name: str) -> None:
        self._check(name)
        self.files.pop(name, None)

    def _check(self, name: str) -> None:
        if parse_file_name(name) is None:
            raise ValueError(name)
        if name in self.broken:
            raise PermissionError(13, "Permission denied", name)

    def fingerprint(self) -> object:
        return dict(self.files), list(self.foreign)


@dataclass
class MemoryEnv:
    """Env files by allocation."""

    files: dict[AllocationId, bytes | None] = field(default_factory=dict)

    def read(self) -> Mapping[AllocationId, bytes | None]:
        return dict(self.files)

    def write(self, allocation_id: AllocationId, content: bytes) -> None:
        self.files[allocation_id] = content

    def remove(self, allocation_id: AllocationId) -> None:
        self.files.pop(allocation_id, None)

    def fingerprint(self) -> object:
        return dict(self.files)


@dataclass
class MemorySlices:
    """Slices by allocation; ``busy`` ones have processes, ``odd`` ones a surprise."""

    slices: dict[AllocationId, Limits] = field(default_factory=dict)
    busy: set[AllocationId] = field(default_factory=set)
    odd: set[AllocationId] = field(default_factory=set)
    unsupported: str = ""
    failure: Failed | None = None

    def problem(self) -> str:
        return self.unsupported

    def read(self) -> Mapping[AllocationId, SliceState]:
        return {
            id_: SliceState(v, id_ not in self.busy, "swap is open" if id_ in self.odd else "")
            for id_, v in self.slices.items()
        }

    def ensure(self, allocation_id: AllocationId, limits: Limits) -> Failed | None:
        if self.failure is not None:
            return self.failure
        self.slices[allocation_id] = enforced(limits)
        self.odd.discard(allocation_id)
        return None

    def stop(self, allocation_id: AllocationId) -> bool:
        if allocation_id in self.busy:
            return False
        self.slices.pop(allocation_id, None)
        return True


@dataclass
class MemoryMps:
    """MPS daemons by GPU; ``busy`` ones have clients."""

    daemons: dict[str, MpsState] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    failure: Failed | None = None
    starts: int = 0

    def read(self) -> Mapping[str, MpsState]:
        return {gpu: replace(each, busy=gpu in self.busy) for gpu, each in self.daemons.items()}

    def ensure(self, gpu: str, share: MpsShare) -> Failed | None:
        if not share.memory_bytes:
            return unknown_memory(gpu)
        if self.failure is not None:
            return self.failure
        there = self.daemons.get(gpu)
        if there != MpsState(share, ready=True):
            if there is not None and gpu in self.busy:
                return Failed(FailureReason.SHARING_FAILED, "it has clients, and other shares")
            self.starts += 1
            self.daemons[gpu] = MpsState(share, ready=True)
        return None

    def stop(self, gpu: str) -> bool:
        if gpu in self.busy:
            return False
        self.daemons.pop(gpu, None)
        return True


@dataclass
class MemoryGpus:
    """The devices of a snapshot."""

    found: GpuSnapshot
    failure: Failed | None = None

    def snapshot(self) -> GpuSnapshot:
        return self.found

    def prepare(self, device_ids: tuple[str, ...]) -> Failed | None:
        assert all(id_ in self.found.edits for id_ in device_ids)
        return self.failure

    def busy(self, device_ids: Iterable[str]) -> frozenset[str]:
        return self.found.in_use & frozenset(device_ids)

    def fingerprint(self) -> object:
        return id(self.found)

    def start(self, wake: Callable[[], None]) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class MemoryHost:
    """Facts as they are given."""

    found: HostFacts
    used: MachinesUse = field(default_factory=MachinesUse)

    def facts(self) -> HostFacts:
        return self.found

    def machines(self) -> MachinesUse:
        return self.used


HOST = HostFacts(
    hostname="host",
    boot_id="boot-1",
    kernel="6.1",
    driver_version="",
    cuda_version="",
    online_cpus=frozenset(range(16)),
    isolated_cpus=frozenset({14, 15}),
    memory_bytes=256 * GIB,
    numa_nodes=(
        NumaNode(0, frozenset(range(8)), 128 * GIB, (HugePagePool(GIB, 8),)),
        NumaNode(1, frozenset(range(8, 16)), 128 * GIB, (HugePagePool(GIB, 8),)),
        NumaNode(2, frozenset(), 0, ()),
    ),
)


def device(
    name: str, device_class: DeviceClass = DeviceClass.GPU, gpu: str = "", **changes: object
) -> Device:
    """A healthy device."""
    fields: dict[str, object] = {
        "id": name,
        "device_class": device_class,
        "model": "NVIDIA Test",
        "memory_bytes": 80 * GIB,
        "pci_address": "0000:01:00.0",
        "numa_node": 0,
        "gpu": gpu or name,
    }
    return Device(**(fields | changes))  # type: ignore[arg-type]


WHOLE = tuple(device(f"GPU-{i}") for i in range(4))
SPLIT = device("GPU-8", mig_enabled=True)
MIG = tuple(device(f"MIG-{i}", DeviceClass.MIG, gpu="GPU-8") for i in range(2))
SLOTS = tuple(device(f"GPU-9::{i}", DeviceClass.SLOT, gpu="GPU-9") for i in range(2))
SHARED = device("GPU-9")
DEVICES = (*WHOLE, SPLIT, *MIG, SHARED, *SLOTS)


def snapshot(devices: tuple[Device, ...] = DEVICES) -> GpuSnapshot:
    """Devices with a node each."""
    return GpuSnapshot(
        driver_version="550",
        cuda_version="12.4",
        devices=devices,
        edits={
            d.id: DeviceEdits(nodes=(DeviceNode(f"/dev/{d.gpu}", f"/dev/{d.gpu}"),))
            for d in devices
        },
        common=DeviceEdits(nodes=(DeviceNode("/dev/nvidiactl", "/dev/nvidiactl"),)),
    )


@dataclass
class MemoryHostWorld:
    """A whole host in memory; a ``copy`` goes its own way."""

    cdi: MemoryCdi = field(default_factory=MemoryCdi)
    env: MemoryEnv = field(default_factory=MemoryEnv)
    slices: MemorySlices = field(default_factory=MemorySlices)
    mps: MemoryMps = field(default_factory=MemoryMps)
    gpus: MemoryGpus = field(default_factory=lambda: MemoryGpus(snapshot()))
    host: MemoryHost = field(default_factory=lambda: MemoryHost(HOST))
    clock: HandClock = field(default_factory=HandClock)

    def ports(self) -> Ports:
        return Ports(
            gpus=self.gpus,
            slices=self.slices,
            mps=self.mps,
            cdi=self.cdi,
            env=self.env,
            host=self.host,
            clock=self.clock,
        )

    def copy(self) -> "MemoryHostWorld":
        return MemoryHostWorld(
            cdi=copy.deepcopy(self.cdi),
            env=copy.deepcopy(self.env),
            slices=copy.deepcopy(self.slices),
            mps=copy.deepcopy(self.mps),
            gpus=MemoryGpus(self.gpus.found, self.gpus.failure),
            host=MemoryHost(self.host.found, self.host.used),
            clock=self.clock,
        )

    def state(self) -> tuple[object, ...]:
        """Everything that a hold consists of, to compare worlds by."""
        kept = self.cdi.files, self.env.files, self.slices.slices, self.mps.daemons
        return tuple(dict(files) for files in kept)
