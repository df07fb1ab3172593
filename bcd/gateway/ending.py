"""Why a stream ends, as the node is told it."""

from dataclasses import dataclass

from bcd.wire import bounds
from bcd.wire.node.v1 import gateway_pb2 as pb

OVERLOADED_RETRY_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A Goaway. ``process_instance`` names the winner of a session that was superseded."""

    reason: pb.GoawayReason.ValueType
    message: str
    retry_after_ms: int = 0
    process_instance: str = ""

    @property
    def name(self) -> str:
        """The reason in lower case, for logs and counters."""
        return pb.GoawayReason.Name(self.reason).removeprefix("GOAWAY_REASON_").lower()

    def frame(self) -> pb.ConnectResponse:
        """The frame that says it."""
        return pb.ConnectResponse(
            goaway=pb.Goaway(
                reason=self.reason,
                message=self.message,
                retry_after_ms=self.retry_after_ms,
                process_instance=self.process_instance,
            )
        )


def bad_certificate(message: str) -> Ending:
    """The certificate lets this stream in no more, or never did."""
    return Ending(reason=pb.GOAWAY_REASON_CERTIFICATE, message=message)


def bad_protocol(message: str) -> Ending:
    """The node said something that no version of the protocol allows, or speaks none of ours."""
    lowest, highest = bounds.MIN_PROTOCOL_VERSION, bounds.PROTOCOL_VERSION
    return Ending(
        reason=pb.GOAWAY_REASON_PROTOCOL,
        message=f"{message} (this gateway speaks versions {lowest} to {highest})",
    )


def superseded(process_instance: str) -> Ending:
    """A newer session of the node exists, opened by that process."""
    return Ending(
        reason=pb.GOAWAY_REASON_SUPERSEDED,
        message="a newer session of this node exists",
        process_instance=process_instance,
    )


def overloaded(message: str, retry_after_ms: int = OVERLOADED_RETRY_MS) -> Ending:
    """The gateway cannot serve the stream now."""
    return Ending(
        reason=pb.GOAWAY_REASON_OVERLOADED, message=message, retry_after_ms=retry_after_ms
    )


def shutdown(retry_after_ms: int) -> Ending:
    """The gateway stops; nodes come back spread over time."""
    return Ending(
        reason=pb.GOAWAY_REASON_SHUTDOWN,
        message="the gateway is stopping",
        retry_after_ms=retry_after_ms,
    )
