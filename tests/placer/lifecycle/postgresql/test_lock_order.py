"""Rows of several tenants or reservations are locked in one order, so that nobody deadlocks.

A rival holds the row that comes first. Whoever waits for it must hold none that comes later.
"""

import asyncio

from bcd.model.reservation import State
from bcd.placer.lifecycle.judge import judge_node
from bcd.store import offers, pools
from bcd.store.database import Transaction
from tests.placer.admission.test_offers import GREG, GUEST
from tests.placer.waiting import Rival, until_locked_out
from tests.placer.world import TENANT, World, dgx


async def test_who_displaces_others_locks_all_quotas_before_charging_the_own(
    world: World, database_url: str, rival: Rival
) -> None:
    await world.add_node(dgx("a", 1))
    await world.grant("gpu", 10, GUEST)

    def offer(tx: Transaction) -> None:
        pools.lock(tx, world.pool_id)
        offers.put(tx, world.pool_id, GUEST, {})

    await world.database.write(offer)
    victim = await world.create(1, key="spot", spot=True)
    quota = "SELECT 1 FROM quotas WHERE tenant_id = %s FOR UPDATE NOWAIT"
    assert TENANT < GUEST
    rival.execute(quota, (TENANT,))
    created = asyncio.create_task(world.create(1, caller=GREG, tenantId=GUEST))
    await until_locked_out(database_url)
    rival.execute(quota, (GUEST,))
    rival.rollback()
    assert (await created).state is State.PLACED
    assert (await world.view(victim.id)).state is State.RELEASED


async def test_two_nodes_reports_about_the_same_gangs_are_taken_up_in_one_order(
    world: World, database_url: str, rival: Rival
) -> None:
    node = await world.add_node(dgx("a"))
    made = sorted([(await world.create(1, key=key)).id for key in "xy"])
    await world.work()
    for held in sorted(await world.held(node), key=lambda held: held.reservation_id, reverse=True):
        await world.send(node, node.seal(node.report(held)), held.id)
    moment = "SELECT 1 FROM work WHERE key = %s FOR UPDATE NOWAIT"
    rival.execute(moment, (made[0],))
    judging = asyncio.create_task(world.database.write(judge_node, node.id))
    await until_locked_out(database_url)
    rival.execute(moment, (made[1],))
    rival.rollback()
    assert [claim.key for claim in (await judging).claims] == made
