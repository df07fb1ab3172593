"""A pool with a queued placer over the API: the same client code, with and without ``wait``."""

import asyncio

import pytest

from bcd.model.errors import Reason
from bcd.model.ids import PoolId
from bcd.wire.compute.v1 import admin_pb2
from bcd.wire.compute.v1 import reservations_pb2 as pb
from tests.placer.api.conftest import Client, Site, is_refusal
from tests.placer.world import TENANT, dgx


@pytest.fixture
async def queued(site: Site, admin: Client) -> PoolId:
    """A pool of one node, made over the API."""
    policy = admin_pb2.PoolPolicy(placer="queued")
    request = admin_pb2.CreatePoolRequest(
        name="queued", tenant_id=TENANT, region="eu-1", policy=policy
    )
    pool = (await admin.call(admin.pools.CreatePool, request)).pool
    assert pool.policy.placer == "queued"
    await site.world.add_node(dgx("a"), PoolId(pool.id))
    return PoolId(pool.id)


async def test_a_create_that_waits_is_answered_with_the_outcome(
    site: Site, alice: Client, queued: PoolId
) -> None:
    wait = pb.Wait(timeout_ms=20_000)
    keys = [f"k{number}" for number in range(10)]
    made = await asyncio.gather(*(alice.create(key, pool_id=queued, wait=wait) for key in keys))
    assert {one.operation.state for one in made} == {"succeeded"}
    waiting = [one for one in made if one.state == "pending"]
    assert len(waiting) == 2
    assert {c.type for one in waiting for c in one.conditions} == {"Unschedulable"}
    for one in made:
        assert (await site.told(one.id))[0] == "reservation.queued"


async def test_a_repeated_key_waits_too(alice: Client, queued: PoolId) -> None:
    made = await alice.create(pool_id=queued)
    assert (made.state, made.operation.state) == ("pending", "running")
    assert "queue" in made.conditions[0].message
    again = await alice.create(pool_id=queued, wait=pb.Wait(timeout_ms=20_000))
    assert (again.id, again.operation.state) == (made.id, "succeeded")


async def test_a_placer_that_does_not_exist_is_refused(admin: Client) -> None:
    request = admin_pb2.CreatePoolRequest(
        name="x", tenant_id=TENANT, region="r", policy=admin_pb2.PoolPolicy(placer="psychic")
    )
    refused = await admin.refused(admin.pools.CreatePool, request)
    assert is_refusal(refused, Reason.INVALID_INPUT, field="policy.placer")
