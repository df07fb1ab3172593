"""Two callers who collide, and placers that can be ended and started anew under them."""

import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bcd.model.errors import Reason
from bcd.model.report import Failed
from bcd.placer.api.maintenance import MaintenanceCalls
from bcd.placer.pki.authority import Authority
from bcd.store.database import Database
from bcd.wire.compute.v1 import maintenance_pb2
from tests.clock import DatabaseClock
from tests.model_trace.recording import Fuse, FusedDatabase
from tests.placer.races.arena import (
    HOUR_MS,
    ROOT,
    Act,
    Arena,
    extend,
    judge,
    release,
    renew,
    work,
)
from tests.placer.world import FakeNode, World, dgx, new_authority

REFUSALS = (
    Reason.CONFLICT, Reason.INVALID_STATE, Reason.CONFIRMATION_REQUIRED, Reason.NOT_FOUND,
)  # fmt: skip

Pair = Callable[[Arena], Awaitable[tuple[Act, Act]]]


async def create_and_create(arena: Arena) -> tuple[Act, Act]:
    return arena.create(3, gang={"size": 2}), arena.create(2, gang={"size": 2})


async def create_and_extend(arena: Arena) -> tuple[Act, Act]:
    first = await arena.made(4)
    assert first.during is not None
    end_ms = first.during.end_ms
    return arena.create(4, gang={"size": 2}, start=end_ms), extend(
        first.id, until_ms=end_ms + HOUR_MS
    )


async def start_and_release(arena: Arena) -> tuple[Act, Act]:
    first = await arena.made(2, gang={"size": 2})
    return work, release(first.id)


async def bind_and_release(arena: Arena) -> tuple[Act, Act]:
    first = await arena.started(2, gang={"size": 2})
    for node in arena.nodes:
        await arena.reports(node)(arena.world)
    return judge, release(first.id)


async def replace_and_create(arena: Arena) -> tuple[Act, Act]:
    first = await arena.started(4)
    (held,) = await arena.world.live(first.id)
    node = next(node for node in arena.nodes if node.id == held.node_id)
    await arena.reports(node, Failed("resources-exhausted"))(arena.world)
    return judge, arena.create(4)


async def displace_and_extend(arena: Arena) -> tuple[Act, Act]:
    victim = await arena.active(4, spot=True, gang={"size": 2})
    assert victim.during is not None
    until_ms = victim.during.end_ms + HOUR_MS
    return arena.create(4), extend(victim.id, until_ms=until_ms)


async def move_up_and_create(arena: Arena) -> tuple[Act, Act]:
    first = await arena.made(4, gang={"size": 2})
    await arena.made(3)
    await arena.made(2, gang={"size": 2})
    await release(first.id)(arena.world)
    return work, arena.create(2)


async def lapse_and_renew(arena: Arena) -> tuple[Act, Act]:
    first = await arena.active(2, leaseSeconds=60, gang={"size": 2})
    await arena.later(HOUR_MS // 2)(arena.world)
    return work, renew(first.id)


async def maintenance_and_create(arena: Arena) -> tuple[Act, Act]:
    node = arena.nodes[0]

    async def keep_free(world: World) -> None:
        request = maintenance_pb2.AddMaintenanceRequest(node_id=node.id, duration_ms=HOUR_MS // 4)
        await MaintenanceCalls(world.database, world.signer).add(ROOT, request)

    return keep_free, arena.create(2, gang={"size": 2})


PAIRS: Sequence[Pair] = (
    create_and_create,
    create_and_extend,
    start_and_release,
    bind_and_release,
    replace_and_create,
    displace_and_extend,
    move_up_and_create,
    lapse_and_renew,
    maintenance_and_create,
)


@dataclass
class Site:
    """Where placers start and end."""

    url: str
    clock: DatabaseClock
    authority: Authority
    alone: bool = False
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    nodes: list[FakeNode] = field(default_factory=list)
    pool_id: Any = ""
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    @contextlib.asynccontextmanager
    async def running(self, fuse: Fuse) -> AsyncIterator[Arena]:
        """Two fresh placers; the fuse is the first one's, and the second's unless it is alone."""
        own = [self.clock.open()]
        if not self.url.startswith("sqlite:"):
            own.append(self.clock.open())
        fuses = (fuse, Fuse() if self.alone else fuse)
        databases: list[Database] = [
            FusedDatabase(own[at % len(own)], fuses[at]) for at in range(2)
        ]
        worlds = [World(one, self.authority, self.pool_id) for one in databases]
        worlds[0].nodes = self.nodes
        yield Arena(worlds, self.clock, self.url, self.chance, numbers=self.numbers)
        for database in own:
            await database.close()


async def new_site(url: str, clock: DatabaseClock, *, alone: bool = False) -> Site:
    """A control plane with two nodes of four GPUs, whose clock stands still."""
    clock.advance(0)
    made = Site(url, clock, new_authority(clock.read()), alone)
    async with made.running(Fuse()) as arena:
        made.pool_id = await arena.world.add_pool()
        await arena.world.grant("gpu", 1000)
        for name in "ab":
            await arena.world.add_node(dgx(name, 4))
    return made
