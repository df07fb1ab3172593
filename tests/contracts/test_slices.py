"""What every ``Slices`` does: the simulated ones, and the ones in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bcd.node.ports import Slices
from bcd.sim.slices import SimulatedSlices
from tests.node.memory import MemorySlices
from tests.node.world import alloc_id, limits

Populate = Callable[[bool], None]
LIMITS = limits(cpus="0-3", mems="0", pages=2)


@pytest.fixture(params=["simulated", "memory"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Slices, Populate]:
    """Slices, and a way to put a process into the first allocation's, or end it."""
    if request.param == "memory":
        memory = MemorySlices()

        def fill(busy: bool) -> None:
            memory.busy = {alloc_id(1)} if busy else set()

        return memory, fill

    def fault(busy: bool) -> None:
        text = f'populated = ["{alloc_id(1)}"]\n' if busy else "populated = []\n"
        (tmp_path / "faults.toml").write_text(text)

    return SimulatedSlices(tmp_path), fault


def test_a_host_without_slices_has_none(host: tuple[Slices, Populate]) -> None:
    slices, _ = host
    assert slices.read() == {}
    assert slices.problem() == ""


def test_an_ensured_slice_reads_back_with_its_limits(host: tuple[Slices, Populate]) -> None:
    slices, _ = host
    assert slices.ensure(alloc_id(1), LIMITS) is None
    assert slices.ensure(alloc_id(1), LIMITS) is None
    [(id_, state)] = slices.read().items()
    assert (id_, state.limits, state.empty) == (alloc_id(1), LIMITS, True)


def test_ensuring_other_limits_changes_them(host: tuple[Slices, Populate]) -> None:
    slices, _ = host
    slices.ensure(alloc_id(1), LIMITS)
    slices.ensure(alloc_id(1), limits(memory_gib=1))
    assert slices.read()[alloc_id(1)].limits == limits(memory_gib=1)


def test_a_slice_with_a_process_is_never_stopped(host: tuple[Slices, Populate]) -> None:
    slices, populate = host
    slices.ensure(alloc_id(1), LIMITS)
    populate(True)
    assert not slices.read()[alloc_id(1)].empty
    assert not slices.stop(alloc_id(1))
    assert alloc_id(1) in slices.read()
    populate(False)
    assert slices.stop(alloc_id(1))
    assert slices.read() == {}


def test_stopping_what_is_gone_succeeds(host: tuple[Slices, Populate]) -> None:
    slices, _ = host
    assert slices.stop(alloc_id(1))
