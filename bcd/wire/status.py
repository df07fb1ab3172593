"""Errors on the wire: one table between reasons and gRPC codes, for servers and clients."""

from collections.abc import Mapping

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
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


# What a status says when it is not our server's own word, but the transport's or a proxy's. A code
# that is not here leaves open what became of the call: the same call may be made again.
_UNTOLD: dict[grpc.StatusCode, Reason] = {
    grpc.StatusCode.INVALID_ARGUMENT: Reason.INVALID_INPUT,
    grpc.StatusCode.OUT_OF_RANGE: Reason.INVALID_INPUT,
    grpc.StatusCode.UNIMPLEMENTED: Reason.UNSUPPORTED,
    grpc.StatusCode.ALREADY_EXISTS: Reason.CONFLICT,
    grpc.StatusCode.PERMISSION_DENIED: Reason.ACCESS_DENIED,
    grpc.StatusCode.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
    grpc.StatusCode.NOT_FOUND: Reason.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION: Reason.INVALID_STATE,
    grpc.StatusCode.INTERNAL: Reason.INTERNAL,
    grpc.StatusCode.DATA_LOSS: Reason.INTERNAL,
}

# A status travels in headers of 8 KiB in all: the message percent-encoded, up to three bytes each,
# and once more with the details in base64. These two make 6 KiB at most.
_MAX_MESSAGE_BYTES = 1024
_MAX_DETAIL_BYTES = 1024
_CUT = " ..."


def encode_error(error: BcdError) -> grpc.Status:
    """The gRPC status of an error, with ErrorInfo for programs; too long a text is cut."""
    detail = AnyMessage()
    detail.Pack(
        error_details_pb2.ErrorInfo(
            reason=error.reason, domain=DOMAIN, metadata=_bounded(error.details)
        )
    )
    message = _cut(error.message, _MAX_MESSAGE_BYTES)
    status = status_pb2.Status(code=CODES[error.reason], message=message, details=[detail])
    encoded: grpc.Status = rpc_status.to_status(status)
    return encoded


def _bounded(details: Mapping[str, str]) -> dict[str, str]:
    left = _MAX_DETAIL_BYTES
    bounded = {}
    for key, value in details.items():
        bounded[key] = _cut(value, max(left - len(key), 0))
        left -= len(key) + len(bounded[key].encode())
    return bounded


def _cut(text: str, limit: int) -> str:
    """At most ``limit`` bytes of a text, whole characters only."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: max(limit - len(_CUT), 0)].decode(errors="ignore") + _CUT[:limit]


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
    told = _told(error)
    if told is not None:
        return told
    code, message = error.code(), error.details() or str(error.code())
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _is_too_large(message):
        words = f"the request is too large to be sent ({message}); ask for less at a time"
        return RemoteError(Reason.INVALID_INPUT, words, {}, told=False)
    return RemoteError(_UNTOLD.get(code, Reason.UNAVAILABLE), message, {}, told=False)


def _told(error: grpc.RpcError) -> RemoteError | None:
    """What our server said; None when it said nothing, or something between spoilt it."""
    try:
        status = rpc_status.from_call(error)
        for detail in status.details if status is not None else ():
            info = error_details_pb2.ErrorInfo()
            ours = detail.Is(info.DESCRIPTOR) and detail.Unpack(info) and info.domain == DOMAIN
            if ours and info.reason in Reason.__members__:
                details = dict(info.metadata)
                return RemoteError(Reason(info.reason), status.message, details, told=True)
    except (ValueError, DecodeError):
        return None
    return None


def _is_too_large(message: str) -> bool:
    """Whether gRPC's own bound stopped the request; an answer's has CLIENT: Received before it."""
    return "larger than max" in message and "CLIENT: Received" not in message
