"""The reference is independent of the program, and tries every choice of devices."""

import ast
import sys
from pathlib import Path

import pytest

from tests.model_trace.fits import (
    Ask,
    Booked,
    Books,
    Host,
    Need,
    Part,
    Taken,
    is_exactly,
    overlap,
    serves,
)

HERE = Path(__file__).parent
REFERENCE = ("claims", "fits", "moves", "reference", "settled")


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(node.module or "")
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_imports_nothing_of_the_program(name: str) -> None:
    own = {f"tests.model_trace.{module}" for module in REFERENCE}
    for module in imported(HERE / f"{name}.py"):
        assert module in own or module.partition(".")[0] in sys.stdlib_module_names, module


def whole(position: int, numa: int = 0, fabric: str = "") -> Part:
    return Part(kind="gpu", id=f"g{position}", gpu=f"g{position}", numa=numa, fabric=fabric)


def instance(position: int, gpu: str) -> Part:
    return Part(kind="gpu.mig", id=f"m{position}", gpu=gpu, numa=0)


SPREAD = (whole(0, 0, "x"), whole(1, 0, "x"), whole(2, 1, "x"), whole(3, 1))


@pytest.mark.parametrize(
    ("asks", "parts", "yes"),
    [
        ((Ask("gpu", 4),), SPREAD, True),
        ((Ask("gpu", 5),), SPREAD, False),
        ((Ask("gpu", 2, "same-numa"), Ask("gpu", 2, "same-numa")), SPREAD, True),
        ((Ask("gpu", 3, "same-numa"),), SPREAD, False),
        ((Ask("gpu", 3, "nvlink-all"),), SPREAD, True),
        ((Ask("gpu", 4, "nvlink-all"),), SPREAD, False),
        ((Ask("gpu", 1), Ask("gpu", 3, "nvlink-all")), SPREAD, True),
        ((Ask("gpu", 1), Ask("gpu.mig", 1)), (whole(0), instance(0, "g0")), False),
        ((Ask("gpu", 1), Ask("gpu.mig", 1)), (whole(0), instance(0, "g1")), True),
    ],
)
def test_every_choice_is_tried(asks: tuple[Ask, ...], parts: tuple[Part, ...], yes: bool) -> None:
    assert serves(asks, parts) == yes


def test_no_more_than_was_asked_for() -> None:
    assert is_exactly((Ask("gpu", 1),), (whole(0),))
    assert not is_exactly((Ask("gpu", 1),), (whole(0), whole(1)))


def booked(part: Part, start: int, end: int) -> Booked:
    return Booked(claim="c", grant="g", host="h", part=part, start=start, end=end)


def test_bookings_meet_on_one_device_and_on_one_gpu_in_two_modes() -> None:
    first = booked(whole(0), 0, 10)
    assert overlap((first, booked(whole(0), 9, 20)))
    assert overlap((first, booked(instance(0, "g0"), 9, 20)))
    assert not overlap((first, booked(whole(0), 10, 20)))
    assert not overlap((booked(instance(0, "g0"), 0, 10), booked(instance(1, "g0"), 0, 10)))


def test_only_free_devices_of_open_hosts_count() -> None:
    parts = {part.key: part for part in SPREAD}
    host = Host("h", (4, 8, 0), parts, set(parts))
    four = Need((Ask("gpu", 4),))
    assert Books().fits(four, [host], 0, 10)
    assert not Books().fits(Need(four.asks, 2), [host], 0, 10)
    assert not Books({1: booked(whole(0), 9, 20)}).fits(four, [host], 0, 10)
    assert Books({1: booked(whole(0), 10, 20)}).fits(four, [host], 0, 10)
    host.well.discard(("gpu", "g0"))
    assert not Books().fits(four, [host], 0, 10)
    host.well.add(("gpu", "g0"))
    host.reachable = False
    assert not Books().fits(four, [host], 0, 10)


def test_amounts_count_at_every_instant() -> None:
    host = Host("h", (4, 8, 0))
    books = Books({}, {1: taken(3, 0, 10), 2: taken(1, 5, 20)})
    assert books.peak("h", 0, 30) == (4, 0, 0)
    assert books.peak("h", 10, 30) == (1, 0, 0)
    assert not books.fits(Need((), 1, (1, 0, 0)), [host], 0, 10)
    assert books.fits(Need((), 1, (3, 8, 0)), [host], 10, 30)
    assert not books.fits(Need((), 1, (3, 8, 1)), [host], 10, 30)


def taken(vcpu: int, start: int, end: int) -> Taken:
    return Taken(claim="c", grant="g", host="h", amounts=(vcpu, 0, 0), start=start, end=end)
