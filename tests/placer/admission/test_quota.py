"""What a request is charged and how many GPUs it is worth."""

from fractions import Fraction
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bcd.model.device import DeviceClass
from bcd.model.reservation import DeviceAsk, Gang, Request, Resources
from bcd.placer.admission.quota import charges, gpu_equivalents
from bcd.placer.admission.request import parse_create
from tests.placer.admission.test_request import document

ENTRIES = st.lists(
    st.tuples(st.sampled_from(["gpu", "gpu.mig"]), st.integers(1, 1024)), min_size=1, max_size=8
)


def request_of(entries: list[tuple[str, int]]) -> Request:
    devices: list[dict[str, Any]] = [{"class": name, "count": count} for name, count in entries]
    return parse_create(document(devices=devices)).request


@given(ENTRIES)
def test_each_class_is_charged_by_its_count(entries: list[tuple[str, int]]) -> None:
    charged = charges(request_of(entries), Resources(), Resources())
    for name in ("gpu", "gpu.mig"):
        assert charged.get(name, 0) == sum(count for kind, count in entries if kind == name)
    assert all(amount > 0 for amount in charged.values())


def test_what_is_booked_above_the_share_is_charged_and_pages_are_memory() -> None:
    """Spec 5.2: what rides on the GPUs is free."""
    share = Resources(vcpu=8, memory_gib=100)
    booked = Resources(vcpu=12, memory_gib=100, hugepages_1gi=3)
    assert charges(request_of([("gpu", 1)]), booked, share) == {
        "gpu": 1,
        "vcpu": 4,
        "memoryGiB": 3,
    }
    assert charges(request_of([("gpu", 1)]), share, share) == {"gpu": 1}


def test_a_gang_is_charged_for_each_of_its_nodes() -> None:
    request = msgspec.structs.replace(request_of([("gpu", 8)]), gang=Gang(size=3))
    booked, share = Resources(vcpu=10, memory_gib=7), Resources(vcpu=8)
    assert charges(request, booked, share) == {"gpu": 24, "vcpu": 6, "memoryGiB": 21}


def test_a_share_of_a_gpu_is_counted_exactly() -> None:
    assert gpu_equivalents(request_of([("gpu.mig", 3)]), 4) == Fraction(3, 7)
    assert gpu_equivalents(request_of([("gpu", 2), ("gpu.mig", 7)]), 4) == 3
    slots = DeviceAsk(device_class=DeviceClass.SLOT, count=7)
    request = msgspec.structs.replace(request_of([("gpu", 1)]), devices=(slots,))
    assert gpu_equivalents(request, 4) == Fraction(7, 4)
    assert gpu_equivalents(request, 10) == Fraction(7, 10)
