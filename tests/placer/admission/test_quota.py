"""What a request is charged and how many GPUs it is worth."""

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bcd.model.reservation import Request
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
    charged = charges(request_of(entries))
    for name in ("gpu", "gpu.mig"):
        assert charged.get(name, 0) == sum(count for kind, count in entries if kind == name)
    assert all(amount > 0 for amount in charged.values())


def test_an_instance_is_a_seventh_of_a_gpu_exactly() -> None:
    assert gpu_equivalents(request_of([("gpu.mig", 3)])) == Fraction(3, 7)
    assert gpu_equivalents(request_of([("gpu", 2), ("gpu.mig", 7)])) == 3
