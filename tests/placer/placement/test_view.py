"""A pool as the search sees it."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bcd.model.ids import NodeId
from bcd.placer.placement.view import FOREVER, PoolView
from tests.placer.placement.machines import mig_host
from tests.placer.placement.pools import WINDOWS, Host, busy, pool, pools
from tests.placer.world import dgx, gpu, mig


def test_windows_are_half_open() -> None:
    view = Host("n", dgx("a", 2), busy(1, 10, 20)).view()
    assert view.free(0, 10) == 0b11
    assert view.free(20, 30) == 0b11
    assert view.free(19, 20) == view.free(0, 11) == view.free(12, 15) == view.free(0, 99) == 0b10


def test_a_gpu_booked_whole_takes_its_instances_along_and_the_other_way_round() -> None:
    devices = (gpu("a"), mig("m", "a"), mig("n", "a"), gpu("b"))
    whole = Host("n", devices, ((0, 10, 20),)).view()
    part = Host("n", devices, ((1, 10, 20),)).view()
    assert whole.free(10, 20) == 0b1000
    assert part.free(10, 20) == 0b1100
    assert whole.free(20, 30) == part.free(20, 30) == 0b1111


def test_the_ends_are_each_told_once_and_in_order() -> None:
    view = Host("n", dgx("a", 3), ((0, 0, 30), (1, 5, 20), (2, 0, 30))).view()
    assert list(view.ends()) == [20, 30]


def test_the_gap_after_a_window_is_the_shortest_of_the_chosen_devices() -> None:
    view = Host("n", dgx("a", 4), ((0, 50, 60), (0, 40, 45), (1, 70, 80), (2, 0, 10))).view()
    assert view.gap_after(0b0001, 30) == 10
    assert view.gap_after(0b0011, 45) == 5
    assert view.gap_after(0b0010, 30) == 40
    assert view.gap_after(0b1100, 30) == FOREVER


def test_nodes_alike_are_one_group_and_leave_it_one_by_one() -> None:
    view = pool(Host(f"n{i}", dgx(f"h{i}")) for i in range(3))
    (group,) = view.groups
    assert group.ids == ["n0", "n1", "n2"]
    view.put(Host("n1", dgx("h1"), busy(1, 0, 10)).view())
    assert sorted(tuple(group.ids) for group in view.groups) == [("n0", "n2"), ("n1",)]
    view.drop(NodeId("n1"))
    view.drop(NodeId("n1"))
    assert [group.ids for group in view.groups] == [["n0", "n2"]]


def test_only_members_with_bookings_beside_the_window_are_looked_at_by_themselves() -> None:
    view = pool(Host(f"n{i}", dgx(f"h{i}"), busy(8, 0, 100 + i)) for i in range(4))
    (group,) = view.groups
    assert view.apart(group, 50, 60) == ()
    assert view.apart(group, 102, 110) == ["n0", "n1", "n2"]
    for gone in ("n0", "n1", "n2"):
        view.drop(NodeId(gone))
    assert view.apart(group, 102, 110) == []
    assert group.is_simple(102, 110), "the bounds of those that left are forgotten"


def test_a_node_that_takes_no_bookings_is_known_and_in_no_group() -> None:
    for flag in ({"ready": False}, {"reachable": False}, {"cordoned": True}, {"trusted": False}):
        view = pool([Host("n", dgx("a"), flags=flag)])
        assert list(view.groups) == []
        assert list(view.nodes) == ["n"]


def test_a_gpu_in_mig_mode_is_not_free_as_a_whole() -> None:
    assert Host("n", mig_host("a", 1, 2)).view().free(0, 1) == 0b110


@given(pools(), WINDOWS)
def test_what_is_free_is_what_no_booking_and_no_rival_takes(
    hosts: Sequence[Host], window: tuple[int, int]
) -> None:
    start, end = window[0], window[0] + window[1]
    for host in hosts:
        view = host.view()
        assert view.free(start, end) == host.free(start, end)
        if view.is_simple(start, end):
            assert view.free_of_all() == host.free(start, end)


@given(pools(), pools(), st.data())
def test_groups_do_not_depend_on_how_the_view_came_about(
    before: Sequence[Host], after: Sequence[Host], data: st.DataObject
) -> None:
    view = PoolView()
    for host in data.draw(st.permutations([*before, *after])):
        view.put(host.view())
    for host in before:
        view.drop(NodeId(host.id))
    for host in data.draw(st.permutations(after)):
        view.put(host.view())
    fresh = pool(after)
    assert members(view) == members(fresh)
    assert set(view.nodes) == set(fresh.nodes)


def members(view: PoolView) -> set[tuple[int, int, int, tuple[NodeId, ...]]]:
    return {(id(g.shape), g.bookable, g.free, tuple(g.ids)) for g in view.groups}
