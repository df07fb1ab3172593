"""A reservation as the control plane keeps it and the API shows it (spec 1.6, 2, 9.1)."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from bcd.model.assignment import Binding
from bcd.model.device import DeviceClass
from bcd.model.ids import AllocationId, NodeId, PoolId, ReservationId
from bcd.model.units import parse_duration_ms


class State(StrEnum):
    """Where a reservation stands; ``placer.lifecycle.transitions`` gives the legal moves."""

    DRAFT = "draft"
    AWAITING_CONFIRMATION = "awaiting-confirmation"
    PENDING = "pending"
    PLACED = "placed"
    BINDING = "binding"
    ACTIVE = "active"
    DENIED = "denied"
    RELEASED = "released"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TERMINAL = frozenset({State.DENIED, State.RELEASED, State.FAILED, State.CANCELLED, State.EXPIRED})


class OperationState(StrEnum):
    """Whether the create is still being worked on (spec 8.2)."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Topology(StrEnum):
    """How the devices of one entry must lie to each other on their node."""

    ANY = "any"
    SAME_NUMA = "same-numa"
    NVLINK_ALL = "nvlink-all"


class DeviceAsk(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """``count`` devices of one class on one node; empty model and profile accept any."""

    device_class: DeviceClass = msgspec.field(name="class")
    count: int
    topology: Topology = Topology.ANY
    model: str = ""
    profile: str = ""


class Resources(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Host resources of one node, beside its devices: CPUs, GiB, and huge pages of 1 GiB."""

    vcpu: int = 0
    memory_gib: int = msgspec.field(default=0, name="memoryGiB")
    hugepages_1gi: int = msgspec.field(default=0, name="hugepages1Gi")

    def __bool__(self) -> bool:
        """Whether anything is booked."""
        return bool(self.vcpu or self.memory_gib or self.hugepages_1gi)

    def raised_to(self, floor: "Resources") -> "Resources":
        """These, each component at least the floor's."""
        return Resources(
            vcpu=max(self.vcpu, floor.vcpu),
            memory_gib=max(self.memory_gib, floor.memory_gib),
            hugepages_1gi=max(self.hugepages_1gi, floor.hugepages_1gi),
        )


class Gang(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """``size`` distinct nodes, each with the request's devices and resources."""

    size: int


class Request(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A validated request in its normal form; its canonical JSON is what the hash covers.

    Defaults are omitted from the JSON, so that a field added later leaves old hashes alone.
    """

    pool_id: PoolId
    devices: tuple[DeviceAsk, ...]
    duration: str
    start: int | None = None
    binding: Binding = Binding.HOLD
    resources: Resources | None = None
    gang: Gang | None = None
    spot: bool = False
    lease_seconds: int | None = None
    labels: dict[str, str] = {}

    @property
    def duration_ms(self) -> int:
        """The window's length."""
        return parse_duration_ms(self.duration)

    @property
    def gang_size(self) -> int:
        """How many distinct nodes it takes."""
        return 1 if self.gang is None else self.gang.size


class ConditionType(StrEnum):
    """Condition types follow Kubernetes conventions (spec 1.7)."""

    QUEUED = "Queued"
    UNSCHEDULABLE = "Unschedulable"
    CONFIRMATION_REQUIRED = "ConfirmationRequired"
    DEGRADED = "Degraded"
    NODE_UNREACHABLE = "NodeUnreachable"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    PREEMPTING = "Preempting"


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One condition; ``message`` says what to do about it."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: int


class HoldBinding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the node's signed report says of one allocation."""

    allocation_id: AllocationId
    node_id: NodeId
    cdi_devices: tuple[str, ...]
    env_file: str
    cgroup_parent: str = ""
    attested: bool = True


@dataclass(frozen=True, slots=True)
class Window:
    """Epoch milliseconds, half-open."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One reservation as read from the store; ``version`` grows with every committed change.

    ``host_share`` are the host resources per node that ride on the devices without a charge;
    ``lease_until_ms`` is when a lease runs out, None without one or while nothing is placed.
    """

    id: ReservationId
    tenant_id: str
    pool_id: PoolId
    state: State
    operation: OperationState
    request: Request
    during: Window | None
    owner: str
    idempotency_key: str
    conditions: tuple[Condition, ...]
    bindings: tuple[HoldBinding, ...]
    host_share: Resources
    lease_until_ms: int | None = None
    version: int
