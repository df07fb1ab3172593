"""Whether a node is there, and what follows when it is not."""

from dataclasses import replace

import pytest

from bcd.model.reservation import State
from bcd.placer.capacity.reachability import (
    GRACE_MS,
    RESTART_GRACE_MS,
    ReachabilityKeeper,
    is_reachable,
)
from bcd.store import nodes, sessions
from bcd.store.sessions import Session
from tests.clock import DatabaseClock
from tests.placer.world import FakeNode, World, dgx

TTL_MS = 30_000
SEEN = 10_000_000
SESSION = Session(
    node_id="node_a",  # type: ignore[arg-type]
    epoch=1,
    gateway_id="gw",
    process_instance="p",
    daemon_version="0",
    connected=True,
    last_seen_ms=SEEN,
    ttl_ms=TTL_MS,
    acked_epoch=0,
    acked_generation=0,
    ack_status="",
)
GONE = SEEN + TTL_MS + GRACE_MS


def test_a_node_is_there_until_its_time_to_live_and_a_minute_have_passed() -> None:
    assert is_reachable(SESSION, 0, SEEN)
    assert is_reachable(SESSION, 0, GONE - 1)
    assert not is_reachable(SESSION, 0, GONE)
    assert not is_reachable(None, 0, SEEN)


def test_a_stream_that_ended_is_judged_by_its_last_sign_of_life_alone() -> None:
    ended = replace(SESSION, connected=False)
    assert is_reachable(ended, 0, GONE - 1)
    assert not is_reachable(ended, 0, GONE)


def test_after_a_gateways_start_nodes_have_five_minutes_to_come_back() -> None:
    started = SEEN + 5_000
    late = SEEN + TTL_MS + RESTART_GRACE_MS
    assert is_reachable(SESSION, started, started + RESTART_GRACE_MS - 1)
    assert not is_reachable(SESSION, started, started + RESTART_GRACE_MS)
    assert not is_reachable(SESSION, started, late)


@pytest.mark.parametrize("ago", [0, 1, 60_000, 200_000])
def test_a_gateways_start_brings_no_node_back_that_was_gone(ago: int) -> None:
    started = GONE + ago
    assert not is_reachable(SESSION, started, started)
    assert not is_reachable(SESSION, started, started + 1)


async def silence(world: World, clock: DatabaseClock, ms: int) -> None:
    clock.advance(ms)
    await ReachabilityKeeper(world.database).judge_pass()


async def reachable(world: World, node: FakeNode) -> bool:
    return (await world.database.read(nodes.get, node.id)).reachable


async def test_a_silent_node_takes_no_new_bookings_and_keeps_those_it_has(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    active = await world.active(node, count=4)
    await silence(world, clock, TTL_MS + GRACE_MS - 1)
    assert await reachable(world, node)
    await silence(world, clock, 1)
    assert not await reachable(world, node)
    await world.work()
    after = await world.view(active.id)
    assert (after.state, after.during) == (State.ACTIVE, active.during)
    assert [c.type for c in after.conditions] == ["NodeUnreachable"]
    assert after.bindings == active.bindings
    late = await world.create(1, key="late")
    assert "state rejected 1" in late.conditions[0].message


async def test_the_condition_has_one_time_while_the_node_is_away_and_goes_when_it_is_back(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    active = await world.active(node, count=4)
    await silence(world, clock, TTL_MS + GRACE_MS)
    await world.work()
    since = clock.read()
    for _ in range(2):
        clock.advance(16 * 60_000)
        await world.work()
        (condition,) = (await world.view(active.id)).conditions
        assert condition.last_transition_time == since
    before = (await world.view(active.id)).version
    waiting = await world.create(1, key="waiting")
    await world.connect(node)
    await world.work()
    after = await world.view(active.id)
    assert after.conditions == ()
    assert after.version == before + 1
    assert (await world.view(waiting.id)).state is State.BINDING
    assert await world.event_names(active.id) == ["placed", "binding", "active"]


async def test_a_heartbeat_of_the_newest_session_is_a_sign_of_life(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    for _ in range(5):
        await silence(world, clock, TTL_MS)
        assert not await world.database.write(sessions.touch_all, [(node.id, node.epoch)])
    await silence(world, clock, TTL_MS)
    assert await reachable(world, node)
    old = node.epoch
    await world.connect(node)
    clock.advance(TTL_MS + GRACE_MS)
    assert await world.database.write(sessions.touch_all, [(node.id, old)]) == [node.id]
    await silence(world, clock, 0)
    assert not await reachable(world, node)


async def test_a_restarted_gateway_raises_no_storm(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    found = [await world.add_node(dgx(name, 1)) for name in "abc"]
    clock.advance(10_000)
    await world.database.write(sessions.register_gateway, "gw")
    await silence(world, clock, TTL_MS + GRACE_MS + 60_000)
    assert [await reachable(world, node) for node in found] == [True, True, True]
    for node in found[:2]:
        await world.connect(node)
    await silence(world, clock, RESTART_GRACE_MS)
    for node in found[:2]:
        await world.connect(node)
    assert [await reachable(world, node) for node in found] == [True, True, False]


async def test_a_pass_without_changes_writes_nothing(world: World) -> None:
    await world.add_node(dgx("a"))
    before = await world.rows("SELECT change_seq FROM pools")
    await ReachabilityKeeper(world.database).judge_pass()
    assert await world.rows("SELECT change_seq FROM pools") == before
