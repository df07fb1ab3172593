"""Which devices of a node are picked: any that fit, and those that break the least."""

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.model.device import Device, DeviceClass
from bcd.model.reservation import DeviceAsk, Topology
from bcd.placer.placement.choose import Choice, choose
from bcd.placer.placement.shape import bits
from tests.placer.placement.machines import (
    ASKS,
    DGX_A100,
    V100_MESH,
    ask,
    bookable,
    captured,
    hosts,
    linked,
    mask,
    mig_host,
    satisfies,
    shape,
    shared,
)
from tests.placer.world import dgx, gpu, mig

ANY, SAME_NUMA, NVLINK_ALL = Topology.ANY, Topology.SAME_NUMA, Topology.NVLINK_ALL
EIGHT = (1 << 8) - 1


def pick(devices: Sequence[Device], free: int, *asks: DeviceAsk) -> tuple[set[int], ...] | None:
    """The positions chosen for each entry."""
    choice = choose(shape(devices), bookable(devices), free & bookable(devices), asks)
    return None if choice is None else tuple(set(bits(m)) for m in choice.masks)


def picked(devices: Sequence[Device], free: int, wanted: DeviceAsk) -> set[int]:
    found = pick(devices, free, wanted)
    assert found is not None
    return found[0]


def test_four_linked_gpus_of_a_dgx_are_those_of_one_numa_node() -> None:
    assert picked(dgx("a"), EIGHT, ask(4, NVLINK_ALL)) == {0, 1, 2, 3}
    assert picked(dgx("a"), mask({0, 1, 4, 5, 6, 7}), ask(4, NVLINK_ALL)) == {4, 5, 6, 7}


def test_four_linked_gpus_of_the_mesh_are_one_of_its_two_quads() -> None:
    mesh = captured(V100_MESH)
    fits = {
        frozenset(chosen)
        for chosen in itertools.combinations(range(8), 4)
        if pick(mesh, mask(chosen), ask(4, NVLINK_ALL))
    }
    assert fits == {frozenset(range(4)), frozenset(range(4, 8))}
    assert pick(mesh, EIGHT & ~0b10001, ask(4, NVLINK_ALL)) is None
    assert pick(mesh, EIGHT, ask(5, NVLINK_ALL)) is None


def test_a_linked_pair_of_the_mesh_comes_out_of_one_quad() -> None:
    """The pair 0, 4 breaks fewer cliques, but both quads; no four would be left."""
    mesh = captured(V100_MESH)
    assert picked(mesh, EIGHT, ask(2, NVLINK_ALL)) == {0, 1}
    assert picked(mesh, EIGHT & ~0b11, ask(2, NVLINK_ALL)) == {2, 3}
    assert picked(mesh, EIGHT & ~0b1111, ask(4, NVLINK_ALL)) == {4, 5, 6, 7}


def test_two_gpus_of_one_numa_node_on_a_dgx_a100_follow_its_own_order() -> None:
    a100 = captured(DGX_A100)
    assert picked(a100, EIGHT, ask(2, SAME_NUMA)) == {0, 1}
    assert picked(a100, mask({1, 2, 4, 6, 7}), ask(2, SAME_NUMA)) == {6, 7}
    assert pick(a100, mask({1, 2, 4, 6}), ask(2, SAME_NUMA)) is None
    assert pick(a100, EIGHT, ask(3, SAME_NUMA)) is None


def test_gpus_of_unknown_numa_node_are_never_the_same_numa_node() -> None:
    unknown = (gpu("a", None), gpu("b", None))
    assert pick(unknown, 0b11, ask(2, SAME_NUMA)) is None
    assert pick(unknown, 0b11, ask(2)) is not None


@pytest.mark.parametrize("topology", Topology)
def test_one_gpu_lies_well_to_itself(topology: Topology) -> None:
    assert pick((gpu("a", None),), 1, ask(1, topology)) == ({0},)


def test_one_gpu_comes_from_where_something_is_taken_already() -> None:
    assert picked(dgx("a"), EIGHT & ~mask({5}), ask(1)) <= {4, 6, 7}
    assert picked(dgx("a"), EIGHT & ~mask({1}), ask(3)) == {0, 2, 3}
    assert picked(dgx("a"), EIGHT & ~mask({0, 4, 5}), ask(2)) == {6, 7}


def test_numa_nodes_are_taken_whole_rather_than_broken() -> None:
    """Three and two and two: four are the two pairs, not three and one."""
    numas = (0, 0, 0, 1, 1, 2, 2)
    devices = tuple(gpu(f"g{i}", numa) for i, numa in enumerate(numas))
    assert picked(devices, 0b1111111, ask(4)) == {3, 4, 5, 6}


def test_several_entries_share_one_node_without_sharing_a_device() -> None:
    found = pick(dgx("a"), EIGHT, ask(3), ask(5))
    assert found is not None
    assert found[0] | found[1] == set(range(8))
    assert pick(dgx("a"), EIGHT, ask(4), ask(5)) is None


def test_an_entry_for_any_model_leaves_the_one_that_another_needs() -> None:
    mixed = tuple(gpu(f"g{i}", model="H100" if i < 2 else "A100") for i in range(4))
    assert pick(mixed, 0b1111, ask(2), ask(2, model="H100")) == ({2, 3}, {0, 1})


def test_models_that_overlap_in_their_words_are_both_served() -> None:
    models = ("H100 80GB", "H100 94GB", "A100 80GB")
    mixed = tuple(gpu(f"g{i}", model=model) for i, model in enumerate(models))
    found = pick(mixed, 0b111, ask(1, model="80GB"), ask(2, model="H100"))
    assert found == ({2}, {0, 1})


def test_a_strict_entry_goes_before_a_lax_one() -> None:
    assert pick(dgx("a"), EIGHT & ~0b1, ask(3), ask(4, SAME_NUMA)) == ({1, 2, 3}, {4, 5, 6, 7})


# Instances

MIG, SLOT = DeviceClass.MIG, DeviceClass.SLOT


def test_instances_come_from_gpus_that_are_shared_already() -> None:
    host = mig_host("a", gpus=3, instances=3)  # bits 1-3, 5-7, 9-11
    everything = bookable(host)
    assert picked(host, everything & ~mask({5}), ask(1, device_class=MIG)) <= {6, 7}
    assert picked(host, everything & ~mask({5}), ask(2, device_class=MIG)) == {6, 7}
    three = picked(host, everything & ~mask({5, 6, 9}), ask(3, device_class=MIG))
    assert three in ({7, 10, 11}, {1, 2, 3})  # shared ones first, or one GPU whole


def test_instances_of_a_large_host_fill_the_fullest_shared_gpus_first() -> None:
    host = mig_host("a", gpus=8, instances=7)
    starts = [8 * number + 1 for number in range(8)]
    taken = {starts[2], *range(starts[5], starts[5] + 5)}
    found = picked(host, bookable(host) & ~mask(taken), ask(10, device_class=MIG))
    fullest = {starts[5] + 5, starts[5] + 6}
    next_one = set(range(starts[2] + 1, starts[2] + 7))
    assert fullest | next_one < found
    assert len(found - fullest - next_one) == 2
    assert len({position // 8 for position in found}) == 3


def test_a_gpu_is_never_taken_whole_and_in_part_at_once() -> None:
    """An inventory may claim both; the database would refuse the pair for ever."""
    both = (gpu("a"), mig("m", "a"), gpu("b"))
    assert pick(both, 0b111, ask(1), ask(1, device_class=MIG)) == ({2}, {1})
    assert pick(both[:2], 0b11, ask(1), ask(1, device_class=MIG)) is None


def test_linked_instances_do_not_exist() -> None:
    host = mig_host("a", 1, 2)
    assert pick(host, bookable(host), ask(2, NVLINK_ALL, MIG)) is None
    assert pick(host, bookable(host), ask(2, SAME_NUMA, MIG)) is not None


# Against all ways there are


def ways(devices: Sequence[Device], free: int, asks: Sequence[DeviceAsk]) -> Iterator[list[int]]:
    """Every way to serve all entries, as masks in their order."""
    if not asks:
        yield []
        return
    for chosen in itertools.combinations(list(bits(free)), asks[0].count):
        if satisfies([devices[i] for i in chosen], asks[0]):
            gone = {devices[i].gpu for i in chosen}
            left = mask(
                i
                for i in bits(free & ~mask(chosen))
                if devices[i].gpu not in gone or devices[i].device_class == asks[0].device_class
            )
            for rest in ways(devices, left, asks[1:]):
                yield [mask(chosen), *rest]


def whole_sets(devices: Sequence[Device], free: int) -> set[int]:
    """Cliques, NUMA nodes and GPUs of at least two devices that are wholly free."""
    every = [i for i in range(len(devices)) if bookable(devices) >> i & 1]
    numas = {device.numa_node for device in devices} - {None}
    places: list[dict[str, object]] = [{"numa_node": numa} for numa in numas]
    places += [{"gpu": device.gpu} for device in devices]
    sets = {
        mask(i for i in every if devices[i].device_class == one and lies(devices[i], place))
        for place in places
        for one in DeviceClass
    }
    full = {
        mask(chosen)
        for size in range(2, len(every) + 1)
        for chosen in itertools.combinations(every, size)
        if all(linked(devices[a], devices[b]) for a, b in itertools.combinations(chosen, 2))
    }
    sets |= {one for one in full if not any(one != two and not one & ~two for two in full)}
    return {part for part in sets if part.bit_count() > 1 and not part & ~free}


def lies(device: Device, place: dict[str, object]) -> bool:
    return all(getattr(device, name) == value for name, value in place.items())


def broken(devices: Sequence[Device], whole: set[int], taken: int) -> int:
    """Pairs of those sets that are left in part; a GPU taken in one mode is so in the others."""
    gone = taken | mask(
        {
            i
            for i, device in enumerate(devices)
            for at in bits(taken)
            if device.gpu == devices[at].gpu and device.device_class != devices[at].device_class
        }
    )
    left = [part for part in whole if part & gone and part & ~gone]
    return sum(math.comb(part.bit_count(), 2) for part in left)


@given(hosts(most=4), st.integers(0, (1 << 12) - 1), ASKS)
def test_the_choice_fits_whenever_any_does_and_breaks_the_least_of_all(
    devices: tuple[Device, ...], free: int, asks: tuple[DeviceAsk, ...]
) -> None:
    free &= bookable(devices)
    found = choose(shape(devices), bookable(devices), free, asks)
    every, whole = list(ways(devices, free, asks)), whole_sets(devices, free)
    if found is None:
        assert every == []
        return
    assert list(found.masks) in every
    assert found.broken == broken(devices, whole, sum(found.masks))
    assert found.broken == min(broken(devices, whole, sum(way)) for way in every)


@given(
    st.integers(2, 6),
    st.sets(st.integers(0, 47)),
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
)
def test_instances_of_a_large_host_fit_exactly_when_enough_are_free(
    gpus: int, taken: set[int], counts: list[int]
) -> None:
    host = mig_host("a", gpus, 7)
    free = bookable(host) & ~mask(taken)
    found = pick(host, free, *(ask(count, device_class=MIG) for count in counts))
    assert (found is not None) == (free.bit_count() >= sum(counts))
    if found is not None:
        assert [len(part) for part in found] == counts
        assert len(set().union(*found)) == sum(counts)


# Slots


def slots(found: tuple[set[int], ...] | None, replicas: int = 4) -> list[list[int]]:
    """The chosen positions by GPU; 0 of each is the whole GPU."""
    assert found is not None
    every = sorted(set().union(*found))
    gpus = sorted({at // (replicas + 1) for at in every})
    return [[at % (replicas + 1) for at in every if at // (replicas + 1) == g] for g in gpus]


def test_slots_gather_on_one_gpu_and_go_to_one_that_is_shared_already() -> None:
    host = shared("h", 3)
    every = (1 << 15) - 1
    assert slots(pick(host, every, ask(3, device_class=SLOT))) == [[1, 2, 3]]
    free = every & ~mask({5, 7})  # the second GPU has one slot taken
    assert slots(pick(host, free, ask(1, device_class=SLOT))) == [[1]]
    assert pick(host, free, ask(1, device_class=SLOT)) == ({6},)
    assert pick(host, free, ask(3, device_class=SLOT)) == ({6, 8, 9},)


def test_whole_gpus_are_those_that_nobody_shares_and_none_is_shared_with_them() -> None:
    host = shared("h", 3)
    free = ((1 << 15) - 1) & ~mask({5, 7})
    assert pick(host, free, ask(2)) == ({0, 10},)
    assert pick(host, free, ask(3)) is None
    assert pick(host, free, ask(2), ask(3, device_class=SLOT)) == ({0, 10}, {6, 8, 9})
    assert pick(host, free, ask(2), ask(4, device_class=SLOT)) is None


def test_gpus_of_a_numa_node_are_taken_whole_with_their_slots() -> None:
    """Slots that go with their GPU do not count as left behind."""
    host = shared("h", 2)
    choice = choose(shape(host), bookable(host), (1 << 10) - 1, (ask(2),))
    assert choice is not None
    assert (choice.broken, choice.leftover) == (0, 0)


@given(st.sets(st.integers(0, 87)), st.integers(1, 40))
def test_slots_of_a_large_host_fit_exactly_when_enough_are_free(
    taken: set[int], count: int
) -> None:
    host = shared("h", 8, 10)
    gone = taken | {at // 11 * 11 for at in taken}
    gone |= {slot for at in taken if at % 11 == 0 for slot in range(at, at + 11)}
    free = bookable(host) & ~mask(gone)
    free_slots = sum(1 for at in bits(free) if at % 11)
    found = pick(host, free, ask(count, device_class=SLOT))
    assert (found is not None) == (free_slots >= count)
    if found is not None:
        assert len(found[0]) == count
        assert all(at % 11 for at in found[0])


@given(st.sets(st.integers(0, 14)), st.integers(1, 5))
def test_slots_that_lie_as_near_as_can_be_are_those_of_one_gpu(taken: set[int], count: int) -> None:
    host = shared("h", 3)
    free = ((1 << 15) - 1) & ~mask(taken) & ~mask(at // 5 * 5 for at in taken)
    choice = pick(host, free, ask(count, NVLINK_ALL, device_class=SLOT))
    left = [sum(1 for at in bits(free) if at // 5 == g and at % 5) for g in range(3)]
    assert (choice is not None) == (max(left) >= count)
    if choice is not None:
        assert len({at // 5 for at in choice[0]}) == 1


# Hosts on which not every way can be looked at


def large(numas: int = 4, each: int = 4, models: Sequence[str] = ("H100",)) -> tuple[Device, ...]:
    """Whole GPUs: a switch for each NUMA node, models taking turns."""
    return tuple(
        gpu(f"g{i}", i // each, domain=f"s{i // each}", model=models[i % len(models)])
        for i in range(numas * each)
    )


@pytest.mark.parametrize(
    ("taken", "count", "expected"),
    [
        (set(), 8, set(range(8))),
        ({0}, 8, {4, 5, 6, 7, 8, 9, 10, 11}),
        ({0, 4, 8}, 7, {12, 13, 14, 15, 1, 2, 3}),
        ({0, 1, 4}, 5, {5, 6, 7, 2, 3}),
        (set(range(12)), 4, {12, 13, 14, 15}),
    ],
    ids=["empty", "one taken", "whole first", "broken ones first", "the last node"],
)
def test_a_large_host_gives_whole_numa_nodes_before_it_breaks_one(
    taken: set[int], count: int, expected: set[int]
) -> None:
    host = large()
    free = bookable(host) & ~mask(taken)
    found = picked(host, free, ask(count))
    assert broken(host, whole_sets(host, free), mask(found)) == broken(
        host, whole_sets(host, free), mask(expected)
    )
    assert len(found) == count


@given(
    st.integers(3, 5),
    st.integers(4, 6),
    st.sets(st.integers(0, 29), max_size=12),
    st.integers(1, 12),
    st.sampled_from(Topology),
)
def test_a_large_host_fits_one_entry_exactly_when_some_group_is_large_enough(
    numas: int, each: int, taken: set[int], count: int, topology: Topology
) -> None:
    host = large(numas, each)
    free = bookable(host) & ~mask(taken)
    found = pick(host, free, ask(count, topology))
    parts = [free & mask(range(n * each, (n + 1) * each)) for n in range(numas)]
    groups = [free] if topology is ANY or count == 1 else parts
    assert (found is not None) == any(group.bit_count() >= count for group in groups)
    if found is not None:
        assert found[0] <= set(bits(free))
        assert satisfies([host[i] for i in found[0]], ask(count, topology))


@given(st.sets(st.integers(0, 15), max_size=6), st.integers(1, 8), st.integers(1, 8))
def test_a_large_host_serves_any_model_beside_one_that_is_named(
    taken: set[int], some: int, named: int
) -> None:
    host = large(models=("H100", "A100"))
    free = bookable(host) & ~mask(taken)
    h100 = mask(i for i in bits(free) if host[i].model == "H100")
    found = pick(host, free, ask(some), ask(named, model="h100"))
    fits = named <= h100.bit_count() and some + named <= free.bit_count()
    assert (found is not None) == fits
    if found is not None:
        assert not found[0] & found[1]
        assert found[1] <= set(bits(h100))


def test_a_large_host_goes_back_where_a_strict_entry_took_too_much() -> None:
    host = large(numas=3, each=6)
    found = pick(host, bookable(host), ask(6, NVLINK_ALL), ask(5, SAME_NUMA), ask(4, NVLINK_ALL))
    assert found is not None
    assert [len(part) for part in found] == [6, 5, 4]
    assert pick(host, bookable(host), *(ask(4, NVLINK_ALL) for _ in range(4))) is None


def test_what_stays_free_of_the_asked_kind_is_counted() -> None:
    choice = choose(shape(dgx("a")), EIGHT, EIGHT, (ask(3),))
    assert isinstance(choice, Choice)
    assert choice.leftover == 5
    mixed = (gpu("a", model="H100"), gpu("b", model="A100"))
    choice = choose(shape(mixed), 0b11, 0b11, (ask(1, model="A100"),))
    assert isinstance(choice, Choice)
    assert choice.leftover == 0


def test_a_node_of_a_thousand_devices_is_chosen_from_in_bounded_time() -> None:
    host = mig_host("a", gpus=146, instances=7)
    entries = tuple(ask(count, device_class=MIG) for count in (300, 200, 100, 50, 50, 20, 10, 1))
    found = pick(host, bookable(host), *entries)
    assert found is not None
    assert len(set().union(*found)) == 731
