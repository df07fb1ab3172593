"""A running placer behind real TLS on loopback, and clients with tokens."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from bcd.model.errors import Reason
from bcd.placer.pki.issuer import Grant, Issuer
from bcd.placer.pki.state import CA_FILE, init_state, load_state
from bcd.placer.server import Placer
from bcd.placer.settings import ApiSettings, PlacerSettings, WebhookSettings
from bcd.store import events, reservations
from bcd.store.database import Database
from bcd.wire.compute.v1 import (
    admin_pb2_grpc,
    capacity_pb2_grpc,
    confirmations_pb2_grpc,
    events_pb2_grpc,
    maintenance_pb2_grpc,
    offers_pb2_grpc,
    reservations_pb2_grpc,
)
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.status import RemoteError, decode_error
from tests.clock import DatabaseClock
from tests.placer.world import DOMAIN, TENANT, World

HOUR_MS = 3_600_000


@dataclass
class Client:
    """One bearer's stubs."""

    channel: grpc.aio.Channel
    token: str
    metadata: tuple[tuple[str, str], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.metadata = (("authorization", f"Bearer {self.token}"),)
        self.reservations = reservations_pb2_grpc.ReservationsServiceStub(self.channel)
        self.capacity = capacity_pb2_grpc.CapacityServiceStub(self.channel)
        self.confirmations = confirmations_pb2_grpc.ConfirmationsServiceStub(self.channel)
        self.pools = admin_pb2_grpc.PoolsServiceStub(self.channel)
        self.nodes = admin_pb2_grpc.NodesServiceStub(self.channel)
        self.quotas = admin_pb2_grpc.QuotasServiceStub(self.channel)
        self.events = events_pb2_grpc.EventsServiceStub(self.channel)
        self.webhooks = events_pb2_grpc.WebhooksServiceStub(self.channel)
        self.credentials = admin_pb2_grpc.CredentialsServiceStub(self.channel)
        self.offers = offers_pb2_grpc.OffersServiceStub(self.channel)
        self.maintenance = maintenance_pb2_grpc.MaintenanceServiceStub(self.channel)

    async def call(self, method: Callable[..., Awaitable[Any]], request: Any) -> Any:
        """Call with the token."""
        return await method(request, metadata=self.metadata, timeout=30)

    async def refused(self, method: Callable[..., Awaitable[Any]], request: Any) -> RemoteError:
        """The refusal of a call that must be refused."""
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await self.call(method, request)
        return decode_error(error.value)

    async def create(self, key: str = "k", count: int = 1, **changes: Any) -> pb.Reservation:
        """Reserve GPUs for an hour."""
        pool_id = changes.pop("pool_id", self.pool_id)
        answer = await self.call(
            self.reservations.CreateReservation, creation(pool_id, key, count, **changes)
        )
        made: pb.Reservation = answer.reservation
        return made

    pool_id: str = ""


def creation(
    pool_id: str, key: str = "k", count: int = 1, **changes: Any
) -> pb.CreateReservationRequest:
    """A create's message."""
    device = pb.DeviceRequest(**{"class": "gpu"}, count=count)
    return pb.CreateReservationRequest(
        **{
            "tenant_id": TENANT,
            "pool_id": pool_id,
            "devices": [device],
            "duration": "1h",
            "idempotency_key": key,
        }
        | changes
    )


@dataclass
class Site:
    """Everything around one running placer."""

    placer: Placer
    issuer: Issuer
    world: World
    root: bytes
    clock: DatabaseClock
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    def channel(self, root: bytes | None = None) -> grpc.aio.Channel:
        """A connection that checks the placer against the CA."""
        credentials = grpc.ssl_channel_credentials(root or self.root)
        made = grpc.aio.secure_channel(f"127.0.0.1:{self.placer.port}", credentials)
        self.channels.append(made)
        return made

    def token(self, subject: str = "alice", **grant: Any) -> str:
        """A bearer token of the placer's own issuer."""
        made = Grant(subject=subject, **({"tenants": (TENANT,)} | grant))
        return self.issuer.issue(made, self.clock.read(), HOUR_MS)

    def client(self, subject: str = "alice", **grant: Any) -> Client:
        """A client with such a token."""
        return self.bearer(self.token(subject, **grant))

    def bearer(self, token: str) -> Client:
        """A client with any token."""
        made = Client(self.channel(), token)
        made.pool_id = self.world.pool_id
        return made

    async def stored(self, reservation_id: str) -> str:
        """A reservation's state in the database."""
        row = await self.world.database.read(reservations.get, reservation_id)  # type: ignore[arg-type]
        assert row is not None
        return row.state

    async def told(self, reservation_id: str) -> list[str]:
        """Its events so far."""
        found = await self.world.database.read(events.of_subject, f"reservation/{reservation_id}")
        return [event.type for event in found]


def settings_of(database_url: str, state: Path) -> PlacerSettings:
    """Settings for a placer on a free port."""
    return PlacerSettings(
        database=database_url,
        state=state,
        trust_domain=DOMAIN,
        api=ApiSettings(listen="127.0.0.1:0"),
        webhooks=WebhookSettings(allow_http=True, allow_private=("127.0.0.0/8",)),
    )


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of an installation, made once: no test here changes it."""
    folder = tmp_path_factory.mktemp("placer") / "state"
    init_state(folder, DOMAIN)
    return folder


@pytest.fixture
async def site(
    database: Database, database_url: str, clock: DatabaseClock, state: Path
) -> AsyncIterator[Site]:
    """A placer with one pool and a quota of 16 GPUs, without nodes."""
    settings = settings_of(database_url, state)
    secrets = load_state(state, DOMAIN)
    placer = Placer(settings, database, secrets)
    world = World(database, secrets.authority)
    await world.add_pool()
    await world.grant("gpu", 16)
    await placer.start()
    root = (settings.state / CA_FILE).read_bytes()
    made = Site(placer, secrets.issuer, world, root, clock)
    yield made
    for channel in made.channels:
        await channel.close()
    await placer.stop()


@pytest.fixture
def alice(site: Site) -> Client:
    """A member of TENANT."""
    return site.client("alice")


@pytest.fixture
def stranger(site: Site) -> Client:
    """Somebody of another tenant."""
    return site.client("mallory", tenants=("other",))


@pytest.fixture
def admin(site: Site) -> Client:
    """An administrator without a tenant."""
    return site.client("root", tenants=(), admin=True)


def is_refusal(error: RemoteError, reason: Reason, **details: str) -> bool:
    """Whether it has this reason and at least these details."""
    return error.reason is reason and details.items() <= error.details.items()
