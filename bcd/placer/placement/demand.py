"""What a reservation asks of each of its nodes, as the search sees it. Pure."""

from dataclasses import dataclass, replace

from bcd.model.assignment import Binding
from bcd.model.pool import SharingMode, SharingPolicy
from bcd.model.reservation import DeviceAsk, Request, Resources

CAN_LIMIT = "bc.dev/cap.devices.limits"
CAN_HAND_TO_KUBELET = "bc.dev/cap.binding.kubernetes"
_UNSHARED = SharingPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Devices and host resources of each of ``gang_size`` distinct nodes.

    ``labels`` are keys of system labels that a node must have. With ``one_gpu`` the slots of an
    entry lie on one physical GPU.
    """

    devices: tuple[DeviceAsk, ...]
    gang_size: int
    resources: Resources
    labels: frozenset[str]
    one_gpu: bool = False

    def of(self, members: int) -> "Demand":
        """The same of so many nodes."""
        return replace(self, gang_size=members)


def demand_of(request: Request, resources: Resources, sharing: SharingPolicy = _UNSHARED) -> Demand:
    """The demand of a request whose host resources were resolved to these, per node.

    Only a daemon that enforces limits may get a hold with host resources (spec 6.4), and only one
    with a device plugin a hold for the kubelet. Slots that the pool shares by MPS lie on one GPU,
    since a process speaks to one MPS daemon only (spec 16.4).
    """
    labels = set()
    if resources:
        labels.add(CAN_LIMIT)
    if request.binding is Binding.KUBERNETES:
        labels.add(CAN_HAND_TO_KUBELET)
    return Demand(
        devices=request.devices,
        gang_size=request.gang_size,
        resources=resources,
        labels=frozenset(labels),
        one_gpu=sharing.mode is SharingMode.MPS,
    )
