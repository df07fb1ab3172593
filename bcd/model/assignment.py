"""What the control plane wants on a node: the desired state and its assignments."""

from dataclasses import dataclass
from enum import StrEnum

from bcd.model.device import DeviceClass, cdi_name
from bcd.model.ids import AllocationId, NodeId, is_allocation_id

_PREFIX, _SUFFIX = "bcd-alloc-", ".slice"


class Binding(StrEnum):
    """How the devices of a reservation reach a workload (spec 10)."""

    HOLD = "hold"
    KUBERNETES = "kubernetes"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Host resources of a hold; ``cpus`` and ``mems`` are cpulists, empty leaves the set open."""

    cpu_millis: int
    memory_bytes: int
    hugepages_1gi: int
    cpus: str = ""
    mems: str = ""


class SharingMode(StrEnum):
    """How the slots of one GPU share it (spec 1.5)."""

    TIME_SLICE = "time-slice"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class Sharing:
    """Slots of one GPU: how they share it, and into how many it is divided."""

    mode: SharingMode
    replicas: int


@dataclass(frozen=True, slots=True)
class AssignedDevice:
    """A device of an assignment, by the id and class that its CDI name carries."""

    id: str
    device_class: DeviceClass

    @property
    def cdi_name(self) -> str:
        """``bcd.dev/<class>=<id>``."""
        return cdi_name(self.device_class, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One allocation's devices on a node, in booked order, until further notice.

    ``until_ms`` is information for people; only the desired state ends a hold. ``sharing`` is for
    slots; without it they share by time-slice.
    """

    allocation_id: AllocationId
    devices: tuple[AssignedDevice, ...]
    until_ms: int
    limits: Limits | None = None
    binding: Binding = Binding.HOLD
    sharing: Sharing | None = None


@dataclass(frozen=True, slots=True)
class HostReserve:
    """What the host keeps for itself: its lowest CPUs, and memory."""

    vcpu: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """The full set of a node's assignments; the newest (epoch, generation) wins."""

    node_id: NodeId
    epoch: int
    generation: int
    host_reserve: HostReserve
    assignments: tuple[Assignment, ...]

    @property
    def version(self) -> tuple[int, int]:
        """(epoch, generation): ordered, and never going back on a daemon."""
        return (self.epoch, self.generation)


def slice_name(allocation_id: AllocationId) -> str:
    """The systemd slice of a hold with limits: ``bcd-alloc-<allocation>.slice`` (spec 16.1)."""
    return f"{_PREFIX}{allocation_id}{_SUFFIX}"


def allocation_of_slice(name: str) -> AllocationId | None:
    """The inverse of ``slice_name``; None for every other name."""
    id_ = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    is_ours = name == f"{_PREFIX}{id_}{_SUFFIX}" and is_allocation_id(id_)
    return AllocationId(id_) if is_ours else None
