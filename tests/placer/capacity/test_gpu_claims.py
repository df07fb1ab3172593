"""One physical GPU is booked on one node, whichever nodes report it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from bcd.model.device import Device
from bcd.model.reservation import Condition, State
from bcd.placer.capacity.hosts import HostsKeeper
from bcd.placer.capacity.inventory import InventoryKeeper, apply_inventory
from bcd.placer.lifecycle.transitions import Trigger
from bcd.store import atoms, gpu_claims, inventories, nodes, pools
from bcd.store.database import Transaction
from bcd.wire.inventory import encode_inventory
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.placement.machines import mig_host
from tests.placer.world import FakeNode, World, dgx, gpu, inventory_of

HOUR_MS = 3_600_000


async def bookable(world: World, node: FakeNode) -> set[str]:
    found = await world.database.read(atoms.on_node, node.id)
    return {atom.uuid for atom in found if atom.bookable}


async def conditions(world: World, node: FakeNode) -> tuple[Condition, ...]:
    return (await world.database.read(nodes.get, node.id)).conditions


async def remove(world: World, node: FakeNode) -> None:
    def write(tx: Transaction) -> None:
        pools.lock(tx, nodes.get(tx, node.id).pool_id)
        nodes.remove(tx, node.id)

    await world.database.write(write)


async def apply(world: World) -> None:
    await InventoryKeeper(world.database).apply_pass()


async def receive(world: World, node: FakeNode, devices: Sequence[Device]) -> None:
    """Store an inventory as a gateway does."""
    message = encode_inventory(inventory_of(devices))
    body = message.SerializeToString()
    assert await world.database.write(inventories.store, node.id, node.epoch, message.hash, body)


async def test_a_gpu_that_a_node_has_is_not_sold_on_another_one_too(world: World) -> None:
    first = await world.add_node(dgx("a", 2))
    second = await world.add_node([*dgx("a", 2), gpu("own")], await world.add_pool("other"))
    assert await bookable(world, first) == {"GPU-a-0", "GPU-a-1"}
    assert await bookable(world, second) == {"own"}
    assert (await world.create(3)).state is State.PENDING
    other = (await world.database.read(nodes.get, second.id)).pool_id
    assert (await world.create(2, key="other", poolId=other)).state is State.PENDING
    (condition,) = await conditions(world, second)
    assert (condition.type, condition.reason) == ("DeviceElsewhere", "HeldByAnotherNode")
    assert f"GPU-a-0 ({first.id})" in condition.message
    assert "own" not in condition.message
    assert await conditions(world, first) == ()
    withheld = {
        a.uuid: a.health_reason for a in await world.database.read(atoms.on_node, second.id)
    }
    assert withheld["GPU-a-1"] == "another node has this GPU"


async def test_instances_and_slots_of_such_a_gpu_are_not_sold_either(world: World) -> None:
    await world.set_policy(sharing={"mode": "time-slice"})
    devices = [*mig_host("m", 1, 2), gpu("G0")]
    first, second = await world.add_node(devices), await world.add_node(devices)
    assert await bookable(world, first) == {
        "MIG-m-0-0", "MIG-m-0-1", "G0", "G0::0", "G0::1", "G0::2", "G0::3",
    }  # fmt: skip
    assert await bookable(world, second) == set()
    await HostsKeeper(world.database).sync_pass()
    assert await bookable(world, second) == set()
    await world.set_policy(sharing={"mode": "mps", "replicas": 6})
    await HostsKeeper(world.database).sync_pass()
    assert len(await bookable(world, first)) == 9
    assert await bookable(world, second) == set()


async def test_a_gpu_in_mig_mode_on_one_node_and_whole_on_another_is_one_gpu(world: World) -> None:
    devices = mig_host("m", 1, 2)
    (whole,) = [device for device in devices if device.mig_enabled]
    await world.add_node(devices)
    second = await world.add_node([replace(whole, mig_enabled=False)])
    assert await bookable(world, second) == set()


async def test_the_gpus_of_a_removed_node_become_the_others(world: World) -> None:
    first = await world.add_node(dgx("a", 2))
    second, third = await world.add_node(dgx("a", 2)), await world.add_node(dgx("a", 1))
    waiting = await world.create(2, key="waiting", topology="same-numa")
    await apply(world)
    assert await bookable(world, second) == set()
    await world.end_if_live(waiting.id)
    await world.work()
    await remove(world, first)
    await apply(world)
    assert await bookable(world, second) == {"GPU-a-0", "GPU-a-1"}
    assert await conditions(world, second) == ()
    assert await bookable(world, third) == set()
    await apply(world)
    (condition,) = await conditions(world, third)
    assert f"GPU-a-0 ({second.id})" in condition.message
    assert (await world.create(2, key="next")).state is State.PLACED


async def test_what_a_removed_node_still_sends_claims_nothing(world: World) -> None:
    first = await world.add_node(dgx("a", 2))
    second = await world.add_node(dgx("b", 1))
    await remove(world, first)
    await receive(world, first, dgx("a", 1))
    assert await world.database.read(inventories.unapplied) == []
    await world.database.write(apply_inventory, first.id)
    await world.send_inventory(second, dgx("a", 2))
    assert await bookable(world, second) == {"GPU-a-0", "GPU-a-1"}


async def test_a_gpu_that_moved_to_another_machine_is_that_ones_once_its_node_lacks_it(
    world: World,
) -> None:
    first, second = await world.add_node(dgx("a", 2)), await world.add_node(dgx("b", 1))
    moved = dgx("a", 2)[1]
    await world.send_inventory(second, [*dgx("b", 1), moved])
    assert await bookable(world, second) == {"GPU-b-0"}
    await world.send_inventory(first, dgx("a", 2)[:1])
    await apply(world)
    assert await bookable(world, second) == {"GPU-b-0", "GPU-a-1"}
    await world.send_inventory(first, dgx("a", 2))
    assert await bookable(world, first) == {"GPU-a-0"}


async def test_a_gpu_that_is_booked_stays_its_nodes_while_it_is_away(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    first = await world.add_node(dgx("a", 2))
    active = await world.active(first, count=2)
    second = await world.add_node(dgx("a", 2))
    await world.send_inventory(first, dgx("a", 2)[:1])
    await apply(world)
    assert await bookable(world, second) == set()
    await world.send_inventory(first, dgx("a", 2))
    await world.send_inventory(first, dgx("a", 2)[:1])
    clock.advance(HOUR_MS)
    await world.work()
    assert (await world.view(active.id)).state is State.RELEASED
    await apply(world)
    await apply(world)
    assert await bookable(world, second) == {"GPU-a-1"}


async def test_a_gpu_that_came_back_in_time_stays_where_it_was(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    first = await world.add_node(dgx("a", 1))
    await world.active(first)
    second = await world.add_node(dgx("a", 1))
    await world.send_inventory(first, [])
    await world.send_inventory(first, dgx("a", 1))
    clock.advance(HOUR_MS)
    await world.work()
    for _ in range(2):
        await apply(world)
    assert await bookable(world, first) == {"GPU-a-0"}
    assert await bookable(world, second) == set()
    assert await world.database.read(gpu_claims.due, clock.read()) == []


async def test_nodes_that_wait_for_a_gpu_are_left_alone_until_it_is_free(world: World) -> None:
    await world.add_node(dgx("a", 2))
    second = await world.add_node(dgx("a", 2))
    before = await world.rows("SELECT change_seq FROM pools")
    await apply(world)
    await HostsKeeper(world.database).sync_pass()
    await world.database.write(apply_inventory, second.id)
    assert await world.rows("SELECT change_seq FROM pools") == before


async def test_an_inventory_that_cannot_be_read_any_more_frees_nothing_and_changes_nothing(
    world: World,
) -> None:
    first, second = await world.add_node(dgx("a", 1)), await world.add_node(dgx("a", 1))
    assert await world.database.write(inventories.store, second.id, second.epoch, "bad", b"\xff")
    await apply(world)
    await remove(world, first)
    before = await world.rows("SELECT change_seq FROM pools")
    await apply(world)
    assert await world.rows("SELECT change_seq FROM pools") == before
    assert await bookable(world, second) == set()
    await world.send_inventory(second, dgx("a", 1))
    assert await bookable(world, second) == {"GPU-a-0"}


async def test_nodes_that_report_the_same_gpus_at_once_never_both_get_one(
    world: World, rounds: Rounds
) -> None:
    """Also while they swap what they have; they are nodes of different pools."""
    other = await world.add_pool("other")
    a, b = await world.add_node(()), await world.add_node((), other)
    for turn in range(rounds(6, 100)):
        shared = dgx(f"t{turn}", 6)
        had = dgx(f"t{turn - 1}", 6)[:3]
        await receive(world, a, [*reversed(shared), *had])
        await receive(world, b, [*shared, *reversed(had)])
        done = await asyncio.gather(
            *(world.database.write(apply_inventory, node.id) for node in (a, b, a, b))
        )
        assert len(done) == 4
        mine, others = await bookable(world, a), await bookable(world, b)
        assert not mine & others
        for _ in range(2):
            await apply(world)
        mine, others = await bookable(world, a), await bookable(world, b)
        assert not mine & others
        assert mine | others == {device.id for device in (*shared, *had)}


# Who is silent or distrusted takes nothing, and keeps what it has.


async def silence(world: World, node: FakeNode, *, silent: bool = True) -> None:
    await world.database.write(lambda tx: nodes.set_reachable(tx, node.id, not silent))


async def test_a_silent_twin_takes_nothing_that_is_let_go_of_for_a_moment(world: World) -> None:
    there, twin = await world.add_node(dgx("a", 2)), await world.add_node(dgx("a", 2))
    await silence(world, twin)
    for count in (1, 2):
        await world.send_inventory(there, dgx("a", count))
        await apply(world)
    assert await bookable(world, there) == {"GPU-a-0", "GPU-a-1"}
    assert await bookable(world, twin) == set()


async def test_a_node_that_is_not_trusted_claims_nothing(world: World) -> None:
    stranger = await world.enrol(await world.add_pool("other"), trusted=False)
    await world.connect(stranger)
    await world.send_inventory(stranger, dgx("a", 2))
    assert await bookable(world, stranger) == set()
    assert await conditions(world, stranger) == ()
    mine = await world.add_node(dgx("a", 1))
    assert await bookable(world, mine) == {"GPU-a-0"}
    await silence(world, stranger, silent=False)
    await apply(world)
    assert await bookable(world, stranger) == set()
    await world.database.write(nodes.set_trusted, stranger.id, True)
    await apply(world)
    assert await bookable(world, stranger) == {"GPU-a-1"}


async def test_a_silent_node_keeps_its_gpus_until_it_is_removed(
    world: World, clock: DatabaseClock
) -> None:
    """It may be back, with what is placed on it: two would have the same GPU then."""
    clock.advance(0)
    old = await world.add_node(dgx("a", 2))
    made = await world.create(2, start=clock.read() + HOUR_MS)
    new = await world.add_node(dgx("a", 2))
    await silence(world, old)
    await apply(world)
    assert await bookable(world, new) == set()
    await world.end(made.id, Trigger.RELEASED)
    await remove(world, old)
    await apply(world)
    assert await bookable(world, new) == {"GPU-a-0", "GPU-a-1"}


async def test_a_gpu_that_is_missing_for_a_moment_stays_with_what_is_placed_on_it(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    before, after = await world.add_node(dgx("a", 2)), await world.add_node(())
    made = await world.create(2, start=clock.read() + HOUR_MS)
    await world.send_inventory(before, ())
    await world.send_inventory(after, dgx("a", 2))
    assert await bookable(world, after) == set()
    await world.send_inventory(before, dgx("a", 2))
    await apply(world)
    assert (await bookable(world, before), await bookable(world, after)) == (
        {"GPU-a-0", "GPU-a-1"},
        set(),
    )
    await world.send_inventory(before, ())
    await world.end(made.id, Trigger.RELEASED)
    await apply(world)
    await apply(world)
    assert await bookable(world, after) == {"GPU-a-0", "GPU-a-1"}


async def test_an_inventory_that_cannot_be_used_holds_no_gpu_back_for_ever(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    before = await world.add_node(dgx("a", 1))
    made = await world.active(before, count=1)
    await world.send_inventory(before, ())
    after = await world.add_node(dgx("a", 1))
    bad = ("bad", b"\xff\xff")
    assert await world.database.write(inventories.store, before.id, before.epoch, *bad)
    await apply(world)
    assert await bookable(world, after) == set()
    await world.end(made.id, Trigger.RELEASED)
    for _ in range(2):
        await apply(world)
    assert await bookable(world, after) == {"GPU-a-0"}
