"""What waits is placed as its pool is by then: offers, policy, devices (spec 4.1, 5.2, 7.5)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bcd.model.assignment import Binding
from bcd.model.errors import InvalidInput
from bcd.model.ids import ReservationId
from bcd.model.report import Failed
from bcd.model.reservation import Condition, Reservation, State
from bcd.placer.admission.policy import Allowed, Decision
from bcd.store import nodes, offers, pools, work
from bcd.store.database import Transaction
from tests.clock import DatabaseClock
from tests.placer import records
from tests.placer.world import ALICE, CAPABILITIES, TENANT, World, dgx, gpu

GUEST = "guest"
GREG = replace(ALICE, subject="greg", tenants=frozenset({GUEST}))
KUBELET = (*CAPABILITIES, "binding.kubernetes")
A100, H100 = "NVIDIA A100 40GB", "NVIDIA H100 80GB"


async def under_lock(world: World, change: Callable[[Transaction], object]) -> None:
    """Change something of the pool and look at who waits, as an administrator's call does."""

    def locked(tx: Transaction) -> None:
        held = pools.lock(tx, world.pool_id)
        change(tx)
        work.poke(tx, world.pool_id, held.now_ms)

    await world.database.write(locked)
    await world.work()


async def offer(world: World) -> None:
    await under_lock(world, lambda tx: offers.put(tx, world.pool_id, GUEST, {"gpu": 8}))


async def withdraw(world: World) -> None:
    await under_lock(world, lambda tx: offers.withdraw(tx, world.pool_id, GUEST))


async def policy(world: World, **changes: Any) -> None:
    await world.set_policy(**changes)
    await under_lock(world, lambda tx: None)


async def book(world: World, count: int = 1, key: str = "k", **changes: Any) -> Reservation:
    return await world.create(count, key=key, caller=GREG, tenantId=GUEST, **changes)


async def waits(world: World, reservation_id: ReservationId) -> Condition:
    seen = await world.view(reservation_id)
    assert seen.state is State.PENDING
    (condition,) = seen.conditions
    return condition


async def of_model(world: World, name: str, model: str, count: int = 2) -> None:
    await world.add_node([gpu(f"GPU-{name}-{i}", model=model) for i in range(count)])
    await world.work()


async def models_of(world: World, reservation_id: ReservationId) -> set[str]:
    rows = await world.rows(
        "SELECT DISTINCT a.model AS model FROM bookings b JOIN atoms a ON a.id = b.atom_id"
        " WHERE b.reservation_id = :id",
        id=reservation_id,
    )
    return {row["model"] for row in rows}


# Offers.


async def test_what_waits_is_placed_only_while_the_pool_is_offered(world: World) -> None:
    await offer(world)
    made = await book(world)
    await withdraw(world)
    await world.add_node(dgx("a"))
    await world.work()
    condition = await waits(world, made.id)
    assert (condition.type, condition.reason) == ("Unschedulable", "OfferWithdrawn")
    assert f"pool {world.pool_id} is no longer offered to guest" in condition.message
    assert await records.count(world.database, "SELECT count(*) AS n FROM bookings") == 0
    assert await records.count(world.database, "SELECT sum(amount) AS n FROM quota_charges") == 1
    await offer(world)
    assert (await world.view(made.id)).state is State.BINDING


async def test_nothing_is_kept_for_one_whose_offer_was_withdrawn(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a", 2))
    await offer(world)
    await world.create(1, key="holder", duration="30m")
    oldest = await book(world, 2)
    younger = await world.create(1, key="younger")
    assert younger.state is State.PENDING, "it would be in the older one's way"
    await withdraw(world)
    assert (await world.view(younger.id)).state is State.BINDING
    assert (await waits(world, oldest.id)).reason == "OfferWithdrawn"


async def test_one_that_did_not_bind_is_placed_anew_only_where_it_is_allowed(world: World) -> None:
    both = [await world.add_node(dgx(name)) for name in "ab"]
    await offer(world)
    made = await book(world)
    await world.work()
    (allocation,) = await world.live(made.id)
    await withdraw(world)
    assert (await world.view(made.id)).state is State.BINDING, "what was placed keeps its place"
    node = next(node for node in both if node.id == allocation.node_id)
    report = node.report(allocation, Failed("resources-exhausted", ""))
    await world.send(node, node.seal(report), allocation.id)
    await world.work()
    assert (await waits(world, made.id)).reason == "OfferWithdrawn"
    assert not await world.live(made.id)


# Policies.


async def test_what_waits_for_a_kubelet_is_placed_only_while_the_pool_allows_it(
    world: World,
) -> None:
    await world.set_policy(kubernetes=True)
    made = await world.create(binding="kubernetes")
    await policy(world)
    node = await world.add_node(dgx("a"))
    await world.database.write(nodes.replace_capabilities, node.id, KUBELET)
    await world.work()
    condition = await waits(world, made.id)
    assert condition.reason == "PolicyChanged"
    assert "(binding: kubernetes needs a pool whose policy allows it; " in condition.message
    assert await world.used() == 1
    await policy(world, kubernetes=True)
    assert (await world.view(made.id)).state is State.BINDING


async def test_slots_that_wait_are_placed_as_the_pool_shares_its_gpus_now(world: World) -> None:
    await world.set_policy(sharing={"mode": "time-slice", "replicas": 4})
    await world.grant("gpu.slot", 8)
    made = await world.create(devices=[{"class": "gpu.slot", "count": 5}])
    await policy(world, sharing={"mode": "mps", "replicas": 4})
    await world.add_node(dgx("a"))
    await world.work()
    condition = await waits(world, made.id)
    assert condition.reason == "PolicyChanged"
    assert "devices[0].count: slots shared by MPS lie on one GPU, which has 4" in condition.message


class SwitchingPolicy:
    """Allows; and while it decides, the pool's policy goes back to its defaults."""

    def __init__(self, database_url: str) -> None:
        self._beside = records.Beside(database_url)

    def decide(self, *_question: object) -> Decision:
        self._beside.execute("UPDATE pools SET policy = '{}'")
        return Allowed()


async def test_a_policy_that_changes_while_a_create_is_decided_counts(
    world: World, database_url: str
) -> None:
    await world.set_policy(kubernetes=True)
    admission = world.admission_with(SwitchingPolicy(database_url))
    with pytest.raises(InvalidInput, match="kubernetes needs a pool whose policy allows it"):
        await admission.create(ALICE, world.document(binding=Binding.KUBERNETES.value))
    for table in ("bookings", "quota_charges", "events"):
        assert await records.count(world.database, f"SELECT count(*) AS n FROM {table}") == 0


# Models that came later: no cap of the policy has counted them.


async def test_what_waits_is_given_only_models_that_its_admission_saw(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await of_model(world, "a", A100)
    holder = await world.create(2, key="holder")
    made = await world.create(1, key="any")
    await of_model(world, "h", H100)
    condition = await waits(world, made.id)
    assert condition.message.startswith(
        "none of 2 nodes fits: model rejected 1 (of models that came after it was admitted;"
        " reserve anew to be given them), devices rejected 1 (the closest has 0 of 1 free)"
    )
    anew = await world.create(1, key="anew")
    assert await models_of(world, anew.id) == {H100}
    await world.end_if_live(holder.id)
    await world.work()
    assert await models_of(world, made.id) == {A100}


async def test_a_model_without_a_word_that_is_new_is_one_that_was_seen(world: World) -> None:
    """A policy sees words."""
    await of_model(world, "a", "NVIDIA A100 80GB")
    await of_model(world, "h", "NVIDIA H100 94GB")
    await world.create(2, key="holder")
    await world.create(2, key="other")
    made = await world.create(1, key="any")
    named = await world.create(1, key="named", model="A100")
    await of_model(world, "x", "NVIDIA H100 80GB")
    assert await models_of(world, made.id) == {"NVIDIA H100 80GB"}
    await of_model(world, "y", "NVIDIA A100 94GB")
    assert "came after it was admitted" in (await waits(world, named.id)).message


async def test_one_admitted_where_no_model_matched_is_given_any_that_does(world: World) -> None:
    """A pool that waits for its nodes: the policy saw what was asked for."""
    made = await world.create(1, key="any")
    named = await world.create(1, key="named", model="H100")
    await of_model(world, "h", H100)
    for one in (made, named):
        assert await models_of(world, one.id) == {H100}


async def test_what_an_older_program_admitted_is_given_any_model(world: World) -> None:
    await of_model(world, "a", A100)
    await world.create(2, key="holder")
    made = await world.create(1, key="any")
    await world.database.write(lambda tx: tx.run("UPDATE reservations SET models = NULL"))
    await of_model(world, "h", H100)
    assert await models_of(world, made.id) == {H100}


async def test_a_draft_decided_again_is_given_what_the_last_decision_saw(world: World) -> None:
    await of_model(world, "a", A100)
    await world.create(2, key="holder")
    await world.grant("gpu", 2, TENANT)
    with pytest.raises(Exception, match="quota is 2"):
        await world.create(1, key="any")
    await of_model(world, "h", H100)
    await world.grant("gpu", 3, TENANT)
    made = await world.create(1, key="any")
    assert await models_of(world, made.id) == {H100}
