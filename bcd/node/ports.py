"""What the daemon needs of the machine it runs on; ``host`` and ``sim`` implement it.

Every method may be called from a worker thread, one at a time. What can be expected to fail
answers with a ``Failed`` value; files raise OSError.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bcd.model.assignment import Limits
from bcd.model.device import Device
from bcd.model.host import HostFacts
from bcd.model.ids import AllocationId
from bcd.model.report import Failed
from bcd.node.condition import NodeCondition
from bcd.node.edits import NO_EDITS, DeviceEdits
from bcd.node.sharing import MpsShare


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSnapshot:
    """All GPUs at one moment. ``edits`` is keyed by device id, ``common`` goes into every spec.

    ``unavailable`` says why no new hold can be made now (no driver, a driver that hangs); devices
    are then the last ones that were seen, of unknown health. ``waiting`` says what the first look
    waits for, so that new holds wait too. ``in_use`` are devices with a compute process when they
    were last looked at. ``problems`` are devices whose nodes or files are not all there now, those
    that every device needs included.
    ``restarts`` counts how often looking had to begin anew; it makes no snapshot another one.
    """

    driver_version: str = ""
    cuda_version: str = ""
    devices: tuple[Device, ...] = ()
    edits: Mapping[str, DeviceEdits] = field(default_factory=dict)
    common: DeviceEdits = NO_EDITS
    in_use: frozenset[str] = frozenset()
    problems: Mapping[str, Failed] = field(default_factory=dict)
    unavailable: Failed | None = None
    waiting: str = ""
    restarts: int = field(default=0, compare=False)
    conditions: tuple[NodeCondition, ...] = ()


class Gpus(Protocol):
    """The GPUs of the host."""

    def snapshot(self) -> GpuSnapshot:
        """Devices, their health and their nodes; a lost device is not in it. Never blocks."""
        ...

    def busy(self, device_ids: Iterable[str]) -> frozenset[str]:
        """Those that a compute process uses now; one that cannot be asked is not busy."""
        ...

    def prepare(self, device_ids: tuple[str, ...]) -> Failed | None:
        """Make devices ready for a hold and check every node, file and hook; idempotent."""
        ...

    def fingerprint(self) -> object:
        """Something cheap that differs when ``snapshot`` may differ."""
        ...

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to look; ``wake`` is called from any thread when ``snapshot`` changed."""
        ...

    def close(self) -> None:
        """Stop looking; the machine stays as it is."""
        ...


@dataclass(frozen=True, slots=True)
class SliceState:
    """A slice as its control files read back; ``empty`` when no process is left in it.

    ``surprise`` names files that no limits ask to be so, for people: whatever ``limits`` say, the
    slice then needs repair. ``narrowed`` says what outside the slice leaves it less than its
    limits, which no repair of it mends, and the remedy.
    """

    limits: Limits
    empty: bool
    surprise: str = ""
    narrowed: str = ""


class Slices(Protocol):
    """The cgroup slices of holds with limits, one per allocation."""

    def problem(self) -> str:
        """Why this host cannot enforce limits; empty when it can."""
        ...

    def read(self) -> Mapping[AllocationId, SliceState]:
        """Every slice of an allocation that exists."""
        ...

    def ensure(self, allocation_id: AllocationId, limits: Limits) -> Failed | None:
        """Create or repair a slice and compare what was read back; idempotent.

        Afterwards ``read`` gives ``bcd.node.limits.enforced(limits)``.
        """
        ...

    def stop(self, allocation_id: AllocationId) -> bool:
        """Stop an empty slice; False when something runs in it, True when it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class MpsState:
    """An MPS control daemon of ours; ``ready`` when it answers.

    ``busy`` while it has servers, or nobody knows: it is not started again then.
    """

    share: MpsShare
    ready: bool
    busy: bool = False


class Mps(Protocol):
    """The MPS control daemons of GPUs whose slots share them so, one per GPU."""

    def read(self) -> Mapping[str, MpsState]:
        """Those that run or should, by their GPU's UUID."""
        ...

    def ensure(self, gpu: str, share: MpsShare) -> Failed | None:
        """Have one that gives this share and answers, and the folders that its clients mount.

        A busy one that gives another share, or does not answer, stays: SHARING_FAILED. So is a
        share of no memory, which is not known then.
        """
        ...

    def stop(self, gpu: str) -> bool:
        """Stop one that no process uses; False when one does. The compute mode is restored."""
        ...


@dataclass(frozen=True, slots=True)
class OwnSpec:
    """A spec file of an allocation; ``device_class`` is empty for its first class's file.

    ``content`` is None when the file cannot be read as a plain file of sane size.
    """

    name: str
    allocation_id: AllocationId
    device_class: str
    content: bytes | None


@dataclass(frozen=True, slots=True)
class ForeignSpec:
    """Somebody else's spec file that mentions ``bcd.dev``."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class CdiFiles:
    """All own spec files, ascending by name, and the foreign ones that matter."""

    own: tuple[OwnSpec, ...] = ()
    foreign: tuple[ForeignSpec, ...] = ()


class CdiDir(Protocol):
    """The folders that container runtimes read CDI specs from."""

    def read(self) -> CdiFiles:
        """Read both folders; a foreign file that cannot be read is left out."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Replace an own spec file durably; raises OSError."""
        ...

    def remove(self, name: str) -> None:
        """Unlink an own spec file durably; fine when it is gone. Raises OSError."""
        ...

    def fingerprint(self) -> object:
        """Something cheap that differs when ``read`` may differ."""
        ...


class EnvDir(Protocol):
    """The folder of the holds' environment files."""

    def read(self) -> Mapping[AllocationId, bytes | None]:
        """Contents by allocation; None for what is no plain file of sane size."""
        ...

    def write(self, allocation_id: AllocationId, content: bytes) -> None:
        """Replace a file at once; raises OSError."""
        ...

    def remove(self, allocation_id: AllocationId) -> None:
        """Unlink a file; fine when it is gone. Raises OSError."""
        ...

    def fingerprint(self) -> object:
        """Something cheap that differs when ``read`` may differ."""
        ...


@dataclass(frozen=True, slots=True)
class MachinesUse:
    """Memory and huge pages of 1 GiB of virtual machines, which no hold knows of."""

    memory_bytes: int = 0
    hugepages_1gi: int = 0


class Host(Protocol):
    """CPUs, NUMA nodes and memory of the host."""

    def facts(self) -> HostFacts:
        """What /proc and /sys say; driver and CUDA versions are empty."""
        ...

    def machines(self) -> MachinesUse:
        """What the host's virtual machines use now (``machine.slice``)."""
        ...


class Clock(Protocol):
    """Wall time for certificates and reports, steady time for timers."""

    def wall_ms(self) -> int:
        """Epoch milliseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never step."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait on the steady clock; zero and less yield once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything a daemon touches."""

    gpus: Gpus
    slices: Slices
    mps: Mps
    cdi: CdiDir
    env: EnvDir
    host: Host
    clock: Clock
