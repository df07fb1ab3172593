"""What a policy sees of a request."""

from typing import Any

import pytest

from bcd.model.device import DeviceClass
from bcd.model.ids import PoolId
from bcd.model.pool import SharingMode, SharingPolicy
from bcd.model.reservation import DeviceAsk, Gang, Request, Resources
from bcd.placer.admission.attributes import Attributes, Place, attributes_of
from bcd.placer.admission.request import parse_create
from tests.placer.admission.test_request import document


def seen(*models: str, **changes: Any) -> Attributes:
    """The attributes of a request in a pool with devices of these models."""
    place = Place("eu-1", models, SharingPolicy())
    request = parse_create(document(**changes)).request
    return attributes_of("acme", "i|alice", place, request, Resources())


def test_a_policy_sees_the_whole_request() -> None:
    devices = [
        {"class": "gpu", "count": 4, "model": "H100", "topology": "nvlink-all"},
        {"class": "gpu.mig", "count": 2, "profile": "1g.10gb"},
    ]
    attributes = seen(devices=devices, duration="90m", labels={"team": "x"})
    assert attributes.attrs == {
        "tenant": "acme",
        "owner": "i|alice",
        "pool": document()["poolId"],
        "region": "eu-1",
        "gpus": 5,
        "classes": ["gpu", "gpu.mig"],
        "models": ["H100", "any"],
        "durationHours": 2,
        "durationMs": 5_400_000,
        "startMs": 0,
        "spot": False,
        "binding": "hold",
        "gangSize": 1,
        "topologies": ["any", "nvlink-all"],
        "vcpu": 0,
        "memoryGiB": 0,
        "leaseSeconds": 0,
        "labels": ["team=x"],
    }
    assert attributes.tags == {"class:gpu": 4, "model:H100": 4, "class:gpu.mig": 2, "model:any": 2}


def test_a_gang_is_seen_as_all_of_its_nodes_together() -> None:
    """Spec 4.2: "at most 8 H100s" is one cap, however many nodes they lie on."""
    request = Request(
        pool_id=PoolId("pool"),
        devices=(
            DeviceAsk(device_class=DeviceClass.GPU, count=4, model="H100"),
            DeviceAsk(device_class=DeviceClass.SLOT, count=3),
        ),
        duration="1ms",
        start=1_900_000_000_000,
        gang=Gang(size=3),
        spot=True,
        lease_seconds=60,
    )
    place = Place("eu-1", (), SharingPolicy(mode=SharingMode.MPS))
    booked = Resources(vcpu=10, memory_gib=100, hugepages_1gi=2)
    attributes = attributes_of("acme", "i|alice", place, request, booked)
    wanted = {
        "gpus": 13,
        "gangSize": 3,
        "startMs": 1_900_000_000_000,
        "spot": True,
        "leaseSeconds": 60,
        "vcpu": 30,
        "memoryGiB": 306,
    }
    assert wanted.items() <= attributes.attrs.items()
    assert attributes.tags == {
        "class:gpu": 12,
        "model:H100": 12,
        "class:gpu.slot": 9,
        "model:any": 9,
    }


@pytest.mark.parametrize(
    ("duration", "hours"), [("1", 1), ("1h", 1), ("3600001", 2), ("72h", 72), ("259200001", 73)]
)
def test_hours_are_rounded_up(duration: str, hours: int) -> None:
    assert seen(duration=duration).attrs["durationHours"] == hours


@pytest.mark.parametrize(("instances", "gpus"), [(1, 1), (7, 1), (8, 2), (14, 2), (15, 3)])
def test_seven_instances_are_a_gpu_and_a_part_counts_whole(instances: int, gpus: int) -> None:
    assert seen(devices=[{"class": "gpu.mig", "count": instances}]).attrs["gpus"] == gpus


@pytest.mark.parametrize("model", ["H100", "h100", " NVIDIA  h100 ", "h100 80gb"])
def test_a_model_is_seen_by_its_words_however_they_are_spelt(model: str) -> None:
    attributes = seen(devices=[{"class": "gpu", "count": 3, "model": model}])
    assert "H100" in attributes.attrs["models"]
    assert attributes.tags["model:H100"] == 3


def test_a_letter_that_only_looks_like_another_case_is_the_same_word() -> None:
    kelvin = seen(devices=[{"class": "gpu", "count": 1, "model": "\N{KELVIN SIGN}80"}])
    assert kelvin.attrs["models"] == ["K80"]


def test_a_model_of_blanks_is_any_model() -> None:
    assert seen(devices=[{"class": "gpu", "count": 1, "model": "  "}]).attrs["models"] == ["any"]


def test_counts_of_several_entries_add_up() -> None:
    devices = [{"class": "gpu", "count": 8, "model": "H100"}] * 3
    assert seen(devices=devices).tags == {"class:gpu": 24, "model:H100": 24}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("", {"NVIDIA", "H100", "80GB", "HBM3", "A100-SXM4-80GB"}),
        ("80gb", {"NVIDIA", "H100", "80GB", "HBM3"}),
        ("h100", {"NVIDIA", "H100", "80GB", "HBM3"}),
        ("nvidia", {"NVIDIA", "H100", "80GB", "HBM3", "A100-SXM4-80GB"}),
        ("L40S", {"L40S"}),
    ],
)
def test_a_policy_sees_every_model_that_the_pool_could_give(asked: str, words: set[str]) -> None:
    models = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    attributes = seen(*models, devices=[{"class": "gpu", "count": 3, "model": asked}])
    assert set(attributes.attrs["models"]) == words
    assert attributes.tags == {"class:gpu": 3} | {f"model:{word}": 3 for word in words}
