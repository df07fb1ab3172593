"""Every row of the table of moves happens in a real life, and tells what it says (spec 9.4)."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from bcd.model.errors import AccessDenied, ConfirmationRequired
from bcd.model.ids import ReservationId
from bcd.model.report import Failed
from bcd.model.reservation import State
from bcd.placer.admission.policy import Allowed, Decision, Denied
from bcd.placer.lifecycle.reassign import Handover, reassign
from bcd.placer.lifecycle.transitions import MOVES, Trigger
from bcd.store import nodes, reservations, work
from bcd.store.database import Transaction
from tests.clock import DatabaseClock
from tests.placer.world import ALICE, TENANT, World, dgx

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
LEASE_MS = 10 * MINUTE_MS

Step = Callable[[World, DatabaseClock, ReservationId], Awaitable[object]]


async def reach(world: World, clock: DatabaseClock, state: State) -> ReservationId:
    """A reservation of one GPU, spot and under a lease, in that state."""
    clock.advance(0)
    if state is State.AWAITING_CONFIRMATION:
        world.policy.answer = Denied(confirmable=True)
        with pytest.raises(ConfirmationRequired) as asked:
            await asks(world)
        return ReservationId(asked.value.details["reservationId"])
    if state is State.PENDING:
        made = await world.create(1, spot=True, leaseSeconds=LEASE_MS // 1000)
        return made.id
    node = await world.add_node(dgx("a", 1))
    start = clock.read() + (HOUR_MS if state is State.PLACED else 0)
    made = await world.create(1, start=start, spot=True, leaseSeconds=LEASE_MS // 1000)
    await world.work()
    if state is State.ACTIVE:
        await world.bind(node)
    assert (await world.view(made.id)).state is state
    return made.id


async def asks(world: World) -> object:
    """The agent asks, or asks again."""
    return await world.create(1, key="agent", caller=replace(ALICE, actor="agent"))


def asks_again(answer: Decision, *, queued: bool = False, room: bool = False) -> Step:
    async def step(world: World, _clock: DatabaseClock, _made: ReservationId) -> None:
        world.policy.answer = answer
        if queued:
            await world.set_policy(placer="queued")
        if room:
            await world.add_node(dgx("a", 1))
        if isinstance(answer, Denied):
            with pytest.raises(AccessDenied):
                await asks(world)
        else:
            await asks(world)

    return step


async def nobody_confirms(world: World, clock: DatabaseClock, _made: ReservationId) -> None:
    clock.advance(30 * MINUTE_MS)
    await world.work()


async def denied(world: World, _clock: DatabaseClock, _made: ReservationId) -> None:
    world.policy.answer = Denied()
    with pytest.raises(Exception, match="policy"):
        await world.create(1, key="denied")


async def placed(world: World, _clock: DatabaseClock, _made: ReservationId) -> None:
    await world.add_node(dgx("b", 1))
    await world.work()


async def waits(world: World, clock: DatabaseClock, _made: ReservationId) -> None:
    clock.advance(30_000)
    await world.work()


async def fails(world: World, _clock: DatabaseClock, made: ReservationId) -> None:
    (allocation,) = await world.live(made)
    node = next(n for n in world.nodes if n.id == allocation.node_id)
    report = node.seal(node.report(allocation, Failed("device-busy")))
    await world.send(node, report, allocation.id)
    await world.work()


async def fails_without_another_place(
    world: World, clock: DatabaseClock, made: ReservationId
) -> None:
    await world.send_inventory(world.nodes[0], ())
    await fails(world, clock, made)


async def gives_up(world: World, clock: DatabaseClock, made: ReservationId) -> None:
    for _ in range(3):
        await fails(world, clock, made)


async def starts(world: World, clock: DatabaseClock, made: ReservationId) -> None:
    await world.renew(made)
    for _ in range(7):
        clock.advance(LEASE_MS - MINUTE_MS)
        await world.connect(world.nodes[0])
        await world.work()
        if (await world.view(made)).state is not State.PLACED:
            return
        await world.renew(made)


async def binds(world: World, _clock: DatabaseClock, _made: ReservationId) -> None:
    await world.bind(world.nodes[0])


async def ends(world: World, clock: DatabaseClock, made: ReservationId) -> None:
    def unleased(tx: object) -> None:
        row = reservations.get(tx, made)  # type: ignore[arg-type]
        assert row is not None
        reservations.save(tx, row, lease_until_ms=None, bind_deadline_ms=None)  # type: ignore[arg-type]

    await world.database.write(unleased)
    clock.advance(3 * HOUR_MS)
    await world.work()


async def lapses(world: World, clock: DatabaseClock, made: ReservationId) -> None:
    def patient(tx: object) -> None:
        row = reservations.get(tx, made)  # type: ignore[arg-type]
        assert row is not None
        reservations.save(tx, row, bind_deadline_ms=None)  # type: ignore[arg-type]

    await world.database.write(patient)
    clock.advance(LEASE_MS)
    await world.work()


async def yields(world: World, clock: DatabaseClock, _made: ReservationId) -> None:
    await world.create(1, key="firm", duration="3h")
    clock.advance(2 * MINUTE_MS)
    await world.work()


async def repaired(world: World, _clock: DatabaseClock, made: ReservationId) -> None:
    await world.add_node(dgx("b", 1))

    def drain(tx: Transaction) -> None:
        nodes.drain(tx, world.nodes[0].id)
        work.poke(tx, made, tx.now_ms())

    await world.database.write(drain)
    await world.work()


async def handed_over(world: World, _clock: DatabaseClock, _made: ReservationId) -> None:
    owner = "https://issuer|alice"
    handover = Handover(tenant_id=TENANT, from_owner=owner, to_owner="i|bob", reason="left")
    assert await reassign(world.database, world.signer, handover) == 1


def of(trigger: Trigger) -> Step:
    return lambda world, _clock, made: world.end(made, trigger)


AWAITING = State.AWAITING_CONFIRMATION
STEPS: dict[tuple[State, Trigger], Step] = {
    (AWAITING, Trigger.DENIED): asks_again(Denied()),
    (AWAITING, Trigger.NOT_CONFIRMED): nobody_confirms,
    (AWAITING, Trigger.PLACED): asks_again(Allowed(), room=True),
    (AWAITING, Trigger.NO_FIT): asks_again(Allowed()),
    (AWAITING, Trigger.QUEUED): asks_again(Allowed(), queued=True),
    (State.PENDING, Trigger.PLACED): placed,
    (State.PENDING, Trigger.NO_FIT): waits,
    (State.PLACED, Trigger.STARTED): starts,
    (State.PLACED, Trigger.REPAIRED): repaired,
    (State.BINDING, Trigger.BOUND): binds,
    (State.BINDING, Trigger.PLACED): fails,
    (State.BINDING, Trigger.NO_FIT): fails_without_another_place,
    (State.BINDING, Trigger.GAVE_UP): gives_up,
}
WHEREVER: dict[Trigger, Step] = {
    Trigger.ENDED: ends,
    Trigger.LAPSED: lapses,
    Trigger.PREEMPTED: yields,
    Trigger.PREEMPTING: yields,
    Trigger.RELEASED: of(Trigger.RELEASED),
    Trigger.CANCELLED: of(Trigger.CANCELLED),
    Trigger.RENEWED: lambda world, _clock, made: world.renew(made),
    Trigger.EXTENDED: lambda world, _clock, made: world.extend(made, by_ms=HOUR_MS),
    Trigger.REASSIGNED: handed_over,
}
FROM_A_QUEUE = {(State.PENDING, Trigger.QUEUED_NO_FIT)}
FROM_A_DRAFT = {pair for pair in MOVES if pair[0] is State.DRAFT}


@pytest.mark.parametrize(
    ("state", "trigger"),
    sorted(MOVES.keys() - FROM_A_DRAFT - FROM_A_QUEUE),
    ids=lambda value: value.value,
)
async def test_every_move_happens_and_tells_its_event(
    world: World, clock: DatabaseClock, state: State, trigger: Trigger
) -> None:
    made = await reach(world, clock, state)
    before = await world.events(made)
    version = (await world.view(made)).version
    step = STEPS.get((state, trigger)) or WHEREVER[trigger]
    await step(world, clock, made)
    told = (await world.events(made))[len(before) :]
    move = MOVES[(state, trigger)]
    if move.event:
        found = [event for event in told if event.type == f"reservation.{move.event}"]
        assert found, [event.type for event in told]
        assert found[0].data["state"] == move.to
        assert found[0].data["poolId"] == world.pool_id
        assert found[0].data.get("reason") == (move.reason or found[0].data.get("reason"))
    else:
        assert told == []
        assert (await world.view(made)).state is move.to
        assert (await world.view(made)).version >= version


async def test_a_draft_is_denied_placed_or_waits(world: World, clock: DatabaseClock) -> None:
    assert {trigger for _, trigger in FROM_A_DRAFT} == {
        Trigger.DENIED,
        Trigger.PLACED,
        Trigger.NO_FIT,
        Trigger.QUEUED,
        Trigger.NEEDS_CONFIRMATION,
    }
    waiting = await reach(world, clock, State.PENDING)
    assert await world.event_names(waiting) == ["pending"]
    await world.end(waiting, Trigger.CANCELLED)
    await world.add_node(dgx("a", 1))
    made = await world.create(1, key="fits")
    assert await world.event_names(made.id) == ["placed"]
    await denied(world, clock, made.id)
    (row,) = await world.rows("SELECT id FROM reservations WHERE state = 'denied'")
    assert await world.event_names(row["id"]) == []
    asked = await reach(world, clock, AWAITING)
    assert await world.event_names(asked) == ["awaiting-confirmation"]


async def test_a_queued_one_is_told_of_and_waits_when_nothing_fits(world: World) -> None:
    await world.set_policy(placer="queued")
    made = await world.create(1)
    assert await world.event_names(made.id) == ["queued"]
    await world.work()
    assert await world.event_names(made.id) == ["queued", "pending"]
