"""What a node has booked over time, devices by mask and host resources by sum. Pure.

A timeline is a list of moments, ascending, and what holds from each of them until the next. Before
the first moment and from the last one on, nothing is booked.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from bcd.model.reservation import Resources

FOREVER = 1 << 62
Amounts = tuple[int, int, int]
_NOTHING: Amounts = (0, 0, 0)


def amounts_of(resources: Resources) -> Amounts:
    """(vcpu, memory in GiB, huge pages of 1 GiB)."""
    return (resources.vcpu, resources.memory_gib, resources.hugepages_1gi)


Span = tuple[int, int]


def differing(
    one: tuple[Sequence[int], Sequence[object]], other: tuple[Sequence[int], Sequence[object]]
) -> Span | None:
    """The stretch of time outside which two timelines, as (times, values), are the same."""
    (times, values), (others, other_values) = one, other
    shorter = min(len(times), len(others))
    first = 0
    while (
        first < shorter and times[first] == others[first] and values[first] == other_values[first]
    ):
        first += 1
    if first == len(times) == len(others):
        return None
    last = 1
    while (
        last <= shorter - first
        and times[-last] == others[-last]
        and values[-last] == other_values[-last]
    ):
        last += 1
    # From here on the two are the same; where they are not so even at the end, until their ends.
    same = len(times) - last + 1
    end_ms = times[same] if same < len(times) else max(0, *times[-1:], *others[-1:]) + 1
    start_ms = min(end_ms, *times[first : first + 1], *others[first : first + 1])
    return start_ms, end_ms


def both(one: Span | None, other: Span | None) -> Span | None:
    """The stretch from the first to the last moment of two."""
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


class DeviceTimeline:
    """Which devices are taken when: ``masks`` from each of ``times`` on."""

    __slots__ = ("masks", "times")

    def __init__(self, intervals: Iterable[tuple[int, int, int]] = ()) -> None:
        """``intervals`` are (mask, start, end); those of one device may overlap."""
        by_range: dict[tuple[int, int], int] = {}
        for mask, start_ms, end_ms in intervals:
            by_range[(start_ms, end_ms)] = by_range.get((start_ms, end_ms), 0) | mask
        self.times = sorted({moment for range_ in by_range for moment in range_})
        self.masks = [0] * len(self.times)
        for (start_ms, end_ms), mask in by_range.items():
            self._take(mask, start_ms, end_ms)

    def _take(self, mask: int, start_ms: int, end_ms: int) -> None:
        for place in range(bisect_left(self.times, start_ms), bisect_left(self.times, end_ms)):
            self.masks[place] |= mask

    def with_interval(self, mask: int, start_ms: int, end_ms: int) -> "DeviceTimeline":
        """This timeline with one more interval."""
        more = DeviceTimeline()
        more.times, more.masks = self.times.copy(), self.masks.copy()
        for moment in (start_ms, end_ms):
            place = bisect_left(more.times, moment)
            if place == len(more.times) or more.times[place] != moment:
                more.times.insert(place, moment)
                more.masks.insert(place, more.masks[place - 1] if place else 0)
        more._take(mask, start_ms, end_ms)
        return more

    def during(self, start_ms: int, end_ms: int) -> int:
        """What is taken at any moment of the window."""
        first = max(bisect_right(self.times, start_ms) - 1, 0)
        taken = 0
        for mask in self.masks[first : bisect_left(self.times, end_ms)]:
            taken |= mask
        return taken

    def runs(self, start_ms: int, end_ms: int) -> Iterator[tuple[int, int, int]]:
        """(mask, from, until) of what is taken without a break, each device by itself.

        Only within the window; those of the same stretch come together.
        """
        going: list[tuple[int, int]] = []
        before = 0
        for place in range(max(bisect_right(self.times, start_ms) - 1, 0), len(self.times)):
            moment = self.times[place]
            if moment >= end_ms:
                break
            mask = self.masks[place]
            ended, begun = before & ~mask, mask & ~before
            if ended:
                yield from ((m & ended, since, moment) for m, since in going if m & ended)
                going = [(m & ~ended, since) for m, since in going if m & ~ended]
            if begun:
                going.append((begun, max(moment, start_ms)))
            before = mask
        yield from ((mask, since, end_ms) for mask, since in going)

    def ends(self, after_ms: int) -> Iterator[int]:
        """The moments after ``after_ms`` at which some device becomes free, ascending."""
        for place in range(max(bisect_right(self.times, after_ms), 1), len(self.times)):
            if self.masks[place - 1] & ~self.masks[place]:
                yield self.times[place]

    def idle(self, mask: int, start_ms: int, end_ms: int, since_ms: int) -> int:
        """How long all of these devices are idle just before the window, and from its end on.

        Before it counts from ``since_ms`` on; FOREVER and more where nothing comes after it.
        """
        times, masks = self.times, self.masks
        place = bisect_left(times, start_ms) - 1
        free_ms = start_ms
        while place >= 0 and free_ms > since_ms and not masks[place] & mask:
            free_ms = times[place]
            place -= 1
        if place < 0 or free_ms < since_ms:
            free_ms = since_ms
        before_ms = start_ms - free_ms if free_ms < start_ms else 0
        for place in range(max(bisect_right(times, end_ms) - 1, 0), len(times)):
            if masks[place] & mask:
                return before_ms + max(0, times[place] - end_ms)
        return before_ms + FOREVER


class AmountTimeline:
    """How much of each host resource is taken when: ``sums`` from each of ``times`` on."""

    __slots__ = ("sums", "times")

    def __init__(self, intervals: Iterable[tuple[Amounts, int, int]] = ()) -> None:
        """``intervals`` are (amounts, start, end)."""
        changes: dict[int, Amounts] = {}
        for amounts, start_ms, end_ms in intervals:
            changes[start_ms] = _plus(changes.get(start_ms, _NOTHING), amounts)
            changes[end_ms] = _plus(changes.get(end_ms, _NOTHING), amounts, -1)
        self.times = sorted(changes)
        self.sums: list[Amounts] = []
        total = _NOTHING
        for moment in self.times:
            total = _plus(total, changes[moment])
            self.sums.append(total)

    def with_interval(self, amounts: Amounts, start_ms: int, end_ms: int) -> "AmountTimeline":
        """This timeline with one more interval."""
        more = AmountTimeline()
        more.times, more.sums = self.times.copy(), self.sums.copy()
        for moment in (start_ms, end_ms):
            place = bisect_left(more.times, moment)
            if place == len(more.times) or more.times[place] != moment:
                more.times.insert(place, moment)
                more.sums.insert(place, more.sums[place - 1] if place else _NOTHING)
        for place in range(bisect_left(more.times, start_ms), bisect_left(more.times, end_ms)):
            more.sums[place] = _plus(more.sums[place], amounts)
        return more

    def spans(self) -> Iterator[tuple[Amounts, int, int]]:
        """(amounts, start, end) from each change to the next, but where nothing is taken."""
        spans = zip(self.sums, self.times, self.times[1:], strict=False)
        return (span for span in spans if any(span[0]))

    def peak(self, start_ms: int, end_ms: int) -> Amounts:
        """The most that is taken of each at one moment of the window."""
        held = self._during(start_ms, end_ms)
        return _most(held) if held else _NOTHING

    def leaves(self, asked: Amounts, whole: Amounts, start_ms: int, end_ms: int) -> bool:
        """Whether at every moment of the window this much is left of the whole.

        Of what is not asked for there may be too little.
        """
        vcpu = whole[0] - asked[0] if asked[0] else FOREVER
        memory = whole[1] - asked[1] if asked[1] else FOREVER
        pages = whole[2] - asked[2] if asked[2] else FOREVER
        if vcpu < 0 or memory < 0 or pages < 0:
            return False
        for taken in self._during(start_ms, end_ms):
            if taken[0] > vcpu or taken[1] > memory or taken[2] > pages:
                return False
        return True

    def _during(self, start_ms: int, end_ms: int) -> Sequence[Amounts]:
        first = max(bisect_right(self.times, start_ms) - 1, 0)
        return self.sums[first : bisect_left(self.times, end_ms)]

    def ends(self, after_ms: int) -> Iterator[int]:
        """The moments after ``after_ms`` at which some amount becomes free, ascending."""
        for place in range(max(bisect_right(self.times, after_ms), 1), len(self.times)):
            before, now = self.sums[place - 1], self.sums[place]
            if any(b > n for b, n in zip(before, now, strict=True)):
                yield self.times[place]


def _plus(one: Amounts, other: Amounts, sign: int = 1) -> Amounts:
    return (one[0] + sign * other[0], one[1] + sign * other[1], one[2] + sign * other[2])


def _most(held: Sequence[Amounts]) -> Amounts:
    return (max(a[0] for a in held), max(a[1] for a in held), max(a[2] for a in held))
