"""Races for devices, gangs, host amounts and quota: creates, and who takes room from them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bcd.model.device import Device, Health, HealthState
from bcd.model.errors import Reason
from bcd.model.pool import PoolPolicy
from bcd.model.reservation import OperationState, Reservation, State
from bcd.placer.api.maintenance import MaintenanceCalls
from bcd.placer.api.nodes import NodeCalls
from bcd.placer.api.offers import OfferCalls
from bcd.placer.api.pools import PoolCalls
from bcd.placer.capacity.hosts import HostsKeeper
from bcd.store import refusals
from bcd.wire.compute.v1 import admin_pb2, maintenance_pb2, offers_pb2
from tests.placer.races.arena import HOUR_MS, ROOT, Act, Arena, as_tenant, extend, release, work
from tests.placer.races.table import Race, two_nodes
from tests.placer.records import count
from tests.placer.world import BOB, World, dgx

GUEST = "guest"


def placed(answers: list[object]) -> list[Reservation]:
    """Those that got their devices."""
    made = [answer for answer in answers if isinstance(answer, Reservation)]
    return [one for one in made if one.state is State.PLACED]


async def same_devices(arena: Arena) -> None:
    """As many are placed as fit, and of one key never two."""
    each = arena.chance.choice((1, 2, 4))
    key = arena.key()
    answers = await arena.collide(
        *(arena.create(each) for _ in range(5)), *(arena.create(each, key=key) for _ in range(3))
    )
    assert len({one.id for one in answers}) == 6
    assert len({one.id for one in placed(answers)}) == min(6, 8 // each)


async def one_key_two_requests(arena: Arena) -> None:
    """The first request has the key; whoever asked for something else hears of the conflict."""
    key = arena.key()
    answers = await arena.collide(
        *(arena.create(1 + number % 2, key=key) for number in range(4)),
        arena.create(1, key=key, caller=BOB),
        refusals=[Reason.CONFLICT],
    )
    made = [one for one in answers[:4] if isinstance(one, Reservation)]
    assert len({one.id for one in made}) == 1
    assert len(made) == 2
    assert isinstance(answers[4], Reservation)


async def same_keys(arena: Arena) -> None:
    """Many keys, each asked for twice: every one of them is one reservation."""
    keys = [arena.key() for _ in range(8)]
    answers = await arena.collide(*(arena.create(key=key) for key in [*keys, *keys]))
    assert len({one.id for one in answers}) == len(keys)


async def gangs_crosswise(arena: Arena) -> None:
    """Gangs share nodes with each other and with singles: whole or not at all."""
    counts = [arena.chance.randint(1, 4) for _ in range(4)]
    answers = await arena.collide(
        *(arena.create(each, gang={"size": 2}) for each in counts),
        *(arena.create(arena.chance.randint(1, 4)) for _ in range(2)),
        arena.create(3, gang={"size": 3}),
    )
    assert placed(answers)
    assert answers[-1].state is State.PENDING


async def host_amounts(arena: Arena) -> None:
    """CPUs run out before GPUs do; an extend wants more of them too."""
    big = {"vcpu": 25, "memoryGiB": 10}
    first = await arena.made(resources=big)
    answers = await arena.collide(
        *(arena.create(resources=big) for _ in range(4)),
        arena.create(start=arena.clock.read() + HOUR_MS, resources={"vcpu": 62}),
        extend(first.id),
        refusals=[Reason.QUOTA_EXCEEDED],
    )
    assert len(placed(answers[:4])) == 3


async def with_amounts(arena: Arena) -> None:
    """Two nodes, and quota for CPUs and memory."""
    await two_nodes(arena)
    await arena.world.grant("vcpu", 10_000)
    await arena.world.grant("memoryGiB", 10_000)


async def tight_quota(arena: Arena) -> None:
    """A tenant's quota over two pools: never more than it grants, whoever comes first."""
    (other,) = await arena.world.rows("SELECT id FROM pools WHERE name = 'other'")
    mine = [await arena.made() for _ in range(2)]
    answers = await arena.collide(
        *(arena.create(2) for _ in range(3)),
        *(arena.create(2, poolId=other["id"]) for _ in range(3)),
        *(release(one.id) for one in mine),
        refusals=[Reason.QUOTA_EXCEEDED],
    )
    made = [one for one in answers if isinstance(one, Reservation)]
    assert 2 <= len(made) <= 3
    assert await arena.world.used() == 2 * len(made)


async def two_pools(arena: Arena) -> None:
    """Two pools with a node each, and a quota of six."""
    await arena.world.add_node(dgx("a", 8))
    await arena.world.add_node(dgx("b", 8), await arena.world.add_pool("other"))
    await arena.world.grant("gpu", 6)


async def spot_of_two_tenants(arena: Arena) -> None:
    """Each tenant displaces the other's spot reservations, in two pools at once."""
    (other,) = await arena.world.rows("SELECT id FROM pools WHERE name = 'other'")
    guest = as_tenant(GUEST)
    theirs: dict[str, Any] = {"caller": guest, "tenantId": GUEST}
    soon = arena.clock.read() + HOUR_MS
    for _ in range(8):
        await arena.made(poolId=other["id"], spot=True, start=soon)
        await arena.world.create(key=arena.key(), spot=True, start=soon, **theirs)
    answers = await arena.collide(
        *(arena.create(4, start=soon) for _ in range(2)),
        *(arena.create(4, poolId=other["id"], start=soon, **theirs) for _ in range(2)),
    )
    assert len(placed(answers)) == 4


async def two_offered_pools(arena: Arena) -> None:
    """Two pools, both of them also another tenant's."""
    await two_pools(arena)
    for tenant in (GUEST, "acme"):
        await arena.world.grant("gpu", 1000, tenant)
    calls = OfferCalls(arena.database)
    for row in await arena.world.rows("SELECT id FROM pools"):
        request = offers_pb2.SetOfferRequest(pool_id=row["id"], tenant_id=GUEST)
        await calls.set_offer(ROOT, request)


async def tenants_crosswise(arena: Arena) -> None:
    """Two tenants in two pools, charged for this and that: none waits for another's quota."""
    (other,) = await arena.world.rows("SELECT id FROM pools WHERE name = 'other'")
    whose: list[dict[str, Any]] = [{}, {"caller": as_tenant(GUEST), "tenantId": GUEST}]
    acts = [
        arena.create(poolId=pool_id, **asked, **tenant)
        for pool_id in (arena.world.pool_id, other["id"])
        for tenant in whose
        for asked in ({}, {"resources": {"vcpu": 8}}, {"spot": True}, {})
    ]
    arena.chance.shuffle(acts)
    assert len(placed(await arena.collide(*acts))) == len(acts)


async def with_quotas(arena: Arena) -> None:
    """Two offered pools, and quotas of all that is charged."""
    await two_offered_pools(arena)
    for tenant in (GUEST, "acme"):
        await arena.world.grant("vcpu", 1000, tenant)


def offer(limit: int | None) -> Act:
    """Offer so many GPUs to the guest; None takes the offer back."""

    async def act(world: World) -> None:
        calls = OfferCalls(world.database)
        if limit is None:
            await calls.withdraw_offer(
                ROOT, offers_pb2.WithdrawOfferRequest(pool_id=world.pool_id, tenant_id=GUEST)
            )
            return
        limits = [offers_pb2.OfferLimit(resource="gpu", limit=limit)]
        await calls.set_offer(
            ROOT,
            offers_pb2.SetOfferRequest(pool_id=world.pool_id, tenant_id=GUEST, limits=limits),
        )

    return act


async def offer_withdrawn(arena: Arena) -> None:
    """Nobody books under an offer that is gone, and all together no more than it grants."""
    await offer(4)(arena.world)
    guest: dict[str, Any] = {"caller": as_tenant(GUEST), "tenantId": GUEST}
    answers = await arena.collide(
        *(arena.create(1, **guest) for _ in range(6)),
        offer(None),
        offer(3),
        refusals=[Reason.NOT_FOUND, Reason.QUOTA_EXCEEDED],
    )
    made = [one for one in answers if isinstance(one, Reservation)]
    assert len(made) <= 4
    charged = "SELECT coalesce(sum(amount), 0) AS n FROM quota_charges WHERE in_quota = 0"
    assert await count(arena.database, charged) == len(made)


async def queued_and_inline(arena: Arena) -> None:
    """The pool's placer changes while requests run: each is placed once, by one of the two."""

    def placer(kind: str) -> Act:
        async def act(world: World) -> None:
            request = admin_pb2.UpdatePoolRequest(
                pool_id=world.pool_id, policy=admin_pb2.PoolPolicy(placer=kind)
            )
            await PoolCalls(world.database, world.signer).update_pool(ROOT, request)

        return act

    answers = await arena.collide(
        *(arena.create(arena.chance.choice((1, 2))) for _ in range(6)),
        placer("queued"), placer("inline"), work, work,
    )  # fmt: skip
    await arena.settle()
    for one in answers[:6]:
        found = await arena.view(one.id)
        assert found.operation is OperationState.SUCCEEDED
    await placer(arena.chance.choice(("queued", "inline")))(arena.world)


def share(mode: str, replicas: int = 4) -> Act:
    """Share the pool's GPUs so from now on."""

    async def act(world: World) -> None:
        sharing = admin_pb2.Sharing(mode=mode, replicas=replicas)
        request = admin_pb2.UpdatePoolRequest(
            pool_id=world.pool_id, policy=admin_pb2.PoolPolicy(sharing=sharing)
        )
        await PoolCalls(world.database, world.signer).update_pool(ROOT, request)
        await HostsKeeper(world.database).sync_pass()

    return act


async def slots_and_whole_gpus(arena: Arena) -> None:
    """A GPU is shared or whole; the pool stops sharing meanwhile, or cuts otherwise."""
    slots = [{"class": "gpu.slot", "count": arena.chance.choice((2, 4, 8))}]
    await arena.collide(
        *(arena.create(devices=slots) for _ in range(4)),
        arena.create(devices=slots, gang={"size": 2}),
        *(arena.create(arena.chance.choice((1, 2, 4))) for _ in range(3)),
        arena.chance.choice((share("none"), share("time-slice", 2), work)), work,
    )  # fmt: skip
    await share("time-slice")(arena.world)


async def with_slots(arena: Arena) -> None:
    """Two nodes whose GPUs may be had in quarters."""
    await two_nodes(arena)
    await arena.world.grant("gpu.slot", 1000)
    await share("time-slice")(arena.world)


async def maintenance_window(arena: Arena) -> None:
    """A node is kept free or booked, never both."""
    node = arena.nodes[0]

    async def keep_free(world: World) -> str:
        request = maintenance_pb2.AddMaintenanceRequest(node_id=node.id, duration_ms=HOUR_MS // 2)
        calls = MaintenanceCalls(world.database, world.signer)
        return (await calls.add(ROOT, request)).window.id

    answers = await arena.collide(
        *(arena.create(4) for _ in range(2)), arena.create(2, gang={"size": 2}),
        keep_free, keep_free, work,
        refusals=[Reason.CONFLICT],
    )  # fmt: skip
    windows = [one for one in answers[3:5] if isinstance(one, str)]
    assert len(windows) <= 1
    for window in windows:
        request = maintenance_pb2.RemoveMaintenanceRequest(id=window)
        calls = MaintenanceCalls(arena.database, arena.world.signer)
        await arena.collide(
            lambda _world, request=request, calls=calls: calls.remove(ROOT, request),  # type: ignore[misc]
            arena.create(4),
            work,
        )


async def cordon_and_drain(arena: Arena) -> None:
    """What comes finds room elsewhere or waits; what has not started moves away."""
    node = arena.nodes[0]
    soon = arena.clock.read() + HOUR_MS
    ahead = [await arena.made(2, start=soon) for _ in range(2)]

    async def cordon(world: World) -> None:
        request = admin_pb2.CordonNodeRequest(node_id=node.id, cordoned=True)
        await NodeCalls(world.database).cordon_node(ROOT, request)

    async def drain(world: World) -> None:
        await NodeCalls(world.database).drain_node(
            ROOT, admin_pb2.DrainNodeRequest(node_id=node.id)
        )

    await arena.collide(
        *(arena.create(2) for _ in range(3)), arena.create(1, gang={"size": 2}), cordon, drain, work
    )
    await arena.settle()
    late = await arena.made(1)
    assert {one.node_id for one in await arena.world.live(late.id)} <= {arena.nodes[1].id}
    for one in ahead:
        found = await arena.view(one.id)
        where = {held.node_id for held in await arena.world.live(one.id)}
        degraded = "Degraded" in {condition.type for condition in found.conditions}
        assert degraded == (node.id in where)
    back = admin_pb2.CordonNodeRequest(node_id=node.id, cordoned=False)
    await NodeCalls(arena.database).cordon_node(ROOT, back)


async def devices_that_change(arena: Arena) -> None:
    """A node's devices fail, vanish and come back while they are booked."""
    node = arena.nodes[0]
    whole = node.devices
    sick = replace(whole[0], health=Health(HealthState.UNHEALTHY, "x"))

    def shows(devices: Sequence[Device]) -> Act:
        async def act(world: World) -> None:
            await world.send_inventory(node, devices)

        return act

    ahead = await arena.made(2, start=arena.clock.read() + HOUR_MS)
    changes = [shows((sick, *whole[1:])), shows(whole[:3]), shows(whole)]
    await arena.collide(
        *(arena.create(2) for _ in range(3)), arena.create(4, gang={"size": 2}),
        arena.chance.choice(changes), extend(ahead.id), work,
    )  # fmt: skip
    await arena.settle()
    await shows(whole)(arena.world)
    await arena.settle()
    assert (await arena.view(ahead.id)).conditions == ()


async def drafts_swept(arena: Arena) -> None:
    """A draft that is a day old is swept while its key is used again."""
    keys = [arena.key() for _ in range(2)]
    await arena.world.grant("gpu", 0)
    await arena.collide(*(arena.create(key=key) for key in keys), refusals=[Reason.QUOTA_EXCEEDED])
    await arena.world.grant("gpu", 1000)
    before_ms = arena.clock.read() + 1

    async def sweep(world: World) -> None:
        await world.database.write(refusals.sweep_drafts, before_ms)

    made = await arena.collide(
        *(arena.create(key=key) for key in keys for _ in range(2)), sweep, sweep, sweep
    )
    assert {one.state for one in made[:4]} == {State.PLACED}
    assert len({one.id for one in made[:4]}) == 2


async def node_removed(arena: Arena) -> None:
    """Nothing is booked on a node that is gone, and none goes while something is booked there."""
    node = await arena.world.add_node(dgx(arena.key(), 4))

    async def remove(world: World) -> None:
        request = admin_pb2.RemoveNodeRequest(node_id=node.id)
        await NodeCalls(world.database).remove_node(ROOT, request)

    await arena.collide(
        *(arena.create(4) for _ in range(3)), remove, remove,
        refusals=[Reason.INVALID_STATE, Reason.NOT_FOUND],
    )  # fmt: skip
    await arena.clear()
    answers = await arena.collide(remove, work, refusals=[Reason.NOT_FOUND, Reason.INVALID_STATE])
    assert len(answers) == 2
    gone = "SELECT count(*) AS n FROM nodes WHERE id = :id AND removed_ms IS NULL"
    assert await count(arena.database, gone, id=node.id) == 0
    arena.world.nodes.remove(node)


async def pool_deleted(arena: Arena) -> None:
    """Nothing lives in a pool that is gone."""
    pool_id = await arena.world.add_pool(arena.key(), PoolPolicy())

    async def delete(world: World) -> None:
        calls = PoolCalls(world.database, world.signer)
        await calls.delete_pool(ROOT, admin_pb2.DeletePoolRequest(pool_id=pool_id))

    await arena.collide(
        *(arena.create(1, poolId=pool_id) for _ in range(3)), delete, work,
        refusals=[Reason.NOT_FOUND, Reason.INVALID_STATE],
    )  # fmt: skip
    alive = (
        "SELECT count(*) AS n FROM reservations r JOIN pools p ON p.id = r.pool_id"
        " WHERE p.deleted_ms IS NOT NULL AND r.state = 'pending'"
    )
    assert await count(arena.database, alive) == 0


RACES = (
    Race(same_devices),
    Race(one_key_two_requests),
    Race(same_keys),
    Race(gangs_crosswise),
    Race(host_amounts, with_amounts),
    Race(tight_quota, two_pools),
    Race(spot_of_two_tenants, two_offered_pools),
    Race(tenants_crosswise, with_quotas),
    Race(offer_withdrawn),
    Race(queued_and_inline),
    Race(slots_and_whole_gpus, with_slots),
    Race(maintenance_window),
    Race(cordon_and_drain),
    Race(devices_that_change),
    Race(drafts_swept),
    Race(node_removed),
    Race(pool_deleted),
)
