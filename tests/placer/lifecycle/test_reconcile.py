"""One reservation, driven from its facts: binds, places again, conditions, ends."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from bcd.model.device import Device, Health, HealthState
from bcd.model.errors import ConfirmationRequired, InvalidState
from bcd.model.ids import ReservationId
from bcd.model.pool import PoolPolicy
from bcd.model.report import Failed, Outcome, Released
from bcd.model.reservation import TERMINAL, OperationState, Reservation, State
from bcd.placer.admission.policy import Allowed, Denied
from bcd.placer.api.reservations import ReservationCalls
from bcd.placer.lifecycle.transitions import MOVES, Trigger
from bcd.store.allocations import Allocation
from bcd.wire.compute.v1 import reservations_pb2 as pb
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.records import assert_no_overlap, assert_quota_adds_up, count, tables
from tests.placer.world import ALICE, TENANT, FakeNode, World, dgx

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


async def report(
    world: World, node: FakeNode, allocation: Allocation, outcome: Outcome | None = None
) -> None:
    """An honest report, stored."""
    envelope = node.seal(node.report(allocation, outcome))
    assert await world.send(node, envelope, allocation.id) == "stored"


async def only(world: World, reservation: Reservation) -> Allocation:
    (allocation,) = await world.live(reservation.id)
    return allocation


# Binding


async def test_a_report_that_arrives_before_the_start_is_judged_with_it(world: World) -> None:
    """The binding counts with the start, not only at the bind deadline."""
    node = await world.add_node(dgx("a"))
    made = await world.create(2)
    allocation = await only(world, made)
    await report(world, node, allocation)
    assert (await world.view(made.id)).state is State.PLACED
    await world.worker.judge_pass()
    assert (await world.view(made.id)).state is State.ACTIVE
    assert await world.event_names(made.id) == ["placed", "binding", "active"]


async def test_a_failure_that_arrives_before_the_start_places_again_with_it(
    world: World,
) -> None:
    node = await world.add_node(dgx("a"))
    made = await world.create(2)
    first = await only(world, made)
    await report(world, node, first, Failed("device-busy"))
    await world.work()
    second = await only(world, made)
    assert second.id != first.id
    assert await world.event_names(made.id) == ["placed", "binding", "placed", "binding"]


async def test_the_desired_state_says_what_is_assigned_and_until_when(world: World) -> None:
    node = await world.add_node(dgx("a"))
    made = await world.create(2)
    await world.work()
    assert made.during is not None
    (assignment,) = (await world.desired(node)).assignments
    allocation = await only(world, made)
    assert assignment.allocation_id == allocation.id
    assert assignment.devices == allocation.devices
    assert assignment.until_ms == made.during.end_ms
    assert (assignment.limits, assignment.binding) == (allocation.limits, "hold")
    assert assignment.limits is not None
    assert (await world.desired(node)).host_reserve.vcpu == 2


async def test_a_bind_just_before_the_deadline_counts(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    made = await world.create(1)
    await world.work()
    clock.advance(5 * MINUTE_MS - 1)
    await world.work()
    assert (await world.view(made.id)).state is State.BINDING
    await world.bind(node)
    assert (await world.view(made.id)).state is State.ACTIVE


async def test_a_failure_after_a_bind_that_did_not_count_yet_places_again(
    world: World,
) -> None:
    node = await world.add_node(dgx("a"))
    made = await world.create(1)
    await world.work()
    allocation = await only(world, made)
    await report(world, node, allocation)
    await report(world, node, allocation, Failed("slice-failed", "gone again"))
    await world.work()
    assert (await only(world, made)).id != allocation.id
    (row,) = await world.rows("SELECT attempts FROM reservations")
    assert row["attempts"] == 1


# Placing again


async def test_each_placement_has_allocations_of_its_own_and_its_own_window(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    nodes = {node.id: node for node in [await world.add_node(dgx(n)) for n in "ab"]}
    made = await world.create(3)
    seen = []
    for _ in range(3):
        await world.work()
        allocation = await only(world, made)
        now = await world.view(made.id)
        assert now.during is not None
        assert (now.during.start_ms, now.during.end_ms) == (clock.read(), clock.read() + HOUR_MS)
        seen.append(allocation)
        clock.advance(10_000)
        await report(world, nodes[allocation.node_id], allocation, Failed("device-busy"))
        await world.worker.judge_pass()
        await world.work()
    assert len({allocation.id for allocation in seen}) == 3
    assert seen[0].node_id != seen[1].node_id != seen[2].node_id
    failed = await world.view(made.id)
    assert (failed.state, failed.operation) == (State.FAILED, OperationState.FAILED)
    assert (await world.events(made.id))[-1].data["reason"] == "device-busy"
    for node in nodes.values():
        assert await world.assigned(node) == []
    assert await count(world.database, "SELECT count(*) FROM work") in (0, 1)
    await assert_no_overlap(world.database)
    await assert_quota_adds_up(world.database)
    assert await world.used() == 0


async def test_three_silences_fail_a_reservation(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    made = await world.create(1)
    for attempt in range(3):
        await world.work()
        assert (await world.view(made.id)).state is State.BINDING, attempt
        clock.advance(5 * MINUTE_MS)
        await world.connect(node)
    await world.work()
    assert (await world.view(made.id)).state is State.FAILED
    assert (await world.events(made.id))[-1].data["reason"] == "no report before the bind deadline"


async def test_where_none_fits_any_more_it_waits_and_keeps_its_charge_and_its_count(
    world: World, clock: DatabaseClock
) -> None:
    """The node fails the bind, and its devices are sick from then on."""
    clock.advance(0)
    node = await world.add_node(dgx("a", 1))
    made = await world.create(1)
    for attempt in (1, 2):
        await world.work()
        allocation = await only(world, made)
        await world.send_inventory(node, [sick(device) for device in dgx("a", 1)])
        await report(world, node, allocation, Failed("device-unhealthy"))
        await world.work()
        waiting = await world.view(made.id)
        assert (waiting.state, waiting.during) == (State.PENDING, None)
        assert waiting.bindings == ()
        assert [c.type for c in waiting.conditions] == ["Unschedulable"]
        assert await world.assigned(node) == []
        assert await world.used() == 1
        (row,) = await world.rows("SELECT attempts FROM reservations")
        assert row["attempts"] == attempt
        clock.advance(1_000)
        await world.send_inventory(node, dgx("a", 1))
    await world.work()
    await report(world, node, await only(world, made), Failed("device-unhealthy"))
    await world.work()
    assert (await world.view(made.id)).state is State.FAILED
    names = await world.event_names(made.id)
    again = ["placed", "binding"]
    assert names == [*again, "pending", *again, "pending", *again, "failed"]


def sick(device: Device) -> Device:
    return replace(device, health=Health(HealthState.UNHEALTHY, "Xid 79"))


async def test_a_replacement_does_not_wait_for_its_own_turnaround(
    world: World, clock: DatabaseClock
) -> None:
    """Nothing ran on the devices of a bind that failed."""
    clock.advance(0)
    pool_id = await world.add_pool("slow", PoolPolicy(turnaround_ms=HOUR_MS))
    node = await world.add_node(dgx("a", 1), pool_id)
    made = await world.create(1, poolId=pool_id)
    await world.work()
    await report(world, node, await only(world, made), Failed("device-busy"))
    await world.work()
    assert (await world.view(made.id)).state is State.BINDING


# Active


async def test_an_active_reservation_is_looked_at_every_fifteen_minutes(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    active = await world.active(node)
    for _ in range(2):
        (row,) = await world.rows("SELECT wake_ms FROM work WHERE key = :k", k=active.id)
        assert row["wake_ms"] == clock.read() + 15 * MINUTE_MS
        clock.set(row["wake_ms"])
        before = await world.view(active.id)
        await world.work()
        assert await world.view(active.id) == before


@pytest.mark.parametrize(
    "outcome", [Released(slice_empty=False), Failed("device-unhealthy", "Xid 79")]
)
async def test_nothing_that_a_node_reports_ends_an_active_reservation(
    world: World, outcome: Outcome
) -> None:
    node = await world.add_node(dgx("a"))
    active = await world.active(node, count=2)
    allocation = await only(world, active)
    await report(world, node, allocation, outcome)
    await world.work()
    lost = await world.view(active.id)
    assert (lost.state, lost.during) == (State.ACTIVE, active.during)
    assert [c.reason for c in lost.conditions] == ["BindingLost"]
    assert await world.assigned(node) == [allocation.id]
    assert lost.bindings == active.bindings
    await report(world, node, allocation)
    await world.work()
    assert (await world.view(active.id)).conditions == ()


async def test_a_binding_that_is_reported_again_changes_nothing_but_the_evidence(
    world: World,
) -> None:
    """A daemon reports all its holds again on every new session."""
    node = await world.add_node(dgx("a"))
    active = await world.active(node)
    for _ in range(3):
        await world.bind(node)
    assert await world.view(active.id) == active


# Ends


EndOf = Callable[[World, FakeNode], Awaitable[Reservation]]


async def pending(world: World, node: FakeNode) -> Reservation:
    return await world.create(9)


async def placed(world: World, node: FakeNode) -> Reservation:
    return await world.create(1)


async def binding(world: World, node: FakeNode) -> Reservation:
    made = await world.create(1)
    await world.work()
    return await world.view(made.id)


async def active(world: World, node: FakeNode) -> Reservation:
    return await world.active(node)


async def released(world: World, node: FakeNode) -> Reservation:
    return await world.end((await active(world, node)).id, Trigger.RELEASED)


async def cancelled(world: World, node: FakeNode) -> Reservation:
    return await world.end((await pending(world, node)).id, Trigger.CANCELLED)


async def failed(world: World, node: FakeNode) -> Reservation:
    made = await binding(world, node)
    await world.database.write(lambda tx: tx.run("UPDATE reservations SET attempts = 2"))
    await report(world, node, await only(world, made), Failed("x"))
    await world.work()
    return await world.view(made.id)


async def awaiting(world: World, node: FakeNode) -> Reservation:
    """The agent asks in ALICE's name and under her identity, so that her next try is the same."""
    world.policy.answer = Denied(confirmable=True)
    with pytest.raises(ConfirmationRequired) as error:
        await world.create(1)
    world.policy.answer = Allowed()
    return await world.view(ReservationId(error.value.details["reservationId"]))


async def expired(world: World, node: FakeNode) -> Reservation:
    made = await awaiting(world, node)
    await world.database.write(lambda tx: tx.run("UPDATE reservations SET bind_deadline_ms = 0"))
    await world.database.write(lambda tx: tx.run("UPDATE work SET wake_ms = 0"))
    await world.work()
    return await world.view(made.id)


MATRIX = {
    "awaiting-confirmation": (awaiting, State.CANCELLED, None),
    "expired": (expired, State.EXPIRED, None),
    "pending": (pending, State.CANCELLED, State.CANCELLED),
    "placed": (placed, State.RELEASED, State.CANCELLED),
    "binding": (binding, State.RELEASED, None),
    "active": (active, State.RELEASED, None),
    "released": (released, State.RELEASED, None),
    "cancelled": (cancelled, State.CANCELLED, None),
    "failed": (failed, State.FAILED, None),
}


def calls(world: World) -> ReservationCalls:
    return world.calls


@pytest.mark.parametrize(("make", "after", "_"), MATRIX.values(), ids=MATRIX.keys())
async def test_release_ends_what_lives_cancels_what_waits_and_leaves_the_rest(
    world: World, make: EndOf, after: State, _: State | None
) -> None:
    node = await world.add_node(dgx("a"))
    before = await make(world, node)
    request = pb.ReleaseReservationRequest(tenant_id=TENANT, reservation_id=before.id)
    answer = (await calls(world).release(ALICE, request)).reservation
    assert answer.state == after
    assert await world.used() == 0
    assert await world.assigned(node) == []
    assert await world.live(before.id) == []
    await assert_no_overlap(world.database)
    if before.state in TERMINAL:
        assert answer.version == before.version
        return
    again = (await calls(world).release(ALICE, request)).reservation
    assert again == answer
    last = (await world.events(before.id))[-1]
    assert last.type == f"reservation.{after}"
    assert last.data.get("reason") == ("release" if after is State.RELEASED else None)


@pytest.mark.parametrize(("make", "_", "after"), MATRIX.values(), ids=MATRIX.keys())
async def test_cancel_withdraws_only_what_has_not_started(
    world: World, make: EndOf, _: State, after: State | None
) -> None:
    node = await world.add_node(dgx("a"))
    before = await make(world, node)
    request = pb.CancelReservationRequest(tenant_id=TENANT, reservation_id=before.id)
    if after is None:
        seen = await tables(world.database)
        with pytest.raises(InvalidState) as refused:
            await calls(world).cancel(ALICE, request)
        assert refused.value.details["state"] == before.state
        now = dict(await tables(world.database)) | {"pools": seen["pools"]}
        assert now == seen
        return
    assert (await calls(world).cancel(ALICE, request)).reservation.state == after
    assert await world.used() == 0
    with pytest.raises(InvalidState):
        await calls(world).cancel(ALICE, request)


async def test_a_released_booking_ends_now_and_frees_its_devices_at_once(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    made = await world.active(node, count=8)
    clock.advance(10 * MINUTE_MS)
    await world.end(made.id, Trigger.RELEASED)
    ends = await world.rows("SELECT DISTINCT end_ms FROM bookings")
    assert [row["end_ms"] for row in ends] == [clock.read()]
    assert (await world.create(8, key="next")).state is State.PLACED
    await assert_no_overlap(world.database)


async def test_a_booking_without_length_leaves_no_row(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await world.create(8)
    await world.end(made.id, Trigger.RELEASED)
    assert await count(world.database, "SELECT count(*) FROM bookings") == 0


async def test_an_active_one_leaves_the_turnaround_free_and_one_that_never_ran_does_not(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    pool_id = await world.add_pool("slow", PoolPolicy(turnaround_ms=MINUTE_MS))
    node = await world.add_node(dgx("a", 1), pool_id)
    never_ran = await world.create(1, key="never", poolId=pool_id)
    await world.end(never_ran.id, Trigger.RELEASED)
    ran = await world.active(node, key="ran", poolId=pool_id)
    clock.advance(MINUTE_MS)
    await world.end(ran.id, Trigger.RELEASED)
    late = await world.create(1, key="late", poolId=pool_id)
    assert late.state is State.PENDING
    clock.advance(MINUTE_MS)
    await world.work()
    assert (await world.view(late.id)).state is State.BINDING


async def test_one_that_may_have_been_handed_over_leaves_the_turnaround_free_too(
    world: World, clock: DatabaseClock
) -> None:
    """The node may bind, and a workload start, before the report has been judged."""
    clock.advance(0)
    pool_id = await world.add_pool("slow", PoolPolicy(turnaround_ms=MINUTE_MS))
    await world.add_node(dgx("a", 1), pool_id)
    made = await world.create(1, key="binding", poolId=pool_id)
    await world.work()
    assert (await world.view(made.id)).state is State.BINDING
    clock.advance(1)
    await world.end(made.id, Trigger.RELEASED)
    assert (await world.create(1, key="late", poolId=pool_id)).state is State.PENDING


async def test_what_ends_stays_ended_whatever_comes_later(
    world: World, clock: DatabaseClock
) -> None:
    """Reports, wake-ups, time and retries move no reservation out of its end."""
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    made = await world.active(node)
    allocation = await only(world, made)
    ended = await world.end(made.id, Trigger.RELEASED)
    for outcome in (None, Released(slice_empty=True), Failed("x")):
        await report(world, node, allocation, outcome)
        await world.work()
    await world.database.write(
        lambda tx: tx.run("INSERT INTO work (key, wake_ms) VALUES (:k, 0)", k=made.id)
    )
    clock.advance(2 * HOUR_MS)
    await world.work()
    assert await world.view(made.id) == ended
    assert await count(
        world.database, "SELECT count(*) FROM work WHERE key = :k", k=made.id
    ) == 0  # fmt: skip
    assert (await world.create(1)) == ended


async def test_a_release_at_the_very_end_refunds_once(
    world: World, clock: DatabaseClock, rounds: Rounds
) -> None:
    """The owner, the end of the window and a late report come together."""
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    for number in range(rounds(10, 100)):
        key = f"k{number}"
        made = await world.active(node, count=5, key=key)
        other = await world.create(2, key=f"other{number}")
        assert made.during is not None
        await report(world, node, await only(world, made), Released(slice_empty=True))
        clock.set(made.during.end_ms)
        request = pb.ReleaseReservationRequest(tenant_id=TENANT, reservation_id=made.id)
        answers = await asyncio.gather(
            world.worker.work_due(),
            *(calls(world).release(ALICE, request) for _ in range(4)),
            world.worker.judge_pass(),
            world.worker.work_due(),
            return_exceptions=True,
        )
        assert not [answer for answer in answers if isinstance(answer, BaseException)]
        ended = await world.view(made.id)
        assert ended.state is State.RELEASED
        assert (await world.event_names(made.id)).count("released") == 1
        await world.connect(node)
        await world.end_if_live(other.id)
        await assert_quota_adds_up(world.database)
        assert await world.used() == 0
    await assert_no_overlap(world.database)


def test_the_matrix_knows_every_state_that_a_caller_can_meet() -> None:
    reached = {move.to for move in MOVES.values()} - {State.DENIED}
    assert set(MATRIX) == {state.value for state in reached}
