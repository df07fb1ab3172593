"""Whether the devices of a hold that does not stand yet can be handed over now (spec 16.3b). Pure.

Not part of admission: what stands in the way here passes by itself, or is the driver's trouble and
not the hold's. ``converge`` asks after ``fit`` has found nothing against the hold.
"""

from dataclasses import dataclass

from bcd.model.device import DeviceClass
from bcd.model.report import Failed, FailureReason
from bcd.node.hold import Hold
from bcd.node.plan import Observed

# The control plane gives a bind five minutes; a reason that comes later than that is not heard.
MAX_WAIT_S = 270.0


@dataclass(frozen=True, slots=True)
class Waits:
    """The hold may be made later, without anybody's doing; ``reason`` says after what."""

    reason: str


def unavailable(hold: Hold, observed: Observed) -> Failed | Waits | None:
    """What keeps every new hold from being made: no driver, or none that has answered yet.

    A hold that stood when we last reported is not new, whatever became of its files.
    """
    if hold.allocation_id in observed.bound:
        return None
    gpus = observed.gpus
    if gpus.waiting and hold.allocation_id not in observed.overdue:
        return Waits(gpus.waiting)
    if gpus.waiting:
        return Failed(FailureReason.DRIVER_UNAVAILABLE, gpus.waiting)
    return gpus.unavailable


def occupied(hold: Hold, observed: Observed) -> Failed | Waits | None:
    """Somebody who still uses a device or the slice of a hold that is about to be made.

    Whose spec a person removed is no newcomer: its own workload is what uses them.
    """
    id_ = hold.allocation_id
    if id_ in observed.bound or id_ in observed.env:
        return None
    state = observed.slices.get(id_)
    if hold.limits is not None and state is not None and not state.empty:
        return Failed(
            FailureReason.SLICE_FAILED,
            f"processes run in {hold.cgroup_parent} already; end them",
        )
    busy = [
        device.id
        for device in hold.devices
        if device.id in observed.busy and device.device_class is not DeviceClass.SLOT
    ]
    if not busy:
        return None
    reason = f"a process that no hold knows of computes on {', '.join(busy)}; end it"
    if id_ in observed.overdue:
        return Failed(FailureReason.DEVICE_BUSY, reason)
    return Waits(reason)
