"""Creates under an offer that changes meanwhile (spec 4.1, 5.2)."""

from dataclasses import replace
from typing import Any

import pytest

from bcd.model.errors import NotFound, QuotaExceeded
from bcd.model.reservation import Reservation, State
from bcd.placer.admission.extend import Extensions, Longer
from bcd.placer.admission.policy import Allowed, Decision
from bcd.store import offers, pools
from bcd.store.database import Transaction
from tests.clock import DatabaseClock
from tests.placer import records
from tests.placer.world import ALICE, World, dgx

GUEST = "guest"
HOUR_MS = 3_600_000
GREG = replace(ALICE, subject="greg", tenants=frozenset({GUEST}))


async def offer(world: World, **limits: int) -> None:
    def put(tx: Transaction) -> None:
        pools.lock(tx, world.pool_id)
        offers.put(tx, world.pool_id, GUEST, limits)

    await world.database.write(put)


async def withdraw(world: World) -> None:
    assert await world.database.write(offers.withdraw, world.pool_id, GUEST)


async def book(world: World, key: str = "k", **changes: Any) -> Reservation:
    return await world.create(key=key, caller=GREG, tenantId=GUEST, **changes)


class WithdrawingPolicy:
    """Allows; and while it decides, the offer is withdrawn."""

    def __init__(self, database_url: str) -> None:
        self._beside = records.Beside(database_url)

    def decide(self, *_question: object) -> Decision:
        self._beside.execute("DELETE FROM offers")
        return Allowed()


async def test_an_offer_withdrawn_while_the_policy_decides_places_nothing(
    world: World, database_url: str
) -> None:
    await world.add_node(dgx("a"))
    await offer(world, gpu=4)
    admission = world.admission_with(WithdrawingPolicy(database_url))
    document = world.document(tenantId=GUEST)
    with pytest.raises(NotFound, match=world.pool_id):
        await admission.create(GREG, document)
    for table in ("bookings", "quota_charges", "events"):
        assert await records.count(world.database, f"SELECT count(*) AS n FROM {table}") == 0


async def test_a_draft_under_an_offer_that_was_withdrawn_is_not_decided(world: World) -> None:
    await world.add_node(dgx("a"))
    await offer(world, gpu=0)
    with pytest.raises(QuotaExceeded, match="limit of the pool's offer is 0"):
        await book(world)
    await withdraw(world)
    asked = world.policy.asked
    with pytest.raises(NotFound, match=world.pool_id):
        await book(world)
    assert world.policy.asked == asked
    assert await records.count(world.database, "SELECT count(*) AS n FROM bookings") == 0


async def test_a_rehearsal_sees_an_offer_as_a_create_does(world: World) -> None:
    await world.add_node(dgx("a"))
    with pytest.raises(NotFound):
        await book(world, dryRun=True)
    await offer(world, gpu=1)
    assert (await book(world, dryRun=True)).state is State.PLACED
    assert await records.count(world.database, "SELECT count(*) AS n FROM quota_charges") == 0


async def test_what_runs_under_a_withdrawn_offer_is_not_extended(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    await offer(world, gpu=4)
    made = await book(world, start=clock.read() + HOUR_MS)
    extensions = Extensions(world.database, world.policy, world.placements, world.signer)
    by = Longer(by_ms=HOUR_MS)
    longer = await extensions.extend(GREG, made.id, by)
    assert longer.extended
    await withdraw(world)
    asked = world.policy.asked
    with pytest.raises(NotFound, match=world.pool_id):
        await extensions.extend(GREG, made.id, by)
    assert world.policy.asked == asked
    assert (await world.view(made.id)).during == longer.reservation.during


async def test_an_offer_withdrawn_while_an_extend_is_decided_extends_nothing(
    world: World, clock: DatabaseClock, database_url: str
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    await offer(world, gpu=4)
    made = await book(world, start=clock.read() + HOUR_MS)
    policy = WithdrawingPolicy(database_url)
    extensions = Extensions(world.database, policy, world.placements, world.signer)
    with pytest.raises(NotFound, match=world.pool_id):
        await extensions.extend(GREG, made.id, Longer(by_ms=HOUR_MS))
    assert (await world.view(made.id)).during == made.during
    holds = "SELECT count(*) AS n FROM extend_holds"
    assert await records.count(world.database, holds) == 0
