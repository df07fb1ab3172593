"""A node's end of the stream for tests: says what it is told to, and waits within bounds."""

import asyncio
import uuid
from types import TracebackType
from typing import Any, Self

import grpc

from bcd.model.ids import NodeId
from bcd.signing.keyfile import Credentials
from bcd.wire import bounds
from bcd.wire.node.v1 import gateway_pb2 as pb

WAIT_S = 10.0
METHOD = "/bcd.wire.node.v1.NodeGatewayService/Connect"


class Ended(Exception):
    """The stream ended where a frame was expected."""


class TestNode:
    """One connection and one stream; an async context manager."""

    __test__ = False

    def __init__(self, port: int, credentials: Credentials, node_id: NodeId) -> None:
        self.node_id = node_id
        self.credentials = credentials
        self.process_instance = str(uuid.uuid4())
        self._channel = grpc.aio.secure_channel(
            f"127.0.0.1:{port}",
            grpc.ssl_channel_credentials(
                credentials.bundle_pem, credentials.key_pem, credentials.chain_pem
            ),
            options=bounds.NODE_CHANNEL_OPTIONS,
        )
        # Bytes in, so that a test may send what no message would give.
        self._call: Any = self._channel.stream_stream(
            METHOD,
            request_serializer=bytes,
            response_deserializer=pb.ConnectResponse.FromString,
        )()
        self.epoch = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._channel.close()

    def hello(self, **changes: Any) -> pb.ConnectRequest:
        """A Hello that a gateway accepts, with changes."""
        fields: dict[str, Any] = {
            "node_id": self.node_id,
            "protocol_version": 1,
            "min_protocol_version": 1,
            "daemon_version": "0.1.0",
            "boot_id": "boot",
            "process_instance": self.process_instance,
            "capabilities": ["attested-reports"],
        }
        return pb.ConnectRequest(hello=pb.Hello(**{**fields, **changes}))

    async def send(self, frame: pb.ConnectRequest | bytes) -> None:
        """Send a frame, or raw bytes in place of one."""
        content = frame if isinstance(frame, bytes) else frame.SerializeToString()
        async with asyncio.timeout(WAIT_S):
            await self._call.write(content)

    async def receive(self) -> pb.ConnectResponse:
        """The next frame; raises Ended with the status when there is none."""
        async with asyncio.timeout(WAIT_S):
            try:
                frame = await self._call.read()
            except grpc.aio.AioRpcError as error:
                raise Ended(str(error.code())) from error
            if frame is grpc.aio.EOF:
                raise Ended(str(await self._call.code()))
        assert isinstance(frame, pb.ConnectResponse)
        return frame

    async def receive_kind(self, kind: str) -> Any:
        """The next frame, which must be of this kind; returns its content."""
        frame = await self.receive()
        assert frame.WhichOneof("message") == kind, frame
        return getattr(frame, kind)

    async def welcome(self, **changes: Any) -> pb.Welcome:
        """Say hello and take the Welcome."""
        await self.send(self.hello(**changes))
        found: pb.Welcome = await self.receive_kind("welcome")
        self.epoch = found.session_epoch
        return found

    async def goaway(self) -> pb.Goaway:
        """The Goaway that must come next, and the end of the stream after it."""
        found: pb.Goaway = await self.receive_kind("goaway")
        await self.ended()
        return found

    async def ended(self) -> None:
        """The stream must end without another frame."""
        try:
            frame = await self.receive()
        except Ended:
            return
        raise AssertionError(f"expected the end, got {frame}")

    async def heartbeat(self) -> None:
        """Send a heartbeat."""
        await self.send(pb.ConnectRequest(heartbeat=pb.Heartbeat()))

    async def hang_up(self) -> None:
        """Close the connection without a word."""
        await self._channel.close()
