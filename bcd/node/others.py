"""Holds that another node's daemon made on this host: left alone, and in the way.

A host that was enrolled anew has another node id, and what it handed over under the old one may
be in use still. Nothing that we accept speaks for such a hold, so it stays as it is until the
host joins again as that node or a person takes the files away (spec 16.1). Pure; ``converge``
finds them, and ``holds`` keeps their devices from being booked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bcd.model.device import Device, DeviceClass, Health, HealthState
from bcd.model.ids import AllocationId
from bcd.model.printable import printable
from bcd.node.cdi import read_spec
from bcd.node.hold import Hold, maker, physical_id, read_hold
from bcd.node.ports import GpuSnapshot, OwnSpec

_MAX_REASON = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherHold:
    """What another node left: its spec files, and the hold where one of its files can be read."""

    allocation_id: AllocationId
    node_id: str
    specs: tuple[str, ...]
    has_env: bool
    hold: Hold | None


def holds_of_others(
    specs: Iterable[OwnSpec], envs: Mapping[AllocationId, bytes | None], node_id: str
) -> tuple[OtherHold, ...]:
    """The holds whose files name another node, by allocation; the first class's file decides."""
    files: dict[AllocationId, list[OwnSpec]] = {id_: [] for id_ in envs}
    for spec in specs:
        files.setdefault(spec.allocation_id, []).append(spec)
    found = []
    for id_, named in sorted(files.items()):
        named.sort(key=lambda spec: spec.device_class)
        contents = [spec.content for spec in named]
        made_by = next(filter(None, map(maker, [*contents, envs.get(id_)])), node_id)
        if made_by != node_id:
            other = OtherHold(
                allocation_id=id_,
                node_id=made_by,
                specs=tuple(spec.name for spec in named),
                has_env=id_ in envs,
                hold=_read(id_, contents, envs.get(id_)),
            )
            found.append(other)
    return tuple(found)


def _read(id_: AllocationId, specs: Iterable[bytes | None], env: bytes | None) -> Hold | None:
    for content in specs:
        try:
            return read_spec(content, id_)
        except ValueError:
            continue
    try:
        return read_hold((env or b"").decode(errors="replace").splitlines())
    except ValueError:
        return None


def bookable(
    gpus: GpuSnapshot, others: Iterable[OtherHold], in_use: frozenset[str] = frozenset()
) -> tuple[Device, ...]:
    """The devices as the inventory tells them: one that another node's hold has is unhealthy.

    So is every device that shares a GPU with it in another mode, and one whose nodes or files are
    not all there. Devices ``in_use`` outside every hold are marked so, and stay bookable: the next
    bind waits for them to be free.
    """
    owners: dict[str, str] = {}
    modes: dict[str, tuple[DeviceClass, str]] = {}
    physical = {device.id: device.gpu for device in gpus.devices}
    for other in others:
        for assigned in other.hold.devices if other.hold is not None else ():
            owners[assigned.id] = other.node_id
            gpu = physical.get(assigned.id, physical_id(assigned))
            modes[gpu] = (assigned.device_class, other.node_id)
    marked = (_marked(_ready(device, gpus), owners, modes) for device in gpus.devices)
    return tuple(
        replace(device, in_use=True) if device.id in in_use and not device.mig_enabled else device
        for device in marked
    )


def _ready(device: Device, gpus: GpuSnapshot) -> Device:
    problem = gpus.problems.get(device.id)
    if problem is None or device.health.state is not HealthState.HEALTHY:
        return device
    reason = printable(problem.message, _MAX_REASON)
    return replace(device, health=Health(HealthState.UNHEALTHY, reason))


def _marked(
    device: Device, owners: Mapping[str, str], modes: Mapping[str, tuple[DeviceClass, str]]
) -> Device:
    owner = owners.get(device.id)
    mode, sharer = modes.get(device.gpu, (device.device_class, None))
    if owner is None and mode is not device.device_class and not device.mig_enabled:
        owner = sharer
    if owner is None or device.health.state is not HealthState.HEALTHY:
        return device
    return replace(device, health=Health(HealthState.UNHEALTHY, f"in a hold of {owner}"))
