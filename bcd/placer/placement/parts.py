"""When in a bucket of time devices begin and cease to be taken, of thousands of like nodes. Pure.

A part is the stretch of a bucket in which a device is taken that is not so throughout. Most begin
or end at a moment of their own, and many together at full hours: nodes of one part are told by
their places where they are few, as bits where they are many. What is looked through at each search
is kept in as few objects as possible, since they lie all over the memory.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache

from bcd.placer.placement.node import NodeView
from bcd.placer.placement.shape import bits

FINE = 21  # a bucket is 2^21 ms, 35 minutes
FINE_MS = 1 << FINE
# A bucket, and from which moment of it until which, as one number.
Part = tuple[int, int]
_OFFSET = FINE + 1
_LAST_OFFSET = (1 << _OFFSET) - 1
# A part and a mask of devices, as one number.
_MASK = 2 * _OFFSET
# The bits of many nodes; some places; or the complement of the only one, which is negative.
_Nodes = int | tuple[int, ...]
_FEW = 16


class Parts:
    """For each part and mask of devices who has them taken in it; nodes go by their places."""

    __slots__ = ("_buckets", "_count")

    def __init__(self, count: int) -> None:
        """``count`` devices a node."""
        self._count = count
        self._buckets: dict[int, dict[int, _Nodes]] = {}

    def toggle(self, place: int, before: Mapping[Part, int], after: Mapping[Part, int]) -> None:
        """Take in what became of the masks of a node's parts."""
        for (bucket, part), mask in before.items() - after.items():
            known = self._buckets[bucket]
            left = _without(known.pop(mask << _MASK | part), place)
            if left is not None:
                known[mask << _MASK | part] = left
            if not known:
                del self._buckets[bucket]
        for (bucket, part), mask in after.items() - before.items():
            known = self._buckets.setdefault(bucket, {})
            known[mask << _MASK | part] = _with(known.get(mask << _MASK | part), place)

    def outside(self, bucket: int, start_ms: int, end_ms: int) -> list[int]:
        """For each device who has it taken in a part of a bucket, but in none of the window's."""
        first = max(start_ms - (bucket << FINE), 0)
        last = min(end_ms - (bucket << FINE), FINE_MS)
        within: list[tuple[int, _Nodes]] = []
        without: list[tuple[int, _Nodes]] = []
        for key, nodes in self._buckets.get(bucket, {}).items():
            if key >> _OFFSET & _LAST_OFFSET < last and key & _LAST_OFFSET > first:
                within.append((key, nodes))
            else:
                without.append((key, nodes))
        few, many = self._gathered(without)
        if not many:  # which spares most of those within
            there = {place for places in few.values() for place in places}
            within = [(key, nodes) for key, nodes in within if _meets(nodes, there)]
        also = self._planes_of(*self._gathered(within))
        return [plane & ~also[at] for at, plane in enumerate(self._planes_of(few, many))]

    @staticmethod
    def _gathered(
        groups: Iterable[tuple[int, _Nodes]],
    ) -> tuple[Mapping[int, Sequence[int]], Sequence[tuple[int, int]]]:
        """The places of few nodes by mask, and (mask, bits) of many."""
        few: defaultdict[int, list[int]] = defaultdict(list)
        many: list[tuple[int, int]] = []
        for key, nodes in groups:
            if isinstance(nodes, tuple):
                few[key >> _MASK] += nodes
            elif nodes < 0:
                few[key >> _MASK].append(~nodes)
            else:
                many.append((key >> _MASK, nodes))
        return few, many

    def _planes_of(
        self, few: Mapping[int, Sequence[int]], many: Sequence[tuple[int, int]]
    ) -> list[int]:
        """For each device the nodes of the masks that it is in."""
        planes = [0] * self._count
        for mask, nodes in (*((mask, bits_of(places)) for mask, places in few.items()), *many):
            for position in positions(mask):
                planes[position] |= nodes
        return planes


def parts_in(node: NodeView, bucket: int) -> dict[Part, int]:
    """The parts of a node in a bucket, and the masks of the devices that are taken in them."""
    parts: dict[Part, int] = {}
    for mask, start_ms, until_ms in node.devices.runs(bucket << FINE, (bucket + 1) << FINE):
        add_part(parts, bucket, mask, start_ms, until_ms)
    return parts


def add_part(parts: dict[Part, int], bucket: int, mask: int, start_ms: int, until_ms: int) -> None:
    """Add these devices, taken without a break, to the parts of a bucket that it touches."""
    since = max(start_ms - (bucket << FINE), 0)
    until = min(until_ms - (bucket << FINE), FINE_MS)
    if since or until < FINE_MS:
        part = (bucket, since << _OFFSET | until)
        parts[part] = parts.get(part, 0) | mask


@lru_cache(maxsize=4096)
def positions(mask: int) -> tuple[int, ...]:
    """The devices of a mask."""
    return tuple(bits(mask))


def bits_of(places: Sequence[int]) -> int:
    """The bits at these places."""
    marks = bytearray((max(places) >> 3) + 1)
    for place in places:
        marks[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(marks, "little")


def _meets(nodes: _Nodes, places: Set[int]) -> bool:
    if isinstance(nodes, tuple):
        return not places.isdisjoint(nodes)
    return nodes >= 0 or ~nodes in places


def _with(nodes: _Nodes | None, place: int) -> _Nodes:
    if nodes is None:
        return ~place
    if isinstance(nodes, int):
        return nodes | 1 << place if nodes >= 0 else (~nodes, place)
    return (*nodes, place) if len(nodes) < _FEW else bits_of((*nodes, place))


def _without(nodes: _Nodes, place: int) -> _Nodes | None:
    if isinstance(nodes, tuple):
        left = tuple(other for other in nodes if other != place)
        return left if len(left) > 1 else ~left[0]
    return nodes & ~(1 << place) or None if nodes >= 0 else None
