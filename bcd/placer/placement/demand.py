"""What a reservation asks of each of its nodes, as the search sees it. Pure."""

from dataclasses import dataclass, replace

import msgspec

from bcd.model.assignment import Binding
from bcd.model.device import DeviceClass
from bcd.model.pool import SharingMode
from bcd.model.reservation import DeviceAsk, Request, Resources, Topology

CAPABILITY = "bc.dev/cap."  # what a daemon serves, as a label of its node (spec 6.4)
CAN_LIMIT = f"{CAPABILITY}devices.limits"
CAN_HAND_TO_KUBELET = f"{CAPABILITY}binding.kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Devices and host resources of each of ``gang_size`` distinct nodes.

    ``labels`` are keys of system labels that a node must have.
    """

    devices: tuple[DeviceAsk, ...]
    gang_size: int
    resources: Resources
    labels: frozenset[str]

    def of(self, members: int) -> "Demand":
        """The same of so many nodes."""
        return replace(self, gang_size=members)


def demand_of(
    request: Request, resources: Resources, sharing: SharingMode = SharingMode.NONE
) -> Demand:
    """The demand of a request whose host resources were resolved to these, per node.

    Only a daemon that enforces limits may get a hold with host resources (spec 6.4), and only one
    with a device plugin a hold for the kubelet. Where the pool shares its GPUs by MPS, a hold's
    slots lie on one GPU: a process can use one MPS daemon only.
    """
    labels = set()
    if resources:
        labels.add(CAN_LIMIT)
    if request.binding is Binding.KUBERNETES:
        labels.add(CAN_HAND_TO_KUBELET)
    return Demand(
        devices=tuple(_on_one_gpu(ask) for ask in request.devices)
        if sharing is SharingMode.MPS
        else request.devices,
        gang_size=request.gang_size,
        resources=resources,
        labels=frozenset(labels),
    )


def _on_one_gpu(ask: DeviceAsk) -> DeviceAsk:
    if ask.device_class is not DeviceClass.SLOT:
        return ask
    return msgspec.structs.replace(ask, topology=Topology.NVLINK_ALL)
