"""Turns a reading into the inventory's devices. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from bcd.model.device import Device, DeviceClass, Health, HealthState
from bcd.node.host.nvml.health import Trouble, health_of
from bcd.node.host.nvml.messages import GpuReading
from bcd.node.host.nvml.plausible import plausible
from bcd.node.host.nvml.topology import places

_MAX_NODES = 1024  # CONFIG_NODES_SHIFT is at most 10


def devices_of(
    gpus: Sequence[GpuReading],
    numa: Mapping[str, int | None],
    troubles: Iterable[Trouble] = (),
    unknown: str = "",
) -> tuple[Device, ...]:
    """Devices by NVML's index, a GPU before its instances; lost and odd ones are left out.

    ``numa`` gives the host NUMA node by PCI address. ``unknown`` says why nobody can tell how
    they are now, empty when somebody can.
    """
    return tuple(_devices(plausible(gpus).gpus, numa, tuple(troubles), unknown))


def _devices(
    gpus: Sequence[GpuReading],
    numa: Mapping[str, int | None],
    troubles: tuple[Trouble, ...],
    unknown: str,
) -> Iterator[Device]:
    lies = places(gpus)
    for gpu in gpus:
        if not gpu.uuid:
            continue
        node = _node(numa.get(gpu.address))
        yield Device(
            id=gpu.uuid,
            device_class=DeviceClass.GPU,
            model=gpu.name,
            memory_bytes=gpu.memory_bytes,
            pci_address=gpu.address,
            numa_node=node,
            gpu=gpu.uuid,
            nvlink_peers=lies[gpu.uuid].peers,
            nvlink_domain=lies[gpu.uuid].domain,
            health=_health(gpu, troubles, unknown),
            mig_enabled=gpu.mig_enabled,
        )
        for mig in gpu.migs:
            yield Device(
                id=mig.uuid,
                device_class=DeviceClass.MIG,
                model=gpu.name,
                memory_bytes=mig.memory_bytes,
                pci_address=gpu.address,
                numa_node=node,
                gpu=gpu.uuid,
                profile=mig.profile,
                health=_health(gpu, troubles, unknown, mig.gi, mig.ci),
            )


def _node(number: int | None) -> int | None:
    return number if number is not None and 0 <= number < _MAX_NODES else None


def _health(
    gpu: GpuReading,
    troubles: tuple[Trouble, ...],
    unknown: str,
    gi: int | None = None,
    ci: int | None = None,
) -> Health:
    if unknown:
        return Health(HealthState.UNKNOWN, unknown)
    return health_of(gpu, troubles, gi, ci)


def in_use(gpus: Iterable[GpuReading]) -> frozenset[str]:
    """Devices that had a compute process in this reading."""
    return frozenset(
        id_
        for gpu in gpus
        for id_, count in ((gpu.uuid, gpu.processes), *((m.uuid, m.processes) for m in gpu.migs))
        if id_ and count
    )


def placed(gpus: Iterable[GpuReading], seen: Mapping[str, str]) -> tuple[GpuReading, ...]:
    """Each GPU with its PCI address: the last one where NVML does not say it this time.

    ``seen`` are UUIDs by address, here and below.
    """
    last = {uuid: address for address, uuid in seen.items()}
    return tuple(
        gpu if gpu.address else replace(gpu, address=last.get(gpu.uuid, "")) for gpu in gpus
    )


def last_places(seen: Mapping[str, str], gpus: Iterable[GpuReading]) -> dict[str, str]:
    """Where each GPU was last: one that moved is forgotten where it was."""
    now = {gpu.address: gpu.uuid for gpu in gpus if gpu.uuid and gpu.address}
    moved = set(now.values())
    return {**{a: uuid for a, uuid in seen.items() if uuid not in moved}, **now}
