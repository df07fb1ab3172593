"""Admission: whether a hold fits the host beside the holds that stand already (spec 16.3a).

Pure; ``converge`` asks it hold by hold, oldest first, and it keeps the running sums. A hold that
stands is entered without being judged again: health and pressure never end a hold.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from bcd.model.assignment import AssignedDevice, HostReserve, Limits
from bcd.model.cpuset import MalformedCpuList, format_cpulist, parse_cpulist
from bcd.model.device import Device, DeviceClass, HealthState
from bcd.model.host import HostFacts
from bcd.model.ids import AllocationId
from bcd.model.numa import Room
from bcd.model.report import Failed, FailureReason
from bcd.node.cdi_format import is_device_name
from bcd.node.hold import Hold, physical_id
from bcd.node.ports import MachinesUse

_GIB_PAGE = 1 << 30
# A slot is no device of the inventory: how many a GPU has, the control plane decides.
_SLOT = re.compile(r"[^:]+::(?:0|[1-9][0-9]{0,3})\Z")
_ANY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What admission is judged against; ``slice_problem`` says why limits cannot be enforced."""

    devices: Mapping[str, Device]
    host: HostFacts
    reserve: HostReserve
    machines: MachinesUse
    slice_problem: str


@dataclass(slots=True)
class Ledger:
    """Devices, memory and huge pages that holds have taken so far."""

    capacity: Capacity
    _taken: dict[AssignedDevice, AllocationId] = field(default_factory=dict)
    _gpus: dict[str, tuple[DeviceClass, AllocationId]] = field(default_factory=dict)
    _memory_taken: list[tuple[frozenset[int], int]] = field(default_factory=list)
    _huge_pages: list[tuple[frozenset[int], int]] = field(default_factory=list)

    def enter(self, hold: Hold) -> None:
        """Count a hold that stands or was admitted."""
        for device in hold.devices:
            self._taken.setdefault(device, hold.allocation_id)
            self._gpus.setdefault(self._gpu(device), (device.device_class, hold.allocation_id))
        if hold.limits is not None:
            self.enter_limits(hold.limits)

    def enter_limits(self, limits: Limits) -> None:
        """Count limits whose hold is gone while processes linger in its slice."""
        mems = _ids(limits.mems)
        self._memory_taken.append((mems, limits.memory_bytes))
        self._huge_pages.append((mems, limits.hugepages_1gi))

    def devices(self) -> frozenset[str]:
        """Ids of everything that was entered; a slot's GPU stands for the slot."""
        return frozenset(physical_id(device) for device in self._taken)

    def conflict(self, hold: Hold) -> Failed | None:
        """Another hold that has one of the devices, or shares a GPU in another mode."""
        for device in hold.devices:
            owner = self._taken.get(device)
            mode, sharer = self._gpus.get(self._gpu(device), (device.device_class, None))
            if owner is None and mode is not device.device_class:
                owner = sharer
            if owner is not None and owner != hold.allocation_id:
                return _failed(
                    FailureReason.DEVICE_IN_USE, f"{device.cdi_name} is in the hold {owner}"
                )
        return None

    def admit(self, hold: Hold) -> Failed | None:
        """Why a hold that does not stand yet cannot be made, or None."""
        for device in hold.devices:
            failed = self._device(device)
            if failed is not None:
                return failed
        return self.conflict(hold) or (
            self._limits(hold.limits) if hold.limits is not None else None
        )

    def _device(self, assigned: AssignedDevice) -> Failed | None:
        device = self._found(assigned)
        if device is None:
            return _failed(
                FailureReason.UNKNOWN_DEVICE, f"this host has no {assigned.cdi_name[:200]}"
            )
        if not is_device_name(assigned.id):
            return _failed(
                FailureReason.UNKNOWN_DEVICE, f"{assigned.id!r} cannot be a CDI device name"
            )
        if device.health.state is not HealthState.HEALTHY:
            return _failed(
                FailureReason.DEVICE_UNHEALTHY,
                f"{device.id} is {device.health.state}: {device.health.reason}",
            )
        if device.mig_enabled and device.device_class is DeviceClass.GPU:
            return _failed(
                FailureReason.DEVICE_UNHEALTHY,
                f"{device.id} is in MIG mode and cannot be used as a whole",
            )
        return None

    def _found(self, assigned: AssignedDevice) -> Device | None:
        """The device that an assignment names, or the whole GPU that a slot is one of."""
        device = self.capacity.devices.get(assigned.id)
        wanted = assigned.device_class
        if device is None and wanted is DeviceClass.SLOT and _SLOT.match(assigned.id):
            device, wanted = self.capacity.devices.get(physical_id(assigned)), DeviceClass.GPU
        return device if device is not None and device.device_class is wanted else None

    def _limits(self, limits: Limits) -> Failed | None:
        if self.capacity.slice_problem:
            return _failed(FailureReason.LIMITS_UNSUPPORTED, self.capacity.slice_problem)
        return self.cpuset(limits) or self._memory(limits) or self._pages(limits)

    def cpuset(self, limits: Limits) -> Failed | None:
        """Why these CPUs and NUMA nodes are not all there to be used, or None."""
        host = self.capacity.host
        try:
            cpus, mems = parse_cpulist(limits.cpus), parse_cpulist(limits.mems)
        except MalformedCpuList as error:
            return _failed(FailureReason.INVALID_LIMITS, f"cpulist {error}")
        missing = cpus - host.online_cpus
        if missing:
            return _failed(
                FailureReason.INVALID_LIMITS,
                f"CPUs {format_cpulist(missing)} are offline or unknown",
            )
        isolated = cpus & host.isolated_cpus
        if isolated:
            return _failed(
                FailureReason.INVALID_LIMITS, f"CPUs {format_cpulist(isolated)} are isolated"
            )
        unknown = mems - {node.id for node in host.numa_nodes}
        if unknown:
            return _failed(
                FailureReason.INVALID_LIMITS,
                f"NUMA nodes {format_cpulist(unknown)} are unknown",
            )
        return None

    def _memory(self, limits: Limits) -> Failed | None:
        """Beside the reserve and the machines, which may lie on any node, and other holds."""
        capacity = self.capacity
        host = capacity.host
        pools = {
            node.id: sum(pool.page_bytes * pool.total for pool in node.huge_pages)
            for node in host.numa_nodes
        }
        taken = (capacity.reserve.memory_bytes, capacity.machines.memory_bytes)
        free = host.memory_bytes - sum(pools.values()) - sum(taken)
        free = max(0, free - sum(count for _, count in self._memory_taken))
        if limits.memory_bytes > free:
            return _failed(
                FailureReason.RESOURCES_EXHAUSTED,
                f"asks {limits.memory_bytes} bytes of memory, {free} are free",
            )
        if not limits.mems:
            return None
        room = Room({node.id: node.memory_bytes - pools[node.id] for node in host.numa_nodes})
        for mems, count in (*((_ANY, count) for count in taken), *self._memory_taken):
            room.take(mems, count)
        there = room.take(_ids(limits.mems), limits.memory_bytes)
        if there == limits.memory_bytes:
            return None
        return _failed(
            FailureReason.RESOURCES_EXHAUSTED,
            f"asks {limits.memory_bytes} bytes of memory on NUMA nodes {limits.mems},"
            f" {there} are free there",
        )

    def _pages(self, limits: Limits) -> Failed | None:
        room = Room(
            {
                node.id: sum(p.total for p in node.huge_pages if p.page_bytes == _GIB_PAGE)
                for node in self.capacity.host.numa_nodes
            }
        )
        for mems, count in ((_ANY, self.capacity.machines.hugepages_1gi), *self._huge_pages):
            room.take(mems, count)
        there = room.take(_ids(limits.mems), limits.hugepages_1gi)
        if there == limits.hugepages_1gi:
            return None
        on = f" on NUMA nodes {limits.mems}" if limits.mems else ""
        return _failed(
            FailureReason.RESOURCES_EXHAUSTED,
            f"asks {limits.hugepages_1gi} huge pages of 1 GiB{on}, {there} are free there",
        )

    def _gpu(self, assigned: AssignedDevice) -> str:
        device = self.capacity.devices.get(assigned.id)
        return device.gpu if device is not None else physical_id(assigned)


def _ids(cpulist: str) -> frozenset[int]:
    try:
        return parse_cpulist(cpulist)
    except MalformedCpuList:
        return frozenset()


def _failed(reason: FailureReason, message: str) -> Failed:
    return Failed(reason, message)
