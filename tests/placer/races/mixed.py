"""A race of everything at once: whoever may change a pool does so, on what others have left."""

from collections.abc import Callable, Sequence
from typing import Any

from bcd.model.errors import Reason
from bcd.model.report import Failed, Released
from bcd.placer.api.maintenance import MaintenanceCalls
from bcd.placer.api.nodes import NodeCalls
from bcd.wire.compute.v1 import admin_pb2, maintenance_pb2
from tests.placer.races.arena import (
    HOUR_MS,
    MINUTE_MS,
    ROOT,
    Act,
    Arena,
    cancel,
    extend,
    judge,
    publish,
    release,
    renew,
    work,
)
from tests.placer.races.booking import share, with_slots
from tests.placer.races.table import Race
from tests.placer.world import FakeNode, World

_AT_ONCE = 10
_REFUSALS = (Reason.CONFLICT, Reason.INVALID_STATE, Reason.INVALID_INPUT, Reason.QUOTA_EXCEEDED)


async def everything_at_once(arena: Arena) -> None:
    """Four waves, each on what the wave before has left; only the rules are looked at."""
    for _ in range(4):
        ids = [row["id"] for row in await arena.world.rows(_ALIVE)]
        acts = [_any(arena, ids) for _ in range(_AT_ONCE)]
        await arena.collide(*acts, refusals=_REFUSALS)
    for node in arena.nodes:
        await _cordon(node, False)(arena.world)
    await share("time-slice")(arena.world)


_ALIVE = (
    "SELECT id FROM reservations WHERE kind = 'reservation' AND state IN"
    " ('pending', 'placed', 'binding', 'active') ORDER BY seq"
)


def _any(arena: Arena, ids: Sequence[str]) -> Act:
    chance = arena.chance
    node = chance.choice(arena.nodes)
    kinds: list[Callable[[], Act]] = [
        lambda: _create(arena),
        lambda: _create(arena),
        lambda: _create(arena),
        lambda: work,
        lambda: judge,
        lambda: chance.choice((publish, arena.later(chance.choice((1, 2, 61)) * MINUTE_MS))),
        lambda: arena.reports(node, chance.choice((None, None, None, Failed("x"), _GONE))),
        lambda: _administer(arena, node),
    ]
    if ids:
        one = chance.choice(ids)
        kinds += [lambda: extend(one), lambda: release(one), lambda: cancel(one)]
        kinds += [lambda: renew(one), lambda: extend(one, chance.randint(1, HOUR_MS))]
    return chance.choice(kinds)()


_GONE = Released(slice_empty=True)


def _create(arena: Arena) -> Act:
    chance = arena.chance
    changes: dict[str, Any] = {"duration": f"{chance.randint(1, 90)}m"}
    if chance.random() < 0.3:
        changes["devices"] = [{"class": "gpu.slot", "count": chance.randint(1, 8)}]
    if chance.random() < 0.3:
        changes["gang"] = {"size": 2}
    if chance.random() < 0.3:
        changes["start"] = arena.clock.read() + chance.randint(1, 90) * MINUTE_MS
    if chance.random() < 0.2:
        changes["leaseSeconds"] = 90
    return arena.create(chance.randint(1, 4), spot=chance.random() < 0.4, **changes)


def _administer(arena: Arena, node: FakeNode) -> Act:
    async def drain(world: World) -> None:
        request = admin_pb2.DrainNodeRequest(node_id=node.id)
        await NodeCalls(world.database).drain_node(ROOT, request)

    async def keep_free(world: World) -> None:
        request = maintenance_pb2.AddMaintenanceRequest(
            node_id=node.id, start=arena.clock.read() + HOUR_MS, duration_ms=10 * MINUTE_MS
        )
        await MaintenanceCalls(world.database, world.signer).add(ROOT, request)

    choices = (drain, keep_free, _cordon(node, True), _cordon(node, False), share("none"))
    return arena.chance.choice(choices)


def _cordon(node: FakeNode, cordoned: bool) -> Act:
    async def act(world: World) -> None:
        request = admin_pb2.CordonNodeRequest(node_id=node.id, cordoned=cordoned)
        await NodeCalls(world.database).cordon_node(ROOT, request)

    return act


RACES = (Race(everything_at_once, with_slots),)
