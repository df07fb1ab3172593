"""Extending: one at a time, decided on as a whole, every booking or none (spec 14.2, 14.3)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bcd.model.caller import Caller
from bcd.model.errors import AccessDenied, Conflict, InvalidInput, InvalidState, NotFound, Reason
from bcd.model.report import Failed
from bcd.model.reservation import Reservation, State
from bcd.placer.admission.attributes import Attributes
from bcd.placer.admission.extend import Extension, Extensions, Longer
from bcd.placer.admission.policy import Action, Allowed, Decision, Denied
from bcd.placer.lifecycle.transitions import Trigger
from bcd.store import extend_holds
from tests.clock import DatabaseClock
from tests.placer.records import assert_no_overlap, assert_quota_adds_up, count
from tests.placer.world import ALICE, World, dgx

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
SLOTS = "SELECT count(*) FROM extend_holds"


class Capped:
    """Allows up to so many hours in all, and remembers what it was asked."""

    def __init__(self, hours: int) -> None:
        self.hours = hours
        self.asked: list[tuple[Action, int]] = []

    def decide(
        self, _caller: Caller, action: Action, resource: Attributes, *_word: object
    ) -> Decision:
        self.asked.append((action, resource.attrs["durationHours"]))
        fits = resource.attrs["durationHours"] <= self.hours
        return Allowed() if fits else Denied((), ("duration",))


def under(world: World, policy: Capped) -> Extensions:
    return Extensions(world.database, policy, world.placements, world.signer)


def end_of(reservation: Reservation) -> int:
    assert reservation.during is not None
    return reservation.during.end_ms


async def ahead(world: World, clock: DatabaseClock, key: str = "k") -> Reservation:
    return await world.create(1, key=key, start=clock.read() + HOUR_MS)


async def test_an_extension_moves_window_bookings_wake_and_the_nodes_until(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    made = await world.active(node, count=2)
    outcome = await world.extend(made.id, by_ms=HOUR_MS)
    end = end_of(made) + HOUR_MS
    assert (outcome.extended, outcome.available_until_ms) == (True, None)
    assert end_of(outcome.reservation) == end
    assert outcome.reservation.version == made.version + 1
    assert await count(world.database, "SELECT min(end_ms) FROM bookings") == end
    assert [entry.until_ms for entry in (await world.desired(node)).assignments] == [end]
    last = (await world.events(made.id))[-1]
    assert (last.type, last.data["end"]) == ("reservation.extended", end)
    assert last.data["state"] == "active"
    clock.set(end - 1)
    await world.connect(node)
    await world.work()
    assert (await world.view(made.id)).state is State.ACTIVE
    clock.set(end)
    await world.work()
    assert (await world.view(made.id)).state is State.RELEASED
    assert await count(world.database, SLOTS) == 0
    assert await world.used() == 0


async def test_the_policy_decides_on_the_total_after_the_change(
    world: World, clock: DatabaseClock
) -> None:
    """A cap on a reservation bounds its extensions too, one by one or in one."""
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await ahead(world, clock)
    policy = Capped(3)
    extensions = under(world, policy)
    for hours in (2, 3):
        outcome = await extensions.extend(ALICE, made.id, Longer(by_ms=HOUR_MS))
        assert outcome.extended
        assert policy.asked[-1] == (Action.EXTEND, hours)
    with pytest.raises(AccessDenied) as refused:
        await extensions.extend(ALICE, made.id, Longer(by_ms=1))
    assert refused.value.details["caps"] == "duration"
    assert policy.asked[-1] == (Action.EXTEND, 4)
    assert end_of(await world.view(made.id)) == end_of(made) + 2 * HOUR_MS
    assert await count(world.database, SLOTS) == 0


async def test_an_end_that_is_reached_already_asks_nobody(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await ahead(world, clock)
    asked = world.policy.asked
    for until in (end_of(made), end_of(made) - 1, 1):
        outcome = await world.extend(made.id, until_ms=until)
        assert outcome == Extension(await world.view(made.id), False)
    assert world.policy.asked == asked
    until = end_of(made) + HOUR_MS
    assert (await world.extend(made.id, until_ms=until)).extended
    assert not (await world.extend(made.id, until_ms=until)).extended
    assert end_of(await world.view(made.id)) == until


async def test_another_booking_in_the_way_leaves_everything_and_says_until_when(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a", 1))
    made = await ahead(world, clock)
    next_start = end_of(made) + HOUR_MS
    await world.create(1, key="next", start=next_start)
    outcome = await world.extend(made.id, by_ms=HOUR_MS + 1)
    assert (outcome.extended, outcome.available_until_ms) == (False, next_start)
    assert outcome.reservation == await world.view(made.id) == made
    assert await count(world.database, SLOTS) == 0
    assert (await world.extend(made.id, until_ms=next_start)).extended
    await assert_no_overlap(world.database)


async def test_what_holds_no_devices_is_not_extended(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    waiting = await world.create(1, key="waiting")
    with pytest.raises(InvalidState, match="pending cannot be extended"):
        await world.extend(waiting.id, by_ms=HOUR_MS)
    await world.end(waiting.id, Trigger.CANCELLED)
    with pytest.raises(InvalidState, match="cancelled cannot be extended"):
        await world.extend(waiting.id, by_ms=HOUR_MS)
    node = await world.add_node(dgx("a"))
    over = await world.active(node, key="over")
    clock.set(end_of(over))
    with pytest.raises(InvalidState, match="is over"):
        await world.extend(over.id, by_ms=HOUR_MS)
    assert await count(world.database, SLOTS) == 0


async def test_nothing_lasts_longer_than_ten_years(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await ahead(world, clock)
    with pytest.raises(InvalidInput, match="ten years") as refused:
        await world.extend(made.id, until_ms=1 << 52)
    assert refused.value.field == "until"
    with pytest.raises(InvalidInput, match="ten years"):
        await world.extend(made.id, by_ms=3653 * 24 * HOUR_MS)


async def test_quota_is_by_count_so_an_extension_charges_nothing(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await ahead(world, clock)
    used = await world.used()
    assert (await world.extend(made.id, by_ms=HOUR_MS)).extended
    assert await world.used() == used
    await assert_quota_adds_up(world.database)


async def test_a_placement_anew_takes_the_extension_over(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    made = await world.create(1)
    await world.work()
    await world.extend(made.id, by_ms=2 * HOUR_MS)
    (allocation,) = await world.live(made.id)
    clock.advance(MINUTE_MS)
    failed = node.seal(node.report(allocation, Failed("device-busy")))
    await world.send(node, failed, allocation.id)
    await world.work()
    again = await world.view(made.id)
    assert again.state is State.BINDING
    assert end_of(again) == clock.read() + 3 * HOUR_MS
    assert again.request.duration == made.request.duration


async def test_a_gang_is_extended_whole_or_not_at_all(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    for name in ("a", "b"):
        await world.add_node(dgx(name, 1))
    made = await world.create(1, gang={"size": 2}, start=clock.read() + HOUR_MS)
    blocked_from = end_of(made) + MINUTE_MS
    await world.create(1, key="next", start=blocked_from)
    outcome = await world.extend(made.id, by_ms=HOUR_MS)
    assert (outcome.extended, outcome.available_until_ms) == (False, blocked_from)
    (row,) = await world.rows(
        "SELECT count(DISTINCT end_ms) AS ends FROM bookings WHERE reservation_id = :id", id=made.id
    )
    assert row["ends"] == 1
    assert (await world.extend(made.id, until_ms=blocked_from)).extended
    await assert_no_overlap(world.database)


async def test_a_pool_that_is_no_longer_offered_extends_nothing(
    world: World, clock: DatabaseClock
) -> None:
    """Spec 5.2: what runs under an offer stays when it is withdrawn, and runs out."""
    clock.advance(0)
    await world.add_node(dgx("a", 1))
    made = await ahead(world, clock)
    owner = "UPDATE pools SET tenant_id = :owner"
    await world.database.write(lambda tx: tx.run(owner, owner="somebody-else"))
    with pytest.raises(NotFound):
        await world.extend(made.id, by_ms=HOUR_MS)
    assert await count(world.database, SLOTS) == 0

    async def withdrawn() -> None:
        await world.database.write(lambda tx: tx.run(owner, owner="somebody-else"))

    await world.database.write(lambda tx: tx.run(owner, owner=made.tenant_id))
    with pytest.raises(NotFound):
        await interrupted(world, 2, withdrawn).extend(ALICE, made.id, Longer(by_ms=HOUR_MS))
    assert await world.view(made.id) == made
    assert await count(world.database, SLOTS) == 0


# One at a time


async def hold(world: World, made: Reservation, nonce: str, hours: int = 9) -> bool:
    return await world.database.write(extend_holds.take, made.id, nonce, hours * HOUR_MS)


async def test_a_second_extend_is_a_conflict_until_the_first_is_a_minute_old(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await ahead(world, clock)
    assert await hold(world, made, "other")
    for after_ms in (0, MINUTE_MS):
        clock.advance(after_ms)
        with pytest.raises(Conflict) as refused:
            await world.extend(made.id, by_ms=HOUR_MS)
        assert refused.value.reason is Reason.CONFLICT
        details = refused.value.details
        assert (details["reason"], details["retryAfterSeconds"]) == ("extend-in-flight", "60")
    assert await count(world.database, SLOTS) == 1, "nobody else's hold is cleared"
    clock.advance(1)
    assert (await world.extend(made.id, by_ms=HOUR_MS)).extended


class Between:
    """A database in which something happens just before one of an extend's writes.

    The first stages, the second applies, the next gives the slot back.
    """

    def __init__(self, world: World, place: int, happens: Callable[[], Awaitable[object]]) -> None:
        self._database = world.database
        self._rest = place
        self._happens = happens

    async def write(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        self._rest -= 1
        if self._rest == 0:
            await self._happens()
        return await self._database.write(work, *args, **kwargs)


def interrupted(
    world: World, place: int, happens: Callable[[], Awaitable[object]], policy: Capped | None = None
) -> Extensions:
    database: Any = Between(world, place, happens)
    return Extensions(database, policy or Capped(99), world.placements, world.signer)


async def test_an_extend_whose_hold_was_taken_over_applies_and_clears_nothing(
    world: World, clock: DatabaseClock
) -> None:
    """The other one was decided on its own; nothing of this one may pass under it."""
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await ahead(world, clock)

    async def taken_over() -> None:
        clock.advance(MINUTE_MS + 1)
        assert await hold(world, made, "other")

    extensions = interrupted(world, 2, taken_over)
    with pytest.raises(Conflict, match="under way"):
        await extensions.extend(ALICE, made.id, Longer(by_ms=HOUR_MS))
    assert await world.view(made.id) == made
    assert await count(world.database, f"{SLOTS} WHERE hold = 'other'") == 1


async def test_a_reservation_that_moved_meanwhile_is_decided_on_again(
    world: World, clock: DatabaseClock
) -> None:
    """Placed anew, its window has another start: the total that was decided on is not its own."""
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    made = await world.create(1)
    await world.work()
    (allocation,) = await world.live(made.id)
    policy = Capped(99)

    async def placed_anew() -> None:
        clock.advance(MINUTE_MS)
        failed = node.seal(node.report(allocation, Failed("device-busy")))
        await world.send(node, failed, allocation.id)
        await world.work()

    extensions = interrupted(world, 2, placed_anew, policy)
    outcome = await extensions.extend(ALICE, made.id, Longer(by_ms=HOUR_MS))
    assert outcome.extended
    assert len(policy.asked) == 2
    assert end_of(outcome.reservation) == clock.read() + 2 * HOUR_MS
    assert await count(world.database, SLOTS) == 0


async def test_a_reservation_that_ends_meanwhile_refuses_and_gives_the_slot_back(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await ahead(world, clock)
    extensions = interrupted(world, 2, lambda: world.end(made.id, Trigger.RELEASED))
    with pytest.raises(InvalidState, match="released"):
        await extensions.extend(ALICE, made.id, Longer(by_ms=HOUR_MS))
    assert await count(world.database, SLOTS) == 0


@pytest.mark.parametrize("place", [1, 2])
async def test_a_caller_who_goes_away_leaves_no_slot_taken(
    world: World, clock: DatabaseClock, place: int
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await ahead(world, clock)
    reached, never = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        if place == 2:
            await never.wait()

    extensions = interrupted(world, place, hang)
    asking = asyncio.create_task(extensions.extend(ALICE, made.id, Longer(by_ms=HOUR_MS)))
    await reached.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await count(world.database, SLOTS) == 0
    assert await world.view(made.id) == made


async def test_a_policy_that_breaks_gives_the_slot_back(world: World, clock: DatabaseClock) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await ahead(world, clock)

    class Broken(Capped):
        def decide(self, *_question: object) -> Decision:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        await under(world, Broken(1)).extend(ALICE, made.id, Longer(by_ms=HOUR_MS))
    assert await count(world.database, SLOTS) == 0
    assert (await world.extend(made.id, by_ms=HOUR_MS)).extended


async def test_of_many_extends_at_once_none_passes_the_cap_together(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    made = await ahead(world, clock)
    extensions = under(world, Capped(4))

    async def one() -> str:
        try:
            outcome = await extensions.extend(ALICE, made.id, Longer(by_ms=HOUR_MS))
        except (Conflict, AccessDenied) as error:
            return error.reason
        assert outcome.extended
        return "extended"

    outcomes = await asyncio.gather(*(one() for _ in range(12)))
    lasts_ms = end_of(await world.view(made.id)) - end_of(made)
    assert lasts_ms == outcomes.count("extended") * HOUR_MS
    assert 0 < lasts_ms <= 3 * HOUR_MS
    assert await count(world.database, SLOTS) == 0


async def test_an_extend_races_with_a_booking_and_one_of_them_has_the_device(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a", 1))
    made = await ahead(world, clock)
    for turn in range(5):
        end = end_of(await world.view(made.id))
        outcome, other = await asyncio.gather(
            world.extend(made.id, by_ms=HOUR_MS), world.create(1, key=f"{turn}", start=end)
        )
        assert outcome.extended == (other.state is State.PENDING)
        await assert_no_overlap(world.database)
        await world.end(other.id, Trigger.CANCELLED)
