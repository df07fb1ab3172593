"""Random histories of a small pool: whatever happens, the rows agree with each other."""

import contextlib
import random
from typing import Any

import pytest

from bcd.model.errors import BcdError
from bcd.model.ids import ReservationId
from bcd.model.pool import PoolPolicy, SpotPolicy
from bcd.model.report import Failed
from bcd.model.reservation import State
from bcd.placer.lifecycle.transitions import Trigger
from bcd.store import nodes, pools, reservations, work
from bcd.store.database import Transaction
from tests.clock import DatabaseClock
from tests.placer.records import assert_no_overlap, assert_quota_adds_up, count
from tests.placer.world import FakeNode, World, dgx

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
STEPS = 60
GAP_MS = 7 * MINUTE_MS
LIVE = "('placed', 'binding', 'active')"


class History:
    """Somebody does something at random, and time passes."""

    def __init__(self, world: World, clock: DatabaseClock, seed: int) -> None:
        self.world, self.clock = world, clock
        self.random = random.Random(seed)
        self.made: list[ReservationId] = []

    async def step(self) -> None:
        often = (self.create, self.pass_time, self.bind)
        seldom = (self.extend, self.renew, self.end, self.fail, self.break_device, self.drain)
        deeds = [*often * 3, *seldom, self.extend, self.mend] if self.made else [self.create]
        with contextlib.suppress(BcdError):  # a refusal is an outcome too
            await self.random.choice(deeds)()
        await self.world.work()

    async def create(self) -> None:
        key = f"k{len(self.made)}"
        changes: dict[str, Any] = {
            "duration": f"{self.random.choice([1, 5, 30, 90])}m",
            "spot": self.random.random() < 0.5,
        }
        if self.random.random() < 0.4:
            changes["start"] = self.clock.read() + self.random.randrange(0, 3 * HOUR_MS)
        if self.random.random() < 0.3:
            changes["gang"] = {"size": 2}
        if self.random.random() < 0.3:
            changes["leaseSeconds"] = self.random.choice([60, 1200])
        made = await self.world.create(self.random.randint(1, 2), key=key, **changes)
        self.made.append(made.id)

    async def pass_time(self) -> None:
        self.clock.advance(self.random.choice([1, 1000, MINUTE_MS, 20 * MINUTE_MS, HOUR_MS]))
        for node in self.world.nodes:
            if self.random.random() < 0.9:
                await self.world.connect(node)
            await self.world.judge_reachability(node)

    async def bind(self) -> None:
        await self.world.bind(self.random.choice(self.world.nodes))

    async def fail(self) -> None:
        node = self.random.choice(self.world.nodes)
        for allocation in await self.world.held(node):
            report = node.seal(node.report(allocation, Failed("device-busy")))
            await self.world.send(node, report, allocation.id)

    async def extend(self) -> None:
        by_ms = self.random.choice([1, MINUTE_MS, HOUR_MS])
        await self.world.extend(self.any(), by_ms=by_ms)

    async def renew(self) -> None:
        await self.world.renew(self.any())

    async def end(self) -> None:
        trigger = self.random.choice([Trigger.RELEASED, Trigger.CANCELLED])
        await self.world.end(self.any(), trigger)

    async def break_device(self) -> None:
        node = self.random.choice(self.world.nodes)
        await self.world.send_inventory(node, dgx(self.name(node), self.random.randint(0, 1)))

    async def mend(self) -> None:
        node = self.random.choice(self.world.nodes)
        await self.world.send_inventory(node, dgx(self.name(node), 2))

    async def drain(self) -> None:
        node = self.random.choice(self.world.nodes)

        def change(tx: Transaction) -> None:
            held = pools.lock(tx, self.world.pool_id)
            pools.note_changes(tx, held, [node.id], "node")
            for reservation_id in reservations.on_node(tx, node.id):
                work.poke(tx, reservation_id, held.now_ms)
            if self.random.random() < 0.5:
                nodes.drain(tx, node.id)
            else:
                nodes.set_cordoned(tx, node.id, False)

        await self.world.database.write(change)

    def name(self, node: FakeNode) -> str:
        return "abc"[self.world.nodes.index(node)]

    def any(self) -> ReservationId:
        return self.random.choice(self.made)


async def assert_sound(world: World, gap_ms: int) -> None:
    await assert_no_overlap(world.database)
    await assert_quota_adds_up(world.database)
    assert await count(world.database, "SELECT count(*) FROM extend_holds") == 0
    for row in await world.rows(f"SELECT * FROM reservations WHERE state IN {LIVE}"):
        view = await world.view(row["id"])
        members = await world.live(row["id"])
        assert len(members) == view.request.gang_size
        assert len({member.node_id for member in members}) == len(members)
        booked = await world.rows(
            "SELECT DISTINCT start_ms, end_ms FROM bookings WHERE reservation_id = :id"
            " AND allocation_id IN (SELECT id FROM allocations WHERE state <> 'ended')",
            id=row["id"],
        )
        window = {"start_ms": row["start_ms"], "end_ms": row["end_ms"] + gap_ms}
        assert booked == [window]
        assert {member.until_ms for member in members} == {row["end_ms"]}
        (due,) = await world.rows("SELECT wake_ms FROM work WHERE key = :key", key=row["id"])
        assert due["wake_ms"] <= min(row["end_ms"], row["lease_until_ms"] or row["end_ms"])
    rest = await world.rows(
        "SELECT a.id FROM allocations a JOIN reservations r ON r.id = a.reservation_id"
        f" WHERE a.state <> 'ended' AND r.state NOT IN {LIVE}"
    )
    assert rest == []
    for node in world.nodes:
        held = [allocation.id for allocation in await world.held(node)]
        assert list(await world.assigned(node)) == held


@pytest.mark.parametrize("seed", range(6))
async def test_rows_agree_after_every_step(world: World, clock: DatabaseClock, seed: int) -> None:
    clock.advance(0)
    gap_ms = GAP_MS * (seed % 2)
    policy = PoolPolicy(turnaround_ms=gap_ms, spot=SpotPolicy(grace_seconds=90))
    world.pool_id = await world.add_pool("random", policy)
    for name in "abc":
        await world.add_node(dgx(name, 2))
    history = History(world, clock, seed)
    for _ in range(STEPS):
        await history.step()
        await assert_sound(world, gap_ms)
    seen = {row["state"] for row in await world.rows("SELECT DISTINCT state FROM reservations")}
    assert {State.RELEASED, State.CANCELLED} & seen
