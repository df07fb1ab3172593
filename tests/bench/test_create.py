"""Create to placed through the whole API, in pools with empty and full calendars.

The placer is a process of its own, TLS and tokens included. Requests are for four linked GPUs and
their share of the host, at a random moment of 90 days, and then from now on, which includes the
start of the hold. The floors, of the same minute: the disk's rate of durable writes, the bare
transaction, which writes the same rows without any decision, and a call that does nothing.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from bcd.placer.admission.policy import CedarPolicy
from bcd.store.database import Database
from bcd.store.open import open_database
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub
from tests.bench.bare import measure_bare
from tests.bench.fleet import CALENDAR_MS, LENGTH_MS, Fleet, add_fleet, calendar, fill
from tests.bench.inside import Inside, TimedDatabase, TimedPlacements
from tests.bench.measure import Watch, fdatasync_rate, table
from tests.conftest import MakeSystem, Rounds
from tests.journeys.system import TENANT, System
from tests.placer.world import World, new_authority

CALLERS = 16
# Nodes of eight GPUs, and device bookings of the next 90 days: a few, and with bench many.
NODES = ((200, 1_000), (400, 10_000))
BOOKINGS = ((0, 0), (4_000, 100_000), (40_000, 1_000_000))


@pytest.fixture
def watch(engine: str, request: pytest.FixtureRequest) -> Watch:
    """Counts the CPU of the server too, where there is one."""
    server = None if engine == "sqlite" else request.getfixturevalue("postgresql")
    return Watch(() if server is None else (server.pid,))


def starts(seed: int) -> Callable[[], int]:
    """Random moments, in the next 90 days, at which eight hours begin."""
    chance = random.Random(seed)
    from_ms = time.time_ns() // 1_000_000 + 3_600_000
    return lambda: from_ms + chance.randrange(CALENDAR_MS - LENGTH_MS)


async def by_callers(count: int, call: Callable[[int], Awaitable[str]]) -> Counter[str]:
    """Make ``count`` calls, 16 at a time; returns how many came to which state."""
    numbers = iter(range(count))
    states: Counter[str] = Counter()

    async def caller() -> None:
        for number in numbers:
            states[await call(number)] += 1

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return states


async def through_api(system: System, fleet: Fleet, count: int, *, ahead: bool) -> Counter[str]:
    """Create over the network."""
    roots = (system.state / "ca.pem").read_bytes()
    metadata = (("authorization", f"Bearer {system.token()}"),)
    address = f"localhost:{system.api_port}"
    start = starts(ahead)
    async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(roots)) as channel:
        stub: Any = ReservationsServiceStub(channel)

        async def create(number: int) -> str:
            request = pb.CreateReservationRequest(
                tenant_id=TENANT,
                pool_id=fleet.pool_id,
                duration="8h",
                idempotency_key=f"{ahead}-{count}-{number}",
                start=start() if ahead else None,
            )
            request.devices.add(**{"class": "gpu"}, count=4, topology="nvlink-all")
            answer = await stub.CreateReservation(request, metadata=metadata, timeout=120)
            return str(answer.reservation.state)

        return await by_callers(count, create)


async def empty_calls(system: System, count: int) -> None:
    """Ask the placer, over the network, whether it serves: what a call costs that does nothing."""
    roots = (system.state / "ca.pem").read_bytes()
    address = f"localhost:{system.api_port}"
    async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(roots)) as channel:
        stub: Any = HealthStub(channel)

        async def ask(_number: int) -> str:
            return str((await stub.Check(HealthCheckRequest(), timeout=60)).status)

        await by_callers(count, ask)


async def inside(database: Database, fleet: Fleet, count: int) -> Inside:
    """Where the CPU of a create goes: in this process, without the network."""
    timed = TimedDatabase(database)
    placements = TimedPlacements()
    authority = new_authority(time.time_ns() // 1_000_000)
    world = World(timed, authority, pool_id=fleet.pool_id, placements=placements)
    world.admission = world.admission_with(CedarPolicy())
    start = starts(7)

    async def create(number: int) -> str:
        made = await world.create(
            4, key=f"inside-{number}", topology="nvlink-all", duration="8h", start=start()
        )
        return made.state.value

    await create(-1)
    timed.reset()
    placements.reset()
    began = time.process_time()
    states = await by_callers(count, create)
    return Inside(
        cpu_ms=(time.process_time() - began) / count * 1e3,
        placement_ms=placements.cpu_ms / count,
        search_ms=(placements.cpu_ms - placements.statements_ms) / count,
        statements=timed.statements / count,
        transactions=timed.transactions / count,
        placed=states["placed"] / count,
    )


@pytest.fixture(scope="module")
def empty() -> dict[tuple[str, int], float]:
    """CPU of a create with an empty calendar, by engine and number of nodes."""
    return {}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bookings", BOOKINGS)
@pytest.mark.parametrize("nodes", NODES)
async def test_creates_through_the_whole_api(
    nodes: tuple[int, int],
    bookings: tuple[int, int],
    make_system: MakeSystem,
    engine: str,
    watch: Watch,
    rounds: Rounds,
    tmp_path: Path,
    database_url: str,
    empty: dict[tuple[str, int], float],
) -> None:
    count, size, booked = rounds(300, 1_600), rounds(*nodes), rounds(*bookings)
    disk = fdatasync_rate(tmp_path)
    floor = await measure_bare(database_url, watch, count)
    rows = [("disk", f"{disk:.0f} fdatasync/s"), ("bare transaction", str(floor))]
    system = make_system()
    database = open_database(system.url)
    fleet = await add_fleet(database, size)
    await fill(database, fleet, calendar(fleet, booked, time.time_ns() // 1_000_000))
    parts = await inside(database, fleet, count)
    await database.close()
    with system:
        placer = watch.beside(system.programs["placer"].pid)
        await through_api(system, fleet, CALLERS, ahead=True)
        await placer.settled()
        with placer.measure(count) as used:
            await empty_calls(system, count)
        rows.append(("empty call over the network", str(used)))
        for ahead in (True, False):
            with placer.measure(count) as used:
                states = await through_api(system, fleet, count, ahead=ahead)
            what = "at a moment ahead" if ahead else "from now on, with the hold's start"
            floors = f"{used.rate / disk:.2f} x disk, {used.cpu_ms / floor.cpu_ms:.1f} x bare"
            rows.append((what, f"{used}; {floors}; {dict(states)}"))
    slope = parts.cpu_ms / empty.setdefault((engine, size), parts.cpu_ms)
    rows.append(("inside", f"{parts}; {slope:.2f} x the empty calendar's"))
    title = f"create -> placed, {size} nodes x 8 GPUs, {booked} bookings in 90 days"
    table(f"{title}, {count} creates, {engine}", rows)
