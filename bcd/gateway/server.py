"""Builds and runs the gateway: the node port, the enrolment port, and the loops behind them.

A placer on SQLite runs a ``Gateway`` in its own process; ``bcd-gateway`` runs one alone.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from bcd.gateway.connected import Connected
from bcd.gateway.enrol import MAX_ENROLMENT_BYTES, Enrolments, Relay
from bcd.gateway.identity import Identity
from bcd.gateway.passes import repeat
from bcd.gateway.settings import Settings
from bcd.gateway.streams import House, Streams
from bcd.model.errors import BcdError, Unavailable
from bcd.store import certificates, sessions
from bcd.store.database import Database, StoreUnavailable
from bcd.wire import bounds
from bcd.wire.node.v1.enrollment_pb2_grpc import add_EnrollmentServiceServicer_to_server
from bcd.wire.node.v1.gateway_pb2_grpc import add_NodeGatewayServiceServicer_to_server
from bcd.wire.parsing import Parsing

logger = logging.getLogger(__name__)

_IDENTITY_PASS_S = 30.0
_HEALTH_PASS_S = 1.0
_DEFAULTS = Settings()
_ENROLMENT_OPTIONS = (
    *(pair for pair in bounds.NODE_SERVER_OPTIONS if pair[0] != "grpc.max_receive_message_length"),
    ("grpc.max_receive_message_length", MAX_ENROLMENT_BYTES),
)


def wall_clock_ms() -> int:
    """Epoch milliseconds of this host, which certificates are checked against."""
    return time.time_ns() // 1_000_000


class Gateway:
    """The nodes' relay: ``start`` it once, ``stop`` it once.

    ``node_port`` and ``enrolment_port`` are the ports in use after ``start``; ``counters`` says
    what happened since. The database's trusted CAs must be there before the start.
    """

    def __init__(
        self,
        database: Database,
        identity: Identity,
        settings: Settings = _DEFAULTS,
        *,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._database = database
        self._identity = identity
        self._settings = settings
        self._clock = clock
        self._counters: Counter[str] = Counter()
        self._connected = Connected(database, settings, self._counters, clock)
        self._streams = Streams(
            House(
                database=database,
                connected=self._connected,
                settings=settings,
                counters=self._counters,
                clock=clock,
                domain=identity.domain,
                gateway_id=identity.gateway_id,
            )
        )
        self._health = health.aio.HealthServicer()
        self._relay = Relay(database, settings.enrolment_timeout_ms)
        self._identity_due = asyncio.Event()
        self._stops: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._servers: list[grpc.aio.Server] = []
        self.node_port = 0
        self.enrolment_port = 0

    @property
    def counters(self) -> Mapping[str, int]:
        """What happened since the start, by name."""
        return self._counters

    @property
    def connected(self) -> int:
        """How many nodes have a session here."""
        return len(self._connected)

    async def start(self) -> None:
        """Listen on both ports; raises BadConfiguration for an address that cannot be used."""
        self._identity.trust(await self._database.read(certificates.bundle))
        await self._database.write(sessions.register_gateway, self._identity.gateway_id)
        self.node_port = await self._serve_nodes()
        self.enrolment_port = await self._serve_enrolments()
        wakes = self._database.wakes
        self._stops = [
            wakes.listen("trust", lambda _: self._identity_due.set()),
            wakes.listen("enrolment-answer", self._relay.on_answer),
        ]
        self._tasks = [
            asyncio.create_task(self._connected.run()),
            asyncio.create_task(
                repeat(self._keep_identity, self._identity_due, _IDENTITY_PASS_S, "identity")
            ),
            asyncio.create_task(
                repeat(self._tell_health, asyncio.Event(), _HEALTH_PASS_S, "health")
            ),
        ]
        await self._tell_health()
        logger.info(
            "gateway ready",
            extra={
                "gateway_id": self._identity.gateway_id,
                "node_port": self.node_port,
                "enrolment_port": self.enrolment_port,
            },
        )

    async def _serve_nodes(self) -> int:
        server = grpc.aio.server(options=bounds.NODE_SERVER_OPTIONS)
        add_NodeGatewayServiceServicer_to_server(self._streams, server)
        credentials = self._identity.node_port_credentials()
        return await self._listen(server, "node_listen", credentials)

    async def _serve_enrolments(self) -> int:
        server = grpc.aio.server(options=_ENROLMENT_OPTIONS, interceptors=[Parsing()])
        service = Enrolments(self._relay, self._settings, self._counters)
        add_EnrollmentServiceServicer_to_server(service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        credentials = self._identity.enrolment_port_credentials()
        return await self._listen(server, "enrolment_listen", credentials)

    async def _listen(
        self, server: grpc.aio.Server, setting: str, credentials: grpc.ServerCredentials
    ) -> int:
        address = str(getattr(self._settings, setting))
        try:
            port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise Unavailable(
                f"gateway.{setting}: cannot listen on {address}; free it, or name another one"
            ) from error
        self._servers.append(server)
        await server.start()
        return port

    async def _keep_identity(self) -> None:
        self._identity.trust(await self._database.read(certificates.bundle))
        now_ms = self._clock()
        if not self._identity.renewal_due(now_ms):
            return
        try:
            await self._identity.renew(self._relay, now_ms)
        except BcdError as error:
            self._counters["renewals_failed"] += 1
            logger.error("certificate not renewed", extra={"reason": error.message})

    async def _tell_health(self) -> None:
        serving = self._connected.healthy and not self._streams.stopping
        status = health_pb2.HealthCheckResponse
        await self._health.set("", status.SERVING if serving else status.NOT_SERVING)

    async def stop(self) -> None:
        """Send every node away, finish what was accepted, and close the sessions' rows."""
        self._streams.stopping = True
        await self._tell_health()
        self._connected.end_all()
        grace_s = self._settings.stop_grace_ms / 1000
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stop in self._stops:
            stop()
        try:
            async with asyncio.timeout(grace_s):
                await self._connected.flush()
        except (StoreUnavailable, TimeoutError) as error:
            logger.warning("sessions not closed", extra={"reason": str(error) or "timeout"})
        logger.info("gateway stopped", extra={"counters": dict(self._counters)})

    async def run(self, stopping: asyncio.Event, *, on_ready: Callable[[], None]) -> None:
        """Serve until ``stopping`` is set."""
        try:
            await self.start()
            on_ready()
            await stopping.wait()
        finally:
            await self.stop()
