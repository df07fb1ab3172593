"""Slots: how the holds of one GPU share it, and what MPS needs for that (spec 16.4). Pure.

By time-slice a slot is the whole GPU under another name: the driver takes turns, and memory is not
kept apart. With MPS one control daemon per GPU, a systemd unit of ours, gives every client process
a share of threads and of memory; a process speaks to one control daemon only, and sees no GPU but
that daemon's, so that a hold of such slots has no other device. https://docs.nvidia.com/deploy/mps/
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bcd.model.assignment import Sharing, SharingMode
from bcd.model.device import Device, DeviceClass
from bcd.model.ids import AllocationId
from bcd.model.report import Failed, FailureReason
from bcd.node.edits import NO_EDITS, DeviceEdits, Mount
from bcd.node.hold import Hold, physical_id

_TIME_SLICE = Sharing(SharingMode.TIME_SLICE, 0)
_SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")


def mps_gpu(hold: Hold) -> str:
    """The UUID of the GPU whose MPS daemon the hold needs, empty without one."""
    if hold.sharing is None or hold.sharing.mode is not SharingMode.MPS:
        return ""
    slots = (device for device in hold.devices if device.device_class is DeviceClass.SLOT)
    return next((physical_id(device) for device in slots), "")


def mps_folder(run_folder: str, gpu: str) -> str:
    """Where the MPS daemon of a GPU has its pipes and shared memory; the unit makes it."""
    return f"{run_folder}/mps/{gpu}"


def mps_edits(hold: Hold, run_folder: str) -> DeviceEdits:
    """What a client of the hold's MPS daemon sees beside the GPU; nothing without MPS."""
    gpu = mps_gpu(hold)
    if not gpu:
        return NO_EDITS
    folder = mps_folder(run_folder, gpu)
    return DeviceEdits(
        env=(f"CUDA_MPS_PIPE_DIRECTORY={folder}/pipe",),
        mounts=(
            Mount(f"{folder}/pipe", f"{folder}/pipe", _SOCKET_OPTIONS),
            Mount(f"{folder}/shm", "/dev/shm", _SOCKET_OPTIONS),  # noqa: S108 - of that daemon
        ),
    )


def misshapen(hold: Hold) -> Failed | None:
    """Why slots of a hold cannot be shared as the assignment says, whatever else the host does."""
    slots = [device for device in hold.devices if device.device_class is DeviceClass.SLOT]
    if hold.sharing is None:
        return None
    for slot in slots:
        number = slot.id.rpartition("::")[2]
        if not number.isdecimal() or int(number[:9]) >= hold.sharing.replicas:
            return Failed(
                FailureReason.UNKNOWN_DEVICE,
                f"{slot.cdi_name[:200]} is none of {hold.sharing.replicas} slots",
            )
    if hold.sharing.mode is not SharingMode.MPS or not slots:
        return None
    if len({physical_id(slot) for slot in slots}) > 1:
        return Failed(
            FailureReason.SHARING_FAILED,
            "its slots lie on several GPUs, and a process can use one MPS daemon only;"
            " reserve them one GPU at a time",
        )
    other = next((each for each in hold.devices if each.device_class is not DeviceClass.SLOT), None)
    if other is not None:
        return Failed(
            FailureReason.SHARING_FAILED,
            f"a process that uses its MPS slots cannot use {other.cdi_name[:200]} beside them;"
            " reserve slots that are shared by MPS on their own",
        )
    return None


@dataclass(slots=True)
class SharedGpus:
    """How each GPU with slots is shared by the holds that were entered so far."""

    _modes: dict[str, tuple[Sharing, AllocationId]] = field(default_factory=dict)

    def enter(self, hold: Hold) -> None:
        """Count a hold that stands or was admitted."""
        for gpu in _slotted(hold):
            self._modes.setdefault(gpu, (_way(hold), hold.allocation_id))

    def conflict(self, hold: Hold) -> Failed | None:
        """Another hold that shares one of the GPUs in another way."""
        for gpu in _slotted(hold):
            way, owner = self._modes.get(gpu, (_way(hold), hold.allocation_id))
            if way != _way(hold):
                return Failed(
                    FailureReason.SHARING_FAILED,
                    f"{gpu} is shared by {way.mode} in the hold {owner}",
                )
        return None


def _slotted(hold: Hold) -> Iterable[str]:
    return {
        physical_id(device): None
        for device in hold.devices
        if device.device_class is DeviceClass.SLOT
    }


def _way(hold: Hold) -> Sharing:
    """By time-slice the number of slots is the pool's business alone."""
    mps = hold.sharing is not None and hold.sharing.mode is SharingMode.MPS
    return hold.sharing if mps and hold.sharing is not None else _TIME_SLICE


@dataclass(frozen=True, slots=True)
class MpsShare:
    """What one client process of an MPS daemon gets: one slot's part of its GPU."""

    replicas: int
    memory_bytes: int

    @property
    def thread_percent(self) -> int:
        """The part of the GPU's threads, in percent, at least 1."""
        return max(1, 100 // self.replicas)


# Of a daemon that does not say, and of a GPU whose memory is not known: nobody gets it.
UNKNOWN_SHARE = MpsShare(1, 0)


def unknown_memory(gpu: str) -> Failed:
    """Why nobody gets a share of a GPU that does not say how much memory it has."""
    return Failed(
        FailureReason.SHARING_FAILED,
        f"the memory of {gpu[:64]} is not known, so that it cannot be shared by MPS;"
        " see nvidia-smi -q",
    )


def mps_share(
    hold: Hold, devices: Iterable[Device], given: MpsShare = UNKNOWN_SHARE
) -> MpsShare | None:
    """The share that a hold's MPS daemon gives each client, or None without MPS.

    While its GPU is not there or does not say how much memory it has, it is the share that the
    daemon gave so far, else None.
    """
    gpu = mps_gpu(hold)
    found = next((device for device in devices if device.id == gpu), None)
    if hold.sharing is None or not gpu:
        return None
    if found is None or not found.memory_bytes:
        same = given.memory_bytes and given.replicas == hold.sharing.replicas
        return given if same else None
    return MpsShare(hold.sharing.replicas, found.memory_bytes // hold.sharing.replicas)
