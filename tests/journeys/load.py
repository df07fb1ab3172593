"""Callers that reserve and release all the time and write down what was acknowledged.

The journal is synced before the next call: whatever it says must still be true after any crash.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import grpc

from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub
from tests.journeys.system import TENANT, System

if TYPE_CHECKING:
    from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceAsyncStub

    Stub: TypeAlias = ReservationsServiceAsyncStub
A = TypeVar("A")
_OUTAGE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass
class Journal:
    """What the API acknowledged: created ids by key, and the ids that were released."""

    path: Path
    created: dict[str, str] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)

    def write(self, *words: str) -> None:
        """Append a line and sync it."""
        with self.path.open("a") as file:
            file.write(" ".join(words) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if words[0] == "created":
            assert self.created.setdefault(words[1], words[2]) == words[2], "one key, two rows"
        else:
            self.released.add(words[1])


@dataclass
class Load:
    """``callers`` coroutines at once, each create followed by a release; some stay for a while.

    What stays is little, so that there is room on the hosts in the last round as in the first.
    """

    system: System
    pool_id: str
    journal: Journal
    callers: int = 8
    calls: int = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Go on through outages until told to stop."""
        roots = (self.system.state / "ca.pem").read_bytes()
        metadata = (("authorization", f"Bearer {self.system.token()}"),)
        async with grpc.aio.secure_channel(
            f"localhost:{self.system.api_port}",
            grpc.ssl_channel_credentials(roots),
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 300),
            ],
        ) as channel:
            stub: Stub = ReservationsServiceStub(channel)
            await asyncio.gather(
                *(self._caller(stub, metadata, n, stopping) for n in range(self.callers))
            )

    async def _caller(
        self,
        stub: "Stub",
        metadata: tuple[tuple[str, str], ...],
        number: int,
        stopping: asyncio.Event,
    ) -> None:
        serial = 0
        kept: list[str] = []
        while not stopping.is_set():
            serial += 1
            key = f"c{number}-{self.journal.path.name}-{len(self.journal.created)}-{serial}"
            made = await self._create(stub, metadata, key, stopping)
            if made is not None:
                kept.append(made)
            while len(kept) > (random.random() < 0.2):
                await self._release(stub, metadata, kept.pop(0), stopping)

    async def _create(
        self,
        stub: "Stub",
        metadata: tuple[tuple[str, str], ...],
        key: str,
        stopping: asyncio.Event,
    ) -> str | None:
        request = pb.CreateReservationRequest(
            tenant_id=TENANT, pool_id=self.pool_id, duration="1h", idempotency_key=key
        )
        request.devices.add(**{"class": "gpu"}, count=random.choice((1, 2, 4)))
        answer = await self._insist(
            lambda: stub.CreateReservation(request, metadata=metadata, timeout=5), stopping
        )
        if answer is None:
            return None
        self.journal.write("created", key, answer.reservation.id)
        return answer.reservation.id

    async def _release(
        self,
        stub: "Stub",
        metadata: tuple[tuple[str, str], ...],
        reservation_id: str,
        stopping: asyncio.Event,
    ) -> None:
        request = pb.ReleaseReservationRequest(tenant_id=TENANT, reservation_id=reservation_id)
        answer = await self._insist(
            lambda: stub.ReleaseReservation(request, metadata=metadata, timeout=5), stopping
        )
        if answer is not None:
            self.journal.write("released", reservation_id)

    async def _insist(self, call: Callable[[], Awaitable[A]], stopping: asyncio.Event) -> A | None:
        """Call until it is answered; None when told to stop first. Any other failure is raised."""
        while not stopping.is_set():
            try:
                answer = await call()
            except grpc.aio.AioRpcError as error:
                if error.code() not in _OUTAGE:
                    raise
                await asyncio.sleep(0.02)
            else:
                self.calls += 1
                return answer
        return None
