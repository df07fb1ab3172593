"""One create: idempotency, the decision between two transactions, charges, rehearsals."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from bcd.model.caller import Caller
from bcd.model.errors import (
    AccessDenied,
    BcdError,
    Conflict,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    Unavailable,
)
from bcd.model.reservation import OperationState, Reservation, State
from bcd.placer.admission.policy import Allowed, Decision, Denied
from bcd.placer.lifecycle.transitions import Trigger
from bcd.wire.compute.v1 import reservations_pb2 as pb
from tests.placer.records import (
    Beside,
    assert_no_overlap,
    assert_quota_adds_up,
    count,
    tables,
)
from tests.placer.world import ALICE, BOB, TENANT, World, dgx


class Scripted:
    """A policy that does something before each decision, and answers from a list."""

    def __init__(
        self, *answers: Decision, before: Callable[[int], None] = lambda _asked: None
    ) -> None:
        self._answers = answers or (Allowed(),)
        self._before = before
        self.asked = 0

    def decide(self, *_question: object) -> Decision:
        self._before(self.asked)
        self.asked += 1
        return self._answers[min(self.asked, len(self._answers)) - 1]


async def create_under(
    policy: Scripted, world: World, count: int = 1, key: str = "k"
) -> Reservation:
    _, made = await world.admission_with(policy).create(ALICE, world.document(count, key))
    return made


async def refused(
    world: World, kind: type[BcdError], count: int = 1, **changes: object
) -> BcdError:
    with pytest.raises(kind) as error:
        await world.create(count, **changes)  # type: ignore[arg-type]
    return error.value


async def state_of(world: World, reservation_id: str) -> str:
    (row,) = await world.rows("SELECT state FROM reservations WHERE id = :id", id=reservation_id)
    return str(row["state"])


# Placed, pending, refused


async def test_what_fits_is_placed_within_the_create(world: World) -> None:
    await world.add_node(dgx("a"))
    made = await world.create(4)
    assert (made.state, made.operation) == (State.PLACED, OperationState.SUCCEEDED)
    assert made.during is not None
    assert made.during.end_ms - made.during.start_ms == 3_600_000
    assert made.conditions == ()
    assert await world.used() == 4


async def test_what_fits_nowhere_is_pending_and_keeps_its_charge(world: World) -> None:
    made = await world.create(4)
    assert (made.state, made.operation) == (State.PENDING, OperationState.SUCCEEDED)
    assert made.during is None
    assert [(c.type, c.status) for c in made.conditions] == [("Unschedulable", "True")]
    assert await world.used() == 4
    assert await world.event_names(made.id) == ["pending"]


async def test_a_charge_over_the_quota_leaves_a_draft_that_nobody_sees(world: World) -> None:
    await world.add_node(dgx("a"))
    await world.grant("gpu", 3)
    error = await refused(world, QuotaExceeded, 4)
    assert error.details == {"resource": "gpu", "limit": "3", "used": "0", "asked": "4"}
    assert await count(world.database, "SELECT count(*) FROM reservations") == 1
    assert await count(world.database, "SELECT count(*) FROM events") == 0
    assert await count(world.database, "SELECT count(*) FROM bookings") == 0
    assert await world.used() == 0


async def test_a_missing_quota_grants_nothing(world: World) -> None:
    pool_of_other = replace(ALICE, tenants=frozenset({"other"}))
    await world.database.write(
        lambda tx: tx.run("UPDATE pools SET tenant_id = 'other' WHERE id = :id", id=world.pool_id)
    )
    with pytest.raises(QuotaExceeded) as error:
        await world.admission.create(pool_of_other, world.document(tenantId="other"))
    assert error.value.details["limit"] == "0"


async def test_of_several_charges_all_count_or_none(world: World) -> None:
    await world.grant("gpu.mig", 1)
    devices = [{"class": "gpu", "count": 2}, {"class": "gpu.mig", "count": 2}]
    error = await refused(world, QuotaExceeded, devices=devices)
    assert error.details["resource"] == "gpu.mig"
    assert await world.used("gpu") == await world.used("gpu.mig") == 0


async def test_a_refusal_names_the_caps_and_is_an_outcome(world: World) -> None:
    world.policy.answer = Denied(rules=("night",), caps=("gpus", "duration"))
    error = await refused(world, AccessDenied)
    assert error.details["caps"] == "gpus,duration"
    assert "night" in error.message
    assert await state_of(world, error.details["reservationId"]) == State.DENIED
    assert await world.used() == 0
    assert await count(world.database, "SELECT count(*) FROM events") == 0


async def test_only_tenants_of_the_token_are_served_and_only_their_pools(world: World) -> None:
    before = await tables(world.database)
    await refused(world, AccessDenied, tenantId="other")
    await refused(world, NotFound, poolId="pool_01k0000000000000000000000a")
    stranger = replace(ALICE, tenants=frozenset({"other"}))
    await refused(world, NotFound, tenantId="other", caller=stranger)
    assert await tables(world.database) == before
    assert world.policy.asked == 0


# One key, twice


async def test_a_repeated_key_returns_the_stored_reservation_undecided(world: World) -> None:
    await world.add_node(dgx("a"))
    first = await world.create(4, duration="2h")
    for spelling in ("2h", "120m", "7200000ms"):
        assert await world.create(4, duration=spelling, wait={"timeoutMs": 5}) == first
    assert world.policy.asked == 1
    assert await world.used() == 4


@pytest.mark.parametrize("state", ["pending", "cancelled", "released"])
async def test_a_repeated_key_returns_it_in_every_later_state(world: World, state: str) -> None:
    if state == "released":
        await world.add_node(dgx("a"))
    made = await world.create(1)
    if state != "pending":
        await world.end(made.id, Trigger.RELEASED)
    again = await world.create(1)
    assert (again.id, again.state) == (made.id, state)
    assert world.policy.asked == 1


async def test_a_draft_over_the_quota_is_decided_again_under_its_key(world: World) -> None:
    await world.add_node(dgx("a"))
    await world.grant("gpu", 3)
    await refused(world, QuotaExceeded, 4)
    await refused(world, QuotaExceeded, 4)
    await world.grant("gpu", 4)
    made = await world.create(4)
    assert made.state is State.PLACED
    assert world.policy.asked == 3
    assert await count(world.database, "SELECT count(*) FROM reservations") == 1


async def test_a_draft_over_the_quota_may_be_refused_the_next_time(world: World) -> None:
    await world.grant("gpu", 3)
    await refused(world, QuotaExceeded, 4)
    world.policy.answer = Denied()
    await refused(world, AccessDenied, 4)


async def test_a_refused_key_stays_refused_though_the_policy_changed(world: World) -> None:
    world.policy.answer = Denied()
    await refused(world, AccessDenied)
    world.policy.answer = Allowed()
    error = await refused(world, AccessDenied)
    assert await state_of(world, error.details["reservationId"]) == State.DENIED
    assert world.policy.asked == 1
    assert (await world.create(1, key="another")).state is State.PENDING


@pytest.mark.parametrize("state", ["draft", "denied", "pending", "placed", "cancelled"])
async def test_another_request_under_a_used_key_is_a_conflict_in_every_state(
    world: World, state: str
) -> None:
    """The request is compared first: also a refused key tells of its misuse."""
    match state:
        case "draft":
            await world.grant("gpu", 0)
            await refused(world, QuotaExceeded)
        case "denied":
            world.policy.answer = Denied()
            await refused(world, AccessDenied)
        case _:
            if state == "placed":
                await world.add_node(dgx("a"))
            made = await world.create(1)
            if state == "cancelled":
                await world.end(made.id, Trigger.CANCELLED)
    (row,) = await world.rows("SELECT id, state FROM reservations")
    assert row["state"] == state
    before, asked = await tables(world.database), world.policy.asked
    for other in ({"duration": "2h"}, {"labels": {"a": "b"}}, {"count": 2}):
        error = await refused(world, Conflict, **other)
        assert error.details["reservationId"] == row["id"]
    assert await tables(world.database) == before
    assert world.policy.asked == asked


async def test_one_key_makes_a_row_for_each_identity_agent_and_tenant(world: World) -> None:
    agent = replace(ALICE, actor="agent")
    elsewhere = replace(ALICE, issuer="https://other")
    made = [await world.create(1, caller=caller) for caller in (ALICE, BOB, agent, elsewhere)]
    assert len({reservation.id for reservation in made}) == 4
    assert made[0].owner == made[2].owner != made[1].owner
    for caller, reservation in zip((ALICE, BOB, agent, elsewhere), made, strict=True):
        assert (await world.create(1, caller=caller)).id == reservation.id


# Drafts are internal


async def test_a_draft_is_neither_found_nor_listed_nor_ended(world: World) -> None:
    await world.grant("gpu", 0)
    await refused(world, QuotaExceeded)
    (row,) = await world.rows("SELECT id FROM reservations")
    calls = world.calls
    asked = {"tenant_id": TENANT, "reservation_id": row["id"]}
    with pytest.raises(NotFound):
        await calls.get(ALICE, pb.GetReservationRequest(**asked))
    with pytest.raises(NotFound):
        await calls.release(ALICE, pb.ReleaseReservationRequest(**asked))
    with pytest.raises(NotFound):
        await calls.cancel(ALICE, pb.CancelReservationRequest(**asked))
    for state in ("", "draft"):
        listed = await calls.list(
            ALICE, pb.ListReservationsRequest(tenant_id=TENANT, scope="all", state=state)
        )
        assert list(listed.reservations) == []


# The decision stands between two transactions


async def test_the_policy_is_asked_while_nothing_is_open_or_locked(
    world: World, database_url: str
) -> None:
    await world.add_node(dgx("a"))
    beside = Beside(database_url)
    policy = Scripted(before=lambda _asked: beside.assert_nothing_is_open())
    assert (await create_under(policy, world)).state is State.PLACED
    assert policy.asked == 1


async def test_a_rehearsal_asks_the_policy_while_nothing_is_open_or_locked(
    world: World, database_url: str
) -> None:
    beside = Beside(database_url)
    policy = Scripted(before=lambda _asked: beside.assert_nothing_is_open())
    await world.admission_with(policy).create(ALICE, world.document(dryRun=True))
    assert policy.asked == 1


async def test_a_draft_that_changed_while_it_was_decided_on_is_decided_again(
    world: World, database_url: str
) -> None:
    await world.add_node(dgx("a"))
    beside = Beside(database_url)

    def change_once(asked: int) -> None:
        if asked == 0:
            beside.execute("UPDATE reservations SET version = version + 1")

    policy = Scripted(Denied(), Allowed(), before=change_once)
    assert (await create_under(policy, world)).state is State.PLACED
    assert policy.asked == 2
    await assert_quota_adds_up(world.database)


async def test_a_draft_that_never_stands_still_is_given_up_and_can_be_tried_again(
    world: World, database_url: str
) -> None:
    beside = Beside(database_url)
    policy = Scripted(
        before=lambda _asked: beside.execute("UPDATE reservations SET version = version + 1")
    )
    with pytest.raises(Unavailable):
        await create_under(policy, world)
    assert await world.used() == 0
    assert (await world.create(1)).state is State.PENDING


async def test_what_another_placer_made_of_the_draft_meanwhile_is_the_answer(
    world: World, database_url: str
) -> None:
    beside = Beside(database_url)
    policy = Scripted(
        before=lambda _asked: beside.execute(
            "UPDATE reservations SET state = 'cancelled', operation = 'succeeded',"
            " version = version + 1"
        )
    )
    assert (await create_under(policy, world)).state is State.CANCELLED
    assert policy.asked == 1
    assert await world.used() == 0


async def test_a_draft_that_was_swept_meanwhile_is_written_again(
    world: World, database_url: str
) -> None:
    beside = Beside(database_url)

    def sweep_once(asked: int) -> None:
        if asked == 0:
            beside.execute("DELETE FROM reservations WHERE state = 'draft'")

    policy = Scripted(before=sweep_once)
    assert (await create_under(policy, world)).state is State.PENDING
    assert policy.asked == 2


async def test_a_policy_that_fails_leaves_a_draft_and_no_lock(
    world: World, database_url: str
) -> None:
    def fail_once(asked: int) -> None:
        if asked == 0:
            raise RuntimeError("the engine broke")

    policy = Scripted(before=fail_once)
    with pytest.raises(RuntimeError):
        await create_under(policy, world)
    Beside(database_url).assert_nothing_is_open()
    policy.asked = 1
    assert (await create_under(policy, world)).state is State.PENDING


# Rehearsals


async def test_a_rehearsal_answers_as_a_create_would_and_writes_nothing(world: World) -> None:
    await world.add_node(dgx("a"))
    for asked in (8, 9):
        before = await tables(world.database)
        rehearsed = await world.create(asked, key=f"k{asked}", dryRun=True)
        assert await tables(world.database) == before
        made = await world.create(asked, key=f"k{asked}")
        assert made.during is None or rehearsed.during is not None
        assert comparable(made) == comparable(rehearsed)


def comparable(reservation: Reservation) -> Reservation:
    """Without the times, which pass."""
    conditions = tuple(
        type(c)(
            type=c.type,
            status=c.status,
            reason=c.reason,
            message=c.message.split(";")[0],
            last_transition_time=0,
        )
        for c in reservation.conditions
    )
    return replace(reservation, during=None, conditions=conditions)


async def test_a_rehearsal_of_a_known_key_answers_with_what_is_stored(world: World) -> None:
    await world.add_node(dgx("a"))
    made = await world.create(1)
    before = await tables(world.database)
    assert await world.create(1, dryRun=True) == made
    await refused(world, Conflict, 2, dryRun=True)
    assert await tables(world.database) == before


async def test_rehearsed_refusals_are_those_of_a_create_and_do_not_stick(world: World) -> None:
    before = await tables(world.database)
    world.policy.answer = Denied(caps=("gpus",))
    assert (await refused(world, AccessDenied, dryRun=True)).details["caps"] == "gpus"
    world.policy.answer = Allowed()
    devices = [{"class": "gpu", "count": 1000}] * 8
    error = await refused(world, QuotaExceeded, devices=devices, dryRun=True)
    assert error.details["asked"] == "8000"
    await refused(world, InvalidInput, 0, dryRun=True)
    assert await tables(world.database) == before
    assert (await world.create(1)).state is State.PENDING


async def test_after_a_rehearsal_the_devices_are_still_free(world: World) -> None:
    await world.add_node(dgx("a"))
    for _ in range(3):
        assert (await world.create(8, dryRun=True)).state is State.PLACED
    assert (await world.create(8)).state is State.PLACED
    assert (await world.create(8, key="next", dryRun=True)).state is State.PENDING
    await assert_no_overlap(world.database)


# All at once


async def test_sixteen_callers_of_one_key_get_one_reservation_and_one_decision(
    world: World,
) -> None:
    await world.add_node(dgx("a"))
    made = await asyncio.gather(*(world.create(4) for _ in range(16)))
    assert len({reservation.id for reservation in made}) == 1
    assert {reservation.state for reservation in made} == {State.PLACED}
    assert world.policy.asked == 1
    assert await world.used() == 4
    assert await count(world.database, "SELECT count(*) FROM bookings") == 4
    assert await world.event_names(made[0].id) == ["placed"]


async def test_sixteen_callers_of_a_refused_key_are_refused_by_one_decision(
    world: World,
) -> None:
    world.policy.answer = Denied()
    answers = await asyncio.gather(*(world.create(4) for _ in range(16)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {AccessDenied}
    assert world.policy.asked == 1


async def test_sixteen_callers_of_one_key_with_two_requests_conflict_with_the_first(
    world: World,
) -> None:
    await world.add_node(dgx("a"))
    answers = await asyncio.gather(
        *(world.create(1 + i % 2) for i in range(16)), return_exceptions=True
    )
    made = [answer for answer in answers if isinstance(answer, Reservation)]
    assert len({reservation.id for reservation in made}) == 1
    assert len(made) == 8
    assert all(isinstance(answer, Conflict) for answer in answers if answer not in made)


async def test_a_caller_that_gives_up_does_not_stop_the_others(world: World) -> None:
    await world.add_node(dgx("a"))
    tasks = [asyncio.create_task(world.create(1)) for _ in range(8)]
    await asyncio.sleep(0)
    for task in tasks[:4]:
        task.cancel()
    answers = await asyncio.gather(*tasks[4:])
    assert len({reservation.id for reservation in answers}) == 1
    assert world.policy.asked <= 2
    assert await count(world.database, "SELECT count(*) FROM reservations") == 1


async def test_callers_of_different_keys_do_not_wait_for_each_other(
    world: World, database_url: str
) -> None:
    callers = [Caller(issuer="i", subject=f"s{i}", tenants=ALICE.tenants) for i in range(16)]
    made = await asyncio.gather(*(world.create(1, caller=caller) for caller in callers))
    assert len({reservation.id for reservation in made}) == 16
    assert world.policy.asked == 16
    await assert_quota_adds_up(world.database)
