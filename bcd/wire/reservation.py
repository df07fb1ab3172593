"""Reservation messages: the model's reservation as the API shows it."""

from bcd.model.reservation import Condition, HoldBinding, Request, Reservation, Resources
from bcd.wire.compute.v1 import reservations_pb2 as pb


def encode_reservation(reservation: Reservation) -> pb.Reservation:
    """The API object; ``binding`` is the first of ``bindings``."""
    bindings = [_binding(binding) for binding in reservation.bindings]
    message = pb.Reservation(
        id=reservation.id,
        tenant_id=reservation.tenant_id,
        pool_id=reservation.pool_id,
        state=reservation.state,
        request=encode_request(reservation.request),
        owner_identity_id=reservation.owner,
        idempotency_key=reservation.idempotency_key,
        conditions=[encode_condition(condition) for condition in reservation.conditions],
        binding=bindings[0] if bindings else None,
        bindings=bindings,
        operation=pb.Operation(id=reservation.id, state=reservation.operation),
        version=reservation.version,
        lease_until=reservation.lease_until_ms,
    )
    message.host_share.CopyFrom(encode_resources(reservation.host_share))
    message.host_share.SetInParent()  # always there, empty included
    if reservation.during is not None:
        message.during.start = reservation.during.start_ms
        message.during.end = reservation.during.end_ms
    return message


def encode_resources(resources: Resources) -> pb.Resources:
    """Without the components that are zero, as ``{}`` of nothing."""
    return pb.Resources(
        vcpu=resources.vcpu or None,
        memory_gib=resources.memory_gib or None,
        hugepages_1gi=resources.hugepages_1gi or None,
    )


def encode_request(request: Request) -> pb.ReservationRequest:
    """A request in its normal form."""
    resources, gang = request.resources, request.gang
    return pb.ReservationRequest(
        pool_id=request.pool_id,
        devices=[
            pb.DeviceRequest(
                **{"class": ask.device_class},
                count=ask.count,
                topology=ask.topology,
                model=ask.model,
                profile=ask.profile,
            )
            for ask in request.devices
        ],
        duration=request.duration,
        start=request.start,
        binding=request.binding,
        resources=None if resources is None else encode_resources(resources),
        gang=None if gang is None else pb.Gang(size=gang.size),
        spot=request.spot or None,
        lease_seconds=request.lease_seconds,
        labels=request.labels,
    )


def encode_condition(condition: Condition) -> pb.Condition:
    """One condition of a reservation or a node."""
    return pb.Condition(
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        message=condition.message,
        last_transition_time=condition.last_transition_time,
    )


def _binding(binding: HoldBinding) -> pb.HoldBinding:
    return pb.HoldBinding(
        node_id=binding.node_id,
        cdi_devices=binding.cdi_devices,
        env_file=binding.env_file,
        cgroup_parent=binding.cgroup_parent,
        allocation_id=binding.allocation_id,
        attested=binding.attested,
    )
