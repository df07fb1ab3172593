"""Errors over the wire: the reason, message and details arrive as they were raised."""

from typing import Any
from urllib.parse import quote

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from bcd.model import errors
from bcd.model.errors import BcdError, Reason
from bcd.wire.status import CODES, decode_error, encode_error

ERRORS: list[BcdError] = [
    errors.InvalidInput("devices[0].count", "must be at least 1"),
    errors.Unsupported("spot is not built yet"),
    errors.Conflict("another request", reservationId="rsv_x"),
    errors.AccessDenied("no"),
    errors.Unauthenticated("show a token"),
    errors.QuotaExceeded("too much", resource="gpu", limit="8", used="5", asked="4"),
    errors.NotFound("nothing"),
    errors.InvalidState("already active"),
    errors.Unavailable("try again"),
    BcdError("internal error"),
]


async def unary(channel: grpc.aio.Channel, request: bytes = b"") -> None:
    method: Any = channel.unary_unary("/s.S/M")
    await method(request, timeout=10)


async def call(behaviour: Any, request: bytes = b"") -> grpc.aio.AioRpcError:
    """Call a method that fails as ``behaviour`` says; returns what the client sees."""

    async def method(request: bytes, context: Any) -> bytes:
        await behaviour(context)
        return b""

    handler = grpc.method_handlers_generic_handler(
        "s.S", {"M": grpc.unary_unary_rpc_method_handler(method)}
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(channel, request)
            return caught.value
    finally:
        await server.stop(0)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.reason)
async def test_an_error_arrives_as_it_was_raised(error: BcdError) -> None:
    async def abort(context: Any) -> None:
        status = encode_error(error)
        await context.abort(status.code, status.details, status.trailing_metadata)

    seen = await call(abort)
    assert seen.code().value[0] == CODES[error.reason]
    remote = decode_error(seen)
    assert (remote.reason, remote.message) == (error.reason, error.message)
    assert remote.details == error.details


async def test_a_status_that_something_between_made_is_understood() -> None:
    async def abort(context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no healthy upstream")

    remote = decode_error(await call(abort))
    assert (remote.reason, remote.message) == (Reason.UNAVAILABLE, "no healthy upstream")


LONG = {
    "ascii": BcdError("x" * 100_000),
    "percent": errors.InvalidInput("é" * 50_000, "日" * 50_000),
    "one too many": BcdError("x" * 1023 + "é"),
    "control characters": errors.NotFound("\n" * 20_000, id="\n" * 20_000),
    "details": errors.Conflict("no", a="😀" * 10_000, b="😀" * 10_000, c="x", d="y" * 900),
    "many details": errors.Conflict("no", **{f"key{i}": "v" * 300 for i in range(64)}),
    "half a pair": errors.InvalidInput("\ud800", "\udfff" * 2_000),
}


@pytest.mark.parametrize("error", LONG.values(), ids=LONG)
async def test_an_error_of_any_length_arrives_within_the_headers_limit(error: BcdError) -> None:
    async def abort(context: Any) -> None:
        await context.abort_with_status(encode_error(error))

    status = encode_error(error)
    details = sum(len(value) for _, value in status.trailing_metadata)
    assert len(quote(status.details)) + details * 4 / 3 < 7_000
    remote = decode_error(await call(abort))
    assert (remote.reason, remote.told) == (error.reason, True)
    sound = error.message.encode(errors="replace").decode()
    assert remote.message == sound or sound.startswith(remote.message.removesuffix(" ..."))
    assert remote.message[:20] == sound[:20]


class Failed(grpc.RpcError):
    """A failed call with any status and any details."""

    def __init__(self, code: grpc.StatusCode, message: str, details: bytes | None = None) -> None:
        self._seen = (code, message, details)

    def code(self) -> grpc.StatusCode:
        return self._seen[0]

    def details(self) -> str:
        return self._seen[1]

    def trailing_metadata(self) -> Any:
        details = self._seen[2]
        return None if details is None else (("grpc-status-details-bin", details),)


def rich(code: int, message: str, value: bytes) -> bytes:
    """A status whose one detail claims to be ErrorInfo."""
    detail = AnyMessage(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=value)
    status = status_pb2.Status(code=code, message=message, details=[detail])
    return bytes(status.SerializeToString())


@pytest.mark.parametrize(
    "details",
    [
        b"\xff\xff",
        rich(5, "gone", b""),
        rich(14, "another message", b""),
        rich(99, "gone", b""),
        rich(14, "gone", b"\xff\xff"),
        rich(14, "gone", error_details_pb2.ErrorInfo(reason="NOT_FOUND").SerializeToString()),
    ],
    ids=["rubbish", "other code", "other message", "no code", "rubbish inside", "another's"],
)
def test_details_that_do_not_belong_to_the_status_tell_nothing(details: bytes) -> None:
    remote = decode_error(Failed(grpc.StatusCode.UNAVAILABLE, "gone", details))
    assert (remote.reason, remote.message, remote.told) == (Reason.UNAVAILABLE, "gone", False)


OPEN = ("CANCELLED", "ABORTED", "UNKNOWN", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE")


@pytest.mark.parametrize("code", grpc.StatusCode, ids=lambda code: code.name)
def test_a_status_that_nobody_told_leaves_the_outcome_open_unless_it_says_more(
    code: grpc.StatusCode,
) -> None:
    remote = decode_error(Failed(code, "Concurrent RPC limit exceeded!"))
    if code.name in (*OPEN, "OK"):
        assert remote.reason is Reason.UNAVAILABLE
    else:
        assert remote.reason not in (Reason.UNAVAILABLE, Reason.CONFIRMATION_REQUIRED)
        assert remote.reason is not Reason.QUOTA_EXCEEDED
    assert not remote.told


async def test_a_request_that_is_too_large_is_said_so() -> None:
    async def never(context: Any) -> None:
        raise AssertionError("unreachable")

    seen = await call(never, b"x" * (5 << 20))
    remote = decode_error(seen)
    assert (remote.reason, remote.told) == (Reason.INVALID_INPUT, False)
    assert "too large" in remote.message
    answer = Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max")
    assert decode_error(answer).reason is Reason.UNAVAILABLE


async def test_what_broke_in_a_server_without_a_word_leaves_the_outcome_open() -> None:
    async def fail(context: Any) -> None:
        raise RuntimeError("bug")

    assert decode_error(await call(fail)).reason == Reason.UNAVAILABLE


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)
    assert decode_error(caught.value).reason == Reason.UNAVAILABLE


def test_every_reason_has_a_code() -> None:
    assert set(CODES) == set(Reason)
