"""A GPU, MIG instance or slot, as the node reports it and the placer books it."""

from dataclasses import dataclass
from enum import StrEnum


class DeviceClass(StrEnum):
    """What can be booked; also the class part of a CDI kind (``bcd.dev/<class>``)."""

    GPU = "gpu"
    MIG = "gpu.mig"
    SLOT = "gpu.slot"


class HealthState(StrEnum):
    """Only ``healthy`` devices take new holds; health never ends a hold."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Health:
    """A device's health with its reason, empty when healthy."""

    state: HealthState
    reason: str = ""


HEALTHY = Health(HealthState.HEALTHY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of a node's inventory.

    ``id`` is the UUID that CDI names; ``gpu`` the physical GPU's UUID (its own for a whole GPU).
    ``numa_node`` is the host's, None when firmware does not say. GPUs that share a healthy
    NVSwitch fabric carry one non-empty ``nvlink_domain``; ``nvlink_peers`` are direct links.
    ``in_use``: a process that belongs to no hold computes on it.
    """

    id: str
    device_class: DeviceClass
    model: str
    memory_bytes: int
    pci_address: str
    numa_node: int | None
    gpu: str
    profile: str = ""
    nvlink_peers: tuple[str, ...] = ()
    nvlink_domain: str = ""
    health: Health = HEALTHY
    mig_enabled: bool = False
    in_use: bool = False


def cdi_name(device_class: DeviceClass, device_id: str) -> str:
    """The fully qualified CDI name of a device: ``bcd.dev/gpu=GPU-…`` (spec 16.4)."""
    return f"bcd.dev/{device_class}={device_id}"
