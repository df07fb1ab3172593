"""Placers that share one database, and callers that collide on it.

Each placer has views and locks of its own; on PostgreSQL also a database object, with threads and
connections of its own, as another process has. On SQLite, whose file belongs to one process, what
collides are calls of several transactions.
"""

import asyncio
import contextlib
import itertools
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bcd.model.caller import Caller
from bcd.model.errors import BcdError, Reason
from bcd.model.ids import ReservationId
from bcd.model.reservation import Reservation, State
from bcd.store import events
from bcd.store.database import Database
from bcd.wire.compute.v1 import reservations_pb2 as pb
from tests.clock import DatabaseClock
from tests.placer.records import Beside
from tests.placer.waiting import until
from tests.placer.world import ALICE, TENANT, FakeNode, World

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
ROOT = Caller(issuer="https://issuer", subject="root", tenants=frozenset({TENANT}), admin=True)
LIVE = frozenset({State.PLACED, State.BINDING, State.ACTIVE})

Act = Callable[[World], Awaitable[Any]]


class Complaints(logging.Handler):
    """What the program logged instead of telling a caller."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else ""
        self.heard.append(f"{record.getMessage()} {getattr(record, 'error', '')} {cause!r}")


@dataclass
class Arena:
    """One control plane, driven through all of its placers at once."""

    worlds: Sequence[World]
    clock: DatabaseClock
    url: str
    chance: random.Random
    turnaround_ms: int = 0
    deadlocks_are_expected: bool = False
    attempts: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    complaints: Complaints = field(default_factory=Complaints)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def world(self) -> World:
        """The first placer, which has the nodes."""
        return self.worlds[0]

    @property
    def database(self) -> Database:
        """The first placer's database."""
        return self.world.database

    @property
    def nodes(self) -> Sequence[FakeNode]:
        """All nodes, by the order in which they came."""
        return self.world.nodes

    def key(self) -> str:
        """An idempotency key that was not used yet."""
        return f"k{next(self.numbers)}"

    async def collide(self, *acts: Act, refusals: Iterable[Reason] = ()) -> list[Any]:
        """All at once, each through any placer; returns answers and refusals in the order given.

        A refusal of another reason than these, and whatever is no refusal, is an error here.
        """
        order = list(range(len(acts)))
        self.chance.shuffle(order)
        tasks = {at: asyncio.ensure_future(self._act(acts[at])) for at in order}
        found = await asyncio.gather(
            *(tasks[at] for at in range(len(acts))), return_exceptions=True
        )
        self.attempts += len(acts)
        for answer in found:
            if not isinstance(answer, BaseException):
                self.answers["done"] += 1
                continue
            if not isinstance(answer, BcdError) or answer.reason not in refusals:
                raise AssertionError(f"no caller may hear this: {answer!r}") from answer
            self.answers[answer.reason.value] += 1
        return found

    def _act(self, act: Act) -> Awaitable[Any]:
        world = self.chance.choice(self.worlds)
        delay_s = self.chance.choice((0.0, 0.0, self.chance.random() * 0.004))

        async def later() -> Any:
            if delay_s:
                await asyncio.sleep(delay_s)
            return await act(world)

        return later()

    def impatient(self, act: Act) -> Act:
        """Somebody who goes away before the answer, or just not; answers None if so."""
        patience_s = self.chance.choice((0.0, 0.001, 0.003, 0.01, 0.03))

        async def gives_up(world: World) -> Any:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    return await act(world)
            return None

        return gives_up

    async def quiet(self) -> None:
        """Wait until nobody does anything any more for callers who went away."""
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*rest, return_exceptions=True)
        if self.database.engine == "postgresql":
            beside = Beside(self.url)
            await until(lambda: beside.open_transactions() == 0)
        for world in self.worlds:  # one behind the other, on SQLite
            await world.database.write(lambda _tx: None)

    async def settle(self) -> None:
        """Let all that is due be worked off, by whichever placer."""
        for world in self.worlds:
            await world.work()
        for world in self.worlds:
            await world.database.write(events.publish, 10_000)

    async def clear(self) -> None:
        """End all that lives, all at once, and go on an hour later."""
        left = await self.world.rows(
            "SELECT id, tenant_id FROM reservations WHERE kind = 'reservation' AND state IN"
            " ('awaiting-confirmation', 'pending', 'placed', 'binding', 'active')"
        )
        await self.collide(*(release(row["id"], tenant=row["tenant_id"]) for row in left))
        self.attempts -= len(left)
        await self.settle()
        await asyncio.to_thread(self.clock.advance, HOUR_MS)
        await self.settle()

    async def view(self, reservation_id: ReservationId) -> Reservation:
        """A reservation as it is now."""
        return await self.world.view(reservation_id)

    async def made(self, count: int = 1, **changes: Any) -> Reservation:
        """A reservation that nobody races for."""
        return await self.world.create(count, key=self.key(), **changes)

    async def started(self, count: int = 1, **changes: Any) -> Reservation:
        """One whose nodes were told to hold its devices."""
        made = await self.made(count, **changes)
        await self.world.work()
        return await self.view(made.id)

    async def active(self, count: int = 1, **changes: Any) -> Reservation:
        """One whose nodes hold its devices."""
        made = await self.started(count, **changes)
        await self.world.bind(*self.nodes)
        found = await self.view(made.id)
        assert found.state is State.ACTIVE
        return found

    def later(self, ms: int) -> Act:
        """Time passes meanwhile."""

        async def act(_world: World) -> None:
            await asyncio.to_thread(self.clock.advance, ms)

        return act

    def reports(self, node: FakeNode, outcome: Any = None) -> Act:
        """A node reports about all that it is told to hold."""

        async def act(world: World) -> None:
            for held in await world.held(node):
                await world.send(node, node.seal(node.report(held, outcome)), held.id)

        return act

    def create(self, count: int = 1, *, caller: Caller = ALICE, **changes: Any) -> Act:
        """A create, under a key of its own unless one is given."""
        key = changes.pop("key", None) or self.key()

        async def act(world: World) -> Reservation:
            return await world.create(count, key=key, caller=caller, **changes)

        return act


def as_tenant(tenant: str) -> Caller:
    """A member of that tenant alone."""
    return replace(ALICE, tenants=frozenset({tenant}))


def release(reservation_id: str, *, tenant: str = TENANT) -> Act:
    """A release; answers the state."""

    async def act(world: World) -> str:
        request = pb.ReleaseReservationRequest(tenant_id=tenant, reservation_id=reservation_id)
        return (await world.calls.release(as_tenant(tenant), request)).reservation.state

    return act


def cancel(reservation_id: str) -> Act:
    """A cancel; answers the state."""

    async def act(world: World) -> str:
        request = pb.CancelReservationRequest(tenant_id=TENANT, reservation_id=reservation_id)
        return (await world.calls.cancel(ALICE, request)).reservation.state

    return act


def extend(reservation_id: str, by_ms: int = HOUR_MS, *, until_ms: int | None = None) -> Act:
    """An extend, by an hour if nothing else is given; answers the message."""
    longer: dict[str, Any] = {"by": f"{by_ms}ms"} if until_ms is None else {"until": until_ms}

    async def act(world: World) -> pb.ExtendReservationResponse:
        request = pb.ExtendReservationRequest(
            tenant_id=TENANT, reservation_id=reservation_id, idempotency_key="x", **longer
        )
        return await world.calls.extend(ALICE, request)

    return act


def renew(reservation_id: str) -> Act:
    """A renewal of a lease."""

    async def act(world: World) -> None:
        request = pb.RenewReservationRequest(tenant_id=TENANT, reservation_id=reservation_id)
        await world.calls.renew(ALICE, request)

    return act


async def work(world: World) -> None:
    """One look at the queue."""
    await world.worker.work_due()


async def judge(world: World) -> None:
    """One look at what nodes reported."""
    await world.worker.judge_pass()


async def publish(world: World) -> None:
    """One look at what happened, for those who watch."""
    await world.database.write(events.publish, 10_000)
