"""Offers: charges under them stay within their limits and add up, in any race (spec 5.2, 5.3)."""

import asyncio
import random
from collections.abc import Mapping, Sequence

import pytest

from bcd.model.errors import NotFound
from bcd.model.ids import PoolId, ReservationId
from bcd.store import offers, pools, quotas
from bcd.store.database import Database, Transaction
from bcd.store.quotas import Refused
from tests.conftest import Rounds
from tests.store.world import TENANT, make_draft, make_pool

GUEST = "guest"


class Undo(Exception):
    """Rolls a refused charge back, as admission does."""

    def __init__(self, refused: Refused) -> None:
        self.refused = refused


def begin(tx: Transaction, count: int) -> tuple[PoolId, Sequence[ReservationId]]:
    pool_id = make_pool(tx)
    return pool_id, [make_draft(tx, pool_id) for _ in range(count)]


def put(tx: Transaction, pool_id: PoolId, limits: Mapping[str, int]) -> None:
    pools.lock(tx, pool_id)
    offers.put(tx, pool_id, GUEST, limits)


def charge(
    tx: Transaction, pool_id: PoolId, reservation_id: ReservationId, amounts: Mapping[str, int]
) -> None:
    held = pools.lock(tx, pool_id)
    offer = offers.terms(tx, held.pool, GUEST)
    refused = quotas.charge(tx, reservation_id, GUEST, amounts, offer)
    if refused is not None:
        raise Undo(refused)


async def try_charge(
    database: Database, pool_id: PoolId, one: ReservationId, amounts: Mapping[str, int]
) -> Refused | None:
    try:
        await database.write(charge, pool_id, one, amounts)
    except Undo as undo:
        return undo.refused
    return None


def sums(tx: Transaction) -> tuple[dict[str, int], dict[str, int]]:
    """(quota's used, charges that count in it), by resource."""
    used = {quota.resource: quota.used for quota in quotas.of_tenant(tx, GUEST)}
    rows = tx.all(
        "SELECT resource, sum(amount) AS amount FROM quota_charges"
        " WHERE in_quota = 1 GROUP BY resource"
    )
    return used, {row["resource"]: int(row["amount"]) for row in rows}


def used_of_offer(tx: Transaction, pool_id: PoolId) -> dict[str, int]:
    offer = offers.find(tx, pool_id, GUEST)
    assert offer is not None
    return {resource: offers.used(tx, offer, resource) for resource in offer.limits}


async def test_a_pool_without_an_offer_is_not_there(database: Database) -> None:
    pool_id, _ = await database.write(begin, 0)
    pool = await database.read(pools.get, pool_id)
    assert await database.read(offers.terms, pool, TENANT) is None
    with pytest.raises(NotFound, match=pool_id):
        await database.read(offers.terms, pool, GUEST)
    await database.write(put, pool_id, {"gpu": 1})
    offer = await database.read(offers.terms, pool, GUEST)
    assert offer is not None
    assert offer.limits == {"gpu": 1}
    await database.write(pools.delete, pool_id)
    pool = await database.read(pools.get, pool_id)
    for tenant in (TENANT, GUEST):
        with pytest.raises(NotFound):
            await database.read(offers.terms, pool, tenant)


async def test_the_last_of_an_offer_is_given_out_once(database: Database) -> None:
    pool_id, ids = await database.write(begin, 16)
    await database.write(put, pool_id, {"gpu": 10})
    answers = await asyncio.gather(*(try_charge(database, pool_id, i, {"gpu": 3}) for i in ids))
    assert sum(answer is None for answer in answers) == 3
    assert {answer for answer in answers if answer} == {Refused("gpu", 10, 9, 3, offered=True)}
    assert await database.read(used_of_offer, pool_id) == {"gpu": 9}


async def test_offers_of_two_pools_count_apart(database: Database) -> None:
    one, (first,) = await database.write(begin, 1)
    other = await database.write(make_pool, "other")
    second = await database.write(make_draft, other)
    for pool_id, mine in ((one, first), (other, second)):
        await database.write(put, pool_id, {"gpu": 2})
        assert await try_charge(database, pool_id, mine, {"gpu": 2}) is None
    assert await database.read(used_of_offer, one) == {"gpu": 2}


async def test_a_charge_refused_by_one_ceiling_counts_against_none(database: Database) -> None:
    pool_id, (one,) = await database.write(begin, 1)
    await database.write(put, pool_id, {"gpu": 9, "vcpu": 1})
    await database.write(quotas.set_ceiling, GUEST, "gpu", 9)
    refused = await try_charge(database, pool_id, one, {"gpu": 1, "vcpu": 2})
    assert refused == Refused("vcpu", 1, 0, 2, offered=True)
    assert await database.read(sums) == ({"gpu": 0}, {})
    assert await database.read(used_of_offer, pool_id) == {"gpu": 0, "vcpu": 0}


async def test_what_was_charged_before_the_offer_named_it_counts(database: Database) -> None:
    pool_id, (one, two) = await database.write(begin, 2)
    await database.write(quotas.set_ceiling, GUEST, "gpu", 9)
    await database.write(put, pool_id, {})
    assert await try_charge(database, pool_id, one, {"gpu": 4}) is None
    await database.write(put, pool_id, {"gpu": 5})
    refused = await try_charge(database, pool_id, two, {"gpu": 2})
    assert refused == Refused("gpu", 5, 4, 2, offered=True)


async def test_both_ceilings_add_up_whatever_happens(database: Database, rounds: Rounds) -> None:
    pool_id, ids = await database.write(begin, 8)
    dice = random.Random(7)
    names = ("gpu", "gpu.mig", "vcpu")
    await database.write(put, pool_id, {"gpu": 12, "vcpu": 12})
    await database.write(quotas.set_ceiling, GUEST, "gpu", 10)
    await database.write(quotas.set_ceiling, GUEST, "gpu.mig", 10)

    async def step(one: ReservationId) -> None:
        await database.write(quotas.refund, one)
        asked = {name: dice.randint(1, 6) for name in dice.sample(names, dice.randint(1, 3))}
        await try_charge(database, pool_id, one, asked)

    for turn in range(rounds(8, 100)):
        await asyncio.gather(*(step(one) for one in ids))
        used, charged = await database.read(sums)
        assert {name: amount for name, amount in used.items() if amount} == charged
        assert used["gpu"] <= 10
        under_offer = await database.read(used_of_offer, pool_id)
        assert all(amount <= 12 for amount in under_offer.values())
        if turn == 4:
            await database.write(quotas.set_ceiling, GUEST, "vcpu", 100)
