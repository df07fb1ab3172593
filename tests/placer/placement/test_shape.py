"""How devices lie to each other: cliques, NUMA nodes, GPUs, rivals, models."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given

from bcd.model.device import Device, DeviceClass
from bcd.model.reservation import Topology
from bcd.placer.placement.shape import bits
from tests.placer.placement.machines import (
    DGX_A100,
    V100_MESH,
    ask,
    captured,
    hosts,
    linked,
    mask,
    mig_host,
    shape,
)
from tests.placer.world import dgx, gpu


def cliques(devices: tuple[Device, ...], within: int | None = None) -> set[frozenset[int]]:
    whole = (1 << len(devices)) - 1 if within is None else within
    return {frozenset(bits(found)) for found in shape(devices).cliques_within(whole)}


def test_gpus_of_one_switch_are_one_clique() -> None:
    assert cliques(dgx("a")) == {frozenset(range(8))}


def test_two_switches_are_two_cliques() -> None:
    assert cliques(dgx("a", 4) + dgx("b", 4)) == {frozenset(range(4)), frozenset(range(4, 8))}


def test_the_hybrid_cube_mesh_has_two_quads_and_four_pairs_across() -> None:
    expected = [range(4), range(4, 8), (0, 4), (1, 5), (2, 6), (3, 7)]
    assert cliques(captured(V100_MESH)) == {frozenset(part) for part in expected}


def test_exactly_two_of_the_seventy_quads_of_the_mesh_are_fully_linked() -> None:
    machine = shape(captured(V100_MESH))
    groups = machine.groups((1 << 8) - 1, Topology.NVLINK_ALL)
    quads = [mask(chosen) for chosen in itertools.combinations(range(8), 4)]
    assert len(quads) == 70
    fit = [quad for quad in quads if any(quad & ~group == 0 for group in groups)]
    assert fit == [0b1111, 0b11110000]


def test_gpu_order_is_not_numa_order_on_a_dgx_a100() -> None:
    machine = shape(captured(DGX_A100))
    assert [set(bits(numa)) for numa in machine.numa_masks] == [{2, 3}, {0, 1}, {6, 7}, {4, 5}]
    assert machine.cliques_within(0xFF) == (0xFF,)


def test_a_gpu_of_unknown_numa_node_lies_with_no_other() -> None:
    machine = shape((gpu("a", None), gpu("b", None), gpu("c", 0), gpu("d", 0)))
    assert machine.numa_masks == (0b1100,)
    assert machine.groups(0b1111, Topology.SAME_NUMA) == (0b1100,)


def test_instances_are_rivals_of_their_own_gpu_only() -> None:
    machine = shape(mig_host("a", gpus=2, instances=2))
    assert machine.rival_masks == (0b110, 0b1, 0b1, 0b110000, 0b1000, 0b1000)
    assert machine.gpu_masks == (0b111, 0b111000)


def test_instances_are_not_linked() -> None:
    parents = (replace(gpu("a", domain="s"), mig_enabled=True), gpu("b", domain="s"))
    machine = shape((*parents, *mig_host("c", 1, 2)[1:]))
    assert [slot.links for slot in machine.slots] == [0b10, 0b1, 0, 0]


MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB")


@pytest.mark.parametrize(
    ("asked", "matches"),
    [
        ("", {0, 1, 2}),
        (" ", {0, 1, 2}),
        ("H100", {0, 1}),
        ("h100", {0, 1}),
        ("H100 80GB", {0}),
        ("80GB H100", {0}),
        ("nvidia", {0, 1, 2}),
        ("A100-SXM4-80GB", {2}),
        ("H10", set()),
        ("A100", set()),
        ("NVIDIA H100 80GB HBM3 X", set()),
    ],
)
def test_a_model_matches_by_whole_words(asked: str, matches: set[int]) -> None:
    machine = shape(tuple(gpu(f"g{i}", model=model) for i, model in enumerate(MODELS)))
    assert set(bits(machine.matching(ask(model=asked)))) == matches


def test_class_and_profile_must_match_exactly() -> None:
    machine = shape(mig_host("a", 1, 2, "1g.10gb") + mig_host("b", 1, 1, "2g.20gb"))
    mig_ask = ask(device_class=DeviceClass.MIG)
    assert set(bits(machine.matching(mig_ask))) == {1, 2, 4}
    of_profile = ask(device_class=DeviceClass.MIG, profile="2g.20gb")
    assert set(bits(machine.matching(of_profile))) == {4}
    assert machine.matching(ask(profile="2g.20gb")) == 0


def test_equal_machines_share_one_shape() -> None:
    assert shape(dgx("a")) is shape(dgx("b"))
    assert shape(dgx("a")) is not shape(dgx("a", 4))


@given(hosts())
def test_cliques_are_all_the_maximal_sets_of_which_every_pair_is_linked(
    devices: tuple[Device, ...],
) -> None:
    every = range(len(devices))
    full = {
        frozenset(chosen)
        for size in range(1, len(devices) + 1)
        for chosen in itertools.combinations(every, size)
        if all(linked(devices[a], devices[b]) for a in chosen for b in chosen if a != b)
    }
    assert cliques(devices) == {c for c in full if not any(c < other for other in full)}


def test_a_link_graph_made_to_have_many_cliques_is_bounded() -> None:
    """Ten times three GPUs, each linked to all but its two siblings: 3^10 maximal cliques."""
    names = [f"g{i}" for i in range(30)]
    devices = tuple(
        gpu(name, peers=[other for k, other in enumerate(names) if k // 3 != i // 3])
        for i, name in enumerate(names)
    )
    found = shape(devices).cliques_within((1 << 30) - 1)
    assert 0 < len(found) <= 256
    assert all(clique.bit_count() == 10 for clique in found)
