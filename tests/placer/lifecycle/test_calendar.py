"""Windows that begin later: booked now, started on time, repaired before (spec 9.2, 14.1)."""

from dataclasses import replace

import pytest

from bcd.model.device import Health, HealthState
from bcd.model.errors import InvalidInput
from bcd.model.pool import PoolPolicy
from bcd.model.reservation import State
from bcd.placer.lifecycle.transitions import RECHECK_MS, REPAIR_AHEAD_MS, REPAIR_RETRY_MS, Trigger
from bcd.store import nodes, work
from bcd.store.database import Transaction
from tests.clock import DatabaseClock
from tests.placer.records import assert_no_overlap, assert_quota_adds_up, count
from tests.placer.world import FakeNode, World, dgx

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


async def due_ms(world: World, key: str) -> int:
    (row,) = await world.rows("SELECT wake_ms FROM work WHERE key = :key", key=key)
    return int(row["wake_ms"])


async def lose_a_device(world: World, node: FakeNode, uuid: str) -> None:
    sick = Health(HealthState.UNHEALTHY, "Xid 79")
    await world.send_inventory(
        node, [replace(d, health=sick) if d.id == uuid else d for d in node.devices]
    )


async def test_a_window_ahead_is_booked_now_and_starts_with_its_start(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    start = clock.read() + DAY_MS
    made = await world.create(4, start=start)
    assert (made.state, made.during) == (State.PLACED, made.during)
    assert made.during is not None
    assert (made.during.start_ms, made.during.end_ms) == (start, start + HOUR_MS)
    await world.work()
    assert await due_ms(world, made.id) == start - REPAIR_AHEAD_MS
    clock.set(start - REPAIR_AHEAD_MS)
    await world.work()
    assert (await due_ms(world, made.id), await world.assigned(node)) == (start, [])
    clock.set(start - 1)
    await world.work()
    assert (await world.view(made.id)).state is State.PLACED
    clock.set(start)
    await world.work()
    assert (await world.view(made.id)).state is State.BINDING
    await world.bind(node)
    assert (await world.view(made.id)).state is State.ACTIVE
    clock.set(start + HOUR_MS)
    await world.work()
    assert await world.event_names(made.id) == ["placed", "binding", "active", "released"]
    assert await world.used() == 0


async def test_windows_that_do_not_meet_share_a_device(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    await world.add_node(dgx("a", 1))
    now = clock.read()
    for place in (3, 0, 1, 2):
        made = await world.create(1, key=f"{place}", start=now + place * HOUR_MS)
        assert made.state is State.PLACED
    assert (await world.create(1, key="none", start=now + HOUR_MS)).state is State.PENDING
    await assert_no_overlap(world.database)


async def test_turnaround_keeps_two_windows_apart(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    pool = await world.add_pool("gapped", PoolPolicy(turnaround_ms=10 * MINUTE_MS))
    await world.add_node(dgx("a", 1), pool)
    start = clock.read() + DAY_MS
    await world.create(1, key="first", poolId=pool, start=start)
    states = []
    for minutes in (0, 9, 10):
        at = start + HOUR_MS + minutes * MINUTE_MS
        made = await world.create(1, key=f"{minutes}", poolId=pool, start=at)
        states.append(made.state)
        if made.state is State.PENDING:  # else the next would have to leave it its place
            await world.end(made.id, Trigger.CANCELLED)
    assert states == [State.PENDING, State.PENDING, State.PLACED]


async def test_a_start_just_past_means_now(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await world.create(1, start=clock.read() - 5 * MINUTE_MS)
    assert made.during is not None
    assert (made.during.start_ms, made.during.end_ms) == (clock.read(), clock.read() + HOUR_MS)


@pytest.mark.parametrize("offset", [-5 * MINUTE_MS - 1, 4000 * DAY_MS])
async def test_a_start_out_of_reach_leaves_no_draft(
    world: World, clock: DatabaseClock, offset: int
) -> None:
    clock.advance(0)
    with pytest.raises(InvalidInput, match="start"):
        await world.create(1, start=clock.read() + offset)
    assert await count(world.database, "SELECT count(*) FROM reservations") == 0


async def test_a_pending_one_keeps_its_start_while_that_is_ahead_and_then_its_duration(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    start = clock.read() + HOUR_MS
    early = await world.create(1, key="early", start=start)
    late = await world.create(1, key="late", start=start)
    assert {early.state, late.state} == {State.PENDING}
    await world.add_node(dgx("a", 1))
    await world.work()
    placed = await world.view(early.id)
    assert placed.during is not None
    assert (placed.state, placed.during.start_ms) == (State.PLACED, start)
    clock.set(start + 10 * MINUTE_MS)
    await world.add_node(dgx("b", 1))
    await world.work()
    begun = await world.view(late.id)
    assert begun.during is not None
    assert begun.during.start_ms == clock.read()
    assert begun.during.end_ms == clock.read() + HOUR_MS


@pytest.mark.parametrize(
    ("trigger", "state"),
    [(Trigger.RELEASED, State.RELEASED), (Trigger.CANCELLED, State.CANCELLED)],
)
async def test_what_is_given_up_before_its_start_leaves_nothing_and_wakes_who_waits(
    world: World, clock: DatabaseClock, trigger: Trigger, state: State
) -> None:
    """Spec 14.4: future bookings are deleted, the charge is refunded once."""
    clock.advance(0)
    await world.add_node(dgx("a", 1))
    start = clock.read() + DAY_MS
    made = await world.create(1, start=start)
    waiting = await world.create(1, key="waiting", start=start)
    assert waiting.state is State.PENDING
    assert (await world.end(made.id, trigger)).state is state
    assert await count(world.database, "SELECT count(*) FROM bookings") == 0
    await world.work()
    assert (await world.view(waiting.id)).state is State.PLACED
    await assert_quota_adds_up(world.database)


# Repair


async def test_a_device_that_fails_before_the_start_is_replaced_for_the_same_window(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    first = await world.add_node(dgx("a", 2))
    made = await world.create(1, start=clock.read() + DAY_MS)
    second = await world.add_node(dgx("b", 2))
    (before,) = await world.live(made.id)
    await lose_a_device(world, first, before.devices[0].id)
    await world.work()
    assert [a.id for a in await world.live(made.id)] == [before.id]
    (condition,) = (await world.view(made.id)).conditions
    assert (condition.type, condition.reason) == ("Degraded", "CannotServeNow")
    clock.advance(RECHECK_MS)
    await world.work()
    (after,) = await world.live(made.id)
    assert (after.node_id, after.id != before.id) == (second.id, True)
    view = await world.view(made.id)
    assert (view.state, view.during, view.conditions) == (State.PLACED, made.during, ())
    repaired = (await world.events(made.id))[-1]
    assert repaired.type == "reservation.repaired"
    assert repaired.data["nodeIds"] == [second.id]
    clock.set(clock.read() + DAY_MS)
    await world.work()
    await world.bind(first, second)
    assert (await world.view(made.id)).state is State.ACTIVE


@pytest.mark.parametrize("blip", ["no devices", "a sick device", "no heartbeat"])
async def test_what_passes_by_itself_moves_nothing(
    world: World, clock: DatabaseClock, blip: str
) -> None:
    """A restart of what counts the GPUs shows none for a moment."""
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    made = await world.create(1, start=clock.read() + DAY_MS)
    await world.add_node(dgx("b", 1))
    before = await world.live(made.id)
    for _ in range(3):
        match blip:
            case "no devices":
                await world.send_inventory(node, ())
            case "a sick device":
                await lose_a_device(world, node, "GPU-a-0")
            case _:
                clock.advance(10 * MINUTE_MS)
                await world.judge_reachability(node)
        await world.work()
        assert [c.reason for c in (await world.view(made.id)).conditions] == ["CannotServeNow"]
        clock.advance(RECHECK_MS - 1)
        await world.connect(node)
        await world.send_inventory(node, dgx("a", 1))
        await world.work()
        assert (await world.view(made.id)).conditions == ()
    assert await world.live(made.id) == before
    assert await world.event_names(made.id) == ["placed"]


async def test_a_cordon_moves_nothing_that_is_booked(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    await world.add_node(dgx("b", 1))
    made = await world.create(1, start=clock.read() + HOUR_MS)
    (before,) = await world.live(made.id)

    def cordon(tx: Transaction) -> None:
        for one in world.nodes:
            nodes.set_cordoned(tx, one.id, True)
        work.poke(tx, made.id, tx.now_ms())

    await world.database.write(cordon)
    await world.work()
    assert [a.id for a in await world.live(made.id)] == [before.id]
    clock.advance(HOUR_MS)
    await world.work()
    assert await world.assigned(node if before.node_id == node.id else world.nodes[1])


async def test_what_has_not_started_moves_away_from_a_drained_node(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    first = await world.add_node(dgx("a", 1))
    made = await world.create(1, start=clock.read() + HOUR_MS)
    second = await world.add_node(dgx("b", 1))

    def drain(tx: Transaction) -> None:
        nodes.drain(tx, first.id)
        work.poke(tx, made.id, tx.now_ms())

    await world.database.write(drain)
    await world.work()
    assert [a.node_id for a in await world.live(made.id)] == [second.id]
    assert await world.event_names(made.id) == ["placed", "repaired"]


async def test_only_the_lost_member_of_a_gang_moves(world: World, clock: DatabaseClock) -> None:
    """What is well keeps its devices and its allocation (spec 9.2)."""
    clock.advance(0)
    for name in ("a", "b", "c"):
        await world.add_node(dgx(name, 2))
    made = await world.create(2, gang={"size": 2}, start=clock.read() + HOUR_MS)
    before = {a.node_id: a.id for a in await world.live(made.id)}
    lost = next(node for node in world.nodes if node.id in before)
    await lose_a_device(world, lost, lost.devices[0].id)
    await world.work()
    clock.advance(RECHECK_MS)
    await world.work()
    after = {a.node_id: a.id for a in await world.live(made.id)}
    (kept,) = before.keys() - {lost.id}
    assert after[kept] == before[kept]
    assert len(after) == 2
    assert lost.id not in after
    clock.advance(HOUR_MS - RECHECK_MS)
    await world.work()
    await world.bind(*world.nodes)
    view = await world.view(made.id)
    assert (view.state, len(view.bindings)) == (State.ACTIVE, 2)


async def test_what_cannot_be_repaired_stays_degraded_and_is_tried_until_its_start(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    start = clock.read() + HOUR_MS
    made = await world.create(1, start=start)
    clock.set(start - REPAIR_AHEAD_MS - MINUTE_MS)
    await lose_a_device(world, node, "GPU-a-0")
    await world.work()
    view = await world.view(made.id)
    (condition,) = view.conditions
    assert (view.state, condition.type) == (State.PLACED, "Degraded")
    assert "Xid 79" in condition.message
    for late_ms in (0, REPAIR_RETRY_MS):
        clock.set(start - REPAIR_AHEAD_MS + late_ms)
        await world.work()
        (condition,) = (await world.view(made.id)).conditions
        assert condition.reason == "RepairFoundNothing"
        assert (await world.view(made.id)).version == view.version + 1
    assert await due_ms(world, made.id) == clock.read() + REPAIR_RETRY_MS
    other = await world.add_node(dgx("b", 1))
    clock.advance(REPAIR_RETRY_MS)
    await world.work()
    (after,) = await world.live(made.id)
    assert (after.node_id, (await world.view(made.id)).conditions) == (other.id, ())
    assert await world.event_names(made.id) == ["placed", "repaired"]


async def test_a_device_that_comes_back_needs_no_repair(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    healthy = node.devices
    made = await world.create(1, start=clock.read() + HOUR_MS)
    await lose_a_device(world, node, "GPU-a-0")
    await world.work()
    assert (await world.view(made.id)).conditions
    await world.send_inventory(node, healthy)
    await world.work()
    assert (await world.view(made.id)).conditions == ()
    assert await world.event_names(made.id) == ["placed"]


async def test_a_lost_node_at_the_start_ends_in_the_bind_timeout_and_another_placement(
    world: World, clock: DatabaseClock
) -> None:
    """Spec 10.1: what could not be repaired starts, and is placed again when nobody binds it."""
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    start = clock.read() + HOUR_MS
    made = await world.create(1, start=start)
    clock.set(start - MINUTE_MS)
    await world.judge_reachability(node)
    await world.work()
    assert [c.type for c in (await world.view(made.id)).conditions] == ["Degraded"]
    clock.set(start)
    await world.work()
    assert (await world.view(made.id)).state is State.BINDING
    other = await world.add_node(dgx("b", 1))
    clock.set(start + 5 * MINUTE_MS)
    await world.connect(other)
    await world.work()
    (after,) = await world.live(made.id)
    assert after.node_id == other.id
    again = await world.view(made.id)
    assert again.during is not None
    assert again.during.end_ms - again.during.start_ms == HOUR_MS
