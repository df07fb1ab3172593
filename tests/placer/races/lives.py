"""Races in one life: extend, bind, release, preemption, leases, confirmations."""

from dataclasses import replace
from typing import Any

from bcd.model.errors import Conflict, Reason
from bcd.model.report import Failed
from bcd.model.reservation import Reservation, State
from bcd.placer.admission.policy import Allowed, Confirmation, Decision, Denied
from bcd.placer.api.confirmations import ConfirmationCalls
from bcd.store.work import LEASE_MS
from bcd.wire.compute.v1 import confirmations_pb2, reservations_pb2
from tests.placer.races.arena import (
    HOUR_MS,
    LIVE,
    MINUTE_MS,
    ROOT,
    Act,
    Arena,
    cancel,
    extend,
    judge,
    publish,
    release,
    renew,
    work,
)
from tests.placer.races.table import Race, two_nodes
from tests.placer.world import ALICE, BOB, TENANT, World

AGENT = replace(ALICE, actor="agent-7")


def end_of(reservation: Reservation) -> int:
    """When its window ends."""
    assert reservation.during is not None
    return reservation.during.end_ms


async def extend_against_create(arena: Arena) -> None:
    """Who comes first has the hour behind the first window; the other hears or waits."""
    first = await arena.made(4, gang={"size": 2})
    end_ms = end_of(first)
    *created, extended = await arena.collide(
        *(arena.create(1, start=end_ms + part) for part in (0, HOUR_MS // 2, HOUR_MS - 1)),
        extend(first.id),
    )
    placed = [one.during.start_ms for one in created if one.state is State.PLACED]
    if extended.extended:
        assert end_of(await arena.view(first.id)) == end_ms + HOUR_MS
        assert not placed
    else:
        assert end_of(await arena.view(first.id)) == end_ms
        assert extended.available_until in placed


async def extends_of_one(arena: Arena) -> None:
    """Never longer than what was granted; who comes in between hears of the other."""
    first = await arena.made()
    *answers, _ = await arena.collide(
        *(extend(first.id, HOUR_MS * (1 + number)) for number in range(4)),
        arena.later(arena.chance.choice((0, MINUTE_MS + 1))),
        refusals=[Reason.CONFLICT],
    )
    granted = 0
    for number, answer in enumerate(answers):
        if isinstance(answer, Conflict):
            assert answer.details["reason"] == "extend-in-flight"
        else:
            assert answer.extended
            granted += HOUR_MS * (1 + number)
    assert granted
    assert end_of(await arena.view(first.id)) == end_of(first) + granted


async def release_against_bind(arena: Arena) -> None:
    """A report is judged, by two placers, while its reservation is released."""
    first = await arena.started(2, gang={"size": 2})
    for node in arena.nodes:
        await arena.reports(node)(arena.world)
    await arena.collide(release(first.id), judge, judge, work, work, publish)
    await arena.settle()
    assert (await arena.view(first.id)).state is State.RELEASED
    names = await arena.world.event_names(first.id)
    assert names in (["placed", "binding", "released"], ["placed", "binding", "active", "released"])


async def binds_crosswise(arena: Arena) -> None:
    """Two placers judge the reports of two nodes about the same gangs."""
    gangs = [await arena.made(1, gang={"size": 2}) for _ in range(3)]
    await arena.world.work()
    await arena.collide(*(arena.reports(node) for node in arena.nodes), judge, judge, work)
    await arena.settle()
    for gang in gangs:
        assert await arena.world.event_names(gang.id) == ["placed", "binding", "active"]


async def failed_binds(arena: Arena) -> None:
    """A failed bind is placed anew, released or extended; others want the same devices."""
    first = await arena.started(2)
    (held,) = await arena.world.live(first.id)
    node = next(node for node in arena.nodes if node.id == held.node_id)
    await arena.reports(node, Failed("resources-exhausted"))(arena.world)
    await arena.collide(
        judge, judge, extend(first.id), release(first.id), arena.create(4), arena.create(4), work,
        refusals=[Reason.INVALID_STATE],
    )  # fmt: skip
    await arena.settle()
    assert (await arena.view(first.id)).state in (State.RELEASED, State.CANCELLED)


async def ends_of_one(arena: Arena) -> None:
    """Release, cancel and the calendar: one of them ends it, once."""
    first = await arena.made(2, start=arena.clock.read() + HOUR_MS)
    await arena.collide(
        release(first.id), release(first.id), cancel(first.id), cancel(first.id),
        arena.later(HOUR_MS), work, extend(first.id),
        refusals=[Reason.INVALID_STATE, Reason.CONFLICT],
    )  # fmt: skip
    await arena.settle()
    assert (await arena.view(first.id)).state in (State.RELEASED, State.CANCELLED)


async def end_of_a_window(arena: Arena) -> None:
    """The window ends while it is released and extended: what was granted counts."""
    first = await arena.active(2)
    *_, extended = await arena.collide(
        arena.later(HOUR_MS), work, work, arena.create(4), extend(first.id),
        refusals=[Reason.INVALID_STATE],
    )  # fmt: skip
    await arena.settle()
    found = await arena.view(first.id)
    if isinstance(extended, reservations_pb2.ExtendReservationResponse) and extended.extended:
        assert end_of(found) == end_of(first) + HOUR_MS
        assert found.state is State.ACTIVE
    else:
        assert found.state is State.RELEASED


async def turnaround(arena: Arena) -> None:
    """Devices rest behind their use, whoever is released and extended meanwhile."""
    used = [await arena.active(2, gang={"size": 2}) for _ in range(2)]
    await arena.later(MINUTE_MS)(arena.world)
    *created, _, _, _ = await arena.collide(
        *(arena.create(4) for _ in range(3)),
        *(release(one.id) for one in used), work,
    )  # fmt: skip
    assert {one.state for one in created} == {State.PENDING}
    await arena.settle()
    await arena.collide(
        arena.later(arena.turnaround_ms), work, work, extend(used[0].id),
        *(release(one.id) for one in created), arena.create(4, gang={"size": 2}),
        refusals=[Reason.INVALID_STATE],
    )  # fmt: skip


async def with_turnaround(arena: Arena) -> None:
    """Two nodes whose devices rest for five minutes."""
    await two_nodes(arena)
    arena.turnaround_ms = 5 * MINUTE_MS
    await arena.world.set_policy(turnaroundMs=arena.turnaround_ms)


async def two_workers(arena: Arena) -> None:
    """Everything is due at once for two placers: each reservation starts once."""
    made = [await arena.made() for _ in range(5)]
    await arena.collide(*(work for _ in range(6)), publish, publish)
    await arena.settle()
    for one in made:
        assert await arena.world.event_names(one.id) == ["placed", "binding"]


async def preemption(arena: Arena) -> None:
    """A victim is extended and released while others need its devices."""
    victims = [await arena.active(4, spot=True) for _ in range(2)]
    answers = await arena.collide(
        arena.create(4), arena.create(2),
        *(extend(one.id) for one in victims), release(victims[0].id), work,
        refusals=[Reason.INVALID_STATE],
    )  # fmt: skip
    made = [one for one in answers[:2] if isinstance(one, Reservation)]
    assert {one.state for one in made} == {State.PLACED}
    await arena.settle()
    await arena.collide(arena.later(3 * MINUTE_MS), work, work, release(victims[1].id))
    await arena.settle()
    states = {(await arena.view(one.id)).state for one in victims}
    assert states == {State.RELEASED}


async def lease(arena: Arena) -> None:
    """A lease is renewed in time or lapses."""
    first = await arena.active(1, leaseSeconds=60)
    *_, renewed, again = await arena.collide(
        arena.later(MINUTE_MS), work, work, renew(first.id), renew(first.id),
        refusals=[Reason.INVALID_STATE],
    )  # fmt: skip
    await arena.settle()
    found = await arena.view(first.id)
    if renewed is not None and again is not None:
        assert found.state is State.RELEASED
    if found.state in LIVE:
        assert found.lease_until_ms is not None
        assert found.lease_until_ms > arena.clock.read()


async def handover(arena: Arena) -> None:
    """An owner leaves while his reservations are extended, released and made."""
    mine = [await arena.made() for _ in range(2)]

    async def reassign(world: World) -> None:
        request = reservations_pb2.ReassignReservationsRequest(
            tenant_id=TENANT, from_owner=ALICE.owner, to_owner=BOB.owner, reason="left"
        )
        await world.calls.reassign(ROOT, request)

    await arena.collide(
        reassign, reassign, extend(mine[0].id), release(mine[1].id), arena.create(2), work,
        refusals=[Reason.CONFLICT],
    )  # fmt: skip
    names = await arena.world.event_names(mine[0].id)
    assert names.count("reassigned") == 1
    assert (await arena.view(mine[0].id)).owner == BOB.owner


async def callers_who_leave(arena: Arena) -> None:
    """Whoever went away finds what became of it by the same key, and leaves nothing behind."""
    firsts = [await arena.made(2, gang={"size": 2}) for _ in range(2)]
    keys = [arena.key() for _ in range(3)]
    leaving = [
        *(arena.create(2, key=key) for key in keys),
        *(extend(one.id) for one in firsts), release(firsts[1].id), work, judge, publish,
    ]  # fmt: skip
    await arena.collide(
        *map(arena.impatient, leaving), refusals=[Reason.CONFLICT, Reason.INVALID_STATE]
    )
    await arena.quiet()
    await arena.later(LEASE_MS + 1)(arena.world)  # claims of whoever left come back
    made = await arena.collide(*(arena.create(2, key=key) for key in keys))
    assert len({one.id for one in made}) == 3
    extended = await arena.collide(extend(firsts[0].id))
    assert extended[0].extended or extended[0].available_until


class AsksThePerson:
    """A policy that holds back what agents create, until their person has approved."""

    def decide(self, caller: Any, action: Any, _resource: Any, word: Any = None) -> Decision:
        held_back = caller.actor and action.value.endswith(":create")
        if held_back and word is not Confirmation.APPROVED:
            return Denied(("confirm:all",), ("gpus",), confirmable=True)
        return Allowed()


async def with_persons(arena: Arena) -> None:
    """Two nodes, and agents whose persons are asked."""
    await two_nodes(arena)
    for world in arena.worlds:
        world.admission = world.admission_with(AsksThePerson())


async def confirmation(arena: Arena) -> None:
    """Approved, rejected, expired and used at once: one of these, and the rest agrees with it."""
    key = arena.key()
    await arena.collide(
        *(arena.create(2, key=key, caller=AGENT) for _ in range(3)),
        refusals=[Reason.CONFIRMATION_REQUIRED],
    )
    (asked,) = await arena.world.rows("SELECT * FROM confirmations ORDER BY seq DESC LIMIT 1")

    def decide(name: str) -> Act:
        kinds = {
            "approve": confirmations_pb2.ApproveConfirmationRequest,
            "reject": confirmations_pb2.RejectConfirmationRequest,
        }

        async def act(world: World) -> None:
            calls = ConfirmationCalls(world.database, world.signer)
            request: Any = kinds[name](tenant_id=TENANT, confirmation_id=asked["id"])
            await getattr(calls, name)(ALICE, request)

        return act

    others = [
        [],
        [decide("reject")],
        [arena.later(HOUR_MS // 2)],
        [release(asked["reservation_id"])],
    ]
    answers = await arena.collide(
        *arena.chance.choice(others), decide("approve"), decide("approve"), work,
        *(arena.create(2, key=key, caller=AGENT) for _ in range(3)),
        refusals=[
            Reason.CONFIRMATION_REQUIRED, Reason.ACCESS_DENIED, Reason.INVALID_STATE,
        ],
    )  # fmt: skip
    await arena.settle()
    found = await arena.view(asked["reservation_id"])
    (after,) = await arena.world.rows("SELECT * FROM confirmations WHERE id = :id", id=asked["id"])
    made = {one.id for one in answers if isinstance(one, Reservation)}
    assert made <= {found.id}
    assert (found.state.value, after["state"]) in {
        ("awaiting-confirmation", "approved"),
        ("binding", "used"),
        ("released", "used"),
        ("denied", "rejected"),
        ("expired", "expired"),
        ("cancelled", "withdrawn"),
    }


RACES = (
    Race(extend_against_create),
    Race(extends_of_one),
    Race(release_against_bind),
    Race(binds_crosswise),
    Race(failed_binds),
    Race(ends_of_one),
    Race(end_of_a_window),
    Race(turnaround, with_turnaround),
    Race(two_workers),
    Race(preemption),
    Race(lease),
    Race(handover),
    Race(callers_who_leave),
    Race(confirmation, with_persons),
)
