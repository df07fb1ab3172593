"""Desired state written -> verified binding, through gateway and daemon, beside its floor.

From the commit that stores a signed desired state to the commit that makes the reservation
active: relay, verification, CDI spec and env file, signed report, its storage and judgement. The
floor is a bare mTLS round trip and the same writes: four files replaced on the host, of which
power loss may take the env file, and three small transactions, one after the other.
"""

import asyncio
import time
from pathlib import Path

import pytest

from bcd.signing.certificates import Role
from bcd.signing.keyfile import Credentials
from bcd.store import work
from bcd.store.database import Database
from bcd.wire.compute.v1 import reservations_pb2 as pb
from tests.bench.control import Control, control
from tests.bench.echo import Stream, echo_stream, replace_files
from tests.bench.measure import cpu_ns, percentile, table
from tests.conftest import Rounds
from tests.journeys.system import TENANT

_COMMITS = 3
_WARM_UP = 5  # the first ones load code
_FRAME = bytes(2048)


class Binder:
    """Makes one reservation active at a time and notes when which commit was told."""

    def __init__(self, bench: Control, daemon_pid: int) -> None:
        self._bench = bench
        self._pid = daemon_pid
        self._told: asyncio.Queue[tuple[str, float, int]] = asyncio.Queue()
        bench.database.wakes.listen("reservation", self._hear)

    def _hear(self, key: str) -> None:
        used = time.process_time_ns() + cpu_ns(self._pid)
        self._told.put_nowait((key, time.perf_counter(), used))

    async def bind(self, number: int) -> tuple[float, float]:
        """(seconds, CPU seconds of all processes) from desired state to active."""
        channel, stub, metadata = self._bench.stub()
        async with channel:
            request = pb.CreateReservationRequest(
                tenant_id=TENANT,
                pool_id=self._bench.pool_id,
                duration="1h",
                idempotency_key=f"bind-{number}",
            )
            request.devices.add(**{"class": "gpu"}, count=4)
            made = (await stub.CreateReservation(request, metadata=metadata)).reservation
            marks = [await self._told.get() for _ in ("placed", "binding", "active")]
            assert {key for key, _, _ in marks} == {made.id}
            release = pb.ReleaseReservationRequest(tenant_id=TENANT, reservation_id=made.id)
            await stub.ReleaseReservation(release, metadata=metadata)
            await self._told.get()
        await asyncio.sleep(0.05)  # the host takes the hold away before the next one
        (_, began, used_before), (_, ended, used_after) = marks[1:]
        return ended - began, (used_after - used_before) / 1e9


def _identity(bench: Control) -> Credentials:
    """Of the process that echoes, and of the one that asks it."""
    now_ms = time.time_ns() // 1_000_000
    role = (Role.GATEWAY, "echo")
    return bench.secrets.authority.credentials_for(role, now_ms, ("localhost",))[0]


async def floor(
    echo: tuple[Stream, int], database: Database, folder: Path, number: int
) -> tuple[float, float]:
    """(seconds, CPU seconds of both processes) of a bare round trip and the same writes."""
    stream, pid = echo
    used = time.process_time_ns() + cpu_ns(pid)
    began = time.perf_counter()
    await stream.write(_FRAME)
    assert await stream.read() == _FRAME
    replace_files(folder)
    for _ in range(_COMMITS):
        await database.write(work.schedule, f"floor_{number}", 1 << 60, soon=False)
    ended = time.perf_counter()
    return ended - began, (time.process_time_ns() + cpu_ns(pid) - used) / 1e9


@pytest.mark.timeout(900)
async def test_desired_state_to_verified_binding(tmp_path: Path, rounds: Rounds) -> None:
    count = rounds(60, 300)
    async with control(tmp_path, f"sqlite:///{tmp_path}/bcd.db") as bench:
        daemon = await bench.start_daemon("host1")
        try:
            binder = Binder(bench, daemon.pid)
            binds, floors = [], []
            async with echo_stream(_identity(bench), tmp_path) as echo:
                for number in range(_WARM_UP + count):
                    binds.append(await binder.bind(number))
                    floors.append(await floor(echo, bench.database, tmp_path, number))
        finally:
            daemon.terminate()
            daemon.wait()
    (seconds, cpu), (floor_seconds, floor_cpu) = (
        zip(*rows[_WARM_UP:], strict=True) for rows in (binds, floors)
    )
    p50, floor50 = percentile(seconds, 50) * 1e3, percentile(floor_seconds, 50) * 1e3
    p99, floor99 = percentile(seconds, 99) * 1e3, percentile(floor_seconds, 99) * 1e3
    table(
        f"desired state written -> verified binding, {count} times",
        [
            ("p50 / p99", f"{p50:.2f} / {p99:.2f} ms"),
            ("floor p50 / p99", f"{floor50:.2f} / {floor99:.2f} ms"),
            ("p50 over the floor", f"{p50 / floor50:.2f} x"),
            ("CPU of all our processes each", f"{sum(cpu) / count * 1e3:.2f} ms"),
            ("floor's CPU of both processes each", f"{sum(floor_cpu) / count * 1e3:.2f} ms"),
        ],
    )
