"""A hold's life, from placed to released, on both engines."""

from bcd.model.report import Failed, Released
from bcd.model.reservation import State
from tests.clock import DatabaseClock
from tests.placer.world import World, dgx

HOUR_MS = 3_600_000


async def test_a_hold_goes_from_placed_to_active_with_the_signed_names(world: World) -> None:
    node = await world.add_node(dgx("a"))
    made = await world.create(4, topology="nvlink-all")
    assert made.state is State.PLACED
    await world.work()
    assert (await world.view(made.id)).state is State.BINDING
    (allocation,) = await world.live(made.id)
    assert await world.assigned(node) == [allocation.id]
    await world.bind(node)
    active = await world.view(made.id)
    assert active.state is State.ACTIVE
    (binding,) = active.bindings
    assert binding.cdi_devices == tuple(d.cdi_name for d in allocation.devices)
    assert binding.env_file == f"/run/bcd/allocations/{allocation.id}.env"
    assert binding.attested
    assert await world.event_names(made.id) == ["placed", "binding", "active"]


async def test_at_its_end_a_hold_is_released_and_leaves_the_node(
    world: World, clock: DatabaseClock
) -> None:
    node = await world.add_node(dgx("a"))
    active = await world.active(node, count=2)
    assert await world.used() == 2
    clock.advance(HOUR_MS + 1)
    await world.work()
    ended = await world.view(active.id)
    assert ended.state is State.RELEASED
    assert await world.assigned(node) == []
    assert await world.used() == 0
    last = (await world.events(active.id))[-1]
    assert (last.type, last.data["reason"]) == ("reservation.released", "expired")


async def test_a_failed_bind_is_placed_again_elsewhere_and_the_third_failure_fails(
    world: World,
) -> None:
    nodes = [await world.add_node(dgx(name)) for name in "abc"]
    made = await world.create(1)
    seen = []
    for _ in range(3):
        await world.work()
        (allocation,) = await world.live(made.id)
        node = next(node for node in nodes if node.id == allocation.node_id)
        seen.append((node.id, allocation.id))
        failed = node.report(allocation, Failed("device-unhealthy", "Xid 79"))
        await world.send(node, node.seal(failed), allocation.id)
        await world.work()
    after = await world.view(made.id)
    assert after.state is State.FAILED
    assert len({allocation for _, allocation in seen}) == 3
    assert len({node for node, _ in seen}) == 3
    assert await world.used() == 0
    names = await world.event_names(made.id)
    assert names == ["placed", "binding", "placed", "binding", "placed", "binding", "failed"]


async def test_no_report_within_five_minutes_places_the_hold_again(
    world: World, clock: DatabaseClock
) -> None:
    await world.add_node(dgx("a"))
    made = await world.create(1)
    await world.work()
    (first,) = await world.live(made.id)
    clock.advance(5 * 60_000)
    await world.work()
    (second,) = await world.live(made.id)
    assert first.id != second.id
    assert (await world.view(made.id)).state is State.BINDING


async def test_a_release_reported_of_an_active_hold_degrades_it_until_it_is_bound_again(
    world: World,
) -> None:
    node = await world.add_node(dgx("a"))
    active = await world.active(node)
    (allocation,) = await world.live(active.id)
    gone = node.report(allocation, Released(slice_empty=True))
    await world.send(node, node.seal(gone), allocation.id)
    await world.work()
    lost = await world.view(active.id)
    assert lost.state is State.ACTIVE
    assert [(c.type, c.reason) for c in lost.conditions] == [("Degraded", "BindingLost")]
    await world.bind(node)
    assert (await world.view(active.id)).conditions == ()
