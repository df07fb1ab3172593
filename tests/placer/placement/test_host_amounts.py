"""Host resources are booked with the devices, both or neither, and only where they are enforced."""

import random
from typing import Any

import pytest

from bcd.model.reservation import Resources
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.placement.booking import Placed, Placements
from bcd.store.database import Transaction
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.placement.machines import ask
from tests.placer.placement.placing import (
    HOUR_MS,
    Wish,
    by_node,
    give_capacity,
    learn,
    placed,
    refused,
    reserve,
)
from tests.placer.records import assert_hosts_hold, assert_no_overlap, rows
from tests.placer.world import FakeNode, World, dgx

FOUR = Resources(vcpu=4, memory_gib=16)
WRITTEN = ("allocations", "bookings", "host_bookings", "pool_changes")


async def add_host(world: World, name: str, vcpu: int = 8, gpus: int = 4) -> FakeNode:
    """A node whose daemon enforces limits."""
    node = await world.add_node(dgx(name, gpus))
    await learn(world, node, "devices.limits")
    await give_capacity(world, node, vcpu)
    return node


async def test_devices_and_amounts_are_booked_for_the_same_range(world: World) -> None:
    node = await add_host(world, "a")
    _, (allocation,) = await placed(world, resources=FOUR)
    (amount,) = await rows(world.database, "SELECT * FROM host_bookings")
    (device,) = await rows(world.database, "SELECT * FROM bookings")
    assert amount["node_id"] == allocation.node_id == node.id
    for column in ("allocation_id", "reservation_id", "start_ms", "end_ms"):
        assert amount[column] == device[column]
    assert (amount["vcpu"], amount["memory_gib"], amount["hugepages_1gi"]) == (4, 16, 0)


async def test_what_books_no_amounts_needs_no_capability_and_no_capacity(world: World) -> None:
    """Spec 6.4: a plain hold places on older daemons."""
    await learn(world, await world.add_node(dgx("a")))
    await placed(world)
    assert await rows(world.database, "SELECT id FROM host_bookings") == []


async def test_a_host_without_cpus_left_is_no_fit_though_devices_are_free(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await add_host(world, "a")
    first, _ = await placed(world, resources=FOUR)
    await placed(world, resources=FOUR)
    outcome = await refused(world, resources=FOUR)
    assert outcome.rejected == {"resources": 1}
    assert "resources rejected 1 (the closest has 0 of 4 vcpu)" in outcome.sentence
    (row,) = await rows(
        world.database, f"SELECT end_ms FROM bookings WHERE reservation_id = '{first}'"
    )
    assert outcome.earliest_ms == row["end_ms"]
    await placed(world, resources=FOUR, start=HOUR_MS)
    await placed(world)
    await assert_hosts_hold(world.database)


async def test_a_release_frees_the_amounts_with_the_devices(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await add_host(world, "a")
    made, _ = await placed(world, resources=Resources(vcpu=8))
    assert (await refused(world, resources=FOUR)).rejected == {"resources": 1}
    await world.end(made, Trigger.CANCELLED)
    assert await rows(world.database, "SELECT id FROM host_bookings") == []
    await placed(world, resources=Resources(vcpu=8))


async def test_only_a_daemon_that_enforces_limits_gets_amounts(world: World) -> None:
    old = await world.add_node(dgx("old"))
    await learn(world, old)
    await give_capacity(world, old, 64)
    new = await add_host(world, "new", gpus=1)
    _, made = await placed(world, resources=FOUR)
    assert set(by_node(made)) == {new.id}
    outcome = await refused(world, resources=FOUR)
    assert "labels rejected 1 (needs label bc.dev/cap.devices.limits=*)" in outcome.sentence


async def test_an_operators_label_of_the_same_name_does_not_count(world: World) -> None:
    node = await world.add_node(dgx("a"))
    await learn(world, node)
    await give_capacity(world, node, 64)

    def label(tx: Transaction) -> None:
        tx.run(
            "INSERT INTO node_labels (node_id, key, value, source)"
            " VALUES (:id, 'bc.dev/cap.devices.limits', '1', 'operator')",
            id=node.id,
        )

    await world.database.write(label)
    assert (await refused(world, resources=FOUR)).rejected == {"labels": 1}


async def test_a_daemon_that_was_downgraded_since_is_not_booked(world: World) -> None:
    """Its gateway writes the label without the pool's lock, and nothing tells of it."""
    one, two = [await add_host(world, name) for name in "ab"]
    _, made = await placed(world, resources=FOUR)
    used = next(node for node in (one, two) if node.id in by_node(made))
    other = one if used is two else two
    await learn(world, used)
    _, made = await placed(world, resources=FOUR)
    assert set(by_node(made)) == {other.id}
    await learn(world, other)
    assert (await refused(world, resources=FOUR)).rejected == {"labels": 2}


async def test_a_daemon_that_was_upgraded_since_is_booked(world: World) -> None:
    node = await world.add_node(dgx("a"))
    await learn(world, node)
    await give_capacity(world, node, 64)
    for _ in range(2):
        assert (await refused(world, resources=FOUR)).rejected == {"labels": 1}
    await learn(world, node, "devices.limits")
    await placed(world, resources=FOUR)


async def test_every_member_of_a_gang_books_its_own_host(world: World) -> None:
    nodes = [await add_host(world, name) for name in "abc"]
    await placed(world, resources=Resources(vcpu=6))
    assert (await refused(world, gang=3, resources=FOUR)).fitting == 2
    _, made = await placed(world, gang=2, resources=Resources(vcpu=8))
    found = await rows(world.database, "SELECT node_id, vcpu FROM host_bookings WHERE vcpu = 8")
    assert {row["node_id"] for row in found} == {a.node_id for a in made}
    assert len(nodes) == 3
    await assert_hosts_hold(world.database)


async def test_amounts_taken_behind_the_placers_back_undo_the_devices_too(world: World) -> None:
    """The view believes in more CPUs than there are: the guarded statement has the last word."""
    node = await add_host(world, "a")
    await placed(world, start=100 * HOUR_MS, resources=FOUR)

    def shrink(tx: Transaction) -> None:
        tx.run("UPDATE host_capacity SET vcpu = 4 WHERE node_id = :id", id=node.id)

    await world.database.write(shrink)
    outcome = await refused(world, resources=Resources(vcpu=5))
    assert outcome.nearest == {"resources": "the closest has 4 of 5 vcpu"}
    assert len(await rows(world.database, "SELECT id FROM bookings")) == 1
    assert len(await rows(world.database, "SELECT id FROM allocations")) == 1


@pytest.mark.parametrize("seed", range(2))
async def test_random_reservations_never_overbook_a_host(
    world: World, clock: DatabaseClock, seed: int, rounds: Rounds
) -> None:
    """Gangs, future starts and releases; a second placer sees what the first one does."""
    clock.advance(0)
    await world.grant("gpu", 100_000)
    chance = random.Random(seed)
    for name in "abc":
        await add_host(world, name, vcpu=chance.choice([6, 8, 12]))
    made = []
    refusals = 0
    for _ in range(rounds(40, 400)):
        wish = random_wish(chance)
        reservation_id, outcome = await reserve(world, wish)
        if isinstance(outcome, Placed):
            made.append(reservation_id)
        else:
            refusals += 1
        if chance.random() < 0.2 and made:
            await world.end_if_live(made.pop(chance.randrange(len(made))))
        if chance.random() < 0.2:
            world.placements = Placements()
            clock.advance(chance.randrange(0, HOUR_MS))
    assert refusals
    await assert_hosts_hold(world.database)
    await assert_no_overlap(world.database)


def random_wish(chance: random.Random) -> Wish:
    choices: dict[str, Any] = {
        "devices": (ask(chance.randint(1, 3)),),
        "gang": chance.choice([1, 1, 2]),
        "resources": Resources(vcpu=chance.choice([0, 2, 5]), memory_gib=chance.choice([0, 8])),
        "start": chance.choice([None, chance.randrange(0, 10 * HOUR_MS)]),
        "duration_ms": chance.randrange(1, 4 * HOUR_MS),
    }
    return Wish(**choices)


async def test_what_the_database_refuses_half_way_leaves_no_row(world: World) -> None:
    """Of a gang's second host it knows that it can give nothing, which the view does not."""
    first, second = [await add_host(world, name) for name in "ab"]
    await world.end((await placed(world, resources=FOUR))[0], Trigger.CANCELLED)
    before = [await rows(world.database, f"SELECT * FROM {table}") for table in WRITTEN]
    statement = "UPDATE host_capacity SET vcpu = 0 WHERE node_id = :id"
    await world.database.write(lambda tx: tx.run(statement, id=max(first.id, second.id)))
    outcome = await refused(world, gang=2, resources=FOUR)
    assert outcome.rejected == {"resources": 1}
    assert [await rows(world.database, f"SELECT * FROM {table}") for table in WRITTEN] == before
