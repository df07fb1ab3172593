"""Renewable leases: they run from placement on and end what nobody renews (spec 14.1)."""

import pytest

from bcd.model.errors import InvalidState
from bcd.model.ids import ReservationId
from bcd.model.report import Failed
from bcd.model.reservation import State
from bcd.placer.lifecycle.transitions import Trigger
from tests.clock import DatabaseClock
from tests.placer.records import assert_quota_adds_up
from tests.placer.world import FakeNode, World, dgx

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
LEASE_S = 600
LEASE_MS = LEASE_S * 1000


async def leased(
    world: World, *all_nodes: FakeNode, state: State, clock: DatabaseClock
) -> ReservationId:
    start = clock.read() + (HOUR_MS if state is State.PLACED else 0)
    made = await world.create(1, leaseSeconds=LEASE_S, start=start)
    await world.work()
    if state is State.ACTIVE:
        await world.bind(*all_nodes)
    assert (await world.view(made.id)).state is state
    return made.id


LIVE = (State.PLACED, State.BINDING, State.ACTIVE)


@pytest.mark.parametrize("state", LIVE)
async def test_a_lease_that_nobody_renews_releases_what_it_covers(
    world: World, clock: DatabaseClock, state: State
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    made = await leased(world, node, state=state, clock=clock)
    view = await world.view(made)
    assert view.lease_until_ms == clock.read() + LEASE_MS
    clock.advance(LEASE_MS - 1)
    if state is not State.BINDING:  # its bind deadline comes first
        await world.work()
        assert (await world.view(made)).state is state
    clock.advance(1)
    await world.work()
    view = await world.view(made)
    assert (view.state, view.lease_until_ms) == (State.RELEASED, None)
    last = (await world.events(made))[-1]
    assert (last.type, last.data["reason"]) == ("reservation.released", "lease-lapsed")
    assert await world.assigned(node) == []
    assert await world.used() == 0


@pytest.mark.parametrize("state", LIVE)
async def test_a_renewal_moves_the_lease_and_never_the_window(
    world: World, clock: DatabaseClock, state: State
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    made = await leased(world, node, state=state, clock=clock)
    before = await world.view(made)
    clock.advance(MINUTE_MS)
    renewed = await world.renew(made)
    assert renewed.lease_until_ms == clock.read() + LEASE_MS
    assert (renewed.during, renewed.state) == (before.during, state)
    assert renewed.version == before.version + 1


async def test_a_lease_that_is_renewed_in_time_carries_to_the_end_of_the_window(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    made = await leased(world, node, state=State.ACTIVE, clock=clock)
    for _ in range(6):
        await world.renew(made)
        clock.advance(LEASE_MS - MINUTE_MS)
        await world.connect(node)
        await world.work()
        assert (await world.view(made)).state is State.ACTIVE
    await world.renew(made)
    clock.advance(6 * MINUTE_MS)
    await world.work()
    assert (await world.events(made))[-1].data["reason"] == "expired"


async def test_without_a_lease_there_is_nothing_to_renew(world: World) -> None:
    node = await world.add_node(dgx("a", 1))
    made = await world.active(node)
    assert made.lease_until_ms is None
    with pytest.raises(InvalidState, match="leaseSeconds"):
        await world.renew(made.id)


async def test_neither_a_pending_nor_an_ended_one_is_renewed(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    made = await world.create(1, leaseSeconds=LEASE_S)
    assert (made.state, made.lease_until_ms) == (State.PENDING, None)
    with pytest.raises(InvalidState, match="pending"):
        await world.renew(made.id)
    await world.end(made.id, Trigger.CANCELLED)
    with pytest.raises(InvalidState, match="cancelled"):
        await world.renew(made.id)


async def test_a_lease_that_has_run_out_is_not_renewed_before_the_worker_comes(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    made = await leased(world, node, state=State.ACTIVE, clock=clock)
    clock.advance(LEASE_MS)
    with pytest.raises(InvalidState, match="is over"):
        await world.renew(made)


async def test_a_lease_begins_with_the_placement_and_not_while_pending(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    made = await world.create(1, leaseSeconds=LEASE_S)
    clock.advance(2 * LEASE_MS)
    await world.work()
    await world.add_node(dgx("a", 1))
    await world.work()
    assert (await world.view(made.id)).lease_until_ms == clock.read() + LEASE_MS


async def test_another_placement_is_no_renewal_and_one_behind_pending_starts_anew(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    made = await leased(world, node, state=State.BINDING, clock=clock)
    first = (await world.view(made)).lease_until_ms
    clock.advance(MINUTE_MS)
    (allocation,) = await world.live(made)
    failed = node.seal(node.report(allocation, Failed("device-busy")))
    await world.send(node, failed, allocation.id)
    await world.work()
    again = await world.view(made)
    assert (again.state, again.lease_until_ms) == (State.BINDING, first)
    await world.send_inventory(node, ())
    (allocation,) = await world.live(made)
    failed = node.seal(node.report(allocation, Failed("device-busy")))
    await world.send(node, failed, allocation.id)
    await world.work()
    waiting = await world.view(made)
    assert (waiting.state, waiting.lease_until_ms) == (State.PENDING, None)
    await assert_quota_adds_up(world.database)
