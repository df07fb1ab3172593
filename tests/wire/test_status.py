"""Errors over the wire: the reason, message and details arrive as they were raised."""

from typing import Any

import grpc
import pytest

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


async def unary(channel: grpc.aio.Channel) -> None:
    method: Any = channel.unary_unary("/s.S/M")
    await method(b"", timeout=10)


async def call(behaviour: Any) -> grpc.aio.AioRpcError:
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
                await unary(channel)
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


async def test_an_unknown_code_is_an_internal_error() -> None:
    async def fail(context: Any) -> None:
        raise RuntimeError("bug")

    assert decode_error(await call(fail)).reason == Reason.INTERNAL


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)
    assert decode_error(caught.value).reason == Reason.UNAVAILABLE


def test_every_reason_has_a_code() -> None:
    assert set(CODES) == set(Reason)
