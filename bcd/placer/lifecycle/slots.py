"""How the slots of a hold share their GPU, as its node is told (spec 1.5, 16.4). Pure."""

from collections.abc import Iterable, Sequence

from bcd.model import assignment, pool
from bcd.model.assignment import AssignedDevice, Sharing
from bcd.model.device import DeviceClass
from bcd.model.pool import SharingPolicy

Others = Iterable[tuple[Sequence[AssignedDevice], Sharing | None]]


def sharing_of(
    devices: Sequence[AssignedDevice], policy: SharingPolicy, others: Others
) -> Sharing | None:
    """The pool's way to share, or that of a hold which has slots of the same GPU; None without.

    ``others`` are the devices and the sharing of the node's other holds. A policy that changed
    since waits for the last of them to end: one GPU is shared in one way. Slots that were booked
    while there were more of them count as many as they need.
    """
    numbers = dict(_slots(devices))
    if not numbers:
        return None
    for other, sharing in others:
        if sharing is not None and not numbers.keys().isdisjoint(dict(_slots(other))):
            return sharing
    mode = assignment.SharingMode.TIME_SLICE
    if policy.mode is pool.SharingMode.MPS:
        mode = assignment.SharingMode.MPS
    return Sharing(mode, max(policy.slots_per_gpu, max(numbers.values()) + 1))


def _slots(devices: Sequence[AssignedDevice]) -> Iterable[tuple[str, int]]:
    """(GPU, highest number) of the slots, by GPU."""
    highest: dict[str, int] = {}
    for device in devices:
        if device.device_class is DeviceClass.SLOT:
            gpu, _, number = device.id.rpartition("::")
            highest[gpu] = max(highest.get(gpu, 0), int(number))
    return highest.items()
