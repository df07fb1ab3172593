"""A bare mTLS stream that gives every message back: the floor of a round trip.

Run as ``python -m tests.bench.echo KEY CHAIN ROOTS``; prints its port.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

METHOD = "/bench.Echo/Stream"


class Echo(grpc.GenericRpcHandler):
    """One method, bytes in, the same bytes out."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Serve whatever is called."""

        async def stream(messages: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
            async for message in messages:
                yield message

        return grpc.stream_stream_rpc_method_handler(stream)


async def main(key: bytes, chain: bytes, roots: bytes) -> None:
    """Serve until killed."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    credentials = grpc.ssl_server_credentials([(key, chain)], roots, True)
    print(server.add_secure_port("127.0.0.1:0", credentials), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(*(Path(argument).read_bytes() for argument in sys.argv[1:4])))
