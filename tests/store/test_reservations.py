"""Reservations and their allocations as rows: drafts, versions, pages, bindings."""

import asyncio
from dataclasses import replace

import pytest

from bcd.model.assignment import AssignedDevice
from bcd.model.device import DeviceClass
from bcd.model.errors import InvalidInput
from bcd.model.ids import ReservationId
from bcd.model.reservation import Condition, HoldBinding, OperationState, State, Window
from bcd.store import allocations, queue, reservations
from bcd.store.allocations import AllocationState, Evidence
from bcd.store.database import Database, Transaction
from bcd.store.reservations import Filter
from tests.clock import DatabaseClock
from tests.store.world import (
    TENANT,
    draft_of,
    make_allocation,
    make_draft,
    make_node,
    make_pool,
)

CONDITION = Condition(
    type="Unschedulable", status="True", reason="NoFit", message="wait", last_transition_time=5
)


async def test_a_draft_reads_as_it_was_written(database: Database, clock: DatabaseClock) -> None:
    clock.set(2_000_000_000_000)
    pool_id = await database.write(make_pool)
    draft = draft_of(pool_id)
    row = await database.write(reservations.add_draft, draft)
    assert row is not None
    assert await database.read(reservations.get, draft.id) == row
    assert (row.request, row.host_share) == (draft.request, draft.host_share)
    assert (row.state, row.operation, row.version) == (State.DRAFT, OperationState.RUNNING, 1)
    assert (row.during, row.attempts, row.bind_deadline_ms) == (None, 0, None)
    assert row.created_ms == 2_000_000_000_000


async def test_one_of_many_writes_of_one_draft_counts(database: Database) -> None:
    pool_id = await database.write(make_pool)
    draft = draft_of(pool_id)
    others = [replace(draft, request_hash=f"hash{n}") for n in range(8)]
    written = await asyncio.gather(
        *(database.write(reservations.add_draft, other) for other in others)
    )
    (row,) = (row for row in written if row is not None)
    assert await database.read(reservations.get, draft.id) == row
    assert row.request_hash == f"hash{written.index(row)}"


def change(tx: Transaction, reservation_id: ReservationId, state: State) -> int:
    row = reservations.lock(tx, reservation_id)
    assert row is not None
    after = reservations.save(
        tx, row, state=state, during=Window(5, 10), conditions=(CONDITION,), attempts=2
    )
    assert reservations.get(tx, reservation_id) == after
    return after.version


async def test_every_change_raises_the_version_by_one(database: Database) -> None:
    pool_id = await database.write(make_pool)
    one = await database.write(make_draft, pool_id)
    versions = await asyncio.gather(*(database.write(change, one, State.PENDING) for _ in range(9)))
    assert sorted(versions) == list(range(2, 11))
    row = await database.read(reservations.get, one)
    assert row is not None
    assert (row.during, row.conditions, row.attempts) == (Window(5, 10), (CONDITION,), 2)


async def test_a_row_that_changed_since_it_was_read_is_not_written_over(
    database: Database,
) -> None:
    pool_id = await database.write(make_pool)
    one = await database.write(make_draft, pool_id)

    def stale(tx: Transaction) -> None:
        row = reservations.lock(tx, one)
        assert row is not None
        reservations.save(tx, row, state=State.PENDING)
        reservations.save(tx, row, state=State.PLACED)

    with pytest.raises(AssertionError, match="changed"):
        await database.write(stale)
    row = await database.read(reservations.get, one)
    assert row is not None
    assert (row.state, row.version) == (State.DRAFT, 1)


async def test_a_change_wakes_who_waits_for_the_reservation(database: Database) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    database.wakes.listen("reservation", heard.put_nowait)
    pool_id = await database.write(make_pool)
    one = await database.write(make_draft, pool_id)
    await database.write(change, one, State.PENDING)
    async with asyncio.timeout(10):
        assert await heard.get() == one


async def test_pages_show_the_newest_first_and_no_drafts(database: Database) -> None:
    pool_id = await database.write(make_pool)
    ids = [await database.write(make_draft, pool_id) for _ in range(7)]
    for one in ids[:6]:
        await database.write(change, one, State.PENDING)
    wanted = Filter(tenant_id=TENANT)

    async def page(after: ReservationId | None, limit: int) -> list[ReservationId]:
        return [row.id for row in await database.read(reservations.page, wanted, after, limit)]

    newest = ids[5::-1]
    assert await page(None, 200) == newest
    first = await page(None, 4)
    assert first == newest[:4]
    assert await page(first[-1], 4) == newest[4:]
    assert await page(newest[-1], 4) == []


async def test_pages_are_filtered_by_owner_state_and_pool(database: Database) -> None:
    pool_id = await database.write(make_pool)
    other_pool = await database.write(make_pool, "other")
    ann = await database.write(make_draft, pool_id, "iss|ann")
    bob = await database.write(make_draft, other_pool, "iss|bob")
    await database.write(change, ann, State.PENDING)
    await database.write(change, bob, State.ACTIVE)
    for wanted, found in (
        (Filter(tenant_id=TENANT), [bob, ann]),
        (Filter(tenant_id=TENANT, owner="iss|ann"), [ann]),
        (Filter(tenant_id=TENANT, state="active"), [bob]),
        (Filter(tenant_id=TENANT, pool_id=pool_id), [ann]),
        (Filter(tenant_id=TENANT, owner="iss|ann", state="active"), []),
        (Filter(tenant_id="other"), []),
    ):
        page = await database.read(reservations.page, wanted, None, 200)
        assert [row.id for row in page] == found


async def test_a_cursor_that_names_nothing_of_the_tenant_is_refused(database: Database) -> None:
    pool_id = await database.write(make_pool)
    one = await database.write(make_draft, pool_id)
    await database.write(change, one, State.PENDING)
    draft = await database.write(make_draft, pool_id)
    unknown = ReservationId("rsv_" + "a" * 52)
    for tenant, cursor in (("other", one), (TENANT, draft), (TENANT, unknown)):
        with pytest.raises(InvalidInput, match="cursor: names no reservation of this tenant"):
            await database.read(reservations.page, Filter(tenant_id=tenant), cursor, 200)


async def test_pending_reservations_wait_oldest_first(database: Database) -> None:
    pool_id = await database.write(make_pool)
    ids = [await database.write(make_draft, pool_id) for _ in range(4)]
    for one in ids:
        await database.write(change, one, State.PENDING)
    await database.write(change, ids[1], State.PLACED)
    waiting = await database.read(queue.pending_in, pool_id, 10)
    assert list(waiting) == [ids[0], ids[2], ids[3]]
    assert list(await database.read(queue.pending_in, pool_id, 2)) == [ids[0], ids[2]]


async def test_a_binding_shows_while_its_allocation_is_bound_or_lost(database: Database) -> None:
    pool_id = await database.write(make_pool)
    node_id = await database.write(make_node, pool_id)
    one = await database.write(make_draft, pool_id)
    await database.write(change, one, State.ACTIVE)
    allocation_id = await database.write(make_allocation, one, node_id)
    binding = HoldBinding(
        allocation_id=allocation_id,
        node_id=node_id,
        cdi_devices=("bcd.dev/gpu=GPU-0",),
        env_file="/run/x.env",
    )

    async def shown() -> tuple[HoldBinding, ...]:
        row = await database.read(reservations.get, one)
        assert row is not None
        return (await database.read(reservations.view, row)).bindings

    assert await shown() == ()
    evidence = Evidence(b"\0envelope", "key", b"\0sig")
    await database.write(allocations.bind, allocation_id, binding, evidence)
    assert await shown() == (binding,)
    for state, visible in (
        (AllocationState.LOST, True),
        (AllocationState.BOUND, True),
        (AllocationState.ENDED, False),
    ):
        await database.write(allocations.set_state, allocation_id, state)
        assert bool(await shown()) is visible


async def test_allocations_of_a_node_and_of_a_reservation_by_state(database: Database) -> None:
    pool_id = await database.write(make_pool)
    node_id = await database.write(make_node, pool_id)
    one = await database.write(make_draft, pool_id)
    by_state = {
        state: await database.write(make_allocation, one, node_id, state)
        for state in AllocationState
    }
    live = {entry.id for entry in await database.read(allocations.live, one)}
    assert live == set(by_state.values()) - {by_state[AllocationState.ENDED]}
    on_node = [entry.state for entry in await database.read(allocations.on_node, node_id)]
    assert set(on_node) == allocations.ON_NODE
    found = await database.read(allocations.get, by_state[AllocationState.BOOKED])
    assert found is not None
    assert found.devices == (AssignedDevice("GPU-0", DeviceClass.GPU),)
    assert list(await database.read(reservations.on_node, node_id)) == [one]
