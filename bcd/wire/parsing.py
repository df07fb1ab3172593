"""Parses requests inside our own boundary, for servers whose callers are anybody.

Left to gRPC, a request that does not parse is answered with an unknown error and a traceback in
the log, so that every stranger could fill it. Here it is the caller's mistake and leaves no trace.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from bcd.model.errors import InvalidInput
from bcd.wire.status import encode_error

_Context = grpc.aio.ServicerContext[Any, Any]
_Handler = Any  # RpcMethodHandler is generic in the stubs only
_Read = Callable[[bytes, _Context], Awaitable[Any]]

_REFUSAL = InvalidInput("", "the request is not the message that this method takes")
_KINDS: dict[str, Any] = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}


class Parsing(grpc.aio.ServerInterceptor):
    """Answers INVALID_INPUT to requests that do not parse, alone or in a stream.

    A stream whose handler reads frame by frame from the context keeps its own way.
    """

    def __init__(self) -> None:
        self._wrapped: dict[str, _Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """The method's handler, wrapped once; None for a method that does not exist."""
        known = self._wrapped.get(handler_call_details.method)
        if known is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is not None:
            handler = self._wrapped[handler_call_details.method] = _wrap(handler)
        return handler


def _wrap(handler: Any) -> _Handler:
    kind = next(name for name in _KINDS if getattr(handler, name) is not None)
    behaviour, read = getattr(handler, kind), _reader(handler.request_deserializer)
    if inspect.isasyncgenfunction(behaviour):
        serve = _generator(behaviour, read, streaming=handler.request_streaming)
    elif handler.request_streaming:
        return handler
    else:
        serve = _call(behaviour, read)
    return _KINDS[kind](serve, None, handler.response_serializer)


def _reader(deserialize: Callable[[bytes], Any]) -> _Read:
    async def read(raw: bytes, context: _Context) -> Any:
        try:
            return deserialize(raw)
        except DecodeError:
            await context.abort_with_status(encode_error(_REFUSAL))
            raise AssertionError("abort returns never") from None

    return read


def _call(behaviour: Any, read: _Read) -> Any:
    async def serve(raw: bytes, context: _Context) -> Any:
        return await behaviour(await read(raw, context), context)

    return serve


def _generator(behaviour: Any, read: _Read, *, streaming: bool) -> Any:
    async def each(frames: AsyncIterator[bytes], context: _Context) -> AsyncIterator[Any]:
        async for raw in frames:
            yield await read(raw, context)

    async def serve(given: Any, context: _Context) -> AsyncIterator[Any]:
        request = each(given, context) if streaming else await read(given, context)
        async for answer in behaviour(request, context):
            yield answer

    return serve
