"""An agent's request that a person must confirm: asked, approved, used once (spec 13, 15.4)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bcd.model.caller import Caller
from bcd.model.confirmation import Confirmation, ConfirmationState
from bcd.model.errors import (
    AccessDenied,
    BcdError,
    ConfirmationRequired,
    Conflict,
    InvalidState,
    QuotaExceeded,
)
from bcd.model.ids import ReservationId
from bcd.model.reservation import OperationState, Reservation, State
from bcd.placer.admission.policy import CedarPolicy
from bcd.placer.api.confirmations import ConfirmationCalls
from bcd.placer.lifecycle.transitions import Trigger
from bcd.store import confirmations
from bcd.store.database import Database
from bcd.wire.compute.v1 import confirmations_pb2 as pb
from tests.clock import DatabaseClock
from tests.placer.admission.test_policy import CONFIRM
from tests.placer.records import assert_no_overlap, assert_quota_adds_up, count, tables
from tests.placer.world import ALICE, TENANT, World, dgx

AGENT = replace(ALICE, actor="agent-7")
HALF_AN_HOUR_MS = 1_800_000


@pytest.fixture
async def world(world: World, tmp_path: Path, clock: DatabaseClock) -> World:
    """One node of eight GPUs; agents may have two without being asked about."""
    clock.advance(0)
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "caps.cedar").write_text(CONFIRM)
    world.admission = world.admission_with(CedarPolicy(tmp_path / "policies"))
    await world.add_node(dgx("a"))
    return world


async def refused(
    world: World, kind: type[BcdError], amount: int = 4, caller: Caller = AGENT, **changes: Any
) -> BcdError:
    with pytest.raises(kind) as error:
        await world.create(amount, caller=caller, **changes)
    return error.value


async def asked(world: World, amount: int = 4, **changes: Any) -> Confirmation:
    """The agent asks, and is told to wait."""
    error = await refused(world, ConfirmationRequired, amount, **changes)
    return await stored(world, ReservationId(error.details["reservationId"]))


async def stored(world: World, reservation_id: ReservationId) -> Confirmation:
    found = await world.database.read(confirmations.of_reservation, reservation_id)
    assert found is not None
    return found


async def approve(world: World, confirmation: Confirmation, caller: Caller = ALICE) -> str:
    calls = ConfirmationCalls(world.database, world.signer)
    request = pb.ApproveConfirmationRequest(tenant_id=TENANT, confirmation_id=confirmation.id)
    return (await calls.approve(caller, request)).confirmation.state


async def reject(world: World, confirmation: Confirmation) -> str:
    calls = ConfirmationCalls(world.database, world.signer)
    request = pb.RejectConfirmationRequest(tenant_id=TENANT, confirmation_id=confirmation.id)
    return (await calls.reject(ALICE, request)).confirmation.state


async def only_condition(world: World, reservation_id: ReservationId) -> tuple[str, str, str]:
    (condition,) = (await world.view(reservation_id)).conditions
    return condition.type, condition.status, condition.reason


# Asked


async def test_what_must_be_confirmed_waits_without_a_charge_and_says_what_to_do(
    world: World, clock: DatabaseClock
) -> None:
    error = await refused(world, ConfirmationRequired)
    made = await world.view(ReservationId(error.details["reservationId"]))
    assert (made.state, made.operation) == (State.AWAITING_CONFIRMATION, OperationState.RUNNING)
    assert made.owner == ALICE.owner
    assert error.details["expiresAt"] == str(clock.read() + HALF_AN_HOUR_MS)
    confirmation = await stored(world, made.id)
    assert error.details["confirmationId"] == confirmation.id
    (condition,) = made.conditions
    assert (condition.type, condition.status) == ("ConfirmationRequired", "True")
    for words in ("alice must confirm", "agent-7", f"confirm approve {confirmation.id}", "before"):
        assert words in condition.message
        assert words in error.message
    assert await world.used() == 0
    assert await count(world.database, "SELECT count(*) FROM bookings") == 0
    (event,) = await world.events(made.id)
    assert event.type == "reservation.awaiting-confirmation"
    assert event.data == {
        "state": "awaiting-confirmation",
        "poolId": world.pool_id,
        "confirmationId": confirmation.id,
        "expiresAt": clock.read() + HALF_AN_HOUR_MS,
    }
    await assert_quota_adds_up(world.database)


async def test_it_is_bound_to_the_request_the_action_the_agent_and_the_person(world: World) -> None:
    confirmation = await asked(world)
    row = (await world.rows("SELECT * FROM reservations"))[0]
    assert confirmation.reservation_id == row["id"]
    assert confirmation.request_hash == row["request_hash"]
    assert confirmation.action == "compute:reservations:create"
    assert (confirmation.owner, confirmation.actor) == (ALICE.owner, "agent-7")
    assert confirmation.reason == "over the cap on gpus; forbidden by confirm:large"


async def test_a_try_before_the_answer_is_told_the_same_and_changes_nothing(world: World) -> None:
    first = await refused(world, ConfirmationRequired)
    before = await world.view(ReservationId(first.details["reservationId"]))
    again = await refused(world, ConfirmationRequired)
    assert (again.details, again.message) == (first.details, first.message)
    assert await world.view(before.id) == before
    assert await count(world.database, "SELECT count(*) FROM confirmations") == 1


async def test_a_person_is_never_asked_about_his_own_request(world: World) -> None:
    assert (await world.create(4, caller=ALICE)).state is State.PLACED
    assert (await world.create(2, caller=AGENT, key="small")).state is State.PLACED
    error = await refused(world, AccessDenied, 9)
    assert error.details["caps"] == "gpus"


async def test_another_request_under_the_key_is_a_conflict_in_every_state(
    world: World, clock: DatabaseClock
) -> None:
    confirmation = await asked(world)
    for step in (approve, reject):
        error = await refused(world, Conflict, 5)
        assert error.details == {"reservationId": confirmation.reservation_id}
        await step(world, confirmation)
    await refused(world, Conflict, 5)


async def test_a_rehearsal_asks_nobody(world: World) -> None:
    before = await tables(world.database)
    error = await refused(world, ConfirmationRequired, dryRun=True)
    assert error.details == {}
    assert "would be asked" in error.message
    assert dict(await tables(world.database)) == dict(before)
    confirmation = await asked(world)
    await approve(world, confirmation)
    rehearsed = await world.create(4, caller=AGENT, dryRun=True)
    assert rehearsed.state is State.PLACED
    assert (await stored(world, confirmation.reservation_id)).state is ConfirmationState.APPROVED


# Approved


async def test_an_approved_request_is_placed_at_the_next_try(world: World) -> None:
    confirmation = await asked(world)
    waiting = await world.view(confirmation.reservation_id)
    assert await approve(world, confirmation) == "approved"
    approved = await world.view(confirmation.reservation_id)
    assert approved.version == waiting.version + 1
    assert await only_condition(world, approved.id) == ("ConfirmationRequired", "False", "Approved")
    made = await world.create(4, caller=AGENT)
    assert (made.id, made.state, made.conditions) == (waiting.id, State.PLACED, ())
    assert made.operation is OperationState.SUCCEEDED
    assert await world.used() == 4
    assert await world.event_names(made.id) == ["awaiting-confirmation", "placed"]
    assert (await stored(world, made.id)).state is ConfirmationState.USED
    await world.work()
    assert (await world.view(made.id)).state is State.BINDING


async def test_an_approval_counts_once(world: World) -> None:
    confirmation = await asked(world)
    await approve(world, confirmation)
    made = await world.create(4, caller=AGENT)
    assert await world.create(4, caller=AGENT) == made
    other = await refused(world, ConfirmationRequired, key="other")
    assert other.details["confirmationId"] != confirmation.id
    with pytest.raises(InvalidState) as error:
        await approve(world, confirmation)
    assert error.value.details["state"] == "used"


async def test_an_approved_request_that_fits_nowhere_waits_with_its_charge(world: World) -> None:
    await world.create(8, caller=ALICE, key="all")
    confirmation = await asked(world)
    await approve(world, confirmation)
    made = await world.create(4, caller=AGENT)
    assert made.state is State.PENDING
    assert (await stored(world, made.id)).state is ConfirmationState.USED
    await assert_quota_adds_up(world.database)


async def test_an_approval_outlives_a_charge_that_the_quota_refuses(world: World) -> None:
    confirmation = await asked(world)
    await approve(world, confirmation)
    await world.grant("gpu", 3)
    await refused(world, QuotaExceeded)
    assert (await stored(world, confirmation.reservation_id)).state is ConfirmationState.APPROVED
    await world.grant("gpu", 4)
    assert (await world.create(4, caller=AGENT)).state is State.PLACED


async def test_what_the_policy_forbids_by_then_stays_forbidden_in_spite_of_an_approval(
    world: World, tmp_path: Path
) -> None:
    confirmation = await asked(world)
    await approve(world, confirmation)
    (tmp_path / "policies" / "caps.cedar").write_text(CONFIRM.replace("<= 8", "<= 3"))
    world.admission = world.admission_with(CedarPolicy(tmp_path / "policies"))
    await refused(world, AccessDenied)
    assert (await world.view(confirmation.reservation_id)).state is State.DENIED
    assert (await stored(world, confirmation.reservation_id)).state is ConfirmationState.WITHDRAWN


async def test_what_the_policy_allows_by_then_needs_no_answer(world: World, tmp_path: Path) -> None:
    confirmation = await asked(world)
    world.admission = world.admission_with(CedarPolicy())
    made = await world.create(4, caller=AGENT)
    assert (made.id, made.state) == (confirmation.reservation_id, State.PLACED)


async def test_to_approve_twice_is_to_approve_once(world: World) -> None:
    confirmation = await asked(world)
    assert await approve(world, confirmation) == "approved"
    before = await world.view(confirmation.reservation_id)
    assert await approve(world, confirmation) == "approved"
    assert await world.view(confirmation.reservation_id) == before


# Rejected, withdrawn, late


async def test_a_rejected_request_is_denied_for_ever(world: World) -> None:
    confirmation = await asked(world)
    await approve(world, confirmation)
    assert await reject(world, confirmation) == "rejected"
    assert await reject(world, confirmation) == "rejected"
    for _ in range(2):
        error = await refused(world, AccessDenied)
        assert error.details["reservationId"] == confirmation.reservation_id
        assert "alice rejected it" in error.message
    made = await world.view(confirmation.reservation_id)
    assert (made.state, made.operation) == (State.DENIED, OperationState.FAILED)
    assert await world.event_names(made.id) == ["awaiting-confirmation"]
    with pytest.raises(InvalidState):
        await approve(world, confirmation)
    await world.work()
    assert await count(world.database, "SELECT count(*) FROM work") == 0


async def assert_expired(world: World, made: Reservation) -> None:
    assert (made.state, made.operation) == (State.EXPIRED, OperationState.FAILED)
    assert await only_condition(world, made.id) == ("ConfirmationRequired", "False", "Expired")
    assert await world.event_names(made.id) == ["awaiting-confirmation", "expired"]
    assert (await stored(world, made.id)).state is ConfirmationState.EXPIRED
    assert await world.create(4, caller=AGENT) == made, "the stored reservation, undecided"
    sql = "SELECT count(*) FROM work WHERE key = :id"
    assert await count(world.database, sql, id=made.id) == 0
    assert await world.used() == 0


@pytest.mark.parametrize("approved", [False, True], ids=["unanswered", "approved"])
async def test_past_the_deadline_the_reconciler_ends_it(
    world: World, clock: DatabaseClock, approved: bool
) -> None:
    confirmation = await asked(world)
    if approved:
        await approve(world, confirmation)
    clock.advance(HALF_AN_HOUR_MS - 1)
    await world.work()
    made = await world.view(confirmation.reservation_id)
    assert made.state is State.AWAITING_CONFIRMATION
    clock.advance(1)
    await world.work()
    await assert_expired(world, await world.view(made.id))


@pytest.mark.parametrize("approved", [False, True], ids=["unanswered", "approved"])
async def test_past_the_deadline_a_late_try_ends_it(
    world: World, clock: DatabaseClock, approved: bool
) -> None:
    confirmation = await asked(world)
    if approved:
        await approve(world, confirmation)
    clock.advance(HALF_AN_HOUR_MS)
    await assert_expired(world, await world.create(4, caller=AGENT))


async def test_past_the_deadline_nobody_decides_any_more(
    world: World, clock: DatabaseClock
) -> None:
    """Before the reconciler has seen it, and after."""
    confirmation = await asked(world)
    clock.advance(HALF_AN_HOUR_MS)
    for _ in range(2):
        for step in (approve, reject):
            with pytest.raises(InvalidState) as error:
                await step(world, confirmation)
            assert error.value.details["state"] == "expired"
        await world.work()


async def test_a_released_one_is_cancelled_and_cannot_be_approved_any_more(world: World) -> None:
    confirmation = await asked(world)
    ended = await world.end(confirmation.reservation_id, Trigger.RELEASED)
    assert (ended.state, ended.conditions) == (State.CANCELLED, ())
    with pytest.raises(InvalidState) as error:
        await approve(world, confirmation)
    assert error.value.details["state"] == "withdrawn"
    assert await world.create(4, caller=AGENT) == ended


# At once


async def outcomes(*calls: Any) -> Sequence[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_tries_and_answers_at_once_place_it_once_or_never(
    world: World, clock: DatabaseClock, database: Database
) -> None:
    other = World(database, world.authority, world.pool_id)
    other.admission = other.admission_with(world.admission._policy)
    for number in range(12):
        key = f"k{number}"
        confirmation = await asked(world, key=key)
        answers = await outcomes(
            world.create(4, caller=AGENT, key=key),
            approve(world, confirmation),
            other.create(4, caller=AGENT, key=key),
            *([reject(world, confirmation)] if number % 2 else []),
            other.create(4, caller=AGENT, key=key),
        )
        assert all(isinstance(a, BcdError | str | Reservation) for a in answers), answers
        made = await world.view(confirmation.reservation_id)
        state = (await stored(world, made.id)).state
        assert (made.state, state) in {
            (State.PLACED, ConfirmationState.USED),
            (State.DENIED, ConfirmationState.REJECTED),
            (State.AWAITING_CONFIRMATION, ConfirmationState.APPROVED),
        }
        assert (await world.event_names(made.id)).count("placed") == (made.state is State.PLACED)
        await assert_no_overlap(world.database)
        await assert_quota_adds_up(world.database)
        await world.end_if_live(made.id)
