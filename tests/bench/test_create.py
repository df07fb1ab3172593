"""Create to placed through the whole API: 1,000 nodes of 8 GPUs, requests for 4 linked ones.

The placer is a process of its own, TLS and tokens included; nodes come by the inventory path. The
floor is the bare transaction: quota, reservation, allocation, bookings, event and work row.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from bcd.model.assignment import AssignedDevice
from bcd.model.ids import AllocationId, PoolId, ReservationId
from bcd.model.reservation import DeviceAsk, Request, Resources
from bcd.store import allocations, atoms, bookings, events, quotas, reservations, work
from bcd.store.allocations import Allocation, AllocationState
from bcd.store.bookings import NewBooking
from bcd.store.database import Database, Transaction
from bcd.store.open import open_database
from bcd.store.reservations import Draft
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub
from tests.bench.measure import cpu_s, processes_named, table
from tests.conftest import MakeSystem, Rounds
from tests.journeys.system import TENANT, System, wait_until
from tests.placer.world import World, dgx, new_authority

NODES = 1_000
CALLERS = 16
HOURS_8 = 8 * 3_600_000


def postgres_cpu_s() -> float:
    """What all PostgreSQL processes used."""
    return sum(cpu_s(pid) for pid in processes_named("postgres"))


async def seed(url: str) -> PoolId:
    """1,000 nodes with a session and an inventory that the placer has applied."""
    database = open_database(url)
    world = World(database, new_authority(time.time_ns() // 1_000_000))
    await world.add_pool()
    await world.grant("gpu", 10**6)
    for number in range(NODES):
        await world.add_node(dgx(f"n{number}"))
    await database.close()
    return world.pool_id


async def call_all(system: System, pool_id: PoolId, count: int) -> None:
    """``count`` creates by 16 callers; each must be placed."""
    roots = (system.state / "ca.pem").read_bytes()
    metadata = (("authorization", f"Bearer {system.token()}"),)
    numbers = iter(range(count))
    address = f"localhost:{system.api_port}"
    async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(roots)) as channel:
        stub: Any = ReservationsServiceStub(channel)

        async def caller() -> None:
            for number in numbers:
                request = pb.CreateReservationRequest(
                    tenant_id=TENANT,
                    pool_id=pool_id,
                    duration="8h",
                    idempotency_key=f"k{number}",
                )
                request.devices.add(**{"class": "gpu"}, count=4, topology="nvlink-all")
                answer = await stub.CreateReservation(request, metadata=metadata, timeout=60)
                assert answer.reservation.state == "placed"

        await asyncio.gather(*(caller() for _ in range(CALLERS)))


def bare(tx: Transaction, pool_id: PoolId, node_id: str, own: list[atoms.Atom]) -> None:
    """One reservation of these atoms, written without any decision."""
    reservation_id = ReservationId(tx.new_id("rsv"))
    ask = DeviceAsk(device_class=own[0].device_class, count=len(own))
    draft = Draft(
        id=reservation_id,
        tenant_id=TENANT,
        pool_id=pool_id,
        owner="o",
        identity="i",
        idempotency_key="k",
        request_hash="h",
        request=Request(pool_id=pool_id, devices=(ask,), duration=f"{HOURS_8}ms"),
        host_share=Resources(),
        resources=Resources(),
    )
    reservations.add_draft(tx, draft)
    quotas.charge(tx, reservation_id, TENANT, {"gpu": len(own)})
    now_ms = tx.now_ms()
    allocation = Allocation(
        id=AllocationId(tx.new_id("alloc")),
        reservation_id=reservation_id,
        node_id=own[0].node_id,
        state=AllocationState.BOOKED,
        until_ms=now_ms + HOURS_8,
        devices=tuple(AssignedDevice(a.uuid, a.device_class) for a in own),
    )
    allocations.add(tx, allocation)
    assert bookings.book(
        tx,
        NewBooking(
            allocation_id=allocation.id,
            reservation_id=reservation_id,
            node_id=own[0].node_id,
            atoms=tuple(own),
            start_ms=now_ms,
            end_ms=now_ms + HOURS_8,
        ),
    )
    events.emit(tx, f"reservation/{reservation_id}", "reservation.placed", {"nodeIds": [node_id]})
    work.schedule(tx, reservation_id, now_ms + HOURS_8, soon=False)


async def measure_bare(database: Database, pool_id: PoolId, count: int) -> tuple[float, float]:
    """(rate, CPU seconds each) of the bare transaction, 16 at a time."""
    found = await database.read(atoms.in_pool, pool_id)
    halves = [list(found[i : i + 4]) for i in range(0, len(found), 4)]
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            own = halves[number]
            await database.write(bare, pool_id, own[0].node_id, own)

    began, used = time.perf_counter(), cpu_s()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return count / (time.perf_counter() - began), (cpu_s() - used) / count


@pytest.mark.timeout(1200)
async def test_creates_through_the_whole_api(
    make_system: MakeSystem, engine: str, rounds: Rounds, tmp_path: Path, database_url: str
) -> None:
    count = rounds(600, 1_900)
    floor_pool = await seed(database_url)
    floor_database = open_database(database_url)
    floor_rate, floor_cpu = await measure_bare(floor_database, floor_pool, count)
    await floor_database.close()

    system = make_system()
    pool_id = await seed(system.url)
    with system:
        wait_until("a first create", lambda: _first(system, pool_id))
        pid = system.programs["placer"].pid
        began, used, beside = time.perf_counter(), cpu_s(pid), postgres_cpu_s()
        await call_all(system, pool_id, count)
        seconds = time.perf_counter() - began
        cpu_ms = (cpu_s(pid) - used) / count * 1e3
        beside_ms = (postgres_cpu_s() - beside) / count * 1e3
    table(
        f"create -> placed, {NODES} nodes x 8 GPUs, {count} creates, {engine}",
        [
            ("rate through the API", f"{count / seconds:.0f}/s"),
            ("placer's CPU per create, start of the hold included", f"{cpu_ms:.2f} ms"),
            ("PostgreSQL's CPU per create", f"{beside_ms:.2f} ms"),
            ("bare transaction", f"{floor_rate:.0f}/s, {floor_cpu * 1e3:.2f} ms CPU"),
            ("CPU over the bare transaction's", f"{cpu_ms / (floor_cpu * 1e3):.1f} x"),
        ],
    )


def _first(system: System, pool_id: PoolId) -> bool:
    client = system.client()
    with client.channel:
        return bool(client.create(pool_id, 1, "warm-up").state != "")
