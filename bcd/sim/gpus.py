"""Simulated GPUs: a profile's devices, and the faults that are asked for."""

import time
from collections.abc import Callable, Iterable, Iterator

from bcd.model.device import HEALTHY, Device, DeviceClass, Health, HealthState
from bcd.model.report import Failed, FailureReason
from bcd.node.edits import DeviceEdits
from bcd.node.ports import GpuSnapshot
from bcd.sim.faults import FaultFile, Faults
from bcd.sim.machine import CONTROL_NODES, Machine, cap_minors
from bcd.sim.profile import GpuProfile, unit_uuid

_MIB = 1 << 20


class SimulatedGpus:
    """Implements the ``Gpus`` port."""

    def __init__(self, machine: Machine, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._machine = machine
        self._sleep = sleep
        self._faults = FaultFile(machine.root)
        self._made = GpuSnapshot()
        self._made_for: Faults | None = None
        profile = machine.profile
        self._uuids = [
            f"GPU-{unit_uuid(machine.seed, index)}" for index in range(len(profile.gpus))
        ]
        self._domain = unit_uuid(machine.seed, "fabric") if profile.fabric else ""

    def snapshot(self) -> GpuSnapshot:
        """Devices by index, a GPU before its instances; lost ones are left out."""
        faults = self._faults.read()
        if faults is not self._made_for:
            self._made, self._made_for = self._make(faults), faults
        return self._made

    def _make(self, faults: Faults) -> GpuSnapshot:
        machine = self._machine
        devices: list[Device] = []
        edits: dict[str, DeviceEdits] = {}
        in_use: set[str] = set()
        for index, gpu in enumerate(machine.profile.gpus):
            if self._named(index, faults.lost):
                continue
            for device, nodes in self._devices(index, gpu, faults):
                devices.append(device)
                if self._named(index, faults.in_use):
                    in_use.add(device.id)
                edits[device.id] = DeviceEdits(nodes=tuple(machine.node(name) for name in nodes))
        return GpuSnapshot(
            driver_version=machine.profile.driver,
            cuda_version=machine.profile.cuda,
            devices=tuple(devices),
            edits=edits,
            in_use=frozenset(in_use),
            common=DeviceEdits(nodes=tuple(machine.node(name) for name in CONTROL_NODES)),
        )

    def _devices(
        self, index: int, gpu: GpuProfile, faults: Faults
    ) -> Iterator[tuple[Device, list[str]]]:
        profile, uuid = self._machine.profile, self._uuids[index]
        whole = not gpu.mig
        health = self._health(index, faults)
        yield (
            Device(
                id=uuid,
                device_class=DeviceClass.GPU,
                model=profile.model,
                memory_bytes=profile.memory_mib * _MIB,
                pci_address=gpu.pci,
                numa_node=gpu.numa,
                gpu=uuid,
                nvlink_peers=tuple(self._uuids[peer] for peer in gpu.peers),
                nvlink_domain=self._domain if whole else "",
                health=health,
                mig_enabled=not whole,
            ),
            [f"nvidia{index}"],
        )
        caps = list(cap_minors(index, gpu))
        for place, instance in enumerate(gpu.mig):
            device = Device(
                id=f"MIG-{unit_uuid(self._machine.seed, index, instance.gi)}",
                device_class=DeviceClass.MIG,
                model=profile.model,
                memory_bytes=instance.memory_mib * _MIB,
                pci_address=gpu.pci,
                numa_node=gpu.numa,
                gpu=uuid,
                profile=instance.profile,
                health=health,
            )
            own = caps[2 * place : 2 * place + 2]
            yield device, [f"nvidia{index}", *(f"nvidia-caps/nvidia-cap{cap}" for cap in own)]

    def _health(self, index: int, faults: Faults) -> Health:
        for key in (str(index), self._uuids[index]):
            if key in faults.xid:
                return Health(HealthState.UNHEALTHY, f"Xid {faults.xid[key]}")
            if key in faults.degraded:
                return Health(HealthState.DEGRADED, faults.degraded[key])
        return HEALTHY

    def _named(self, index: int, names: tuple[str, ...]) -> bool:
        return str(index) in names or self._uuids[index] in names

    def prepare(self, device_ids: tuple[str, ...]) -> Failed | None:
        """Check the nodes of devices; slow or failing where that is asked for."""
        faults = self._faults.read()
        if faults.slow_bind_seconds > 0:
            self._sleep(faults.slow_bind_seconds)
        concerned = not faults.failing_devices or set(device_ids) & set(faults.failing_devices)
        if faults.failing_bind and concerned:
            return Failed(FailureReason.DEVICE_NODE_MISSING, faults.failing_bind)
        snapshot = self.snapshot()
        needed = [*(snapshot.edits.get(id_, DeviceEdits()) for id_ in device_ids), snapshot.common]
        for node in (node for edits in needed for node in edits.nodes):
            if not self._machine.is_node(node.host_path):
                return Failed(
                    FailureReason.DEVICE_NODE_MISSING, f"{node.host_path} is no device node"
                )
        return None

    def busy(self, device_ids: Iterable[str]) -> frozenset[str]:
        """Those that the faults say are in use."""
        return self.snapshot().in_use & frozenset(device_ids)

    def fingerprint(self) -> object:
        """Differs when the faults were touched."""
        return self._faults.fingerprint()

    def start(self, wake: Callable[[], None]) -> None:
        """Nothing to begin: the faults are looked at when somebody asks."""

    def close(self) -> None:
        """Nothing to end."""
