"""The service on the node port: lets a stream in, runs its session, and tells the node its end."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from bcd.gateway import ending
from bcd.gateway.connected import Connected
from bcd.gateway.ending import Ending
from bcd.gateway.hello import Greeting, Peer, admit, identify, read_hello
from bcd.gateway.session import Admitted, Session
from bcd.gateway.settings import Settings
from bcd.store.database import ConstraintViolated, Database, StoreUnavailable
from bcd.store.sessions import Opening
from bcd.wire.node.v1 import gateway_pb2 as pb
from bcd.wire.node.v1.gateway_pb2_grpc import NodeGatewayServiceServicer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What every stream of this gateway shares."""

    database: Database
    connected: Connected
    settings: Settings
    counters: Counter[str]
    clock: Callable[[], int]
    domain: str
    gateway_id: str


class Streams(NodeGatewayServiceServicer):
    """One call of ``Connect`` is one node's stream."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.stopping = False

    async def Connect(  # type: ignore[override]  # noqa: N802
        self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Serve a stream until it ends; the iterator is not used, frames are read one by one."""
        self._house.counters["streams"] += 1
        try:
            session = await self._open(context)
        except StoreUnavailable:
            session = ending.overloaded("the database is out of reach")
        except Exception:  # a node that knocks must not learn what broke here
            logger.exception("opening a stream failed", extra={"peer": context.peer()})
            session = ending.overloaded("internal error")
        if isinstance(session, Ending):
            await self._refuse(context, session)
            return
        if session is None:
            return
        self._house.connected.add(session)
        logger.info("session opened", extra=session.fields(gateway_id=self._house.gateway_id))
        try:
            await session.run()
        finally:
            self._house.connected.remove(session)
            logger.info("session closed", extra=session.fields())

    async def _refuse(self, context: grpc.aio.ServicerContext[Any, Any], reason: Ending) -> None:
        self._house.counters[f"goaway_{reason.name}"] += 1
        logger.warning("stream refused", extra={"peer": context.peer(), "reason": reason.message})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._house.settings.write_timeout_ms / 1000):
                await context.write(reason.frame())

    async def _open(self, context: grpc.aio.ServicerContext[Any, Any]) -> Session | Ending | None:
        house = self._house
        if self.stopping:
            return ending.shutdown(ending.OVERLOADED_RETRY_MS)
        if len(house.connected) >= house.settings.max_sessions:
            return ending.overloaded("this gateway has as many nodes as it may")
        # First the Hello, also of a peer that will be refused: a node whose Hello fails to be
        # written never reads why.
        hello = await self._first_frame(context)
        if not isinstance(hello, pb.Hello):
            return hello
        peer = identify(context.auth_context(), house.domain, house.clock())
        if isinstance(peer, Ending):
            return peer
        greeting = read_hello(hello, peer)
        if isinstance(greeting, Ending):
            return greeting
        return await self._admit(context, peer, greeting)

    async def _first_frame(
        self, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Hello | Ending | None:
        """The Hello with which a stream begins; None when the node went away before it."""
        reading = asyncio.ensure_future(context.read())
        await asyncio.wait({reading}, timeout=self._house.settings.hello_timeout_ms / 1000)
        if not reading.done():
            reading.cancel()
            return ending.bad_protocol("no hello in time")
        try:
            frame = reading.result()
        except DecodeError:
            return ending.bad_protocol("a frame does not parse")
        if frame is grpc.aio.EOF:
            return None
        if frame.WhichOneof("message") != "hello":
            return ending.bad_protocol("the first frame is no hello")
        hello: pb.Hello = frame.hello
        return hello

    async def _admit(
        self, context: grpc.aio.ServicerContext[Any, Any], peer: Peer, greeting: Greeting
    ) -> Session | Ending:
        house = self._house
        opening = Opening(
            node_id=peer.node_id,
            gateway_id=house.gateway_id,
            process_instance=greeting.process_instance,
            boot_id=greeting.boot_id,
            daemon_version=greeting.daemon_version,
            protocol_version=greeting.protocol_version,
            ttl_ms=house.settings.heartbeat_ttl_ms,
        )
        try:
            admission = await house.database.write(
                admit, opening, peer.serial, greeting.capabilities
            )
        except ConstraintViolated:
            return ending.bad_certificate("this node was removed")
        if admission is None:
            return ending.bad_certificate("the certificate was revoked")
        admitted = Admitted(peer, greeting, admission)
        return Session(context, admitted, house.database, house.settings, house.counters)
