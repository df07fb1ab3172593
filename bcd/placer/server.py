"""Puts the placer together and runs it: one database, the loops, the API server."""

import asyncio
import contextlib
import logging

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from bcd.model.errors import Unavailable
from bcd.placer.admission.policy import CedarPolicy
from bcd.placer.api.services import SERVICES, Parts, register
from bcd.placer.capacity.hosts import HostsKeeper
from bcd.placer.capacity.inventory import InventoryKeeper
from bcd.placer.capacity.reachability import ReachabilityKeeper
from bcd.placer.events.outgoing import Outgoing
from bcd.placer.lifecycle.reconcile import Reconciler
from bcd.placer.lifecycle.worker import Worker
from bcd.placer.loops import Loop
from bcd.placer.pki.command import CommandSigner
from bcd.placer.pki.enrolment import Enroller, EnrolmentKeeper
from bcd.placer.pki.own import OwnCredentials, tls_configuration
from bcd.placer.pki.state import Secrets
from bcd.placer.placement.booking import Placements
from bcd.placer.settings import PlacerSettings
from bcd.placer.upkeep import Upkeep, trust_authority
from bcd.signing.certificates import Role
from bcd.signing.keyfile import Credentials
from bcd.store import control
from bcd.store.database import Database
from bcd.wire.bounds import API_SERVER_OPTIONS
from bcd.wire.parsing import Parsing
from bcd.wire.rotation import rotating_credentials

logger = logging.getLogger(__name__)

_STOP_GRACE_S = 2.0
_HEALTH_S = 5.0


class Placer:
    """The control plane in one process; ``start`` returns once the API answers."""

    def __init__(self, settings: PlacerSettings, database: Database, secrets: Secrets) -> None:
        self._settings = settings
        self._database = database
        self._secrets = secrets
        self._policy = CedarPolicy(settings.policy.folder)
        self._outgoing = Outgoing(database, self._policy, settings.webhooks)
        self._command = self._own("command", (Role.COMMAND, "placer"), ())
        self._api_tls = self._own("api", (Role.PLACER, "placer"), settings.api.names)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._shown: tuple[Credentials, grpc.ServerCertificateConfiguration] | None = None
        self.port = 0

    def _own(self, name: str, subject: tuple[Role, str], names: tuple[str, ...]) -> OwnCredentials:
        folder = self._settings.state / name
        return OwnCredentials(folder, self._secrets.authority, subject, names)

    async def start(self) -> None:
        """Make what is missing of the placer's own credentials, start the loops and the API."""
        database = self._database
        await database.write(trust_authority, self._secrets.authority)
        await database.write(self._command.renew_if_due)
        await database.write(self._api_tls.renew_if_due)
        assert self._command.current is not None
        signer = CommandSigner(self._command.current)
        placements = Placements()
        self._start_loops(signer, placements)
        await self._start_api(signer, placements)

    def _start_loops(self, signer: CommandSigner, placements: Placements) -> None:
        database = self._database
        worker = Worker(database, Reconciler(placements, signer))
        enroller = EnrolmentKeeper(database, Enroller(self._secrets.authority))
        inventory, reachability = InventoryKeeper(database), ReachabilityKeeper(database)
        hosts = HostsKeeper(database)
        upkeep = Upkeep(database, signer, self._command, self._api_tls)
        loops = (
            Loop("work", database, ["work"], worker.work_pass, 1.0),
            Loop("reports", database, ["report"], worker.judge_pass, 5.0),
            Loop("enrolments", database, ["enrolment"], enroller.answer_pass, 2.0),
            Loop("inventory", database, ["inventory"], inventory.apply_pass, 30.0),
            Loop("hosts", database, ["pool"], hosts.sync_pass, 30.0),
            Loop("reachability", database, ["session"], reachability.judge_pass, 5.0),
            Loop("upkeep", database, [], upkeep.pass_once, 60.0),
            Loop("health", database, [], self._tell_health, _HEALTH_S),
            *self._outgoing.loops(),
        )
        self._tasks = [asyncio.create_task(loop.run()) for loop in loops]

    async def _start_api(self, signer: CommandSigner, placements: Placements) -> None:
        server = grpc.aio.server(interceptors=[Parsing()], options=API_SERVER_OPTIONS)
        parts = Parts(
            database=self._database,
            policy=self._policy,
            placements=placements,
            signer=signer,
            secrets=self._secrets,
            outgoing=self._outgoing,
            confirmation_lifetime_ms=self._settings.confirmation.lifetime_ms,
        )
        register(server, parts)
        self._register_standard(server)
        tls = rotating_credentials(self._current_tls, client_certificates=False)
        listen = self._settings.api.listen
        try:
            self.port = server.add_secure_port(listen, tls)
        except RuntimeError as error:
            raise Unavailable(
                f"api.listen: cannot listen on {listen}; it must be an address of this machine"
                " that no other program listens on"
            ) from error
        await self._tell_health()  # nobody who asks at once is told of an unknown service
        await server.start()
        self._server = server
        logger.info("placer ready", extra={"listen": listen, "port": self.port})

    def _current_tls(self) -> grpc.ServerCertificateConfiguration:
        current = self._api_tls.current
        assert current is not None
        if self._shown is None or self._shown[0] is not current:
            self._shown = (current, tls_configuration(current))
        return self._shown[1]

    def reload(self, settings: PlacerSettings) -> None:
        """Take over what may change while running: the policies. Raises BadConfiguration."""
        self._policy.load(settings.policy.folder)

    def _register_standard(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )

    async def _tell_health(self) -> None:
        """Serving is who can reach the database within the time of a look."""
        status = health_pb2.HealthCheckResponse.SERVING
        try:
            async with asyncio.timeout(_HEALTH_S):
                await self._database.read(control.epoch)
        except (Unavailable, TimeoutError):
            status = health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *SERVICES):
            await self._health.set(name, status)

    async def stop(self) -> None:
        """Stop taking calls, then the loops; what was acknowledged is in the database."""
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._outgoing.stop()
