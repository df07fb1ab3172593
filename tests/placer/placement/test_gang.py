"""Gangs: distinct nodes at one instant, all or nothing, and together where labels tell."""

import asyncio
from dataclasses import replace

import pytest

from bcd.model.reservation import State
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.placement.booking import Placed, Placements
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.placement.machines import ask, demand
from tests.placer.placement.placing import HOUR_MS, Wish, by_node, placed, refused, reserve, stand
from tests.placer.placement.pools import Host, busy, pool
from tests.placer.placement.test_search import LONG, search
from tests.placer.records import Beside, assert_no_overlap, rows
from tests.placer.world import World, dgx


def gang_of(hosts: list[Host], size: int, gpus: int = 8) -> list[str] | None:
    result = search(pool(hosts), demand(ask(gpus), gang=size), *LONG)
    return None if result is None else [one.node_id for one in result]


def host(name: str, place: str = "", taken: int = 0) -> Host:
    """``place`` is a block and a rack."""
    block, _, rack = place.partition("/")
    return Host(name, dgx(name), busy(taken, 0, 500), block=block, rack=rack)


def test_a_gang_stands_in_one_rack_where_one_has_enough_nodes() -> None:
    hosts = [host("a", "x/1"), host("b", "x/2"), host("c", "y/3"), host("d", "x/2")]
    assert gang_of(hosts, 2) == ["b", "d"]


def test_then_in_one_block() -> None:
    hosts = [host("a", "x/1"), host("b", "y/2"), host("c", "y/3"), host("d", "x/2")]
    assert gang_of(hosts, 2) == ["a", "d"]
    assert gang_of([*hosts, host("e", "y/4")], 3) == ["b", "c", "e"]


def test_racks_of_the_same_name_in_two_blocks_are_two_racks() -> None:
    hosts = [host("a", "x/1"), host("b", "y/1"), host("c", "y/2")]
    assert gang_of(hosts, 2) == ["b", "c"]


def test_a_gang_that_fits_in_no_one_place_takes_the_best_nodes_there_are() -> None:
    hosts = [host("a", "x/1"), host("b", "y/2"), host("c"), host("d", "z/3", taken=1)]
    assert gang_of(hosts, 3) == ["a", "b", "c"]
    assert gang_of(hosts, 4) is None
    assert gang_of(hosts, 4, gpus=4) == ["a", "b", "c", "d"]


def test_of_the_places_that_have_enough_the_one_that_breaks_least_is_taken() -> None:
    hosts = [
        host("a", "x/1"), host("b", "x/1"),
        host("c", "y/2", taken=4), host("d", "y/2", taken=4),
    ]  # fmt: skip
    assert gang_of(hosts, 2, gpus=4) == ["c", "d"]
    assert gang_of(hosts, 2, gpus=8) == ["a", "b"]


async def test_a_gang_books_each_member_on_a_node_of_its_own(world: World) -> None:
    nodes = [await world.add_node(dgx(name, 4)) for name in "abc"]
    made = await world.create(3, gang={"size": 3})
    assert made.state is State.PLACED
    mine = await world.live(made.id)
    assert {a.node_id for a in mine} == {node.id for node in nodes}
    assert [a.node_id for a in mine] == sorted(a.node_id for a in mine)
    found = await rows(world.database, "SELECT DISTINCT node_id, start_ms, end_ms FROM bookings")
    assert len({(row["start_ms"], row["end_ms"]) for row in found}) == 1
    assert len(found) == 3
    (placed_event,) = [e for e in await world.events(made.id) if e.type.endswith("placed")]
    assert placed_event.data["nodeIds"] == [a.node_id for a in mine]
    await assert_no_overlap(world.database)


async def test_a_gang_runs_once_all_its_members_are_bound(world: World) -> None:
    nodes = [await world.add_node(dgx(name, 2)) for name in "ab"]
    made = await world.create(2, gang={"size": 2})
    await world.work()
    await world.bind(nodes[0])
    assert (await world.view(made.id)).state is State.BINDING
    await world.bind(nodes[1])
    view = await world.view(made.id)
    assert view.state is State.ACTIVE
    assert {b.node_id for b in view.bindings} == {node.id for node in nodes}


async def test_a_gang_that_lacks_one_node_books_nothing_and_waits_for_it(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    for name in "ab":
        await world.add_node(dgx(name, 2))
    single = await world.create(1, key="single", duration="30m")
    waiting = await world.create(2, key="gang", gang={"size": 2})
    assert waiting.state is State.PENDING
    message = waiting.conditions[0].message
    assert message.startswith("1 of 2 nodes fits, the gang needs 2: devices rejected 1")
    assert "it would fit from" in message
    assert len(await rows(world.database, "SELECT id FROM bookings")) == 1
    await world.end(single.id, Trigger.CANCELLED)
    await world.work()
    assert (await world.view(waiting.id)).state is State.BINDING
    assert len(await world.live(waiting.id)) == 2


async def test_a_member_that_was_taken_meanwhile_leaves_no_part_of_its_gang(
    world: World, database_url: str
) -> None:
    """Booked behind the placer's back: only the database knows."""
    for name in "abc":
        await world.add_node(dgx(name, 1))
    first, _ = await placed(world, start=100 * HOUR_MS)
    Beside(database_url).execute(
        "INSERT INTO bookings (allocation_id, reservation_id, node_id, atom_id, gpu_id, mode,"
        " start_ms, end_ms) SELECT b.allocation_id, b.reservation_id, a.node_id, a.id, a.gpu_id,"
        f" a.mode, 0, b.start_ms FROM bookings b, atoms a WHERE b.reservation_id = '{first}'"
        " AND a.uuid = 'GPU-b-0'"
    )
    assert (await refused(world, gang=3)).fitting == 2
    assert len(await rows(world.database, "SELECT id FROM bookings")) == 2
    assert len(await rows(world.database, "SELECT id FROM allocations")) == 1
    _, made = await placed(world, gang=2)
    assert set(by_node(made)) == {node.id for node in (world.nodes[0], world.nodes[2])}
    await assert_no_overlap(world.database)


@pytest.mark.parametrize("size", [1, 3])
async def test_racing_gangs_of_two_placers_use_every_device_once(
    world: World, size: int, rounds: Rounds
) -> None:
    """More than fit: exactly those that fit are placed, none in part."""
    nodes = [await world.add_node(dgx(f"{n}", 2)) for n in range(6)]
    other = replace(world, placements=Placements())
    for _ in range(rounds(2, 10)):
        made = await asyncio.gather(*(reserve(one, Wish(gang=size)) for one in [world, other] * 8))
        placed_ids = [rid for rid, outcome in made if isinstance(outcome, Placed)]
        assert len(placed_ids) == 2 * len(nodes) // size
        for rid in placed_ids:
            mine = await world.live(rid)
            assert len({a.node_id for a in mine}) == len(mine) == size
        await assert_no_overlap(world.database)
        for rid, _outcome in made:
            await world.end_if_live(rid)


async def test_members_stand_together_by_what_operators_say(world: World) -> None:
    nodes = [await world.add_node(dgx(name, 1)) for name in "abcd"]
    for node, rack in zip(nodes, ("r1", "r2", "r3", "r2"), strict=True):
        await stand(world, node, rack=rack, block="b")
    _, made = await placed(world, gang=2)
    assert set(by_node(made)) == {nodes[1].id, nodes[3].id}
