"""Which GPUs reach each other by NVLink: direct links, and switches that join many. Pure.

A GPU is on a switch when a link of it says so, or when a link's far end is hidden (the switches of
a virtual machine) and peer-to-peer by NVLink works. From Hopper on the fabric says itself which
GPUs it joins, and only once it is up and healthy. What the driver denies (P2P) is never claimed.
A GPU in MIG mode has no NVLink.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bcd.node.host.nvml.messages import Fabric, GpuReading

# nvml.h: NVML_NVLINK_DEVICE_TYPE_*, NVML_GPU_FABRIC_STATE_*.
_GPU, _SWITCH, _UNKNOWN = 0, 2, 0xFF
_NOT_SUPPORTED, _COMPLETED = 0, 3
# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: (shift, width mask, values that are healthy). Bandwidth,
# route recovery, routes, access time-out; then the configuration.
_MASKS = ((0, 3, (0, 2)), (2, 3, (0, 2)), (4, 3, (0, 2)), (6, 3, (0, 2)), (8, 15, (0, 1)))
# "Hidden" as NVML writes it in a virtual machine.
_HIDDEN = ("", "ffffffff:ff:ff.0")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a GPU lies: UUIDs of direct peers, in the order of the GPUs, and its switch domain."""

    peers: tuple[str, ...] = ()
    domain: str = ""


def places(gpus: Sequence[GpuReading]) -> dict[str, Place]:
    """The place of every GPU, by UUID; both ends of every link name each other."""
    whole = [gpu for gpu in gpus if gpu.uuid and not gpu.mig_enabled]
    edges = {
        frozenset((a.uuid, b.uuid)) for a in whole for b in whole if _direct(a, b) and _open(a, b)
    }
    domains: dict[str, str] = {}
    for key, members in _groups(whole).items():
        _enter(key, members, domains, edges)
    return {
        gpu.uuid: Place(
            tuple(o.uuid for o in gpus if o is not gpu and frozenset((gpu.uuid, o.uuid)) in edges),
            domains.get(gpu.uuid, ""),
        )
        for gpu in gpus
        if gpu.uuid
    }


def fabric_problem(gpu: GpuReading) -> str:
    """Why a GPU's NVLink fabric cannot be used, empty when it can or when there is none."""
    fabric = gpu.fabric
    if fabric is None or fabric.state == _NOT_SUPPORTED or gpu.mig_enabled:
        return ""
    if fabric.state != _COMPLETED:
        return "its NVLink fabric is not up"
    if fabric.status != 0:
        return f"its NVLink fabric failed to come up (NVML error {fabric.status})"
    return "" if _clean(fabric) else f"its NVLink fabric is unhealthy ({fabric.health_mask:#x})"


def _direct(a: GpuReading, b: GpuReading) -> bool:
    return a is not b and any(
        link.remote_type == _GPU and link.remote_address == b.address for link in a.links
    )


def _open(a: GpuReading, b: GpuReading) -> bool:
    """Whether the driver lets each reach the other; where it does not say, a link is enough."""
    return (a.p2p is None or b.index in a.p2p) and (b.p2p is None or a.index in b.p2p)


def _groups(whole: Iterable[GpuReading]) -> Mapping[str, list[GpuReading]]:
    """GPUs on one switch, by a name that is the same on every look."""
    found: dict[str, list[GpuReading]] = {}
    for gpu in whole:
        key = _switch(gpu)
        if key:
            found.setdefault(key, []).append(gpu)
    return found


def _switch(gpu: GpuReading) -> str:
    fabric = gpu.fabric
    if fabric is not None and fabric.state != _NOT_SUPPORTED:
        if fabric_problem(gpu):
            return ""
        return f"{fabric.cluster}.{fabric.clique}"
    if any(link.remote_type == _SWITCH for link in gpu.links):
        return "nvswitch"
    hidden = any(_is_hidden(link.remote_type, link.remote_address) for link in gpu.links)
    return "nvswitch" if hidden and gpu.p2p else ""


def _is_hidden(remote_type: int, address: str) -> bool:
    return remote_type == _UNKNOWN or (remote_type == _GPU and address in _HIDDEN)


def _clean(fabric: Fabric) -> bool:
    return all(fabric.health_mask >> shift & width in good for shift, width, good in _MASKS)


def _enter(
    key: str,
    members: list[GpuReading],
    domains: dict[str, str],
    edges: set[frozenset[str]],
) -> None:
    """A domain where all reach all; else, as after a partition of the switches, parts or pairs."""
    parts = _parts(members)
    for number, part in enumerate(parts):
        if all(_open(a, b) for a in part for b in part if a is not b):
            name = key if len(parts) == 1 else f"{key}.part{number}"
            domains.update((gpu.uuid, name) for gpu in part)
        else:
            edges |= {
                frozenset((a.uuid, b.uuid))
                for a in part
                for b in part
                if a is not b and _open(a, b)
            }


def _parts(members: list[GpuReading]) -> list[list[GpuReading]]:
    """The connected parts, each in the order of the GPUs."""
    parts: list[list[GpuReading]] = []
    for gpu in members:
        joined = [part for part in parts if any(_open(gpu, other) for other in part)]
        rest = [part for part in parts if part not in joined]
        merged = sorted((*(g for part in joined for g in part), gpu), key=lambda g: g.index)
        parts = [*rest, merged]
    return sorted(parts, key=lambda part: part[0].index)
