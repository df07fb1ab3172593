"""A create books its share of each host, or more for a charge (spec 6.2, 5.2, 4.2, 10.3)."""

from dataclasses import replace
from typing import Any

import pytest

from bcd.model.assignment import Binding
from bcd.model.errors import BcdError, InvalidInput, QuotaExceeded
from bcd.model.reservation import Resources, State
from bcd.placer.admission.attributes import Attributes
from bcd.placer.admission.policy import Allowed, Decision
from bcd.store import offers, reservations
from bcd.store.reservations import StoredReservation
from tests.placer.records import assert_quota_adds_up
from tests.placer.world import ALICE, World, dgx, host_of

# 62 CPUs and 1,020 GiB of 8 GPUs: 7.75 CPUs and 127.5 GiB for each.
SHARE_OF_TWO = Resources(vcpu=15, memory_gib=255)


class Watching:
    """A policy that allows everything and keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[Attributes] = []

    def decide(
        self, _caller: object, _action: object, resource: Attributes, *_word: object
    ) -> Decision:
        self.seen.append(resource)
        return Allowed()


async def row_of(world: World, reservation_id: str) -> StoredReservation:
    row = await world.database.read(reservations.get, reservation_id)  # type: ignore[arg-type]
    assert row is not None
    return row


async def refused(world: World, kind: type[BcdError], **changes: Any) -> BcdError:
    with pytest.raises(kind) as error:
        await world.create(**changes)
    return error.value


async def test_without_resources_the_share_is_booked_and_free(world: World) -> None:
    await world.add_node(dgx("a"))
    made = await world.create(2)
    assert made.host_share == SHARE_OF_TWO
    assert (await row_of(world, made.id)).resources == SHARE_OF_TWO
    assert await world.used("gpu") == 2
    assert await world.used("vcpu") == 0
    assert await world.used("memoryGiB") == 0


@pytest.mark.parametrize("asked", [{}, {"vcpu": 1}, {"vcpu": 15, "memoryGiB": 255}])
async def test_less_than_the_share_is_raised_to_it(world: World, asked: dict[str, int]) -> None:
    await world.add_node(dgx("a"))
    made = await world.create(2, resources=asked)
    assert (await row_of(world, made.id)).resources == made.host_share == SHARE_OF_TWO
    assert await world.used("vcpu") == 0


async def test_what_is_above_the_share_is_charged_and_refunded(world: World) -> None:
    await world.add_node(dgx("a"))
    await world.grant("vcpu", 10)
    await world.grant("memoryGiB", 10)
    asked = {"vcpu": 20, "memoryGiB": 260, "hugepages1Gi": 2}
    made = await world.create(2, resources=asked)
    assert made.host_share == SHARE_OF_TWO
    assert (await world.used("vcpu"), await world.used("memoryGiB")) == (5, 7)
    await world.end_if_live(made.id)
    assert (await world.used("vcpu"), await world.used("memoryGiB")) == (0, 0)


@pytest.mark.parametrize(
    ("asked", "resource", "amount"),
    [({"vcpu": 16}, "vcpu", "1"), ({"hugepages1Gi": 1}, "memoryGiB", "1")],
)
async def test_one_gpus_quota_does_not_take_the_rest_of_a_host(
    world: World, asked: dict[str, int], resource: str, amount: str
) -> None:
    """A missing row grants nothing, and the refused create leaves no charge behind."""
    await world.add_node(dgx("a"))
    error = await refused(world, QuotaExceeded, count=2, resources=asked)
    assert (error.details["resource"], error.details["asked"]) == (resource, amount)
    await assert_quota_adds_up(world.database)
    assert await world.used("gpu") == 0


async def test_a_pool_whose_hosts_say_nothing_books_none_and_records_it(world: World) -> None:
    await world.set_policy(perGpu={"vcpu": 16, "memoryGiB": 100})
    assert (await world.create(2)).host_share == Resources()
    await world.grant("vcpu", 3)
    asked = await world.create(2, key="asked", resources={"vcpu": 3})
    assert asked.host_share == Resources()
    assert await world.used("vcpu") == 3


async def test_the_share_is_resolved_once_when_the_draft_is_written(world: World) -> None:
    """Spec 4.1: a draft that was refused is charged later as it stands."""
    await world.add_node(dgx("a"))
    await refused(world, QuotaExceeded, count=2, resources={"vcpu": 20})
    await world.add_node(dgx("b"), host=host_of(16, 512))
    await world.grant("vcpu", 5)
    made = await world.create(2, resources={"vcpu": 20})
    assert made.host_share == SHARE_OF_TWO
    assert (await world.create(2, key="later", resources={"vcpu": 3})).host_share == Resources(
        vcpu=3, memory_gib=127
    )


async def test_a_draft_of_an_older_program_is_charged_for_its_devices_only(world: World) -> None:
    """Spec 6.2: no share was recorded then."""
    await world.add_node(dgx("a"))
    await world.grant("gpu", 0)
    await refused(world, QuotaExceeded, count=2)
    await world.database.write(
        lambda tx: tx.run("UPDATE reservations SET host_share = '{}', resources = '{}'")
    )
    await world.grant("gpu", 2)
    made = await world.create(2)
    assert made.host_share == Resources()
    assert (await row_of(world, made.id)).resources == Resources()


async def test_a_policy_sees_what_is_booked_of_all_hosts(world: World) -> None:
    await world.add_node(dgx("a"))
    await world.grant("memoryGiB", 100)
    watching = Watching()
    document = world.document(2, resources={"memoryGiB": 300, "hugepages1Gi": 5})
    for extra in ({"dryRun": True}, {}):
        await world.admission_with(watching).create(ALICE, document | extra)
    for attributes in watching.seen:
        assert (attributes.attrs["vcpu"], attributes.attrs["memoryGiB"]) == (15, 305)
    assert len(watching.seen) == 2


# Holds for the kubelet.


async def test_the_kubelets_binding_needs_a_pool_that_allows_it(world: World) -> None:
    await world.add_node(dgx("a"))
    error = await refused(world, InvalidInput, binding="kubernetes")
    assert error.details["field"] == "binding"
    assert await world.rows("SELECT id FROM reservations") == []
    await world.set_policy(kubernetes=True)
    made = await world.create(binding="kubernetes")
    assert made.request.binding is Binding.KUBERNETES
    (waits,) = made.conditions
    assert "; no node's daemon serves binding.kubernetes: " in waits.message
    await world.set_policy()
    assert (await world.create(binding="kubernetes")).id == made.id


# Slots of GPUs that the pool shares by MPS: a process speaks to one MPS daemon (spec 16.4).


async def slots(world: World, count: int, key: str, **changes: Any) -> list[str]:
    """The slots that a reservation of so many got."""
    asked = [{"class": "gpu.slot", "count": count}]
    made = await world.create(key=key, devices=asked, **changes)
    allocated = await world.live(made.id)
    return [device.id for allocation in allocated for device in allocation.devices]


async def test_slots_by_mps_lie_on_one_gpu_however_full_the_others_are(world: World) -> None:
    await world.set_policy(sharing={"mode": "mps", "replicas": 4})
    await world.grant("gpu.slot", 100)
    await world.add_node(dgx("a", 2))
    first, second = await slots(world, 3, "first"), await slots(world, 2, "second")
    assert first == [f"GPU-a-0::{n}" for n in range(3)]
    assert second == [f"GPU-a-1::{n}" for n in range(2)]
    assert await slots(world, 1, "third") == ["GPU-a-0::3"]
    assert await slots(world, 3, "fourth") == []


async def test_slots_by_turns_fill_up_what_is_shared_already(world: World) -> None:
    await world.set_policy(sharing={"mode": "time-slice", "replicas": 4})
    await world.grant("gpu.slot", 100)
    await world.add_node(dgx("a", 2))
    await slots(world, 3, "first")
    assert "GPU-a-0::3" in await slots(world, 2, "second")


@pytest.mark.parametrize(
    ("devices", "field"),
    [
        ([{"class": "gpu.slot", "count": 5}], "devices[0].count"),
        ([{"class": "gpu.slot", "count": 1}, {"class": "gpu", "count": 1}], "devices"),
        ([{"class": "gpu.slot", "count": 1}] * 2, "devices"),
    ],
)
async def test_slots_by_mps_that_no_process_could_use_together_are_refused(
    world: World, devices: list[dict[str, Any]], field: str
) -> None:
    await world.set_policy(sharing={"mode": "mps", "replicas": 4})
    error = await refused(world, InvalidInput, devices=devices)
    assert error.details["field"] == field
    await world.set_policy(sharing={"mode": "time-slice", "replicas": 4})
    await world.grant("gpu.slot", 100)
    assert (await world.create(devices=devices)).state is State.PENDING


async def test_the_kubelets_binding_is_for_the_pools_owner_alone(world: World) -> None:
    """Whom the pool is merely offered to books a hold (spec 10.3)."""
    guest = replace(ALICE, subject="gus", tenants=frozenset({"guest"}))
    await world.add_node(dgx("a"))
    await world.set_policy(kubernetes=True)
    await world.database.write(offers.put, world.pool_id, "guest", {"gpu": 2})
    error = await refused(world, InvalidInput, caller=guest, tenantId="guest", binding="kubernetes")
    assert error.details["field"] == "binding"
    made = await world.create(caller=guest, tenantId="guest")
    assert made.state is State.PLACED


async def test_an_offer_that_names_host_resources_grants_what_is_above_the_share(
    world: World,
) -> None:
    """Spec 5.2: the offer's limit applies where it names the resource."""
    guest = replace(ALICE, subject="gus", tenants=frozenset({"guest"}))
    await world.add_node(dgx("a"))
    await world.database.write(offers.put, world.pool_id, "guest", {"gpu": 2, "vcpu": 4})
    asked: dict[str, Any] = {"caller": guest, "tenantId": "guest"}
    made = await world.create(2, resources={"vcpu": 19}, **asked)
    assert made.state is State.PLACED
    await world.end_if_live(made.id)
    for resource, amount in (("vcpu", 20), ("memoryGiB", 256)):
        above = {resource: amount}
        error = await refused(world, QuotaExceeded, count=2, key=resource, resources=above, **asked)
        assert error.details["resource"] == resource
