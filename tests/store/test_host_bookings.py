"""Amounts of a host are never booked beyond what it has, and are refused only where they would be.

Sums are no rule of the database, so the guarded statement is compared with a sweep over every
instant (spec 6.3).
"""

import random
from dataclasses import replace

import pytest

from bcd.model.ids import ReservationId
from bcd.model.reservation import Resources
from bcd.store import allocations, bookings, hosts
from bcd.store.allocations import AllocationState
from bcd.store.bookings import NewBooking
from bcd.store.database import Database, Transaction
from bcd.store.hosts import HostCapacity, HostInterval, NewHostBooking
from tests.conftest import Rounds
from tests.store.world import World, make_allocation, make_booking, make_draft, make_world

CAPACITY = HostCapacity(vcpu=16, memory_gib=64, hugepages_2mi=0, hugepages_1gi=4, gpus=8)
Taken = tuple[int, int, Resources]


def make_host(tx: Transaction) -> World:
    world = make_world(tx)
    assert hosts.set_capacity(tx, world.node_id, CAPACITY)
    return world


def book(
    tx: Transaction, world: World, start_ms: int, end_ms: int, amounts: Resources
) -> ReservationId | None:
    """Book amounts for a new reservation; its id, or None when they were refused."""
    reservation_id = make_draft(tx, world.pool_id)
    booking = NewHostBooking(
        allocation_id=make_allocation(tx, reservation_id, world.node_id),
        reservation_id=reservation_id,
        node_id=world.node_id,
        start_ms=start_ms,
        end_ms=end_ms,
        resources=amounts,
    )
    return reservation_id if hosts.book(tx, booking) else None


def fits(taken: list[Taken], start: int, end: int, more: Resources) -> bool:
    """Whether at every instant of a window more could be taken, instant by instant."""
    for at in range(start, end):
        now = [amounts for begun, over, amounts in taken if begun <= at < over] + [more]
        if (
            sum(a.vcpu for a in now) > CAPACITY.vcpu
            or sum(a.memory_gib for a in now) > CAPACITY.memory_gib
            or sum(a.hugepages_1gi for a in now) > CAPACITY.hugepages_1gi
        ):
            return False
    return True


def drawn(chance: random.Random) -> tuple[int, int, Resources]:
    start = chance.randrange(0, 60)
    amounts = Resources(
        vcpu=chance.choice([0, 1, 4, 8, 16]),
        memory_gib=chance.choice([0, 8, 32, 64]),
        hugepages_1gi=chance.choice([0, 0, 1, 4]),
    )
    return start, start + chance.randrange(1, 30), amounts


@pytest.mark.parametrize("seed", range(4))
async def test_amounts_are_refused_exactly_where_the_sum_would_exceed_the_host(
    database: Database, seed: int, rounds: Rounds
) -> None:
    world = await database.write(make_host)
    chance = random.Random(seed)
    taken: list[Taken] = []
    refused = 0
    for _ in range(rounds(60, 600)):
        start, end, amounts = drawn(chance)
        answer = await database.write(book, world, start, end, amounts)
        assert (answer is not None) == fits(taken, start, end, amounts)
        if answer is None:
            refused += 1
        else:
            taken.append((start, end, amounts))
    assert refused
    live = await database.read(hosts.live_on, [world.node_id], 0)
    assert sorted(map(repr, live[world.node_id])) == sorted(
        repr(HostInterval(*entry)) for entry in taken
    )


@pytest.mark.parametrize("seed", range(3))
async def test_amounts_can_stay_until_the_first_moment_at_which_others_need_them(
    database: Database, seed: int, rounds: Rounds
) -> None:
    """Every booking in turn, extended as far as it goes and one more."""
    world = await database.write(make_host)
    chance = random.Random(seed)
    taken: dict[ReservationId, Taken] = {}
    for _ in range(rounds(25, 200)):
        entry = drawn(chance)
        answer = await database.write(book, world, *entry)
        if answer is not None:
            taken[answer] = entry
    for reservation_id, (start, end, amounts) in list(taken.items()):
        others = [entry for id_, entry in taken.items() if id_ != reservation_id]
        blocked = next((at for at in range(end, 120) if not fits(others, at, at + 1, amounts)), 120)
        full = await database.read(hosts.full_from, reservation_id, 120)
        assert full == (None if blocked == 120 else blocked)
        await database.write(hosts.extend, reservation_id, blocked)
        taken[reservation_id] = (start, blocked, amounts)
    live = await database.read(hosts.live_on, [world.node_id], 0)
    assert sorted((i.start_ms, i.end_ms) for i in live[world.node_id]) == sorted(
        (start, end) for start, end, _ in taken.values()
    )


async def test_a_host_without_a_row_books_nothing(database: Database) -> None:
    world = await database.write(make_world)
    assert await database.write(book, world, 0, 10, Resources(vcpu=1)) is None


async def test_amounts_end_as_the_devices_do(database: Database) -> None:
    """Truncated with the gap, or deleted where they were still to come."""
    world = await database.write(make_host)
    running = await database.write(book, world, 50, 500, Resources(vcpu=16))
    coming = await database.write(book, world, 600, 700, Resources(vcpu=16))
    assert running is not None
    assert coming is not None
    for reservation_id in (running, coming):
        await database.write(bookings.end_at, reservation_id, 100, 20)
    (left,) = (await database.read(hosts.live_on, [world.node_id], 0))[world.node_id]
    assert left == HostInterval(50, 120, Resources(vcpu=16))
    assert await database.write(book, world, 119, 130, Resources(vcpu=1)) is None
    assert await database.write(book, world, 120, 700, Resources(vcpu=16))


async def test_a_host_that_shrank_keeps_what_is_booked_and_gives_no_more(
    database: Database,
) -> None:
    world = await database.write(make_host)
    made = await database.write(book, world, 0, 100, Resources(vcpu=12))
    assert made is not None
    await database.write(hosts.set_capacity, world.node_id, replace(CAPACITY, vcpu=8))
    assert await database.write(book, world, 50, 150, Resources(memory_gib=1)) is None
    assert await database.write(book, world, 100, 150, Resources(vcpu=8))
    assert await database.read(hosts.full_from, made, 200) == 100


# Devices, extended


async def test_devices_stay_until_somebody_else_has_one_of_them(database: Database) -> None:
    world = await database.write(make_world, 3)
    made = await database.write(make_booking, world, world.gpus[:2], 0, 100)
    assert made is not None
    assert await database.write(make_booking, world, world.gpus[1:2], 300, 400)
    assert await database.write(make_booking, world, world.gpus[2:], 100, 900)
    assert await database.read(bookings.taken_from, made, 300) is None
    assert await database.read(bookings.taken_from, made, 301) == 300
    assert not await database.write(bookings.extend, made, 301)
    assert await database.write(bookings.extend, made, 300)
    ends = {i.end_ms for i in (await database.read(bookings.live_on, [world.node_id], 0))[
        world.node_id] if i.start_ms == 0}  # fmt: skip
    assert ends == {300}


async def test_only_live_allocations_are_extended(database: Database) -> None:
    """What is left of an earlier attempt keeps its turnaround, and blocks nobody any longer."""
    world = await database.write(make_world, 2)
    made = await database.write(make_booking, world, world.gpus[:1], 0, 100)
    assert made is not None

    def again(tx: Transaction) -> bool:
        (first,) = allocations.live(tx, made)
        allocations.set_state(tx, first.id, AllocationState.ENDED)
        booking = NewBooking(
            allocation_id=make_allocation(tx, made, world.node_id),
            reservation_id=made,
            node_id=world.node_id,
            atoms=world.gpus[1:],
            start_ms=50,
            end_ms=200,
        )
        return bookings.book(tx, booking) and bookings.extend(tx, made, 400)

    assert await database.write(again)
    live = await database.read(bookings.live_on, [world.node_id], 0)
    assert sorted((i.start_ms, i.end_ms) for i in live[world.node_id]) == [(0, 100), (50, 400)]
