"""What every ``Gpus`` does: simulated machines, the ones in memory, and real library calls."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bcd.model.device import DeviceClass
from bcd.model.report import FailureReason
from bcd.node.cdi import render
from bcd.node.cdi_format import is_device_name
from bcd.node.hold import hold_of
from bcd.node.ports import Gpus
from bcd.sim.gpus import SimulatedGpus
from bcd.sim.machine import build_machine
from bcd.sim.profile import profile_names
from tests.node.memory import MemoryGpus, snapshot
from tests.node.world import assignment, node_id
from tests.nvml.captured import H100, document
from tests.nvml.stub import Host, Mig, State, build, gpu

NVML = {
    "nvml whole": (gpu(0), gpu(1)),
    "nvml mig": (gpu(0, mig=True, migs=(Mig(uuid="MIG-a", gi=1), Mig(uuid="MIG-b", gi=2))), gpu(1)),
    "nvml h100": document(H100).gpus,
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(params=[*profile_names(), "memory", *NVML])
def gpus(request: pytest.FixtureRequest, tmp_path: Path, library: Path) -> Iterator[Gpus]:
    if request.param in NVML:
        with Host(tmp_path, library, State(gpus=NVML[request.param])).running() as running:
            yield running.gpus
    elif request.param == "memory":
        yield MemoryGpus(snapshot())
    else:
        machine = build_machine(tmp_path, request.param, seed="node1", hostname="host")
        yield SimulatedGpus(machine)


def test_two_snapshots_of_a_quiet_host_are_the_same(gpus: Gpus) -> None:
    assert gpus.snapshot() == gpus.snapshot()
    assert gpus.fingerprint() == gpus.fingerprint()


def test_every_device_has_a_name_that_cdi_takes_and_nodes_of_its_own(gpus: Gpus) -> None:
    found = gpus.snapshot()
    ids = [device.id for device in found.devices]
    assert len(set(ids)) == len(ids)
    assert all(is_device_name(id_) for id_ in ids)
    assert found.edits.keys() == set(ids)
    assert all(edits.nodes for edits in found.edits.values())


def test_parts_lie_on_a_gpu_and_wholes_on_themselves(gpus: Gpus) -> None:
    for device in gpus.snapshot().devices:
        whole = device.device_class is DeviceClass.GPU
        assert (device.gpu == device.id) is whole


def test_every_bookable_device_can_be_prepared_and_rendered(gpus: Gpus) -> None:
    found = gpus.snapshot()
    bookable = [device for device in found.devices if not device.mig_enabled]
    assert gpus.prepare(tuple(device.id for device in bookable)) is None
    hold = hold_of(assignment(1, *bookable))
    assert render(hold, found, node_id(), annotate=True)


def test_a_device_that_nobody_has_is_not_busy(gpus: Gpus) -> None:
    assert gpus.busy(("GPU-of-another-host", "")) == frozenset()


def test_a_node_that_is_missing_fails_the_preparation(tmp_path: Path) -> None:
    machine = build_machine(tmp_path, "dgx-h100", seed="node1", hostname="host")
    gpus = SimulatedGpus(machine)
    [first, second] = [device.id for device in gpus.snapshot().devices[:2]]
    (tmp_path / "dev/nvidia0").unlink()
    failed = gpus.prepare((second, first))
    assert failed is not None
    assert failed.reason == FailureReason.DEVICE_NODE_MISSING
    assert gpus.prepare((second,)) is None
