"""A pool as the search sees it."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bcd.model.ids import NodeId
from bcd.model.reservation import Resources, Window
from bcd.placer.placement.timeline import FOREVER
from bcd.placer.placement.view import PoolView
from tests.placer.placement.machines import mig_host
from tests.placer.placement.pools import WINDOWS, Booking, Host, busy, pool, pools
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
    assert list(view.ends(0)) == [20, 30]
    assert list(view.ends(20)) == [30]


def test_idle_time_is_that_of_the_chosen_devices_before_and_after() -> None:
    view = Host("n", dgx("a", 4), ((0, 50, 60), (0, 40, 45), (1, 70, 80), (2, 0, 10))).view()
    assert view.idle(0b0001, 30, 30, 30) == 10
    assert view.idle(0b0011, 45, 45, 45) == 5
    assert view.idle(0b0010, 30, 30, 30) == 40
    assert view.idle(0b0100, 30, 40, 30) == view.idle(0b1000, 30, 40, 30) == FOREVER
    assert view.idle(0b0001, 30, 35, 0) == 30 + 5
    assert view.idle(0b0101, 30, 35, 0) == 20 + 5
    assert view.idle(0b0101, 30, 35, 12) == 18 + 5


def test_nodes_alike_are_told_together_and_leave_one_by_one() -> None:
    view = pool(Host(f"n{i}", dgx(f"h{i}")) for i in range(3))
    assert alike(view) == {(0xFF, ("n0", "n1", "n2"))}
    view.put(Host("n1", dgx("h1"), busy(1, 0, 10)).view())
    assert alike(view) == {(0xFF, ("n0", "n2")), (0xFE, ("n1",))}
    view.drop(NodeId("n1"))
    view.drop(NodeId("n1"))
    assert alike(view) == {(0xFF, ("n0", "n2"))}
    view.put(Host("n1", dgx("h1"), sick=frozenset({7})).view())
    assert alike(view) == {(0xFF, ("n0", "n2")), (0x7F, ("n1",))}


def test_only_nodes_with_the_labels_asked_for_are_told() -> None:
    view = pool([Host("a", dgx("a"), labels="x y"), Host("b", dgx("b"), labels="x")])
    assert alike(view, "x y") == {(0xFF, ("a",))}
    view.put(Host("b", dgx("b"), labels="y x").view())
    assert alike(view, "x y") == {(0xFF, ("a", "b"))}


def test_a_node_that_takes_no_bookings_is_known_and_in_no_group() -> None:
    for flag in ({"ready": False}, {"reachable": False}, {"cordoned": True}, {"trusted": False}):
        view = pool([Host("n", dgx("a"), flags=flag)])
        assert alike(view) == set()
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


@given(pools(), WINDOWS, st.sampled_from([0, 1 << 21, (1 << 27) - 50, 1 << 40]))
def test_nodes_are_told_by_exactly_what_they_have_free(
    hosts: Sequence[Host], window: tuple[int, int], epoch: int
) -> None:
    """Wherever the window lies in the buckets of time."""
    start, end = epoch + window[0], epoch + window[0] + window[1]
    moved = [replace(host, bookings=_moved(host.bookings, epoch)) for host in hosts]
    told = dict[str, int]()
    for entry in pool(moved).alike(frozenset(), start, end):
        told |= dict.fromkeys(entry.node_ids(), entry.free)
    assert told == {host.id: host.free(start, end) for host in moved if host.schedulable}


def _moved(bookings: Sequence[Booking], by_ms: int) -> tuple[Booking, ...]:
    return tuple((at, start + by_ms, end + by_ms) for at, start, end in bookings)


MINUTE = 60_000
LENGTHS = st.sampled_from([1, MINUTE, 35 * MINUTE, 1 << 21, 1 << 27, 60 * 24 * 60 * MINUTE])


MOMENTS = (
    st.integers(0, 200 * 24 * 60 * MINUTE)
    | st.integers(0, 300).map(lambda n: n << 21)
    | st.integers(0, 90).map(lambda n: n * MINUTE)
)
RANGES = st.tuples(st.integers(0, 3), MOMENTS, LENGTHS, st.integers(1, 3)).map(
    lambda drawn: (drawn[0], drawn[1], drawn[1] + drawn[2] * drawn[3])
)
CALENDARS = st.lists(RANGES, max_size=4).map(tuple)


def told_free(view: PoolView, start: int, end: int) -> dict[str, int]:
    told = dict[str, int]()
    for entry in view.alike(frozenset(), start, end):
        told |= dict.fromkeys(entry.node_ids(), entry.free)
    return told


def told_changes(view: PoolView) -> list[tuple[list[NodeId], int]]:
    return [(sorted(ids), upto) for ids, upto in view.changes(frozenset(), 0)]


@settings(max_examples=200)
@given(st.lists(CALENDARS, min_size=1, max_size=4), MOMENTS, LENGTHS)
def test_long_bookings_and_long_windows_are_told_as_exactly(
    calendars: list[tuple[Booking, ...]], start: int, length: int
) -> None:
    """Against every booking by itself, with ranges from a millisecond to half a year."""
    hosts = [Host(f"n{i}", dgx("h", 4), bookings) for i, bookings in enumerate(calendars)]
    free = {host.id: host.free(start, start + length) for host in hosts}
    assert told_free(pool(hosts), start, start + length) == free


@settings(max_examples=200)
@given(CALENDARS, CALENDARS, RANGES, st.lists(st.tuples(MOMENTS, LENGTHS), max_size=4))
def test_a_node_that_changed_is_told_as_one_that_was_so_from_the_start(
    before: tuple[Booking, ...],
    after: tuple[Booking, ...],
    one_more: Booking,
    windows: list[tuple[int, int]],
) -> None:
    """However much of the calendar is the same before and after."""
    at, start, end = one_more
    view = pool([Host("n", dgx("h", 4), before), Host("m", dgx("h", 4))])
    steps = (
        Host("n", dgx("h", 4), (*before, *after)),
        Host("n", dgx("h", 4), after),
        Host("n", dgx("h", 4), (*after, one_more)),
    )
    for host in steps:
        node = host.view()
        if host is steps[-1]:
            node = view.nodes[NodeId("n")].with_booking([100 + at], Resources(), start, end)
        view.put(node)
        fresh = pool([host, Host("m", dgx("h", 4))])
        for begin, length in (*windows, *just_outside((*before, *after, one_more))):
            window = (begin, begin + length)
            assert told_free(view, *window) == told_free(fresh, *window)
        assert told_changes(view) == told_changes(fresh)
    assert view.nodes[NodeId("n")].differs(node) is None


@settings(max_examples=200)
@given(CALENDARS, CALENDARS, CALENDARS, st.lists(st.tuples(MOMENTS, LENGTHS), max_size=4))
def test_bookings_taken_in_one_by_one_are_told_as_those_that_were_there_from_the_start(
    before: tuple[Booking, ...],
    taken: tuple[Booking, ...],
    after: tuple[Booking, ...],
    windows: list[tuple[int, int]],
) -> None:
    """Also when another calendar follows, for the same range, and where the other ends."""
    view = pool([Host("n", dgx("h", 4), before), Host("m", dgx("h", 4))])
    booked = before
    beside = tuple(((at + 1) % 4, start, end) for at, start, end in taken)
    behind = tuple((at, end, end + 1) for at, _, end in taken)
    for at, start, end in (*taken, *beside, *behind):
        view.book(NodeId("n"), [100 + at], Resources(), Window(start, end))
        booked += ((at, start, end),)
    for step, calendar in enumerate((booked, after, ())):
        host = Host("n", dgx("h", 4), calendar)
        if step:
            view.put(host.view())
        fresh = pool([host, Host("m", dgx("h", 4))])
        for begin, length in (*windows, *just_outside(booked)):
            window = (begin, begin + length)
            assert told_free(view, *window) == told_free(fresh, *window)
        assert told_changes(view) == told_changes(fresh)


HOUR = 60 * MINUTE
DAYS: tuple[tuple[Booking, ...], ...] = (
    (),
    ((0, 9 * HOUR, 17 * HOUR),),
    ((0, 8 * HOUR, 20 * HOUR),),
    ((0, 17 * HOUR + 10 * MINUTE, 20 * HOUR),),
    ((0, 9 * HOUR, 17 * HOUR), (0, 17 * HOUR + 10 * MINUTE, 20 * HOUR)),
)
DAY = st.integers(0, len(DAYS) - 1)


@settings(max_examples=50)
@given(st.lists(st.tuples(DAY, st.dictionaries(st.integers(0, 39), DAY, max_size=3)), min_size=1))
def test_many_that_end_at_the_same_moment_are_told_as_exactly(
    turns: list[tuple[int, dict[int, int]]],
) -> None:
    """Of 40 nodes all but a few have the same day, and each time another one."""
    view = pool(Host(f"n{i}", dgx("h", 4)) for i in range(40))
    for usual, others in turns:
        days = [others.get(i, usual) for i in range(40)]
        hosts = [Host(f"n{i}", dgx("h", 4), DAYS[day]) for i, day in enumerate(days)]
        for host in hosts:
            view.put(host.view())
        for minutes in (-1, 0, 5, 10, 11):
            start = 17 * HOUR + minutes * MINUTE
            for window in ((start, start + 1), (start - HOUR, start), (start, start + HOUR)):
                assert told_free(view, *window) == {host.id: host.free(*window) for host in hosts}


def just_outside(calendar: Sequence[Booking]) -> list[tuple[int, int]]:
    """The milliseconds, as windows, just before and just after each booking."""
    return [(moment, 1) for _, start, end in calendar for moment in (start - 1, end) if moment >= 0]


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
    assert set(view.nodes) == set(fresh.nodes)
    assert view.knows_places == fresh.knows_places == any(h.rack or h.block for h in after)
    for window in ((0, 40), (20, 21), (50, 140)):
        assert alike(view, window=window) == alike(fresh, window=window)
    assert told_changes(view) == told_changes(fresh)


def alike(
    view: PoolView, labels: str = "", window: tuple[int, int] = (0, 100)
) -> set[tuple[int, tuple[NodeId, ...]]]:
    """(what is free, which nodes), of nodes of one kind together."""
    found = view.alike(frozenset(labels.split()), *window)
    return {(entry.free, tuple(sorted(entry.node_ids()))) for entry in found}
