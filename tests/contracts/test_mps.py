"""What every ``Mps`` does: units of systemd, the simulated daemons, and the ones in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bcd.model.report import FailureReason
from bcd.node.ports import Mps, MpsState
from bcd.node.sharing import UNKNOWN_SHARE, MpsShare
from bcd.sim.mps import SimulatedMps
from tests.node.host import made_mps
from tests.node.memory import MemoryMps

Occupy = Callable[[bool], None]
GPU = "GPU-11111111-2222-3333-4444-555555555555"
SHARE, OTHER = MpsShare(10, 8 << 30), MpsShare(4, 20 << 30)


@pytest.fixture(params=["units", "simulated", "memory"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Mps, Occupy]:
    """MPS daemons, and a way to put a client onto the GPU, or end it."""
    if request.param == "units":
        daemons, units = made_mps.daemons(tmp_path)
        return daemons, units.occupy
    if request.param == "memory":
        memory = MemoryMps()

        def fill(busy: bool) -> None:
            memory.busy = {GPU} if busy else set()

        return memory, fill

    def fault(busy: bool) -> None:
        (tmp_path / "faults.toml").write_text(f'in_use = ["{GPU}"]\n' if busy else "in_use = []\n")

    return SimulatedMps(tmp_path), fault


def test_a_host_has_none_at_first(host: tuple[Mps, Occupy]) -> None:
    assert host[0].read() == {}


def test_one_that_was_started_answers_with_its_share(host: tuple[Mps, Occupy]) -> None:
    mps, _ = host
    assert mps.ensure(GPU, SHARE) is None
    assert mps.ensure(GPU, SHARE) is None
    assert mps.read() == {GPU: MpsState(SHARE, ready=True)}
    assert mps.ensure(GPU, OTHER) is None
    assert mps.read() == {GPU: MpsState(OTHER, ready=True)}


def test_one_with_a_client_is_never_stopped(host: tuple[Mps, Occupy]) -> None:
    mps, occupy = host
    mps.ensure(GPU, SHARE)
    occupy(True)
    assert not mps.stop(GPU)
    assert GPU in mps.read()
    occupy(False)
    assert mps.stop(GPU)
    assert mps.read() == {}
    assert mps.stop(GPU)


def test_one_with_a_client_keeps_its_share_until_the_client_ends(host: tuple[Mps, Occupy]) -> None:
    mps, occupy = host
    mps.ensure(GPU, SHARE)
    occupy(True)
    assert mps.ensure(GPU, SHARE) is None
    failed = mps.ensure(GPU, OTHER)
    assert failed is not None
    assert failed.reason == FailureReason.SHARING_FAILED
    assert mps.read() == {GPU: MpsState(SHARE, ready=True, busy=True)}
    occupy(False)
    assert mps.ensure(GPU, OTHER) is None
    assert mps.read() == {GPU: MpsState(OTHER, ready=True)}


def test_nobody_gets_a_share_of_a_memory_that_is_not_known(host: tuple[Mps, Occupy]) -> None:
    mps, _ = host
    failed = mps.ensure(GPU, UNKNOWN_SHARE)
    assert failed is not None
    assert failed.reason == FailureReason.SHARING_FAILED
    assert GPU in failed.message
    assert mps.read() == {}
