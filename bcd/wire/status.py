"""Errors on the wire: one table between reasons and gRPC codes, for servers and clients."""

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from bcd.model.errors import BcdError, Reason

DOMAIN = "bcd.dev"

CODES: dict[Reason, int] = {
    Reason.INVALID_INPUT: code_pb2.INVALID_ARGUMENT,
    Reason.UNSUPPORTED: code_pb2.UNIMPLEMENTED,
    Reason.CONFLICT: code_pb2.ALREADY_EXISTS,
    Reason.ACCESS_DENIED: code_pb2.PERMISSION_DENIED,
    Reason.UNAUTHENTICATED: code_pb2.UNAUTHENTICATED,
    Reason.QUOTA_EXCEEDED: code_pb2.RESOURCE_EXHAUSTED,
    Reason.NOT_FOUND: code_pb2.NOT_FOUND,
    Reason.CONFIRMATION_REQUIRED: code_pb2.FAILED_PRECONDITION,
    Reason.INVALID_STATE: code_pb2.FAILED_PRECONDITION,
    Reason.UNAVAILABLE: code_pb2.UNAVAILABLE,
    Reason.INTERNAL: code_pb2.INTERNAL,
}


def encode_error(error: BcdError) -> grpc.Status:
    """The gRPC status of an error, with ErrorInfo for programs."""
    detail = AnyMessage()
    detail.Pack(
        error_details_pb2.ErrorInfo(
            reason=error.reason, domain=DOMAIN, metadata=dict(error.details)
        )
    )
    status = status_pb2.Status(code=CODES[error.reason], message=error.message, details=[detail])
    encoded: grpc.Status = rpc_status.to_status(status)
    return encoded


class RemoteError(BcdError):
    """A failed call, with its reason; ``told`` when the server itself gave it.

    Otherwise the reason is guessed from the status that the transport, or a proxy, made.
    """

    def __init__(
        self, reason: Reason, message: str, details: dict[str, str], *, told: bool
    ) -> None:
        super().__init__(message, **details)
        self.reason = reason
        self.told = told


def decode_error(error: grpc.RpcError) -> RemoteError:
    """The reason, message and details of a failed call, also when a proxy made the status."""
    code = error.code()
    status = rpc_status.from_call(error)
    if status is not None:
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            ours = detail.Is(info.DESCRIPTOR) and detail.Unpack(info) and info.domain == DOMAIN
            if ours and info.reason in Reason.__members__:
                details = dict(info.metadata)
                return RemoteError(Reason(info.reason), status.message, details, told=True)
    number = code.value[0] if code is not None else code_pb2.INTERNAL
    reason = next((r for r, known in CODES.items() if known == number), Reason.INTERNAL)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        reason = Reason.UNAVAILABLE
    return RemoteError(reason, error.details() or str(code), {}, told=False)
