"""The host resources that ride on GPUs (spec 6.2): exact, rounded down once, a floor."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.model.assignment import Binding
from bcd.model.device import DeviceClass
from bcd.model.host import PerGpu
from bcd.model.ids import PoolId
from bcd.model.pool import PoolPolicy
from bcd.model.reservation import DeviceAsk, Gang, Request, Resources
from bcd.placer.admission.share import booked, host_share

LEAST = PerGpu(Fraction(62, 8), Fraction(1020, 8))


def asking(count: int = 1, kind: DeviceClass = DeviceClass.GPU, **changes: Any) -> Request:
    device = DeviceAsk(device_class=kind, count=count)
    return Request(pool_id=PoolId("pool"), devices=(device,), duration="1ms", **changes)


def policy(**changes: object) -> PoolPolicy:
    return msgspec.convert(changes, PoolPolicy)


@pytest.mark.parametrize(
    ("count", "vcpu", "memory"), [(1, 7, 127), (3, 23, 382), (4, 31, 510), (8, 62, 1020)]
)
def test_the_smallest_hosts_share_is_rounded_down_once(count: int, vcpu: int, memory: int) -> None:
    share = host_share(asking(count), PoolPolicy(), LEAST)
    assert share == Resources(vcpu=vcpu, memory_gib=memory)


def test_a_ratio_is_part_of_the_exact_product() -> None:
    """9 CPUs of 2 GPUs sold 1.5 times: 6.75 for each."""
    least = PerGpu(Fraction(9, 2), Fraction(1))
    ratio = policy(ratio={"vcpu": "1.5", "memoryGiB": "0.1"})
    assert host_share(asking(4), ratio, least) == Resources(vcpu=27, memory_gib=0)


@pytest.mark.parametrize(
    ("set_to", "share"),
    [
        ({"vcpu": 16, "memoryGiB": 200}, Resources(vcpu=32, memory_gib=400)),
        ({"vcpu": 16}, Resources(vcpu=32, memory_gib=255)),
        ({"memoryGiB": 0}, Resources(vcpu=15)),
    ],
)
def test_a_policy_sets_either_component(set_to: dict[str, int], share: Resources) -> None:
    assert host_share(asking(2), policy(perGpu=set_to), LEAST) == share


def test_a_pool_whose_hosts_say_nothing_books_none_whatever_its_policy() -> None:
    assert host_share(asking(8), policy(perGpu={"vcpu": 16, "memoryGiB": 200}), None) == Resources()


def test_an_instance_is_a_seventh_and_a_slot_as_the_pool_shares() -> None:
    assert host_share(asking(7, DeviceClass.MIG), PoolPolicy(), LEAST).vcpu == 7
    assert host_share(asking(1, DeviceClass.MIG), PoolPolicy(), LEAST).memory_gib == 18
    slot = asking(1, DeviceClass.SLOT)
    for sharing, memory in (({}, 31), ({"mode": "mps"}, 12), ({"mode": "mps", "replicas": 3}, 42)):
        assert host_share(slot, policy(sharing=sharing), LEAST).memory_gib == memory


def test_a_gang_books_the_share_of_one_node_on_each() -> None:
    assert host_share(asking(8, gang=Gang(size=4)), PoolPolicy(), LEAST).vcpu == 62


def test_a_whole_node_needs_no_share_of_itself() -> None:
    request = asking(8, binding=Binding.NODE, resources=Resources(vcpu=9))
    share = host_share(request, PoolPolicy(), LEAST)
    assert (share, booked(request, share)) == (Resources(), Resources())


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        (None, Resources(vcpu=7, memory_gib=127)),
        (Resources(), Resources(vcpu=7, memory_gib=127)),
        (Resources(vcpu=6, memory_gib=128), Resources(vcpu=7, memory_gib=128)),
        (Resources(vcpu=8), Resources(vcpu=8, memory_gib=127)),
        (Resources(hugepages_1gi=2), Resources(vcpu=7, memory_gib=127, hugepages_1gi=2)),
    ],
)
def test_the_share_is_the_floor_of_each_component(asked: Resources | None, got: Resources) -> None:
    request = asking(resources=asked)
    assert booked(request, host_share(request, PoolPolicy(), LEAST)) == got


@given(
    st.lists(st.tuples(st.integers(0, 512), st.integers(0, 4096), st.integers(1, 16)), min_size=1),
    st.lists(st.sampled_from([1, 2, 4, 8]), max_size=16),
    st.sampled_from(["0.333", "1", "1.5", "3"]),
)
def test_shares_that_fit_by_their_gpus_fit_every_host(
    hosts: list[tuple[int, int, int]], counts: list[int], ratio: str
) -> None:
    least = PerGpu(
        min(Fraction(vcpu, gpus) for vcpu, _, gpus in hosts),
        min(Fraction(memory, gpus) for _, memory, gpus in hosts),
    )
    once = min(ratio, "1")  # memory is never sold twice
    sold = policy(ratio={"vcpu": ratio, "memoryGiB": once})
    for vcpu, memory, gpus in hosts:
        taken, left = Resources(), gpus
        for count in counts:
            if count <= left:
                share = host_share(asking(count), sold, least)
                left -= count
                taken = Resources(
                    vcpu=taken.vcpu + share.vcpu, memory_gib=taken.memory_gib + share.memory_gib
                )
        assert taken.vcpu <= int(vcpu * Fraction(ratio))
        assert taken.memory_gib <= int(memory * Fraction(once))
