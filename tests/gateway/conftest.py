"""A running gateway with an authority, nodes that may connect to it, and both ports on loopback.

On PostgreSQL the gateway has the restricted role, so that every test also shows that its grants
suffice; what the placer would do, the tests do through ``database``.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bcd.gateway.identity import Identity
from bcd.gateway.server import Gateway, wall_clock_ms
from bcd.gateway.settings import Settings
from bcd.model.ids import NodeId, PoolId
from bcd.signing.certificates import Role
from bcd.signing.keyfile import Credentials, save_credentials
from bcd.store import certificates
from bcd.store.database import Database
from bcd.store.open import open_database
from tests.authority import Authority
from tests.gateway.node import TestNode
from tests.postgres import Cluster
from tests.store.world import make_node, make_pool

SETTINGS = Settings(
    node_listen="127.0.0.1:0",
    enrolment_listen="127.0.0.1:0",
    heartbeat_interval_ms=200,
    heartbeat_ttl_ms=20_000,
    hello_timeout_ms=500,
    write_timeout_ms=500,
    enrolment_timeout_ms=3_000,
    stop_grace_ms=2_000,
)


@dataclass
class HandClock:
    """The gateway's wall clock, moved by hand."""

    offset_ms: int = 0

    def read(self) -> int:
        return wall_clock_ms() + self.offset_ms


@dataclass
class Site:
    """Everything around one gateway."""

    authority: Authority
    database: Database
    gateway_database: Database
    folder: Path
    pool_id: PoolId
    clock: HandClock = field(default_factory=HandClock)
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def start(self, **changes: Any) -> Gateway:
        """Start a gateway; each one has the same identity and clock."""
        settings = Settings(
            **{name: getattr(SETTINGS, name) for name in SETTINGS.__struct_fields__} | changes
        )
        gateway = Gateway(
            self.gateway_database, Identity.load(self.folder), settings, clock=self.clock.read
        )
        await gateway.start()
        self.stack.push_async_callback(gateway.stop)
        return gateway

    async def add_node(self) -> tuple[NodeId, Credentials]:
        """A node that enrolled."""
        node_id = await self.database.write(make_node, self.pool_id)
        return node_id, self.authority.issue(Role.NODE, node_id)

    async def connect(
        self, gateway: Gateway, node_id: NodeId, credentials: Credentials
    ) -> TestNode:
        """A connection of that node, closed with the test."""
        node = TestNode(gateway.node_port, credentials, node_id)
        return await self.stack.enter_async_context(node)

    async def reconnect(self, gateway: Gateway, node: TestNode) -> TestNode:
        """Another connection of a node that has one."""
        return await self.connect(gateway, node.node_id, node.credentials)

    async def new_node(self, gateway: Gateway) -> TestNode:
        """A connection of a new node, before its Hello."""
        return await self.connect(gateway, *await self.add_node())


@pytest.fixture
async def gateway_database(
    database: Database, database_url: str, request: pytest.FixtureRequest
) -> AsyncIterator[Database]:
    """The database as the gateway opens it: under its own role, or in the placer's process."""
    if database.engine == "sqlite":
        yield database
        return
    cluster: Cluster = request.getfixturevalue("postgresql")
    opened = open_database(cluster.gateway_url(database_url), migrate=False)
    yield opened
    await opened.close()


@pytest.fixture
async def site(
    database: Database, gateway_database: Database, tmp_path: Path
) -> AsyncIterator[Site]:
    """A site without a running gateway."""
    authority = Authority()
    await database.write(certificates.trust, authority.pin, authority.der)
    folder = tmp_path / "gateway"
    folder.mkdir(mode=0o700)
    save_credentials(folder, authority.gateway())
    pool_id = await database.write(make_pool)
    async with contextlib.AsyncExitStack() as stack:
        yield Site(authority, database, gateway_database, folder, pool_id, stack=stack)


@pytest.fixture
async def gateway(site: Site) -> Gateway:
    """A running gateway."""
    return await site.start()


Connect = Callable[[], Awaitable[TestNode]]


@pytest.fixture
def new_node(site: Site, gateway: Gateway) -> Connect:
    """Connects a new node to the running gateway."""
    return lambda: site.new_node(gateway)
