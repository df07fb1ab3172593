"""What a node signs about an allocation, and what the control plane makes of it."""

from dataclasses import dataclass
from enum import StrEnum

from bcd.model.ids import AllocationId, NodeId


class FailureReason(StrEnum):
    """Why a node could not bind an allocation (spec 16.3a)."""

    UNKNOWN_DEVICE = "unknown-device"
    DEVICE_IN_USE = "device-in-use"
    DEVICE_UNHEALTHY = "device-unhealthy"
    DEVICE_BUSY = "device-busy"
    RESOURCES_EXHAUSTED = "resources-exhausted"
    FOREIGN_DEVICE_NAME = "foreign-device-name"
    LIMITS_UNSUPPORTED = "limits-unsupported"
    INVALID_LIMITS = "invalid-limits"
    UNSUPPORTED_BINDING = "unsupported-binding"
    WRITE_FAILED = "write-failed"
    SLICE_FAILED = "slice-failed"
    DEVICE_NODE_MISSING = "device-node-missing"
    DRIVER_FILE_MISSING = "driver-file-missing"
    DRIVER_UNAVAILABLE = "driver-unavailable"
    SHARING_FAILED = "sharing-failed"


@dataclass(frozen=True, slots=True)
class Bound:
    """The hold stands: CDI names in the assignment's order; slice empty without limits."""

    cdi_devices: tuple[str, ...]
    env_file: str
    cgroup_parent: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The hold could not be made; ``message`` says more to people."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """The hold is gone; ``slice_empty`` is false when processes outlived it."""

    slice_empty: bool


Outcome = Bound | Failed | Released


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The signed body; ``number`` grows with every report signed by one key."""

    node_id: NodeId
    number: int
    boot_id: str
    allocation_id: AllocationId
    signed_at_ms: int
    outcome: Outcome


class Rejection(StrEnum):
    """Why a stored report does not count (spec 12.3)."""

    UNSIGNED = "unsigned report"
    UNKNOWN_KEY = "unknown key"
    BAD_SIGNATURE = "bad signature"
    REVOKED = "revoked"
    EXPIRED = "expired"
    WRONG_ROLE = "wrong role"
    WRONG_NODE = "wrong node"
    REPLAYED = "replayed"
    NOT_THIS_ALLOCATION = "not this allocation bound"
