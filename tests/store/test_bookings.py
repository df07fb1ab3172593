"""No overlap is a rule of the database: on insert and on update, whatever the caller does."""

import asyncio
import itertools

import pytest

from bcd.model.device import DeviceClass
from bcd.store import atoms, bookings, pools
from bcd.store.atoms import Atom
from bcd.store.bookings import Holder, Interval, NewBooking
from bcd.store.database import ConstraintViolated, Database, Overlap, Transaction
from tests.conftest import Rounds
from tests.store.world import (
    TENANT,
    World,
    facts,
    make_allocation,
    make_booking,
    make_draft,
    make_node,
    make_pool,
    make_world,
)

# Seen from a booking of [100, 200).
OVERLAPPING = [(100, 200), (150, 160), (50, 101), (199, 300), (50, 300), (99, 201)]
APART = [(0, 100), (200, 300), (50, 100), (200, 201), (0, 1)]


async def booked(database: Database, world: World, *ranges: tuple[int, int]) -> list[bool]:
    """Book the first GPU for each range in turn, each in a transaction of its own."""
    answers = [
        await database.write(make_booking, world, world.gpus[:1], start, end)
        for start, end in ranges
    ]
    return [answer is not None for answer in answers]


def move(tx: Transaction, start_ms: int, end_ms: int) -> int:
    """Move the booking that starts at 0."""
    return tx.run(
        "UPDATE bookings SET start_ms = :start, end_ms = :end WHERE start_ms = 0",
        start=start_ms,
        end=end_ms,
    )


def change_all(tx: Transaction, change: str) -> int:
    """Run a change that no noun of the store makes."""
    return tx.run(f"UPDATE bookings SET {change}")


def rows(tx: Transaction) -> list[tuple[int, int, int]]:
    found = tx.all("SELECT atom_id, start_ms, end_ms FROM bookings ORDER BY atom_id, start_ms")
    return [(row["atom_id"], row["start_ms"], row["end_ms"]) for row in found]


@pytest.mark.parametrize("taken", OVERLAPPING)
async def test_a_device_has_one_booking_at_a_time(
    database: Database, taken: tuple[int, int]
) -> None:
    world = await database.write(make_world, 1)
    assert await booked(database, world, (100, 200), taken) == [True, False]


@pytest.mark.parametrize("free", APART)
async def test_ranges_that_only_touch_do_not_overlap(
    database: Database, free: tuple[int, int]
) -> None:
    world = await database.write(make_world, 1)
    assert await booked(database, world, (100, 200), free) == [True, True]


async def test_a_booking_fits_between_two_others_exactly(database: Database) -> None:
    world = await database.write(make_world, 1)
    ranges = ((100, 200), (300, 400), (199, 300), (200, 301), (200, 300), (150, 350))
    assert await booked(database, world, *ranges) == [True, True, False, False, True, False]


async def test_other_devices_are_free_at_the_same_time(database: Database) -> None:
    world = await database.write(make_world, 2)
    for gpu in world.gpus:
        assert await database.write(make_booking, world, (gpu,), 100, 200)


async def test_a_booking_of_no_length_is_refused(database: Database) -> None:
    world = await database.write(make_world, 1)
    for start, end in ((100, 100), (200, 100)):
        with pytest.raises(Exception, match=r"(?i)check|range lower bound"):
            await database.write(make_booking, world, world.gpus, start, end)
    assert await database.read(rows) == []


@pytest.mark.parametrize("moved", [(150, 250), (50, 300), (0, 201), (299, 350), (220, 230)])
async def test_moving_a_booking_onto_another_is_refused(
    database: Database, moved: tuple[int, int]
) -> None:
    world = await database.write(make_world, 1)
    assert await booked(database, world, (0, 100), (200, 300)) == [True, True]
    before = await database.read(rows)
    with pytest.raises(Overlap):
        await database.write(move, *moved)
    assert await database.read(rows) == before


@pytest.mark.parametrize("moved", [(0, 200), (100, 200), (300, 400), (50, 60)])
async def test_moving_a_booking_beside_another_is_allowed(
    database: Database, moved: tuple[int, int]
) -> None:
    world = await database.write(make_world, 1)
    assert await booked(database, world, (0, 100), (200, 300)) == [True, True]
    assert await database.write(move, *moved) == 1


async def test_moving_a_booking_to_a_taken_device_is_refused(database: Database) -> None:
    world = await database.write(make_world, 2)
    for gpu in world.gpus:
        await database.write(make_booking, world, (gpu,), 100, 200)
    first, second = (gpu.id for gpu in world.gpus)
    with pytest.raises(Overlap):
        await database.write(change_all, f"atom_id = {second} WHERE atom_id = {first}")


def shared_gpu(tx: Transaction) -> tuple[World, dict[str, Atom]]:
    """A node with one physical GPU, seen whole, as two MIG instances and as two slots."""
    pool_id = make_pool(tx)
    node_id = make_node(tx, pool_id)
    pools.lock(tx, pool_id)
    seen = [
        facts("GPU-0"),
        facts("MIG-0", DeviceClass.MIG, "GPU-0"),
        facts("MIG-1", DeviceClass.MIG, "GPU-0"),
        facts("GPU-0::0", DeviceClass.SLOT, "GPU-0"),
        facts("GPU-0::1", DeviceClass.SLOT, "GPU-0"),
    ]
    atoms.sync(tx, node_id, seen)
    found = {atom.uuid: atom for atom in atoms.on_node(tx, node_id)}
    return World(pool_id, node_id, ()), found


MODES = {"whole": "GPU-0", "instance": "MIG-0", "slot": "GPU-0::0"}


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(MODES, 2)))
async def test_a_physical_gpu_is_booked_in_one_mode_at_a_time(
    database: Database, first: str, second: str
) -> None:
    world, found = await database.write(shared_gpu)
    one, other = found[MODES[first]], found[MODES[second]]
    assert await database.write(make_booking, world, (one,), 100, 200)
    for start, end in OVERLAPPING:
        assert await database.write(make_booking, world, (other,), start, end) is None
    assert await database.write(make_booking, world, (other,), 200, 300)
    assert await database.write(make_booking, world, (other,), 0, 100)


@pytest.mark.parametrize(("one", "other"), [("MIG-0", "MIG-1"), ("GPU-0::0", "GPU-0::1")])
async def test_shares_of_one_kind_stand_beside_each_other(
    database: Database, one: str, other: str
) -> None:
    world, found = await database.write(shared_gpu)
    assert await database.write(make_booking, world, (found[one],), 100, 200)
    assert await database.write(make_booking, world, (found[other],), 100, 200)


async def test_moving_a_share_under_a_whole_booking_is_refused(database: Database) -> None:
    world, found = await database.write(shared_gpu)
    assert await database.write(make_booking, world, (found["GPU-0"],), 100, 200)
    assert await database.write(make_booking, world, (found["MIG-0"],), 200, 300)
    for change in ("start_ms = 199", "start_ms = 0, end_ms = 101"):
        with pytest.raises(Overlap):
            await database.write(change_all, f"{change} WHERE mode = 1")
    with pytest.raises(Overlap):
        await database.write(change_all, "end_ms = 201 WHERE mode = 0")


async def test_booking_several_devices_takes_all_or_none(database: Database) -> None:
    world = await database.write(make_world, 4)
    assert await database.write(make_booking, world, world.gpus[2:3], 100, 200)
    assert await database.write(make_booking, world, world.gpus, 150, 160) is None
    assert len(await database.read(rows)) == 1
    assert await database.write(make_booking, world, world.gpus[:2], 150, 160)
    assert len(await database.read(rows)) == 3


async def test_a_refused_booking_leaves_the_rest_of_its_transaction_alone(
    database: Database,
) -> None:
    world = await database.write(make_world, 2)
    assert await database.write(make_booking, world, world.gpus[:1], 100, 200)

    def body(tx: Transaction) -> tuple[bool, bool]:
        first = make_booking(tx, world, world.gpus, 100, 200)
        second = make_booking(tx, world, world.gpus[1:], 100, 200)
        return first is not None, second is not None

    assert await database.write(body) == (False, True)
    assert len(await database.read(rows)) == 2


async def test_a_gang_of_more_rows_than_one_statement_takes_is_all_or_nothing(
    database: Database,
) -> None:
    world = await database.write(make_world, 700)

    def gang(tx: Transaction) -> bool:
        members = []
        for atom in world.gpus:
            reservation_id = make_draft(tx, world.pool_id)
            members.append(
                NewBooking(
                    allocation_id=make_allocation(tx, reservation_id, world.node_id),
                    reservation_id=reservation_id,
                    node_id=world.node_id,
                    atoms=(atom,),
                    start_ms=100,
                    end_ms=200,
                )
            )
        return bookings.book(tx, *members)

    blocker = await database.write(make_booking, world, world.gpus[690:691], 150, 160)
    assert blocker is not None
    assert not await database.write(gang)
    assert len(await database.read(rows)) == 1
    await database.write(bookings.end_at, blocker, 0, 0)
    assert await database.write(gang)
    assert len(await database.read(rows)) == 700


async def test_a_share_is_extended_up_to_the_whole_gpu_behind_it(database: Database) -> None:
    world, found = await database.write(shared_gpu)
    made = await database.write(make_booking, world, (found["GPU-0::0"],), 100, 200)
    assert made is not None
    assert await database.write(make_booking, world, (found["GPU-0::1"],), 200, 300)
    assert await database.write(make_booking, world, (found["GPU-0"],), 300, 400)
    assert await database.read(bookings.taken_from, made, 1000) == 300
    assert not await database.write(bookings.extend, made, 301)
    assert await database.write(bookings.extend, made, 300)


async def test_a_booking_names_things_that_exist(database: Database) -> None:
    world = await database.write(make_world, 1)
    assert await database.write(make_booking, world, world.gpus, 0, 1)
    with pytest.raises(ConstraintViolated):
        await database.write(change_all, "allocation_id = 'nobody'")
    with pytest.raises(ConstraintViolated):
        await database.write(change_all, "atom_id = 999")


async def test_ending_a_reservation_truncates_what_runs_and_deletes_what_comes(
    database: Database,
) -> None:
    world = await database.write(make_world, 3)
    ids = [
        await database.write(make_booking, world, (gpu,), start, end)
        for gpu, (start, end) in zip(world.gpus, [(0, 50), (50, 200), (100, 300)], strict=True)
    ]
    for reservation_id in ids:
        assert reservation_id is not None
        freed = await database.write(bookings.end_at, reservation_id, 100, 0)
        assert list(freed) == ([] if reservation_id == ids[0] else [world.node_id])
        assert list(await database.write(bookings.end_at, reservation_id, 100, 0)) == []
    one, two, _ = (gpu.id for gpu in world.gpus)
    assert await database.read(rows) == [(one, 0, 50), (two, 50, 100)]
    assert await database.write(make_booking, world, world.gpus, 100, 200)


async def test_an_ended_booking_keeps_its_devices_for_the_turnaround(database: Database) -> None:
    world = await database.write(make_world, 1)
    running = await database.write(make_booking, world, world.gpus, 0, 500)
    assert running is not None
    assert list(await database.write(bookings.end_at, running, 100, 20)) == [world.node_id]
    assert await booked(database, world, (119, 200), (120, 200)) == [False, True]
    assert list(await database.write(bookings.end_at, running, 110, 20)) == []


async def test_live_bookings_are_those_that_end_after_now(database: Database) -> None:
    world = await database.write(make_world, 2)
    first, second = world.gpus
    await database.write(make_booking, world, (first,), 0, 100)
    running = await database.write(make_booking, world, (first,), 100, 200)
    await database.write(make_booking, world, (second,), 150, 300)
    expected = {Interval(first.id, 100, 200), Interval(second.id, 150, 300)}
    on_node = await database.read(bookings.live_on, [world.node_id], 100)
    in_pool = await database.read(bookings.live_in_pool, world.pool_id, 100)
    assert set(on_node[world.node_id]) == set(in_pool[world.node_id]) == expected
    holders = await database.read(bookings.holders, world.node_id, 100)
    assert running is not None
    assert holders == {first.id: Holder(running, TENANT)}
    assert await database.read(bookings.live_in_pool, world.pool_id, 300) == {}


async def test_racing_for_the_same_devices_gives_them_out_once(
    database: Database, rounds: Rounds
) -> None:
    world = await database.write(make_world, 8)
    for number in range(rounds(10, 100)):
        start = number * 100
        # Every other contender wants the devices in reverse: no lock may be waited for crosswise.
        wanted = [world.gpus[::step] for step in (1, -1)] * 4
        answers = await asyncio.gather(
            *(database.write(make_booking, world, gpus, start, start + 100) for gpus in wanted)
        )
        assert sum(answer is not None for answer in answers) == 1
    taken = await database.read(rows)
    assert len(taken) == 8 * rounds(10, 100)
    assert len(set(taken)) == len(taken)


async def test_overlapping_gangs_never_leave_a_part_behind(
    database: Database, rounds: Rounds
) -> None:
    world = await database.write(make_world, 6)
    for number in range(rounds(5, 50)):
        start = number * 100
        wanted = [world.gpus[first : first + 3] for first in range(4)]
        answers = await asyncio.gather(
            *(database.write(make_booking, world, gpus, start, start + 100) for gpus in wanted)
        )
        won = sum(answer is not None for answer in answers)
        assert 1 <= won <= 2
        taken = [row for row in await database.read(rows) if row[1] == start]
        assert len(taken) == 3 * won
