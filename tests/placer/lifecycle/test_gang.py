"""Gangs: handed over at once, active together, placed again as a whole (spec 2.4, 10.1)."""

import pytest

from bcd.model.report import Failed, Released
from bcd.model.reservation import Reservation, State
from bcd.placer.lifecycle.transitions import Trigger
from tests.clock import DatabaseClock
from tests.placer.records import assert_no_overlap, assert_quota_adds_up, count
from tests.placer.world import FakeNode, World, dgx

MINUTE_MS = 60_000


@pytest.fixture
async def hosts(world: World, clock: DatabaseClock) -> list[FakeNode]:
    """Three hosts of two GPUs."""
    clock.advance(0)
    return [await world.add_node(dgx(name, 2)) for name in ("a", "b", "c")]


async def gang(world: World, size: int = 2, **changes: object) -> Reservation:
    made = await world.create(2, gang={"size": size}, **changes)  # type: ignore[arg-type]
    await world.work()
    return await world.view(made.id)


async def members(world: World, made: Reservation, hosts: list[FakeNode]) -> list[FakeNode]:
    of = {allocation.node_id for allocation in await world.live(made.id)}
    return [host for host in hosts if host.id in of]


async def tell(world: World, host: FakeNode, outcome: Failed | Released) -> None:
    (allocation,) = await world.held(host)
    await world.send(host, host.seal(host.report(allocation, outcome)), allocation.id)
    await world.work()


async def test_a_gang_is_active_once_its_last_member_is_bound(
    world: World, hosts: list[FakeNode]
) -> None:
    made = await gang(world)
    one, other = await members(world, made, hosts)
    assert [len(await world.assigned(host)) for host in (one, other)] == [1, 1]
    await world.bind(one)
    assert (await world.view(made.id)).state is State.BINDING
    await world.bind(other)
    view = await world.view(made.id)
    assert (view.state, len(view.bindings)) == (State.ACTIVE, 2)
    assert await world.used() == 4
    assert await world.event_names(made.id) == ["placed", "binding", "active"]


async def test_a_failed_member_places_the_whole_again_under_new_allocations(
    world: World, hosts: list[FakeNode]
) -> None:
    made = await gang(world)
    first = {allocation.id for allocation in await world.live(made.id)}
    one, other = await members(world, made, hosts)
    await world.bind(one)
    await tell(world, other, Failed("device-busy"))
    second = await world.live(made.id)
    assert first.isdisjoint(a.id for a in second)
    assert len(second) == 2
    await world.bind(*hosts)
    assert (await world.view(made.id)).state is State.ACTIVE
    assert await world.used() == 4
    await assert_no_overlap(world.database)


async def test_a_lost_member_degrades_an_active_gang_and_moves_nothing(
    world: World, hosts: list[FakeNode]
) -> None:
    made = await gang(world)
    await world.bind(*hosts)
    before = await world.live(made.id)
    one, _ = await members(world, made, hosts)
    await tell(world, one, Released(slice_empty=True))
    view = await world.view(made.id)
    assert (view.state, [c.reason for c in view.conditions]) == (State.ACTIVE, ["BindingLost"])
    assert [a.id for a in await world.live(made.id)] == [a.id for a in before]
    await world.bind(one)
    assert (await world.view(made.id)).conditions == ()


async def test_a_gang_fits_whole_or_waits_whole(world: World, hosts: list[FakeNode]) -> None:
    waiting = await gang(world, 4)
    assert waiting.state is State.PENDING
    assert await count(world.database, "SELECT count(*) FROM bookings") == 0
    await world.add_node(dgx("d", 2))
    await world.work()
    assert len(await world.live(waiting.id)) == len(hosts) + 1


async def test_a_released_gang_leaves_every_node(world: World, hosts: list[FakeNode]) -> None:
    made = await gang(world, 3)
    await world.bind(*hosts)
    waiting = await gang(world, 3, key="waiting")
    await world.end(made.id, Trigger.RELEASED)
    await world.work()
    assert (await world.view(waiting.id)).state is State.BINDING
    left = {name for host in hosts for name in await world.assigned(host)}
    assert left == {allocation.id for allocation in await world.live(waiting.id)}
    await assert_quota_adds_up(world.database)
