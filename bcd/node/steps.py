"""The steps of a pass: small, idempotent, each with its reason.

``converge`` puts them in order, ``execute`` runs them, and tests kill the daemon after each.
"""

from dataclasses import dataclass
from enum import StrEnum

from bcd.model.assignment import Limits
from bcd.model.ids import AllocationId
from bcd.node.sharing import MpsShare


class StepName(StrEnum):
    """Everything that a daemon does for a hold, in the order of a bind, then of a release.

    The first group belongs to every new state or outcome, and is not part of a plan.
    """

    PERSIST_STATE = "persist-state"
    OWE_REPORTS = "owe-reports"
    SEND_REPORT = "send-report"
    SEND_ACK = "send-ack"
    DROP_REPORTS = "drop-reports"

    ENSURE_SLICE = "ensure-slice"
    ENSURE_MPS = "ensure-mps"
    PREPARE_DEVICES = "prepare-devices"
    WRITE_ENV = "write-env"
    WRITE_SPEC = "write-spec"

    OWE_RELEASES = "owe-releases"
    REMOVE_SPEC = "remove-spec"
    REMOVE_ENV = "remove-env"
    FREE_RELEASE = "free-release"
    STOP_SLICE = "stop-slice"
    STOP_MPS = "stop-mps"


@dataclass(frozen=True, slots=True)
class OweReleases:
    """Sign the releases and make them durable, unsent: (allocation, was its slice empty)."""

    releases: tuple[tuple[AllocationId, bool], ...]
    reason: str
    name = StepName.OWE_RELEASES


@dataclass(frozen=True, slots=True)
class RemoveSpec:
    """Unlink one CDI spec file."""

    allocation_id: AllocationId
    file: str
    reason: str
    name = StepName.REMOVE_SPEC


@dataclass(frozen=True, slots=True)
class RemoveEnv:
    """Unlink an env file."""

    allocation_id: AllocationId
    reason: str
    name = StepName.REMOVE_ENV


@dataclass(frozen=True, slots=True)
class FreeRelease:
    """Nothing of the hold is left: its release may be sent."""

    allocation_id: AllocationId
    reason: str
    name = StepName.FREE_RELEASE


@dataclass(frozen=True, slots=True)
class StopSlice:
    """Stop a slice that was seen empty."""

    allocation_id: AllocationId
    reason: str
    name = StepName.STOP_SLICE


@dataclass(frozen=True, slots=True)
class EnsureSlice:
    """Create a slice, or bring it back to its limits."""

    allocation_id: AllocationId
    limits: Limits
    reason: str
    name = StepName.ENSURE_SLICE


@dataclass(frozen=True, slots=True)
class EnsureMps:
    """Start the MPS daemon of a GPU, and wait until it answers."""

    allocation_id: AllocationId
    gpu: str
    share: MpsShare
    reason: str
    name = StepName.ENSURE_MPS


@dataclass(frozen=True, slots=True)
class StopMps:
    """Stop an MPS daemon that no hold needs, once no process uses it; of no one allocation."""

    gpu: str
    reason: str
    name = StepName.STOP_MPS


@dataclass(frozen=True, slots=True)
class PrepareDevices:
    """Make devices ready, and check every node, before a container may ask for them."""

    allocation_id: AllocationId
    device_ids: tuple[str, ...]
    reason: str
    name = StepName.PREPARE_DEVICES


@dataclass(frozen=True, slots=True)
class WriteEnv:
    """Replace an env file."""

    allocation_id: AllocationId
    content: bytes
    reason: str
    name = StepName.WRITE_ENV


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """Replace one CDI spec file; the first class's is the last of its hold."""

    allocation_id: AllocationId
    file: str
    content: bytes
    reason: str
    name = StepName.WRITE_SPEC


HoldStep = (
    RemoveSpec
    | RemoveEnv
    | FreeRelease
    | StopSlice
    | EnsureSlice
    | EnsureMps
    | PrepareDevices
    | WriteEnv
    | WriteSpec
)
Step = OweReleases | StopMps | HoldStep
