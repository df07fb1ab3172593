"""Planning and booking in the database: guarded, and on a view that never strays from it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bcd.model.device import DeviceClass, Health, HealthState
from bcd.model.ids import AllocationId, NodeId, ReservationId
from bcd.model.pool import PoolPolicy
from bcd.model.reservation import DeviceAsk, Resources, State, Topology
from bcd.placer.api.nodes import NodeCalls
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.placement.booking import Placed, Placements
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.placer.placement.view import PoolView
from bcd.store import allocations, atoms, bookings, nodes, pools, reservations
from bcd.store.bookings import NewBooking
from bcd.store.database import Transaction
from bcd.store.reservations import StoredReservation
from bcd.wire.compute.v1 import admin_pb2 as pb
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.placement.machines import DGX_A100, V100_MESH, ask, captured, mig_host
from tests.placer.placement.placing import (
    HOUR_MS,
    Wish,
    by_node,
    extend,
    give_capacity,
    learn,
    placed,
    repair,
    reserve,
)
from tests.placer.records import Beside, assert_no_overlap, assert_quota_adds_up, rows
from tests.placer.world import ALICE, FakeNode, World, dgx, gpu, mig

ADMIN = replace(ALICE, admin=True)
Planned = Sequence[tuple[tuple[str, tuple[str, ...]], ...] | Unschedulable]


class _RolledBack(Exception):
    """Carries what was planned out of a transaction that is undone."""

    def __init__(self, planned: Planned) -> None:
        super().__init__()
        self.planned = planned


async def plans(world: World, placements: Placements, *wanted: DeviceAsk | Wish) -> Planned:
    """What a placer would do with each of these requests in turn; nothing of it stays."""

    def work(tx: Transaction) -> None:
        held = pools.lock(tx, world.pool_id)
        planned: list[Any] = []
        for entry in wanted:
            wish = Wish(devices=(entry,)) if isinstance(entry, DeviceAsk) else entry
            row = replace(
                any_reservation(tx),
                request=wish.request(world, held.now_ms),
                resources=wish.resources,
            )
            found = placements.place(tx, held, row)
            if isinstance(found, Placed):
                planned.append(tuple(by_node(found.allocations).items()))
            else:
                planned.append(found)
        raise _RolledBack(planned)

    with pytest.raises(_RolledBack) as undone:
        await world.database.write(work)
    return undone.value.planned


def any_reservation(tx: Transaction) -> StoredReservation:
    row = tx.one("SELECT id FROM reservations LIMIT 1")
    assert row is not None
    stored = reservations.get(tx, row["id"])
    assert stored is not None
    return stored


async def devices_of(world: World, reservation_id: ReservationId) -> list[str]:
    (allocation,) = await world.live(reservation_id)
    return [device.id for device in allocation.devices]


# What is booked


async def test_four_linked_gpus_are_booked_until_the_end_and_the_turnaround(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    pool_id = await world.add_pool("slow", PoolPolicy(turnaround_ms=60_000))
    node = await world.add_node(dgx("a"), pool_id)
    made = await world.create(4, topology="nvlink-all", poolId=pool_id)
    assert made.during is not None
    assert made.during.start_ms == clock.read()
    found = await rows(world.database, "SELECT node_id, start_ms, end_ms FROM bookings")
    assert len(found) == 4
    assert {(row["node_id"], row["start_ms"], row["end_ms"]) for row in found} == {
        (node.id, made.during.start_ms, made.during.end_ms + 60_000)
    }
    (allocation,) = await world.live(made.id)
    assert allocation.until_ms == made.during.end_ms
    assert [device.id for device in allocation.devices] == [f"GPU-a-{i}" for i in range(4)]


async def test_devices_are_allocated_in_the_order_of_the_entries(world: World) -> None:
    await world.add_node((*mig_host("a", 1, 2), *dgx("b", 2)))
    devices = [{"class": "gpu", "count": 1}, {"class": "gpu.mig", "count": 2}]
    made = await world.create(devices=devices)
    assert await devices_of(world, made.id) == ["GPU-b-0", "MIG-a-0-0", "MIG-a-0-1"]


async def test_the_captured_mesh_gives_two_quads_and_no_third(world: World) -> None:
    await world.add_node(captured(V100_MESH))
    one = await world.create(4, key="1", topology="nvlink-all")
    two = await world.create(4, key="2", topology="nvlink-all")
    assert await devices_of(world, one.id) == [f"h-GPU{i}" for i in range(4)]
    assert await devices_of(world, two.id) == [f"h-GPU{i}" for i in range(4, 8)]


async def test_a_pair_across_the_mesh_leaves_no_quad(world: World) -> None:
    await world.add_node(captured(V100_MESH))
    devices = [{"class": "gpu", "count": 4, "topology": "nvlink-all"}]
    first = await world.create(1, key="1")
    second = await world.create(1, key="2")
    assert await devices_of(world, first.id) == ["h-GPU0"]
    assert await devices_of(world, second.id) == ["h-GPU1"]
    third = await world.create(key="3", devices=devices)
    assert await devices_of(world, third.id) == [f"h-GPU{i}" for i in range(4, 8)]


async def test_a_dgx_a100_gives_gpus_of_one_numa_node_in_its_own_order(world: World) -> None:
    await world.add_node(captured(DGX_A100))
    pairs = [await world.create(2, key=f"{i}", topology="same-numa") for i in range(4)]
    booked = [await devices_of(world, made.id) for made in pairs]
    assert sorted(booked) == [[f"h-GPU{i}", f"h-GPU{i + 1}"] for i in range(0, 8, 2)]


async def test_a_link_counts_only_where_both_ends_report_it(world: World) -> None:
    await world.add_node((gpu("a", peers=["b"]), gpu("b")))
    made = await world.create(2, topology="nvlink-all")
    assert made.state is State.PENDING
    assert "topology rejected 1" in made.conditions[0].message


async def test_a_switch_domain_of_one_node_says_nothing_of_another(world: World) -> None:
    await world.add_node((gpu("a", domain="s"), gpu("b", domain="t")))
    await world.add_node((gpu("c", domain="s"), gpu("d", domain="t")))
    assert (await world.create(2, topology="nvlink-all")).state is State.PENDING


async def test_a_node_that_failed_is_avoided_unless_there_is_no_other(world: World) -> None:
    first = await world.add_node(dgx("a"))
    second = await world.add_node(dgx("b"))
    made = await world.create(1)

    def place(tx: Transaction, *avoid: NodeId) -> NodeId:
        held = pools.lock(tx, world.pool_id)
        row = reservations.get(tx, made.id)
        assert row is not None
        found = world.placements.place(tx, held, row, frozenset(avoid))
        assert isinstance(found, Placed)
        (allocation,) = found.allocations
        return allocation.node_id

    assert await world.database.write(place, first.id) == second.id
    assert await world.database.write(place, second.id) == first.id
    assert await world.database.write(place, first.id, second.id) in (first.id, second.id)


# MIG instances and whole GPUs


BOTH = (gpu("g0"), mig("m0", "g0"), mig("m1", "g0"), gpu("g1"), mig("n0", "g1"), mig("n1", "g1"))
ONE_MIG = [{"class": "gpu.mig", "count": 1}]


async def test_instances_gather_on_one_gpu_and_leave_the_other_whole(world: World) -> None:
    await world.add_node(BOTH)
    one = await world.create(key="1", devices=ONE_MIG)
    two = await world.create(key="2", devices=ONE_MIG)
    parents = {(await devices_of(world, made.id))[0][0] for made in (one, two)}
    assert len(parents) == 1
    assert (await world.create(1, key="3")).state is State.PLACED
    assert (await world.create(1, key="4")).state is State.PENDING
    assert (await world.create(key="5", devices=ONE_MIG)).state is State.PENDING
    await assert_no_overlap(world.database)


async def test_an_instance_never_goes_onto_a_gpu_that_is_booked_whole(world: World) -> None:
    await world.add_node(BOTH[:3])
    whole = await world.create(1, key="1")
    part = await world.create(key="2", devices=ONE_MIG)
    assert (whole.state, part.state) == (State.PLACED, State.PENDING)
    await world.end(whole.id, Trigger.RELEASED)
    await world.work()
    assert (await world.view(part.id)).state is State.BINDING
    assert (await world.create(1, key="3")).state is State.PENDING


@pytest.mark.parametrize("taken", [0, 1], ids=["whole, then an instance", "instance, then whole"])
async def test_the_database_itself_refuses_a_gpu_whole_and_in_part(
    world: World, taken: int
) -> None:
    node = await world.add_node(BOTH[:3])
    made = await world.create(1) if taken == 0 else await world.create(devices=ONE_MIG)
    assert made.during is not None
    start, end = made.during.start_ms, made.during.end_ms

    def book_another_mode(tx: Transaction) -> list[bool]:
        (held,) = allocations.live(tx, made.id)
        mine = {device.id for device in held.devices}
        answers = []
        for atom in atoms.on_node(tx, node.id):
            if atom.uuid in mine or (atom.device_class is DeviceClass.GPU) != (taken == 1):
                continue
            for begin in (start, end - 1):
                another = replace(held, id=AllocationId(tx.new_id("alloc")))
                allocations.add(tx, another)
                booking = NewBooking(
                    allocation_id=another.id,
                    reservation_id=made.id,
                    node_id=node.id,
                    atoms=(atom,),
                    start_ms=begin,
                    end_ms=begin + 1,
                )
                answers.append(bookings.book(tx, booking))
        return answers

    answers = await world.database.write(book_another_mode)
    assert answers
    assert not any(answers)
    await assert_no_overlap(world.database)


# Nodes that take no bookings


async def test_nodes_are_counted_under_what_keeps_them_out(
    world: World, clock: DatabaseClock
) -> None:
    calls = NodeCalls(world.database)
    cordoned = await world.add_node(dgx("a"))
    await calls.cordon_node(ADMIN, pb.CordonNodeRequest(node_id=cordoned.id, cordoned=True))
    await world.add_node(dgx("b"), trusted=False)
    sick = Health(HealthState.UNHEALTHY, "Xid 79")
    await world.add_node([replace(device, health=sick) for device in dgx("c")])
    await world.add_node([replace(device, model="A100") for device in dgx("d")])
    clock.advance(10 * 60_000)
    silent = world.nodes[-1]
    for node in (*world.nodes[:3], await world.add_node(dgx("e", 1))):
        await world.connect(node)
    await world.judge_reachability(silent)
    made = await world.create(2, model="H100")
    assert made.conditions[0].message.startswith(
        "none of 5 nodes fits: state rejected 2, trust rejected 1, devices rejected 2"
        " (the closest has 1 of 2 free); first in the pool's queue"
    )


async def test_a_node_back_in_service_is_booked_again(world: World) -> None:
    node = await world.add_node(dgx("a"))
    calls = NodeCalls(world.database)
    await calls.cordon_node(ADMIN, pb.CordonNodeRequest(node_id=node.id, cordoned=True))
    made = await world.create(1)
    assert made.state is State.PENDING
    await calls.cordon_node(ADMIN, pb.CordonNodeRequest(node_id=node.id, cordoned=False))
    await world.work()
    assert (await world.view(made.id)).state is State.BINDING


# The view and the database


async def test_a_booking_behind_the_placers_back_is_found_out_by_the_database(
    world: World, database_url: str
) -> None:
    await world.add_node(dgx("a", 4))
    made = await world.create(1, key="1")
    assert await devices_of(world, made.id) == ["GPU-a-0"]
    beside = Beside(database_url)
    insert = (
        "INSERT INTO bookings (allocation_id, reservation_id, node_id, atom_id, gpu_id, mode,"
        " start_ms, end_ms) SELECT b.allocation_id, b.reservation_id, b.node_id, a.id, a.gpu_id,"
        " a.mode, b.start_ms, b.end_ms FROM bookings b, atoms a WHERE a.uuid = 'GPU-a-{0}'"
        f" AND b.reservation_id = '{made.id}' LIMIT 1"
    )
    beside.execute(insert.format(1))
    second = await world.create(1, key="2")
    assert (await devices_of(world, second.id))[0] in ("GPU-a-2", "GPU-a-3")
    beside.execute(insert.format(2 if await devices_of(world, second.id) == ["GPU-a-3"] else 3))
    assert (await world.create(1, key="3")).state is State.PENDING
    await assert_no_overlap(world.database)


PROBES: Sequence[DeviceAsk | Wish] = (
    ask(1),
    Wish(gang=2),
    Wish(devices=(ask(2),), start=HOUR_MS),
    Wish(devices=(ask(4),), gang=3, start=2 * HOUR_MS),
    Wish(resources=Resources(vcpu=3)),
    ask(2, Topology.SAME_NUMA),
    ask(4, Topology.NVLINK_ALL),
    ask(3),
    ask(2, device_class=DeviceClass.MIG),
    ask(1, model="A100"),
    ask(8),
)


@pytest.mark.parametrize("seed", range(3))
async def test_a_placer_that_has_seen_it_all_plans_as_one_that_just_started(
    world: World, clock: DatabaseClock, seed: int, rounds: Rounds
) -> None:
    """After any history, rolled-back transactions and failed updates included."""
    clock.advance(0)
    await world.grant("gpu", 100_000)
    await world.grant("gpu.mig", 100_000)
    await world.create(1, key="first")
    chance = random.Random(seed)
    history = History(world, clock, chance)
    await history.add_node()
    for step in chance.sample([*HISTORY] * 40, rounds(60, 400)):
        await HISTORY[step](history)
        old = await plans(world, world.placements, *PROBES)
        assert old == await plans(world, Placements(), *PROBES)
    await assert_no_overlap(world.database)
    await assert_quota_adds_up(world.database)


class History:
    """Random changes of everything that a view depends on."""

    def __init__(self, world: World, clock: DatabaseClock, chance: random.Random) -> None:
        self.world = world
        self.clock = clock
        self.chance = chance
        self.made: list[ReservationId] = []
        self.number = 0

    def _node(self) -> FakeNode:
        return self.chance.choice(self.world.nodes)

    async def add_node(self) -> None:
        kinds: Sequence[Callable[[str], Any]] = (
            dgx,
            mig_host,
            lambda name: captured(V100_MESH, name),
        )
        if len(self.world.nodes) < 8:
            await self.world.add_node(self.chance.choice(kinds)(f"h{self.number}"))

    async def create(self) -> None:
        self.number += 1
        kind = self.chance.choice(["gpu", "gpu", "gpu.mig"])
        devices = [{"class": kind, "count": self.chance.randint(1, 4)}]
        made = await self.world.create(
            key=f"k{self.number}", devices=devices, duration=f"{self.chance.randint(1, 300)}m"
        )
        self.made.append(made.id)

    async def gang(self) -> None:
        wish = Wish(
            devices=(ask(self.chance.randint(1, 4)),),
            gang=self.chance.randint(1, 3),
            start=self.chance.choice([None, self.chance.randint(0, 200) * 60_000]),
            resources=Resources(vcpu=self.chance.choice([0, 0, 2])),
            duration_ms=self.chance.randint(1, 300) * 60_000,
        )
        reservation_id, outcome = await reserve(self.world, wish)
        if isinstance(outcome, Placed):
            self.made.append(reservation_id)

    async def extend(self) -> None:
        for reservation_id in self.made[-2:]:
            if (await self.world.view(reservation_id)).state is State.PLACED:
                await extend(self.world, reservation_id, self.chance.randint(1, 90) * 60_000)

    async def repair(self) -> None:
        for reservation_id in self.made[-2:]:
            mine = await self.world.live(reservation_id)
            if (await self.world.view(reservation_id)).state is State.PLACED:
                await repair(self.world, reservation_id, mine[0].node_id)

    async def change_host(self) -> None:
        node = self._node()
        await learn(self.world, node, *self.chance.choice([[], ["devices.limits"]]))
        await give_capacity(self.world, node, self.chance.choice([4, 16]))

    async def rehearse(self) -> None:
        await self.world.create(self.chance.randint(1, 8), key="rehearsed", dryRun=True)

    async def fail(self) -> None:
        """Places, and is undone afterwards."""
        await plans(self.world, self.world.placements, *self.chance.sample(PROBES, 3))

    async def release(self) -> None:
        if self.made:
            reservation_id = self.made.pop(self.chance.randrange(len(self.made)))
            state = (await self.world.view(reservation_id)).state
            if state in (State.PENDING, State.PLACED, State.BINDING, State.ACTIVE):
                await self.world.end(reservation_id, Trigger.RELEASED)

    async def pass_time(self) -> None:
        self.clock.advance(self.chance.randint(1, 90) * 60_000)
        for node in self.world.nodes:
            await self.world.connect(node)
        await self.world.work()

    async def go_silent(self) -> None:
        node = self._node()
        await self.world.database.write(
            lambda tx: tx.run(
                "UPDATE sessions SET last_seen_ms = 0 WHERE node_id = :id", id=node.id
            )
        )
        await self.world.judge_reachability(node)

    async def cordon(self) -> None:
        request = pb.CordonNodeRequest(node_id=self._node().id, cordoned=self.chance.random() < 0.5)
        await NodeCalls(self.world.database).cordon_node(ADMIN, request)

    async def change_inventory(self) -> None:
        node = self._node()
        devices = list(node.devices)
        position = self.chance.randrange(len(devices))
        match self.chance.choice(["sick", "gone", "model", "new"]):
            case "sick":
                sick = Health(HealthState.UNHEALTHY, "x")
                devices[position] = replace(devices[position], health=sick)
            case "gone" if len(devices) > 1:
                del devices[position]
            case "model":
                devices[position] = replace(devices[position], model="A100")
            case _:
                devices.append(gpu(f"new-{self.number}", self.chance.choice([0, 1, None])))
        await self.world.send_inventory(node, devices)

    async def forget_old_changes(self) -> None:
        """The log of changes is cut: whoever is behind it starts over."""
        await self.world.database.write(lambda tx: tx.run("DELETE FROM pool_changes"))


HISTORY = {
    name: getattr(History, name)
    for name in (
        "add_node", "create", "gang", "extend", "repair", "change_host",
        "rehearse", "fail", "release", "pass_time", "go_silent", "cordon",
        "change_inventory", "forget_old_changes",
    )
}  # fmt: skip


async def test_what_fits_nowhere_is_known_until_something_changes_or_its_time_comes(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    for name in "ab":
        await world.add_node(dgx(name, 2))
    held = [await world.create(2, key=key, duration=f"{key}m") for key in ("30", "60")]
    (sooner,) = await world.live(held[0].id)
    node = next(node for node in world.nodes if node.id == sooner.node_id)
    devices = node.devices
    await world.work()
    asked = [ask(2)]
    (before,) = await plans(world, world.placements, *asked)
    assert isinstance(before, Unschedulable)
    assert held[0].during is not None
    assert before.earliest_ms == held[0].during.end_ms
    clock.advance(60_000)
    assert await plans(world, world.placements, *asked) == [before]
    await world.send_inventory(node, devices[:1])
    (sick,) = await plans(world, world.placements, *asked)
    assert sick == (await plans(world, Placements(), *asked))[0] != before
    await world.send_inventory(node, devices)
    clock.set(before.earliest_ms)
    (found,) = await plans(world, world.placements, *asked)
    assert found == ((node.id, tuple(device.id for device in devices)),)


async def test_a_refusal_for_one_start_says_nothing_of_another(
    world: World, clock: DatabaseClock
) -> None:
    """One GPU is taken from the second to the third hour."""
    clock.advance(0)
    await world.add_node(dgx("a", 1))
    await placed(world, start=HOUR_MS)
    wishes = [
        Wish(),
        Wish(duration_ms=2 * HOUR_MS),
        Wish(start=HOUR_MS),
        Wish(start=HOUR_MS - 1),
        Wish(start=2 * HOUR_MS - 1),
        Wish(start=2 * HOUR_MS),
    ]
    for _ in range(2):
        kinds = []
        for wish in wishes:
            (planned,) = await plans(world, world.placements, wish)
            assert [planned] == await plans(world, Placements(), wish)
            kinds.append(isinstance(planned, Unschedulable))
        assert kinds == [False, True, True, True, True, False]
    (refusal,) = await plans(world, world.placements, Wish(start=HOUR_MS))
    assert isinstance(refusal, Unschedulable)
    assert refusal.earliest_ms == clock.read() + 2 * HOUR_MS


async def test_a_start_that_has_passed_is_now(world: World, clock: DatabaseClock) -> None:
    """A pending reservation begins when it is placed, with the full duration."""
    clock.advance(0)
    await world.add_node(dgx("a", 1))
    _, (made,) = await placed(world, start=-HOUR_MS)
    assert made.until_ms == clock.read() + HOUR_MS


async def test_requests_that_ask_for_different_things_are_not_answered_alike(
    world: World,
) -> None:
    await world.add_node(captured(V100_MESH))
    await world.create(1, key="corner")
    asked = (ask(8), ask(4, Topology.NVLINK_ALL), ask(5, Topology.NVLINK_ALL), ask(8, model="x"))
    for _ in range(2):
        for wanted in asked:
            assert await plans(world, world.placements, wanted) == await plans(
                world, Placements(), wanted
            )


async def test_a_transaction_that_fails_while_the_view_is_updated_leaves_no_trace(
    world: World,
) -> None:
    """Two nodes change and are undone; the update stops in between."""
    one = await world.add_node(dgx("a", 1))
    two = await world.add_node(dgx("b", 1))
    await world.end((await world.create(1, key="warm")).id, Trigger.CANCELLED)

    def fail_half_way(tx: Transaction) -> None:
        held = pools.lock(tx, world.pool_id)
        for node in (one, two):
            nodes.set_cordoned(tx, node.id, True)
        pools.note_changes(tx, held, [one.id, two.id], "node")
        broken = _FailingAt(tx, two.id)
        row = any_reservation(tx)
        world.placements.place(broken, held, row)

    with pytest.raises(ConnectionError):
        await world.database.write(fail_half_way)
    for key in "12":
        assert (await world.create(1, key=key)).state is State.PLACED


async def test_after_a_rollback_only_what_it_touched_is_read_again(
    world: World, clock: DatabaseClock
) -> None:
    """Also where others have gone on from the same change since."""
    clock.advance(0)
    for name in "abcdef":
        await world.add_node(dgx(name, 2))
    await placed(world)
    for others in (0, 1, 2):
        await plans(world, world.placements, ask(2), Wish(devices=(ask(2),), gang=2))
        for _ in range(others):
            beside = replace(world, placements=Placements())
            await placed(beside, start=10 * HOUR_MS)
        spies = list[_Spy]()

        def look(tx: Transaction, spies: list[_Spy] = spies) -> PoolView:
            spies.append(_Spy(tx))
            return world.placements.view(spies[0], pools.lock(tx, world.pool_id))

        view = await world.database.write(look)
        assert spies[0].of_the_pool == 0
        assert 1 <= spies[0].of_a_node <= 2 * (3 + others)
        window = (clock.read(), clock.read() + HOUR_MS)
        free = {node.facts.id: node.free(*window) for node in view.nodes.values()}
        fresh = await world.database.write(
            lambda tx: Placements().view(tx, pools.lock(tx, world.pool_id))
        )
        assert free == {node.facts.id: node.free(*window) for node in fresh.nodes.values()}


async def test_a_rollback_of_many_changes_does_not_cost_the_whole_pool(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    for name in "abcdef":
        await world.add_node(dgx(name, 4))
    await placed(world)
    await plans(world, world.placements, *(ask(1) for _ in range(16)))
    spies = list[_Spy]()

    def look(tx: Transaction) -> None:
        spies.append(_Spy(tx))
        world.placements.view(spies[0], pools.lock(tx, world.pool_id))

    await world.database.write(look)
    assert spies[0].of_the_pool == 0
    assert 1 <= spies[0].of_a_node <= 2 * 6


class _Spy:
    """A transaction that counts what is read of bookings: of the whole pool, and of a node."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.of_the_pool = 0
        self.of_a_node = 0

    def all(self, sql: str, **values: object) -> Any:
        if "bookings" in sql:
            self.of_the_pool += "n.pool_id" in sql
            self.of_a_node += "node_id = :node_id" in sql
        return self._tx.all(sql, **values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


class _FailingAt:
    """A transaction whose connection breaks when one node's devices are read."""

    def __init__(self, tx: Transaction, node_id: NodeId) -> None:
        self._tx = tx
        self._node_id = node_id

    def all(self, sql: str, **values: object) -> Any:
        if "FROM atoms" in sql and values.get("id") == self._node_id:
            raise ConnectionError
        return self._tx.all(sql, **values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)
