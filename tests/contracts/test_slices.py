"""What every ``Slices`` does: simulated ones, ones in memory, and the real ones' code on a folder.

On a real systemd and kernel the same cases run in ``tests/vm``.
"""

from pathlib import Path

import pytest

from bcd.node.host.systemd.slices import SystemdSlices
from bcd.node.ports import Slices
from bcd.sim.slices import SimulatedSlices
from tests.contracts.slice_cases import CASES, ID, Case, Populate
from tests.node.host.systemd.folder import FolderSystemd
from tests.node.memory import MemorySlices


@pytest.fixture(params=["simulated", "memory", "folder"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Slices, Populate]:
    """Slices, and a way to put a process into the first allocation's, or end it."""
    if request.param == "memory":
        memory = MemorySlices()

        def fill(busy: bool) -> None:
            memory.busy = {ID} if busy else set()

        return memory, fill
    if request.param == "folder":
        systemd = FolderSystemd(tmp_path)
        return SystemdSlices(tmp_path, units=systemd), lambda busy: systemd.populate(ID, busy)

    def fault(busy: bool) -> None:
        text = f'populated = ["{ID}"]\n' if busy else "populated = []\n"
        (tmp_path / "faults.toml").write_text(text)

    return SimulatedSlices(tmp_path), fault


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_slices(case: Case, host: tuple[Slices, Populate]) -> None:
    case(*host)
