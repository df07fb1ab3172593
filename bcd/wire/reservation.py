"""Reservation messages: the model's reservation as the API shows it."""

from bcd.model.reservation import Condition, HoldBinding, Request, Reservation
from bcd.wire.compute.v1 import reservations_pb2 as pb


def encode_reservation(reservation: Reservation) -> pb.Reservation:
    """The API object; ``binding`` is the first of ``bindings``."""
    bindings = [_binding(binding) for binding in reservation.bindings]
    message = pb.Reservation(
        id=reservation.id,
        tenant_id=reservation.tenant_id,
        pool_id=reservation.pool_id,
        state=reservation.state,
        request=_request(reservation.request),
        owner_identity_id=reservation.owner,
        idempotency_key=reservation.idempotency_key,
        conditions=[encode_condition(condition) for condition in reservation.conditions],
        binding=bindings[0] if bindings else None,
        bindings=bindings,
        operation=pb.Operation(id=reservation.id, state=reservation.operation),
        version=reservation.version,
    )
    message.host_share.SetInParent()
    share = reservation.host_share
    if share.vcpu or share.memory_gib:
        message.host_share.vcpu = share.vcpu
        message.host_share.memory_gib = share.memory_gib
    if reservation.during is not None:
        message.during.start = reservation.during.start_ms
        message.during.end = reservation.during.end_ms
    return message


def _request(request: Request) -> pb.ReservationRequest:
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
        binding=request.binding,
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
