"""The best node: what the grouped search finds is what looking at every node finds."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bcd.model.device import DeviceClass
from bcd.model.ids import NodeId
from bcd.model.reservation import DeviceAsk, Topology
from bcd.placer.placement.choose import choose
from bcd.placer.placement.search import find
from bcd.placer.placement.shape import bits
from tests.placer.placement.machines import ASKS, ask, mig_host, satisfies, shape
from tests.placer.placement.pools import WINDOWS, Host, busy, pool, pools
from tests.placer.placement.test_choose import ways
from tests.placer.world import dgx, gpu

LONG = (0, 1000)


def found(hosts: Sequence[Host], *asks: DeviceAsk, window: tuple[int, int] = LONG) -> str | None:
    result = find(pool(hosts), asks, *window)
    return None if result is None else result.node_id


def test_a_half_full_node_goes_before_an_empty_one() -> None:
    hosts = [Host("a", dgx("a")), Host("b", dgx("b"), busy(4, 0, 500)), Host("c", dgx("c"))]
    assert found(hosts, ask(4, Topology.NVLINK_ALL)) == "b"
    assert found(hosts, ask(1)) == "b"
    assert found(hosts, ask(5)) == "a"


def test_a_numa_node_is_broken_only_where_it_cannot_be_avoided() -> None:
    hosts = [Host("a", dgx("a"), busy(4, 0, 500)), Host("b", dgx("b"), busy(5, 0, 500))]
    assert found(hosts, ask(2)) == "b"
    assert found(hosts, ask(4)) == "a"


def test_a_machine_that_is_taken_whole_goes_before_one_that_is_broken() -> None:
    hosts = [Host("a", dgx("a")), Host("b", dgx("b", 2))]
    assert found(hosts, ask(2)) == "b"


def test_of_equal_breakage_the_tightest_node_wins() -> None:
    hosts = [Host("a", dgx("a"), busy(1, 0, 500)), Host("b", dgx("b"), busy(3, 0, 500))]
    assert found(hosts, ask(1)) == "b"


def test_of_equal_space_the_shortest_idle_gap_wins() -> None:
    hosts = [
        Host("a", dgx("a", 1)),
        Host("b", dgx("b", 1), ((0, 150, 160),)),
        Host("c", dgx("c", 1), ((0, 110, 120),)),
    ]
    assert found(hosts, ask(1), window=(0, 100)) == "c"
    assert found(hosts, ask(1), window=(0, 115)) == "b"
    assert found(hosts, ask(1), window=(0, 200)) == "a"


def test_ties_go_to_the_first_id_whatever_the_order_of_arrival() -> None:
    hosts = [Host(f"n{i}", dgx(f"h{i}")) for i in range(4)]
    for order in itertools.permutations(hosts):
        assert found(order, ask(2)) == "n0"


def test_avoided_nodes_are_not_found() -> None:
    view = pool([Host("a", dgx("a")), Host("b", dgx("b"))])
    result = find(view, (ask(1),), *LONG, avoid=frozenset({NodeId("a")}))
    assert result is not None
    assert result.node_id == "b"
    every = frozenset({NodeId("a"), NodeId("b")})
    assert find(view, (ask(1),), *LONG, avoid=every) is None


def test_instances_go_to_the_node_with_a_shared_gpu() -> None:
    hosts = [Host("a", mig_host("a")), Host("b", mig_host("b"), ((1, 0, 500),))]
    wanted = ask(2, device_class=DeviceClass.MIG)
    assert found(hosts, wanted) == "b"


def test_a_whole_gpu_is_not_found_on_a_shared_one() -> None:
    both = (gpu("g"), *mig_host("a", 1, 2)[1:])
    both = (both[0], *(replace(device, gpu="g") for device in both[1:]))
    assert found([Host("a", both)], ask(1)) == "a"
    assert found([Host("a", both, ((1, 0, 500),))], ask(1)) is None
    assert found([Host("a", both, ((0, 0, 500),))], ask(1, device_class=DeviceClass.MIG)) is None


def test_a_model_is_found_by_its_words_among_other_nodes() -> None:
    hosts = [
        Host("a", (gpu("a", model="NVIDIA A100-SXM4-80GB"),)),
        Host("b", (gpu("b", model="NVIDIA H100 80GB HBM3"),)),
    ]
    assert found(hosts, ask(1, model="h100")) == "b"
    assert found(hosts, ask(1, model="h200")) is None


def naive(
    hosts: Sequence[Host], asks: tuple[DeviceAsk, ...], start: int, end: int
) -> tuple[str, tuple[int, ...]] | None:
    """Every node by itself; the best by breakage, space, calendar and id."""
    best: tuple[tuple[int, int, int, str], tuple[int, ...]] | None = None
    for host in hosts:
        if not host.schedulable:
            continue
        choice = choose(shape(host.devices), host.usable, host.free(start, end), asks)
        if choice is None:
            continue
        gaps = [
            begun - end
            for at, begun, _ in host.bookings
            if sum(choice.masks) >> at & 1 and begun >= end
        ]
        score = (choice.broken, choice.leftover, min(gaps, default=1 << 62), host.id)
        if best is None or score < best[0]:
            best = (score, choice.masks)
    return None if best is None else (best[0][3], best[1])


@settings(max_examples=300)
@given(pools(), WINDOWS, ASKS)
def test_the_grouped_search_finds_what_a_look_at_every_node_finds(
    hosts: Sequence[Host], window: tuple[int, int], asks: tuple[DeviceAsk, ...]
) -> None:
    start, end = window[0], window[0] + window[1]
    result = find(pool(hosts), asks, start, end)
    expected = naive(hosts, asks, start, end)
    if result is None:
        assert expected is None
        return
    masks = tuple(sum(1 << atom - 100 for atom in ids) for ids in result.atom_ids)
    assert (result.node_id, masks) == expected


@settings(max_examples=200)
@given(pools(most=3), WINDOWS, ASKS)
def test_something_is_found_exactly_when_some_devices_fit(
    hosts: Sequence[Host], window: tuple[int, int], asks: tuple[DeviceAsk, ...]
) -> None:
    start, end = window[0], window[0] + window[1]
    result = find(pool(hosts), asks, start, end)
    fits = any(
        host.schedulable and any(True for _ in ways(host.devices, host.free(start, end), asks))
        for host in hosts
    )
    assert (result is not None) == fits
    if result is not None:
        host = next(host for host in hosts if host.id == result.node_id)
        free = host.free(start, end)
        for ids, wanted in zip(result.atom_ids, asks, strict=True):
            positions = [atom - 100 for atom in ids]
            assert all(free >> position & 1 for position in positions)
            assert satisfies([host.devices[position] for position in positions], wanted)


@given(pools(), WINDOWS, ASKS, st.data())
def test_a_search_does_not_depend_on_what_was_known_before(
    hosts: Sequence[Host],
    window: tuple[int, int],
    asks: tuple[DeviceAsk, ...],
    data: st.DataObject,
) -> None:
    """Groups keep bounds of members that left: they may only make the search look closer."""
    start, end = window[0], window[0] + window[1]
    view = pool(data.draw(pools()))
    for node_id in list(view.nodes):
        if all(host.id != node_id for host in hosts):
            view.drop(node_id)
    for host in hosts:
        view.put(host.view())
    assert find(view, asks, start, end) == find(pool(hosts), asks, start, end)


def test_bits_of_a_mask_ascend() -> None:
    assert list(bits(0b101001)) == [0, 3, 5]
