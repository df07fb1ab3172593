"""The floor of a create: the rows that one leaves, written without any decision."""

import asyncio

from bcd.model.assignment import AssignedDevice
from bcd.model.device import DeviceClass
from bcd.model.ids import AllocationId, NodeId, ReservationId
from bcd.model.reservation import DeviceAsk, Request, Resources
from bcd.model.units import HOUR_MS
from bcd.store import allocations, atoms, bookings, events, quotas, reservations, work
from bcd.store.allocations import Allocation, AllocationState
from bcd.store.atoms import Atom
from bcd.store.bookings import NewBooking
from bcd.store.database import Transaction
from bcd.store.open import open_database
from bcd.store.reservations import Draft
from tests.bench.fleet import Fleet, add_fleet
from tests.bench.measure import Used, Watch
from tests.placer.world import TENANT

_CALLERS = 16
_LENGTH_MS = 8 * HOUR_MS


async def measure_bare(url: str, watch: Watch, count: int) -> Used:
    """Make ``count`` bare reservations of four GPUs in an empty pool, 16 at a time."""
    database = open_database(url)
    fleet = await add_fleet(database, -(-count // 2))
    found = await database.read(atoms.in_pool, fleet.pool_id)
    halves = [tuple(found[i : i + 4]) for i in range(0, len(found), 4)]
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await database.write(_bare, fleet, halves[number])

    with watch.measure(count) as used:
        await asyncio.gather(*(caller() for _ in range(_CALLERS)))
    await database.close()
    return used


def _bare(tx: Transaction, fleet: Fleet, own: tuple[Atom, ...]) -> None:
    reservation_id, now_ms = ReservationId(tx.new_id("rsv")), tx.now_ms()
    node_id = NodeId(own[0].node_id)
    reservations.add_draft(tx, _draft(fleet, reservation_id, len(own)))
    quotas.charge(tx, reservation_id, TENANT, {"gpu": len(own)})
    allocation = Allocation(
        id=AllocationId(tx.new_id("alloc")),
        reservation_id=reservation_id,
        node_id=node_id,
        state=AllocationState.BOOKED,
        until_ms=now_ms + _LENGTH_MS,
        devices=tuple(AssignedDevice(a.uuid, a.device_class) for a in own),
    )
    allocations.add(tx, allocation)
    booking = NewBooking(
        allocation_id=allocation.id,
        reservation_id=reservation_id,
        node_id=node_id,
        atoms=own,
        start_ms=now_ms,
        end_ms=now_ms + _LENGTH_MS,
    )
    assert bookings.book(tx, booking)
    events.emit(tx, f"reservation/{reservation_id}", "reservation.placed", {"nodeIds": [node_id]})
    work.schedule(tx, reservation_id, now_ms + _LENGTH_MS, soon=False)


def _draft(fleet: Fleet, reservation_id: ReservationId, count: int) -> Draft:
    ask = DeviceAsk(device_class=DeviceClass.GPU, count=count)
    return Draft(
        id=reservation_id,
        tenant_id=TENANT,
        pool_id=fleet.pool_id,
        owner="o",
        identity="i",
        idempotency_key="k",
        request_hash="h",
        request=Request(pool_id=fleet.pool_id, devices=(ask,), duration=f"{_LENGTH_MS}ms"),
        host_share=Resources(),
        resources=Resources(),
    )
