"""Faults of a simulated machine: asked for in a file, seen with the next look."""

from pathlib import Path

import pytest

from bcd.model.device import DeviceClass, HealthState
from bcd.model.report import Failed, FailureReason
from bcd.sim.gpus import SimulatedGpus
from bcd.sim.machine import build_machine
from bcd.sim.slices import SimulatedSlices
from tests.node.world import alloc_id, limits


@pytest.fixture
def gpus(tmp_path: Path) -> SimulatedGpus:
    slept.clear()
    machine = build_machine(tmp_path, "hgx-a100-mig", seed="node1", hostname="host")
    return SimulatedGpus(machine, sleep=slept.append)


slept: list[float] = []


def fault(root: Path, text: str) -> None:
    (root / "faults.toml").write_text(text)


def sick(gpus: SimulatedGpus) -> dict[str, str]:
    healthy = HealthState.HEALTHY
    found = gpus.snapshot().devices
    return {d.id: d.health.reason for d in found if d.health.state is not healthy}


def test_without_a_file_all_is_well(gpus: SimulatedGpus) -> None:
    assert sick(gpus) == {}


def test_an_xid_makes_the_gpu_and_its_instances_unhealthy(
    gpus: SimulatedGpus, tmp_path: Path
) -> None:
    fault(tmp_path, "[xid]\n6 = 79\n")
    on_six = {d.gpu for d in gpus.snapshot().devices if d.profile == "1g.10gb"}
    found = sick(gpus)
    assert set(found.values()) == {"Xid 79"}
    assert len(found) == 8
    assert on_six & found.keys()


def test_a_fault_may_name_the_uuid_and_ends_with_the_file(
    gpus: SimulatedGpus, tmp_path: Path
) -> None:
    first = gpus.snapshot().devices[0].id
    fault(tmp_path, f'[degraded]\n"{first}" = "row remap pending"\n')
    assert sick(gpus) == {first: "row remap pending"}
    (tmp_path / "faults.toml").unlink()
    assert sick(gpus) == {}


def test_a_lost_gpu_takes_its_instances_along_and_hides_no_other(
    gpus: SimulatedGpus, tmp_path: Path
) -> None:
    before = gpus.snapshot().devices
    fault(tmp_path, 'lost = ["7"]\n')
    after = gpus.snapshot().devices
    gone = set(before) - set(after)
    assert len(gone) == 5
    assert {d.device_class for d in gone} == {DeviceClass.GPU, DeviceClass.MIG}


def test_a_slow_and_a_failing_bind(gpus: SimulatedGpus, tmp_path: Path) -> None:
    first, second = (d.id for d in gpus.snapshot().devices[:2])
    fault(tmp_path, "slow_bind_seconds = 2.5\n")
    assert gpus.prepare((first,)) is None
    assert slept == [2.5]
    fault(tmp_path, f'failing_bind = "no node"\nfailing_devices = ["{first}"]\n')
    assert gpus.prepare((first,)) == Failed(FailureReason.DEVICE_NODE_MISSING, "no node")
    assert gpus.prepare((second,)) is None


@pytest.mark.parametrize("text", ["xid = 3", "unknown = 1", "[[", "\0", "lost = [1]"])
def test_a_broken_file_leaves_the_faults_as_they_were(
    gpus: SimulatedGpus, tmp_path: Path, text: str
) -> None:
    fault(tmp_path, "[xid]\n0 = 79\n")
    before = sick(gpus)
    fault(tmp_path, text)
    assert sick(gpus) == before


def test_the_fingerprint_tells_of_a_changed_fault(gpus: SimulatedGpus, tmp_path: Path) -> None:
    before = gpus.fingerprint()
    fault(tmp_path, "[xid]\n0 = 79\n")
    assert gpus.fingerprint() != before


def test_failing_slices(tmp_path: Path) -> None:
    slices = SimulatedSlices(tmp_path)
    fault(tmp_path, 'failing_slices = "memory.max reads 0"\n')
    failed = slices.ensure(alloc_id(1), limits())
    assert failed == Failed(FailureReason.SLICE_FAILED, "memory.max reads 0")
    assert slices.read() == {}
