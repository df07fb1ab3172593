"""Machines that exist: what the real library calls make of them, and what the placer of that."""

import itertools

from bcd.model.device import Device, DeviceClass
from bcd.model.reservation import Topology
from tests.nvml.captured import A100_MIG, DGX_A100, H100, V100_MESH, document, matrix
from tests.nvml.conftest import MakeHost
from tests.nvml.stub import Gpu, State
from tests.placer.placement.machines import captured, shape


def devices(host: MakeHost, state: State) -> tuple[Device, ...]:
    made = host(gpus=state.gpus, driver=state.driver, cuda=state.cuda)
    with made.running() as running:
        return running.gpus.snapshot().devices


def linked_sets(found: tuple[Device, ...], size: int) -> list[tuple[int, ...]]:
    """Sets of GPUs that satisfy nvlink-all, as the placer sees it."""
    machine = shape(found)
    groups = machine.groups((1 << len(found)) - 1, Topology.NVLINK_ALL)
    return [
        chosen
        for chosen in itertools.combinations(range(len(found)), size)
        if any(all(group >> i & 1 for i in chosen) for group in groups)
    ]


def ids(gpus: tuple[Gpu, ...]) -> list[str]:
    return [gpu.uuid for gpu in gpus]


def test_of_seventy_quads_of_the_mesh_the_two_that_are_fully_linked(host: MakeHost) -> None:
    gpus = matrix(V100_MESH, switched=False)
    found = devices(host, State(gpus=gpus))
    assert [device.id for device in found] == ids(gpus)
    assert [device.numa_node for device in found] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {device.nvlink_domain for device in found} == {""}
    assert [len(device.nvlink_peers) for device in found] == [4] * 8
    assert linked_sets(found, 4) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert shape(found).slots[0].links == shape(captured(V100_MESH)).slots[0].links


def test_gpu_order_of_a_dgx_a100_is_not_numa_order_and_all_are_linked(host: MakeHost) -> None:
    found = devices(host, State(gpus=matrix(DGX_A100, switched=True)))
    assert [device.numa_node for device in found] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert [device.nvlink_domain for device in found] == ["nvswitch"] * 8
    assert linked_sets(found, 8) == [tuple(range(8))]


def test_all_of_an_hgx_h100_are_linked_by_its_fabric(host: MakeHost) -> None:
    state = document(H100)
    found = devices(host, state)
    assert [device.id for device in found] == ids(state.gpus)
    assert found[0].id == "GPU-00000000-0000-0000-0000-000000000000"
    assert [d.pci_address for d in found[:2]] == ["0000:53:00.0", "0000:64:00.0"]
    assert {d.nvlink_domain for d in found} == {f"{'0' * 32}.0"}
    assert linked_sets(found, 8) == [tuple(range(8))]


def test_an_a100_cut_in_four_has_four_instances_and_no_links(host: MakeHost) -> None:
    state = document(A100_MIG)
    found = devices(host, state)
    cut = [device for device in found if device.device_class is DeviceClass.MIG]
    whole = {device.id: device for device in found if device.device_class is DeviceClass.GPU}
    assert {device.profile for device in cut} == {"1g.20gb"}
    assert [device.memory_bytes >> 20 for device in cut] == [19_968] * 4
    assert {device.gpu for device in cut} == {"GPU-abc00000-0000-4000-8000-000000000000"}
    assert all(whole[device.gpu].mig_enabled for device in cut)
    assert linked_sets(found, 2) == []
