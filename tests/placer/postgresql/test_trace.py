"""One random history on both engines ends in the same rows."""

import json
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bcd.model.device import Health, HealthState
from bcd.model.errors import BcdError
from bcd.model.ids import PoolId, ReservationId
from bcd.model.report import Failed, Released
from bcd.placer.admission.policy import Allowed, Denied
from bcd.placer.lifecycle.judge import judge_node
from bcd.placer.lifecycle.pending import Rest, retry_pending
from bcd.placer.lifecycle.reconcile import Reconciler
from bcd.placer.lifecycle.transitions import Trigger
from bcd.store import reports, work
from bcd.store.database import Database
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.placement.machines import V100_MESH, captured, mig_host
from tests.placer.records import assert_no_overlap, assert_quota_adds_up
from tests.placer.world import ALICE, BOB, FakeNode, World, dgx, gpu, new_authority

START_MS = 1_900_000_000_000
MINUTE_MS = 60_000
POOL_ID = PoolId("pool_00000000000000000000000000")  # part of the request that a hash covers


@dataclass
class Twin:
    """One of the two control planes, with a log of what its callers saw."""

    world: World
    clock: DatabaseClock
    made: list[ReservationId] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    async def step(self, name: str, chance: random.Random) -> None:
        """One operation, a millisecond after the one before: ids then sort as they were made."""
        self.clock.advance(1)
        try:
            await getattr(self, name)(chance)
        except BcdError as error:
            self.seen.append(f"{name}: {error.reason} {sorted(error.details)}")
        await self.work()

    async def work(self) -> None:
        """All that is due, one after the other: what happens at once has no order to compare."""
        world = self.world
        reconciler = Reconciler(world.placements, world.signer)
        for node_id in await world.database.read(reports.nodes_with_unjudged):
            taken = (await world.database.write(judge_node, node_id)).claims
            for claim in taken:
                await world.database.write(reconciler.reconcile, claim)
        while claims := await world.database.write(work.claim, 1):
            (claim,) = claims
            self.clock.advance(1)
            if not claim.key.startswith("pool_"):
                await world.database.write(reconciler.reconcile, claim)
                continue
            rest: Rest | None = Rest()
            while rest is not None:
                rest = await world.database.write(
                    retry_pending, claim, world.placements, world.signer, rest
                )

    async def add_node(self, chance: random.Random) -> None:
        number = len(self.world.nodes)
        if number < 5:
            kinds = (dgx(f"n{number}"), mig_host(f"n{number}"), captured(V100_MESH, f"n{number}"))
            await self.world.add_node(chance.choice(kinds))

    async def create(self, chance: random.Random) -> None:
        changes: dict[str, Any] = {"duration": f"{chance.randint(1, 240)}m"}
        if chance.random() < 0.2:
            changes["devices"] = [{"class": "gpu.mig", "count": chance.randint(1, 8)}]
        else:
            changes["topology"] = chance.choice(["any", "same-numa", "nvlink-all"])
        self.world.policy.answer = Denied() if chance.random() < 0.1 else Allowed()
        made = await self.world.create(
            chance.randint(1, 6),
            key=f"k{chance.randint(0, 60)}",
            caller=chance.choice([ALICE, BOB]),
            dryRun=chance.random() < 0.2,
            **changes,
        )
        self.seen.append(f"create: {made.id} {made.state}")
        if made.id not in self.made:
            self.made.append(made.id)

    async def end(self, chance: random.Random) -> None:
        if self.made:
            chosen = chance.choice(self.made)
            trigger = chance.choice([Trigger.RELEASED, Trigger.CANCELLED])
            if await self.world.rows("SELECT id FROM reservations WHERE id = :id", id=chosen):
                ended = await self.world.end(chosen, trigger)
                self.seen.append(f"end: {ended.state}")

    async def report(self, chance: random.Random) -> None:
        outcome = chance.choice([None, None, None, Failed("x"), Released(slice_empty=True)])
        for node in self.world.nodes:
            held = await self.world.held(node)
            for allocation in sorted(held, key=lambda held: held.reservation_id):
                report = node.report(allocation, outcome)
                await self.world.send(node, node.seal(report), allocation.id)

    async def pass_time(self, chance: random.Random) -> None:
        self.clock.advance(chance.choice([1, 5, 30, 90]) * MINUTE_MS)
        for node in self.world.nodes:
            if chance.random() < 0.8:
                await self.world.connect(node)
            else:
                await self.world.judge_reachability(node)

    async def change_devices(self, chance: random.Random) -> None:
        if not self.world.nodes:
            return
        node: FakeNode = chance.choice(self.world.nodes)
        devices = list(node.devices)
        if chance.random() < 0.5:
            sick = chance.choice([Health(HealthState.UNHEALTHY, "x"), Health(HealthState.HEALTHY)])
            position = chance.randrange(len(devices))
            devices[position] = replace(devices[position], health=sick)
        else:
            devices.append(gpu(f"more-{self.clock.read()}"))
        await self.world.send_inventory(node, devices)

    async def change_quota(self, chance: random.Random) -> None:
        await self.world.grant(chance.choice(["gpu", "gpu.mig"]), chance.randint(0, 40))


STEPS = ("create",) * 6 + ("end",) * 2 + ("report",) * 3 + (
    "add_node", "pass_time", "change_devices", "change_quota",
)  # fmt: skip

QUERIES = {
    "reservations": "SELECT id, tenant_id, owner, request_hash, state, operation, conditions,"
    " start_ms, end_ms, attempts, bind_deadline_ms, version, created_ms FROM reservations",
    "allocations": "SELECT reservation_id, node_id, state, until_ms, devices, created_ms,"
    " CASE WHEN binding IS NULL THEN 0 ELSE 1 END AS shown FROM allocations",
    "bookings": "SELECT b.reservation_id, b.node_id, a.uuid, b.mode, b.start_ms, b.end_ms"
    " FROM bookings b JOIN atoms a ON a.id = b.atom_id",
    "atoms": "SELECT node_id, class, uuid, numa_node, bookable, health FROM atoms",
    "nodes": "SELECT id, ready, reachable, cordoned, inventory_hash FROM nodes",
    "quotas": "SELECT tenant_id, resource, ceiling, used FROM quotas",
    "charges": "SELECT reservation_id, resource, amount FROM quota_charges",
    "work": "SELECT key, wake_ms, attempts FROM work",
    "states": "SELECT node_id, epoch, generation FROM desired_states",
    "reports": "SELECT node_id, number, verdict, applied_ms FROM reports",
    "changes": "SELECT seq, node_id, what FROM pool_changes",
}


async def dump(twin: Twin) -> Mapping[str, Any]:
    """Every row that matters, under names instead of random ids."""
    world = twin.world
    names = {node.id: f"node{i}" for i, node in enumerate(world.nodes)} | {world.pool_id: "pool"}
    found = await world.rows("SELECT id FROM allocations ORDER BY created_ms, reservation_id")
    names |= {row["id"]: f"allocation{i}" for i, row in enumerate(found)}

    def plain(value: object) -> str:
        text = json.dumps(value, sort_keys=True, default=str)
        for random_id, name in names.items():
            text = text.replace(random_id, name)
        return text

    tables: dict[str, Any] = {}
    for name, sql in QUERIES.items():
        tables[name] = sorted(plain(dict(row)) for row in await world.rows(sql))
    events = defaultdict(list)
    for row in await world.rows("SELECT subject, type, data, at_ms FROM events ORDER BY seq"):
        data = json.loads(row["data"])
        events[row["subject"]].append(plain([row["type"], data, row["at_ms"]]))
    tables["events"] = dict(events)
    tables["seen"] = [plain(entry) for entry in twin.seen]
    tables["desired"] = [await held_by(world, node, plain) for node in world.nodes]
    return tables


async def held_by(world: World, node: FakeNode, plain: Any) -> list[str]:
    if not await world.assigned(node):
        return []
    state = await world.desired(node)
    return sorted(plain([a.allocation_id, a.until_ms, [d.id for d in a.devices]])
                  for a in state.assignments)  # fmt: skip


@pytest.fixture
async def twins(
    database: Database, clock: DatabaseClock, tmp_path: Path
) -> AsyncIterator[tuple[Twin, Twin]]:
    """Two equal control planes, one on each engine."""
    authority = new_authority(START_MS)
    lite_clock = DatabaseClock(f"sqlite:///{tmp_path}/twin.db")
    lite = lite_clock.open()
    made = []
    for store, its_clock in ((lite, lite_clock), (database, clock)):
        its_clock.set(START_MS)
        world = World(store, authority)
        await world.add_pool()
        await store.write(lambda tx: tx.run("UPDATE pools SET id = :id", id=POOL_ID))
        world.pool_id = POOL_ID
        await world.grant("gpu", 40)
        await world.grant("gpu.mig", 20)
        made.append(Twin(world, its_clock))
    yield made[0], made[1]
    await lite.close()


@pytest.mark.parametrize("seed", range(4))
async def test_one_history_ends_in_the_same_rows_on_both_engines(
    twins: tuple[Twin, Twin], seed: int, rounds: Rounds
) -> None:
    chance = random.Random(seed)
    names = ["add_node", "create", *(chance.choice(STEPS) for _ in range(rounds(80, 800)))]
    for number, name in enumerate(names):
        for twin in twins:
            await twin.step(name, random.Random(f"{seed}-{number}"))
        if number % 10 == 0:
            await assert_equal(twins)
    await assert_equal(twins)
    assert len(await twins[0].world.rows("SELECT id FROM bookings")) > 0
    for twin in twins:
        await assert_no_overlap(twin.world.database)
        await assert_quota_adds_up(twin.world.database)


async def assert_equal(twins: tuple[Twin, Twin]) -> None:
    lite, postgresql = [await dump(twin) for twin in twins]
    for name, rows in lite.items():
        assert rows == postgresql[name], name
