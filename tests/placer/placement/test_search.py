"""The best node: what the grouped search finds is what looking at every node finds."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd.model.device import DeviceClass
from bcd.model.ids import NodeId
from bcd.model.reservation import DeviceAsk, Resources, Topology
from bcd.placer.placement.choose import choose
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.search import Found, Where, find
from bcd.placer.placement.shape import bits
from bcd.placer.placement.timeline import FOREVER
from bcd.placer.placement.view import PoolView
from tests.placer.placement.machines import ask, demand, mig_host, satisfies, shape
from tests.placer.placement.pools import DEMANDS, WINDOWS, Host, busy, pool, pools, rivals
from tests.placer.placement.test_choose import ways
from tests.placer.world import dgx, gpu

LONG = (0, 1000)


def found(hosts: Sequence[Host], *asks: DeviceAsk, window: tuple[int, int] = LONG) -> str | None:
    result = search(pool(hosts), demand(*asks), *window)
    return None if result is None else result[0].node_id


def search(
    view: PoolView, wanted: Demand, start: int, end: int, **more: Any
) -> tuple[Found, ...] | None:
    where = Where(**({"start_ms": start, "end_ms": end, "now_ms": start} | more))
    return find(view, wanted, where)


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


def test_the_idle_time_before_a_window_counts_as_that_after_it() -> None:
    hosts = [
        Host("a", dgx("a", 1), ((0, 0, 40), (0, 210, 220))),
        Host("b", dgx("b", 1), ((0, 0, 90), (0, 250, 260))),
        Host("c", dgx("c", 1), ((0, 0, 95), (0, 260, 270))),
    ]
    view = pool(hosts)
    for now, best in ((0, "b"), (60, "a")):
        result = search(view, demand(ask(1)), 100, 200, now_ms=now)
        assert result is not None
        assert result[0].node_id == best


def test_avoided_nodes_come_last_and_excluded_ones_never() -> None:
    view = pool([Host("a", dgx("a")), Host("b", dgx("b"))])
    a, both = frozenset({NodeId("a")}), frozenset({NodeId("a"), NodeId("b")})
    for wanted in (demand(ask(1)), demand(ask(8))):
        for avoid, exclude, best in ((a, frozenset[NodeId](), "b"), (both, a, "b"), (a, a, "b")):
            result = search(view, wanted, *LONG, avoid=avoid, exclude=exclude)
            assert result is not None
            assert result[0].node_id == best
        result = search(view, wanted, *LONG, avoid=both)
        assert result is not None
        assert search(view, wanted, *LONG, exclude=both) is None


def test_a_node_gives_no_more_of_its_host_than_it_has_at_any_instant() -> None:
    """Two bookings of 3 vcpu that never meet leave 5 of 8, and together 2."""
    for second, left in ((50, 5), (49, 2)):
        host = Host("n", dgx("n"), vcpu=8, amounts=((3, 0, 50), (3, second, 90)))
        view = pool([host])
        for vcpu in range(1, 9):
            wanted = demand(ask(1), resources=Resources(vcpu=vcpu))
            assert (search(view, wanted, *LONG) is not None) == (vcpu <= left)
            assert search(view, wanted, 90, 91) is not None


def test_a_host_without_amounts_takes_only_what_asks_for_none() -> None:
    view = pool([Host("n", dgx("n"))])
    assert search(view, demand(ask(1)), *LONG) is not None
    for some in (Resources(vcpu=1), Resources(memory_gib=1), Resources(hugepages_1gi=1)):
        assert search(view, demand(ask(1), resources=some), *LONG) is None


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
    hosts: Sequence[Host], wanted: Demand, start: int, end: int
) -> list[tuple[tuple[int, int, int, str], tuple[int, ...]]]:
    """Every node that could take a member, looked at by itself: (score, masks), the best first.

    The score is breakage, space, calendar, and id.
    """
    found = []
    for host in hosts:
        if not host.schedulable or not wanted.labels <= set(host.labels.split()):
            continue
        if wanted.resources and wanted.resources.vcpu > host.spare(start, end):
            continue
        choice = choose(shape(host.devices), host.usable, host.free(start, end), wanted.devices)
        if choice is not None:
            idle = idle_after(host, sum(choice.masks), end)
            found.append(((choice.broken, choice.leftover, idle, host.id), choice.masks))
    return sorted(found)


def idle_after(host: Host, chosen: int, end: int) -> int:
    """How long no booking comes near the chosen devices or takes their GPUs in another mode."""
    near = [
        begun - end
        for at, begun, _ in host.bookings
        for position in bits(chosen)
        if begun >= end and (at == position or rivals(host.devices[at], host.devices[position]))
    ]
    return min(near, default=FOREVER)


@settings(max_examples=300)
@given(pools(most=5), WINDOWS, DEMANDS)
def test_the_search_finds_what_a_look_at_every_node_finds(
    hosts: Sequence[Host], window: tuple[int, int], wanted: Demand
) -> None:
    start, end = window[0], window[0] + window[1]
    result = search(pool(hosts), wanted, start, end)
    expected = naive(hosts, wanted, start, end)
    if len(expected) < wanted.gang_size:
        assert result is None
        return
    assert result is not None
    best = min(
        itertools.combinations(expected, wanted.gang_size), key=lambda gang: badness(gang, hosts)
    )
    assert masks_of(result) == {score[3]: masks for score, masks in best}


def masks_of(result: Sequence[Found]) -> dict[str, tuple[int, ...]]:
    return {
        one.node_id: tuple(sum(1 << atom - 100 for atom in ids) for ids in one.atom_ids)
        for one in result
    }


Member = tuple[tuple[int, int, int, str], tuple[int, ...]]


def badness(gang: Sequence[Member], hosts: Sequence[Host]) -> tuple[object, ...]:
    """Members in one rack are best, then in one block; then what they break and leave in all."""
    scores = [score for score, _ in gang]
    places = {(host.block, host.rack) for host in hosts if host.id in {s[3] for s in scores}}
    one_rack = len(places) == 1 and all(rack for _, rack in places)
    blocks = {block for block, _ in places}
    one_block = len(blocks) == 1 and all(blocks)
    apart = 0 if len(gang) == 1 or one_rack else 1 if one_block else 2
    if apart == 2:  # then simply the best ones, one after the other
        return (apart, scores)
    sums = [sum(score[i] for score in scores) for i in range(3)]  # type: ignore[misc]
    return (apart, sums, sorted(score[3] for score in scores))


@settings(max_examples=300)
@given(pools(most=4), WINDOWS, DEMANDS)
def test_something_is_found_exactly_when_some_devices_fit(
    hosts: Sequence[Host], window: tuple[int, int], wanted: Demand
) -> None:
    """The oracle tries every set of devices, and knows nothing of masks and choices."""
    start, end = window[0], window[0] + window[1]
    result = search(pool(hosts), wanted, start, end)
    able = [
        host
        for host in hosts
        if host.schedulable
        and wanted.labels <= set(host.labels.split())
        and (not wanted.resources or wanted.resources.vcpu <= host.spare(start, end))
        and any(True for _ in ways(host.devices, host.free(start, end), wanted.devices))
    ]
    assert (result is not None) == (len(able) >= wanted.gang_size)
    if result is None:
        return
    assert len({one.node_id for one in result}) == len(result) == wanted.gang_size
    for one in result:
        host = next(host for host in able if host.id == one.node_id)
        free = host.free(start, end)
        for ids, entry in zip(one.atom_ids, wanted.devices, strict=True):
            positions = [atom - 100 for atom in ids]
            assert all(free >> position & 1 for position in positions)
            assert satisfies([host.devices[position] for position in positions], entry)


@pytest.mark.parametrize("seed", range(4))
def test_in_a_large_pool_nothing_that_breaks_or_leaves_less_is_passed_over(seed: int) -> None:
    """With more equal nodes than are compared by their calendars."""
    chance = random.Random(seed)
    made = [Host(f"n{i:03}", dgx("h"), some_bookings(chance)) for i in range(100)]
    view = pool(made)
    for _ in range(10):
        start, end = chance.randrange(100), chance.randrange(100, 120)
        size, topology = chance.choice([1, 1, 5, 40]), chance.choice([*Topology])
        wanted = demand(ask(chance.randint(1, 4), topology), gang=size)
        result = search(view, wanted, start, end)
        expected = [score[:2] for score, _ in naive(made, wanted, start, end)[:size]]
        assert (result is not None) == (len(expected) == size)
        if result is not None:
            assert sorted(cost(made, one, wanted, start, end) for one in result) == expected


def some_bookings(chance: random.Random) -> tuple[tuple[int, int, int], ...]:
    return tuple(
        (at, start, start + chance.randint(1, 30))
        for at in range(8)
        for start in chance.sample(range(120), chance.choice([0, 0, 1, 2]))
    )


def cost(
    hosts: Sequence[Host], one: Found, wanted: Demand, start: int, end: int
) -> tuple[int, int]:
    """(broken, leftover) on a node that was found, which must have chosen what is free there."""
    host = next(host for host in hosts if host.id == one.node_id)
    free = host.free(start, end)
    choice = choose(shape(host.devices), host.usable, free, wanted.devices)
    assert choice is not None
    (taken,) = masks_of([one]).values()
    assert not sum(taken) & ~free
    assert taken == choice.masks
    return choice.broken, choice.leftover


@given(pools(), WINDOWS, DEMANDS, st.data())
def test_a_search_does_not_depend_on_what_was_known_before(
    hosts: Sequence[Host], window: tuple[int, int], wanted: Demand, data: st.DataObject
) -> None:
    start, end = window[0], window[0] + window[1]
    view = pool(data.draw(pools()))
    for node_id in list(view.nodes):
        if all(host.id != node_id for host in hosts):
            view.drop(node_id)
    for host in hosts:
        view.put(host.view())
    assert search(view, wanted, start, end) == search(pool(hosts), wanted, start, end)


def test_bits_of_a_mask_ascend() -> None:
    assert list(bits(0b101001)) == [0, 3, 5]
