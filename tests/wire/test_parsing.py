"""Requests that do not parse: the caller's mistake, whoever it is, and no line in the log."""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError

from bcd.model.errors import Reason
from bcd.wire.node.v1 import enrollment_pb2 as pb
from bcd.wire.parsing import Parsing
from bcd.wire.status import decode_error

GOOD = pb.EnrollRequest(token_id="t")
RUBBISH = (b"\xff\xff", b"\x0a\x05ab", b"\x0a\x01\xff")


async def unary(request: pb.EnrollRequest, context: Any) -> bytes:
    return request.token_id.encode()


async def writes(request: pb.EnrollRequest, context: Any) -> None:
    await context.write(request.token_id.encode())


async def yields(request: pb.EnrollRequest, context: Any) -> AsyncIterator[bytes]:
    yield request.token_id.encode()


async def echo(requests: AsyncIterator[pb.EnrollRequest], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request.token_id.encode()


async def reads(_: object, context: Any) -> None:
    try:
        await context.read()
    except DecodeError:
        await context.write(b"own way")


async def bug(request: pb.EnrollRequest, context: Any) -> bytes:
    return pb.EnrollRequest.FromString(b"\xff\xff").SerializeToString()


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    """A server with a method of each kind behind the interceptor."""
    parse = pb.EnrollRequest.FromString
    methods: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary, parse),
        "Bug": grpc.unary_unary_rpc_method_handler(bug, parse),
        "Writes": grpc.unary_stream_rpc_method_handler(writes, parse),
        "Yields": grpc.unary_stream_rpc_method_handler(yields, parse),
        "Echo": grpc.stream_stream_rpc_method_handler(echo, parse),
        "Reads": grpc.stream_stream_rpc_method_handler(reads, parse),
    }
    server = grpc.aio.server(interceptors=[Parsing()])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s.S", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    await server.stop(0)


async def call(channel: grpc.aio.Channel, name: str, *frames: bytes) -> list[bytes]:
    """Every answer to these frames."""
    kind = {"Unary": "unary_unary", "Bug": "unary_unary", "Nowhere": "unary_unary"}.get(name)
    kind = kind or ("stream_stream" if name in ("Echo", "Reads") else "unary_stream")
    method: Any = getattr(channel, kind)(f"/s.S/{name}")
    if kind == "unary_unary":
        return [await method(frames[0], timeout=10)]
    given = iter(frames) if kind == "stream_stream" else frames[0]
    return [answer async for answer in method(given, timeout=10)]


@pytest.mark.parametrize("rubbish", RUBBISH, ids=repr)
@pytest.mark.parametrize("name", ["Unary", "Writes", "Yields", "Echo"])
async def test_a_request_that_does_not_parse_is_invalid_input_and_logs_nothing(
    channel: grpc.aio.Channel, name: str, rubbish: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, name, rubbish)
        refused = decode_error(caught.value)
        assert (refused.reason, refused.told) == (Reason.INVALID_INPUT, True)
    assert [r for r in caplog.records if r.levelno > logging.DEBUG] == []


@pytest.mark.parametrize("name", ["Unary", "Writes", "Yields", "Echo"])
async def test_a_sound_request_is_served_again_and_again(
    channel: grpc.aio.Channel, name: str
) -> None:
    for _ in range(3):
        assert await call(channel, name, GOOD.SerializeToString()) == [b"t"]


async def test_a_later_frame_of_a_stream_that_does_not_parse_ends_it(
    channel: grpc.aio.Channel,
) -> None:
    method: Any = channel.stream_stream("/s.S/Echo")
    stream = method(timeout=10)
    await stream.write(GOOD.SerializeToString())
    assert await stream.read() == b"t"
    with contextlib.suppress(grpc.aio.AioRpcError):
        await stream.write(b"\xff\xff")
    assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_that_is_read_from_the_context_keeps_its_own_way(
    channel: grpc.aio.Channel,
) -> None:
    assert await call(channel, "Reads", b"\xff\xff") == [b"own way"]


async def test_a_method_that_does_not_exist_is_said_so(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, "Nowhere", b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_handlers_own_failure_to_parse_is_not_the_callers(
    channel: grpc.aio.Channel,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, "Bug", GOOD.SerializeToString())
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
