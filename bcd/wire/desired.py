"""Desired-state payloads: written by the placer, read by the daemon after the signature held."""

import hashlib

from google.protobuf.message import DecodeError

from bcd.model.assignment import (
    AssignedDevice,
    Assignment,
    Binding,
    DesiredState,
    HostReserve,
    Limits,
    Sharing,
    SharingMode,
)
from bcd.model.device import DeviceClass
from bcd.model.errors import InvalidInput
from bcd.model.ids import AllocationId, NodeId, is_allocation_id
from bcd.wire import bounds
from bcd.wire.node.v1 import desired_pb2 as pb

_BINDING_OUT = {Binding.HOLD: pb.BINDING_HOLD, Binding.KUBERNETES: pb.BINDING_KUBERNETES}
_SHARING_OUT = {
    SharingMode.TIME_SLICE: pb.SHARING_MODE_TIME_SLICE,
    SharingMode.MPS: pb.SHARING_MODE_MPS,
}
_SHARING_IN = {number: mode for mode, number in _SHARING_OUT.items()}
_BINDING_IN = {number: binding for binding, number in _BINDING_OUT.items()}


def encode_desired(state: DesiredState) -> bytes:
    """The payload bytes that the command key signs."""
    message = pb.DesiredState(
        node_id=state.node_id,
        control_epoch=state.epoch,
        generation=state.generation,
        host_reserve=pb.HostReserve(
            vcpu=state.host_reserve.vcpu, memory_bytes=state.host_reserve.memory_bytes
        ),
        assignments=[_assignment_out(assignment) for assignment in state.assignments],
    )
    return message.SerializeToString(deterministic=True)


def _assignment_out(assignment: Assignment) -> pb.Assignment:
    limits = assignment.limits
    return pb.Assignment(
        allocation_id=assignment.allocation_id,
        devices=[
            pb.AssignedDevice(id=device.id, device_class=device.device_class)
            for device in assignment.devices
        ],
        until_ms=assignment.until_ms,
        limits=None
        if limits is None
        else pb.Limits(
            cpu_millis=limits.cpu_millis,
            memory_bytes=limits.memory_bytes,
            hugepages_1gi=limits.hugepages_1gi,
            cpus=limits.cpus,
            mems=limits.mems,
        ),
        binding=_BINDING_OUT[assignment.binding],
        sharing=None
        if assignment.sharing is None
        else pb.Sharing(
            mode=_SHARING_OUT[assignment.sharing.mode], replicas=assignment.sharing.replicas
        ),
    )


def desired_hash(payload: bytes) -> str:
    """Lower-case hex SHA-256 of the payload: what Ack and Hello name."""
    return hashlib.sha256(payload).hexdigest()


def decode_desired(payload: bytes) -> DesiredState:
    """Parse a payload whose signature held.

    Raises InvalidInput naming the field: ids that could not name a file, duplicates, unknown
    classes and bindings, absurd sizes. A state with one bad entry is refused whole, because
    applying the rest would release the hold that the entry stands for.
    """
    message = pb.DesiredState()
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        raise InvalidInput("", f"desired state does not parse: {error}") from error
    if len(message.assignments) > bounds.MAX_ASSIGNMENTS:
        raise InvalidInput("assignments", f"has more than {bounds.MAX_ASSIGNMENTS} entries")
    assignments = tuple(_assignment_in(entry, i) for i, entry in enumerate(message.assignments))
    if len({entry.allocation_id for entry in assignments}) != len(assignments):
        raise InvalidInput("assignments", "names one allocation twice")
    return DesiredState(
        node_id=NodeId(message.node_id),
        epoch=message.control_epoch,
        generation=message.generation,
        host_reserve=HostReserve(message.host_reserve.vcpu, message.host_reserve.memory_bytes),
        assignments=assignments,
    )


def _assignment_in(entry: pb.Assignment, position: int) -> Assignment:
    path = f"assignments[{position}]"
    if not is_allocation_id(entry.allocation_id):
        raise InvalidInput(f"{path}.allocationId", "is not an allocation id")
    if not 0 < len(entry.devices) <= bounds.MAX_DEVICES:
        raise InvalidInput(f"{path}.devices", f"must have 1 to {bounds.MAX_DEVICES} entries")
    binding = _BINDING_IN.get(entry.binding)
    if binding is None:
        raise InvalidInput(f"{path}.binding", "is not a known binding")
    devices = tuple(_assigned_in(device, f"{path}.devices") for device in entry.devices)
    if len(set(devices)) != len(devices):
        raise InvalidInput(f"{path}.devices", "names one device twice")
    limits = entry.limits
    return Assignment(
        allocation_id=AllocationId(entry.allocation_id),
        devices=devices,
        until_ms=entry.until_ms,
        limits=Limits(
            cpu_millis=limits.cpu_millis,
            memory_bytes=limits.memory_bytes,
            hugepages_1gi=limits.hugepages_1gi,
            cpus=limits.cpus,
            mems=limits.mems,
        )
        if entry.HasField("limits")
        else None,
        binding=binding,
        sharing=_sharing_in(entry, f"{path}.sharing"),
    )


def _sharing_in(entry: pb.Assignment, path: str) -> Sharing | None:
    if not entry.HasField("sharing"):
        return None
    sharing = entry.sharing
    mode = _SHARING_IN.get(sharing.mode)
    if mode is None:
        raise InvalidInput(f"{path}.mode", "is not a known way to share a GPU")
    if not 0 < sharing.replicas <= bounds.MAX_REPLICAS:
        raise InvalidInput(f"{path}.replicas", f"must be 1 to {bounds.MAX_REPLICAS}")
    return Sharing(mode, sharing.replicas)


def _assigned_in(device: pb.AssignedDevice, path: str) -> AssignedDevice:
    if not 0 < len(device.id) <= bounds.MAX_ID_BYTES or not device.id.isprintable():
        raise InvalidInput(f"{path}.id", "is empty, too long or not printable")
    try:
        return AssignedDevice(device.id, DeviceClass(device.device_class))
    except ValueError as error:
        raise InvalidInput(f"{path}.deviceClass", "is not a known class") from error
