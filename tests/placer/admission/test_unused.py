"""What is asked for and never got is bounded: drafts without a charge, and what was denied."""

from typing import Any

import pytest

from bcd.model.errors import AccessDenied, ConfirmationRequired, NotFound, QuotaExceeded
from bcd.model.reservation import State
from bcd.placer.admission import unused
from bcd.placer.admission.policy import Allowed, Denied
from bcd.placer.admission.unused import LIMIT
from bcd.store import offers, pools, refusals
from bcd.store.database import Transaction
from tests.clock import DatabaseClock
from tests.placer.admission.test_offers import GREG, GUEST
from tests.placer.records import assert_quota_adds_up, count, tables
from tests.placer.world import World, dgx

DAY_MS = 86_400_000
ALL = "SELECT count(*) FROM reservations"
_COPIED = (
    "tenant_id, pool_id, owner, identity, idempotency_key, request_hash, request, host_share,"
    " state, operation, created_ms"
)


async def fill(world: World, more: int = 0) -> None:
    """As many as may be, or some more: copies of the one that is there."""

    def write(tx: Transaction) -> None:
        for number in range(1, LIMIT + more):
            tx.run(
                f"INSERT INTO reservations (id, {_COPIED})"
                f" SELECT :id, {_COPIED} FROM reservations WHERE idempotency_key = 'first'"
                " ORDER BY seq LIMIT 1",
                id=f"rsv_{number}",
            )

    await world.database.write(write)


async def over_quota(world: World, key: str, **changes: object) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as error:
        await world.create(2, key=key, **changes)  # type: ignore[arg-type]
    return error.value


@pytest.fixture
async def world(world: World, clock: DatabaseClock) -> World:
    clock.advance(0)
    await world.add_node(dgx("a"))
    await world.grant("gpu", 1)
    return world


async def test_one_draft_too_many_is_refused_by_name_and_not_kept(
    world: World, clock: DatabaseClock
) -> None:
    await over_quota(world, "first")
    await fill(world)
    for _ in range(2):
        error = await over_quota(world, "more")
        assert error.details["resource"] == "refusedRequests"
        assert error.details["limit"] == "4096"
        assert world.pool_id in error.message
        assert "try again" in error.message
        assert await count(world.database, ALL) == LIMIT
    assert (await over_quota(world, "first")).details["resource"] == "gpu"
    assert (await world.create(1, key="fits")).state is State.PLACED
    await assert_quota_adds_up(world.database)
    clock.advance(DAY_MS)
    assert (await over_quota(world, "more")).details["resource"] == "gpu"
    assert await count(world.database, ALL) == LIMIT + 2


async def test_other_tenants_and_pools_have_room_of_their_own(world: World) -> None:
    await over_quota(world, "first")
    await fill(world)
    other = await world.add_pool("other")
    assert (await over_quota(world, "k", poolId=other)).details["resource"] == "gpu"

    def offer(tx: Transaction) -> None:
        pools.lock(tx, world.pool_id)
        offers.put(tx, world.pool_id, GUEST, {})

    await world.database.write(offer)
    error = await over_quota(world, "k", caller=GREG, tenantId=GUEST)
    assert error.details["resource"] == "gpu"
    assert await count(world.database, ALL) == LIMIT + 2


async def test_one_denied_too_many_leaves_its_key_as_it_was(world: World) -> None:
    world.policy.answer = Denied()
    with pytest.raises(AccessDenied):
        await world.create(1, key="first")
    await fill(world)
    before = await tables(world.database)
    for dry_run in (False, True):
        with pytest.raises(QuotaExceeded) as error:
            await world.create(1, key="more", dryRun=dry_run)
        assert error.value.details["resource"] == "refusedRequests"
    after = await tables(world.database)
    assert after["reservations"] == before["reservations"]
    assert after["events"] == before["events"]
    with pytest.raises(AccessDenied):
        await world.create(1, key="first")
    world.policy.answer = Allowed()
    assert (await world.create(1, key="more")).state is State.PLACED


async def test_persons_are_asked_about_no_more_than_that_either(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused, "LIMIT", 3)
    world.policy.answer = Denied(confirmable=True)
    for number in range(3):
        with pytest.raises(ConfirmationRequired):
            await world.create(1, key=f"asked{number}")
    with pytest.raises(QuotaExceeded) as error:
        await world.create(1, key="one more")
    assert error.value.details["resource"] == "refusedRequests"
    assert await count(world.database, ALL) == 3
    with pytest.raises(ConfirmationRequired):
        await world.create(1, key="asked0")


async def test_a_swept_key_stays_refused_after_its_offer_was_withdrawn(
    world: World, clock: DatabaseClock
) -> None:
    await world.database.write(lambda tx: offers.put(tx, world.pool_id, GUEST, {"gpu": 1}))
    world.policy.answer = Denied()
    as_guest: dict[str, Any] = {"caller": GREG, "tenantId": GUEST}
    with pytest.raises(AccessDenied):
        await world.create(1, key="denied", **as_guest)
    await world.database.write(lambda tx: offers.withdraw(tx, world.pool_id, GUEST))
    clock.advance(8 * DAY_MS)
    for _ in range(2):
        await world.database.write(lambda tx: refusals.sweep_denied(tx, tx.now_ms() - 7 * DAY_MS))
    assert await count(world.database, ALL) == 0
    with pytest.raises(AccessDenied):
        await world.create(1, key="denied", **as_guest)
    with pytest.raises(NotFound):
        await world.create(1, key="another", **as_guest)


async def test_what_a_person_was_asked_about_is_neither_dropped_nor_refused_by_this(
    world: World,
) -> None:
    """Also where a placer that died left too many."""
    await over_quota(world, "first")
    world.policy.answer = Denied(confirmable=True)
    with pytest.raises(ConfirmationRequired):
        await world.create(2, key="asked")
    await fill(world, more=1)
    world.policy.answer = Allowed()
    assert (await over_quota(world, "asked")).details["resource"] == "gpu"
    world.policy.answer = Denied()
    with pytest.raises(AccessDenied):
        await world.create(2, key="asked")
