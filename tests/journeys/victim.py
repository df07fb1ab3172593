"""A placer that is killed and started again, with nodes that are there without a process.

What happens around it is written to its database while it is dead, as the gateway does it.
"""

import asyncio
import json
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from bcd.model.pool import PoolPolicy
from bcd.placer.pki.state import init_state, load_state
from bcd.store.open import open_database
from bcd.wire.compute.v1 import reservations_pb2
from tests.journeys import killable_placer
from tests.journeys.records import query
from tests.journeys.system import DOMAIN, TENANT, Client, System, listens, wait_until
from tests.placer.records import Beside
from tests.placer.world import FakeNode, World, dgx

FOR_EVER_MS = 10**9


@dataclass
class Victim:
    """The placer, its fuse, and the nodes of its one pool; none of them is ever missed."""

    system: System
    with_gateway: bool
    pool_id: str = ""
    nodes: list[FakeNode] = field(default_factory=list)
    acknowledged: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fuse = self.system.folder / "fuse"
        self.beside = Beside(self.system.url)

    def prepare(self, policy: PoolPolicy, node_count: int) -> None:
        """Make the pool and its nodes, of eight GPUs each, and start a placer."""
        init_state(self.system.state, DOMAIN)
        self.arm()

        async def make(world: World) -> None:
            self.pool_id = await world.add_pool(policy=policy)
            await world.grant("gpu", 1000)
            for number in range(node_count):
                self.nodes.append(await world.add_node(dgx(f"n{number}")))

        self.with_world(make)
        self.bring_back()
        self.start()

    def bring_back(self) -> None:
        """Every node is there, for longer than any test runs."""
        self.beside.execute(f"UPDATE sessions SET ttl_ms = {FOR_EVER_MS}, last_seen_ms = opened_ms")

    def arm(self, works: Sequence[str] = (), left: int | None = None) -> None:
        """Let so many statements of these functions happen."""
        fresh = self.fuse.with_suffix(".new")
        fresh.write_text(json.dumps({"works": list(works), "left": left}))
        fresh.rename(self.fuse)

    def launch(self) -> None:
        """Start a placer."""
        gateway = ["--with-gateway"] if self.with_gateway else []
        arguments = ["run", "--config", str(self.system.placer_file), *gateway]
        log = self.system.folder / "placer.log"
        self.process = killable_placer.launch(self.fuse, arguments, log)
        self.client: Client = self.system.client()

    def await_api(self) -> None:
        """Wait for the API of a placer that was launched; raises RpcError when that is dead."""
        port = self.system.api_port
        wait_until("the API listens", lambda: self.is_dead() or listens(port))
        request = reservations_pb2.ListReservationsRequest(tenant_id=TENANT, limit=1)
        self.client.reservations.ListReservations(
            request, metadata=self.client.metadata, timeout=20
        )

    def is_dead(self) -> bool:
        """Whether the placer has ended."""
        return not self.process.is_alive()

    def start(self) -> None:
        """Start a placer and wait for its API."""
        self.launch()
        self.await_api()

    def bury(self) -> None:
        """Wait for the end of a placer that kills itself; what it had claimed comes back."""
        self.process.join(timeout=60)
        assert self.process.exitcode == -signal.SIGKILL
        self.client.channel.close()
        if not self.system.url.startswith("sqlite:"):
            wait_until("the server knows", lambda: self.beside.open_transactions() == 0)
        self.beside.execute("UPDATE work SET lock_until_ms = 0")

    def kill(self) -> None:
        """End it now."""
        self.process.kill()
        self.bury()

    def state(self, reservation_id: str) -> str:
        """A reservation's state in the database."""
        rows = query(
            self.system.url, f"SELECT state FROM reservations WHERE id = '{reservation_id}'"
        )
        return str(rows[0]["state"]) if rows else ""

    def create(self, key: str, count: int = 2, **request: Any) -> str:
        """Reserve GPUs; what is answered is acknowledged."""
        made = self.client.create(self.pool_id, count, key, **request)
        self.acknowledged[key] = made.id
        return made.id

    def end_all(self) -> None:
        """Release everything, so that there is room."""
        for row in query(
            self.system.url,
            "SELECT id FROM reservations WHERE state IN ('pending', 'placed', 'binding', 'active')",
        ):
            self.client.release(row["id"])

    def with_world(self, act: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        """Do something to the database while no placer runs."""

        async def opened() -> None:
            database = open_database(self.system.url)
            world = World(database, load_state(self.system.state, DOMAIN).authority)
            world.pool_id = self.pool_id  # type: ignore[assignment]
            await act(world)
            await database.close()

        asyncio.run(opened())
