"""What is booked when, against a look at every instant."""

from hypothesis import given
from hypothesis import strategies as st

from bcd.placer.placement.timeline import (
    FOREVER,
    Amounts,
    AmountTimeline,
    DeviceTimeline,
    differing,
)

END = 40
STARTS, LENGTHS = st.integers(0, 25), st.integers(1, 12)


def ranged(value: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, int, int]]:
    return st.tuples(value, STARTS, LENGTHS).map(lambda d: (d[0], d[1], d[1] + d[2]))


MASKS = st.lists(ranged(st.integers(1, 7)), max_size=5)
AMOUNTS = st.lists(ranged(st.tuples(*[st.integers(0, 3)] * 3)), max_size=5)
Intervals = list[tuple[int, int, int]]
AmountIntervals = list[tuple[Amounts, int, int]]


def mask_at(intervals: Intervals, at: int) -> int:
    mask = 0
    for one, start, end in intervals:
        mask |= one if start <= at < end else 0
    return mask


def sums_at(intervals: AmountIntervals, at: int) -> list[int]:
    now = [amounts for amounts, start, end in intervals if start <= at < end]
    return [sum(amounts[i] for amounts in now) for i in range(3)]


@given(MASKS, ranged(st.integers(1, 7)), STARTS, LENGTHS)
def test_devices_in_a_window_are_those_of_its_instants(
    intervals: Intervals, more: tuple[int, int, int], start: int, length: int
) -> None:
    every = [*intervals, more]
    grown = DeviceTimeline(intervals).with_interval(*more)
    for timeline, known in (
        (DeviceTimeline(intervals), intervals),
        (DeviceTimeline(every), every),
        (grown, every),
    ):
        taken = 0
        for at in range(start, start + length):
            taken |= mask_at(known, at)
        assert timeline.during(start, start + length) == taken


@given(MASKS, st.integers(-1, END))
def test_an_end_is_a_moment_at_which_some_device_was_taken_just_before_and_is_not_now(
    intervals: Intervals, after: int
) -> None:
    expected = [
        at for at in range(after + 1, END) if mask_at(intervals, at - 1) & ~mask_at(intervals, at)
    ]
    assert list(DeviceTimeline(intervals).ends(after)) == expected


@given(MASKS, st.integers(1, 7), STARTS, LENGTHS, st.integers(0, END))
def test_devices_are_idle_until_the_nearest_instant_at_which_one_is_taken(
    intervals: Intervals, mask: int, start: int, length: int, since: int
) -> None:
    end = start + length
    before = [at for at in range(since, start) if mask_at(intervals, at) & mask]
    idle_before = start - max(before) - 1 if before else max(0, start - since)
    after = [at for at in range(end, END) if mask_at(intervals, at) & mask]
    idle_after = after[0] - end if after else FOREVER
    idle = DeviceTimeline(intervals).idle(mask, start, end, since)
    assert idle == idle_before + idle_after


@given(MASKS, STARTS, LENGTHS)
def test_runs_are_the_instants_at_which_a_device_is_taken_one_after_the_other(
    intervals: Intervals, start: int, length: int
) -> None:
    """Each device by itself, and never two runs of it that touch."""
    runs = list(DeviceTimeline(intervals).runs(start, start + length))
    for device in (1, 2, 4):
        mine = sorted((since, until) for mask, since, until in runs if mask & device)
        instants = [at for since, until in mine for at in range(since, until)]
        window = range(start, start + length)
        assert instants == [at for at in window if mask_at(intervals, at) & device]
        ends = [until for _, until in mine[:-1]]
        assert all(until < since for until, (since, _) in zip(ends, mine[1:], strict=True))


@given(AMOUNTS, ranged(st.tuples(*[st.integers(0, 3)] * 3)), STARTS, LENGTHS)
def test_the_peak_is_the_most_of_each_amount_at_one_instant(
    intervals: AmountIntervals, more: tuple[Amounts, int, int], start: int, length: int
) -> None:
    every = [*intervals, more]
    grown = AmountTimeline(intervals).with_interval(*more)
    for timeline, known in (
        (AmountTimeline(intervals), intervals),
        (AmountTimeline(every), every),
        (grown, every),
    ):
        sums = [sums_at(known, at) for at in range(start, start + length)]
        assert timeline.peak(start, start + length) == tuple(max(s[i] for s in sums)
                                                             for i in range(3))  # fmt: skip


@given(AMOUNTS, st.integers(-1, END))
def test_an_end_of_amounts_is_a_moment_at_which_some_sum_falls(
    intervals: AmountIntervals, after: int
) -> None:
    expected = [
        at
        for at in range(after + 1, END)
        if any(b > n for b, n in zip(sums_at(intervals, at - 1), sums_at(intervals, at),
                                     strict=True))
    ]  # fmt: skip
    assert list(AmountTimeline(intervals).ends(after)) == expected


@given(MASKS, MASKS, MASKS)
def test_timelines_are_the_same_outside_the_stretch_in_which_they_differ(
    shared: Intervals, one: Intervals, other: Intervals
) -> None:
    first, second = [*shared, *one], [*shared, *other]
    a, b = DeviceTimeline(first), DeviceTimeline(second)
    span = differing((a.times, a.masks), (b.times, b.masks))
    start, end = span or (0, 0)
    for at in range(END):
        if not start <= at < end:
            assert mask_at(first, at) == mask_at(second, at)
    assert outside(a.times, start, end) == outside(b.times, start, end)


def outside(times: list[int], start: int, end: int) -> list[int]:
    return [time for time in times if not start <= time < end]


@given(AMOUNTS, ranged(st.tuples(*[st.integers(0, 3)] * 3)), STARTS, LENGTHS)
def test_what_is_left_in_a_window_is_left_at_each_of_its_instants(
    intervals: AmountIntervals, more: tuple[Amounts, int, int], start: int, length: int
) -> None:
    asked, whole = (1, 0, 2), (4, 3, 6)
    every = [*intervals, more]
    grown = AmountTimeline(intervals).with_interval(*more)
    for timeline, known in ((AmountTimeline(every), every), (grown, every)):
        left = all(
            taken + wanted <= all_of
            for at in range(start, start + length)
            for taken, wanted, all_of in zip(sums_at(known, at), asked, whole, strict=True)
            if wanted
        )
        assert timeline.leaves(asked, whole, start, start + length) == left
        assert grown.times == AmountTimeline(every).times
        assert grown.sums == AmountTimeline(every).sums
