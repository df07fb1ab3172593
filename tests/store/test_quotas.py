"""Charges: within the ceiling or not at all, given back once, and always adding up."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping

from bcd.model.ids import ReservationId
from bcd.store import quotas
from bcd.store.database import Database, Transaction
from bcd.store.quotas import Refused
from tests.conftest import Rounds
from tests.store.world import TENANT, make_draft, make_pool


class Undo(Exception):
    """Rolls a refused charge back, as admission does."""

    def __init__(self, refused: Refused) -> None:
        self.refused = refused


def charge(
    tx: Transaction, reservation_id: ReservationId, amounts: Mapping[str, int]
) -> Refused | None:
    refused = quotas.charge(tx, reservation_id, TENANT, amounts)
    if refused is not None:
        raise Undo(refused)
    return None


async def try_charge(
    database: Database, reservation_id: ReservationId, amounts: Mapping[str, int]
) -> Refused | None:
    try:
        return await database.write(charge, reservation_id, amounts)
    except Undo as undo:
        return undo.refused


def used(tx: Transaction) -> dict[str, int]:
    return {quota.resource: quota.used for quota in quotas.of_tenant(tx, TENANT)}


def charged(tx: Transaction) -> dict[str, int]:
    """What the charge rows add up to."""
    totals: Counter[str] = Counter()
    for row in tx.all("SELECT resource, amount FROM quota_charges"):
        totals[row["resource"]] += row["amount"]
    return dict(totals)


def drafts(tx: Transaction, count: int) -> list[ReservationId]:
    pool_id = make_pool(tx)
    return [make_draft(tx, pool_id) for _ in range(count)]


async def test_a_charge_counts_until_it_is_refunded(database: Database) -> None:
    (one,) = await database.write(drafts, 1)
    await database.write(quotas.set_ceiling, TENANT, "gpu", 8)
    assert await try_charge(database, one, {"gpu": 8}) is None
    assert await database.read(used) == {"gpu": 8}
    await database.write(quotas.refund, one)
    assert await database.read(used) == {"gpu": 0}
    assert await database.read(charged) == {}


async def test_a_second_refund_gives_nothing_back(database: Database) -> None:
    one, two = await database.write(drafts, 2)
    await database.write(quotas.set_ceiling, TENANT, "gpu", 8)
    for reservation_id in (one, two):
        await try_charge(database, reservation_id, {"gpu": 4})
    await asyncio.gather(*(database.write(quotas.refund, one) for _ in range(4)))
    assert await database.read(used) == {"gpu": 4}


async def test_a_charge_over_the_ceiling_says_what_was_asked_and_used(database: Database) -> None:
    one, two = await database.write(drafts, 2)
    await database.write(quotas.set_ceiling, TENANT, "gpu", 8)
    assert await try_charge(database, one, {"gpu": 5}) is None
    assert await try_charge(database, two, {"gpu": 4}) == Refused("gpu", 8, 5, 4)
    assert await try_charge(database, two, {"gpu": 3}) is None


async def test_a_missing_row_grants_nothing(database: Database) -> None:
    (one,) = await database.write(drafts, 1)
    assert await try_charge(database, one, {"gpu": 1}) == Refused("gpu", 0, 0, 1)


async def test_a_charge_of_several_resources_is_whole_or_not_at_all(database: Database) -> None:
    (one,) = await database.write(drafts, 1)
    await database.write(quotas.set_ceiling, TENANT, "gpu", 8)
    await database.write(quotas.set_ceiling, TENANT, "gpu.mig", 1)
    refused = await try_charge(database, one, {"gpu": 1, "gpu.mig": 2})
    assert refused == Refused("gpu.mig", 1, 0, 2)
    assert await database.read(used) == {"gpu": 0, "gpu.mig": 0}


async def test_a_ceiling_below_the_use_only_stops_further_charges(database: Database) -> None:
    one, two = await database.write(drafts, 2)
    await database.write(quotas.set_ceiling, TENANT, "gpu", 8)
    await try_charge(database, one, {"gpu": 6})
    lowered = await database.write(quotas.set_ceiling, TENANT, "gpu", 2)
    assert (lowered.ceiling, lowered.used) == (2, 6)
    assert await try_charge(database, two, {"gpu": 1}) == Refused("gpu", 2, 6, 1)
    await database.write(quotas.refund, one)
    assert await try_charge(database, two, {"gpu": 1}) is None


async def test_the_last_of_a_quota_is_given_out_once(database: Database) -> None:
    ids = await database.write(drafts, 16)
    await database.write(quotas.set_ceiling, TENANT, "gpu", 10)
    answers = await asyncio.gather(*(try_charge(database, one, {"gpu": 3}) for one in ids))
    assert sum(answer is None for answer in answers) == 3
    assert await database.read(used) == await database.read(charged) == {"gpu": 9}


async def test_use_is_the_sum_of_the_charges_whatever_happens(
    database: Database, rounds: Rounds
) -> None:
    ids = await database.write(drafts, 12)
    for resource in ("gpu", "gpu.mig", "vcpu"):
        await database.write(quotas.set_ceiling, TENANT, resource, 20)
    dice = random.Random(11)

    async def step(reservation_id: ReservationId) -> None:
        await database.write(quotas.refund, reservation_id)
        resources = dice.sample(("gpu", "gpu.mig", "vcpu"), dice.randint(1, 3))
        await try_charge(database, reservation_id, {name: dice.randint(1, 9) for name in resources})

    for _ in range(rounds(8, 100)):
        await asyncio.gather(*(step(reservation_id) for reservation_id in ids))
        counted, added_up = await database.read(lambda tx: (used(tx), charged(tx)))
        assert {name: amount for name, amount in counted.items() if amount} == added_up
