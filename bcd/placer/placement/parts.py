"""When in a bucket of time devices begin and cease to be taken, of thousands of like nodes. Pure.

A part is the stretch of a bucket in which a device is taken that is not so throughout. Most begin
or end at a moment of their own, and many together at full hours: nodes of one part are told by
their places where they are few, as bits where they are many.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from bcd.placer.placement.node import NodeView
from bcd.placer.placement.shape import bits

FINE = 21  # a bucket is 2^21 ms, 35 minutes
FINE_MS = 1 << FINE
# A bucket, and from which moment of it until which, as one number.
Part = tuple[int, int]
_OFFSET = FINE + 1
_LAST_OFFSET = (1 << _OFFSET) - 1
_Nodes = tuple[int, ...] | int
_FEW = 16


class Parts:
    """For each part and mask of devices who has them taken in it; nodes go by their places."""

    __slots__ = ("_buckets", "_count")

    def __init__(self, count: int) -> None:
        """``count`` devices a node."""
        self._count = count
        self._buckets: dict[int, dict[tuple[int, int], _Nodes]] = {}

    def toggle(self, place: int, before: Mapping[Part, int], after: Mapping[Part, int]) -> None:
        """Take in what became of the masks of a node's parts."""
        for (bucket, part), mask in before.items() - after.items():
            known = self._buckets[bucket]
            left = known[part, mask] = _without(known[part, mask], place)
            if not left:
                del known[part, mask]
            if not known:
                del self._buckets[bucket]
        for (bucket, part), mask in after.items() - before.items():
            known = self._buckets.setdefault(bucket, {})
            known[part, mask] = _with(known.get((part, mask), ()), place)

    def outside(self, bucket: int, start_ms: int, end_ms: int) -> list[int]:
        """For each device who has it taken in a part of a bucket, but in none of the window's."""
        first = max(start_ms - (bucket << FINE), 0)
        last = min(end_ms - (bucket << FINE), FINE_MS)
        within: list[tuple[int, _Nodes]] = []
        without: list[tuple[int, _Nodes]] = []
        for (part, mask), nodes in self._buckets.get(bucket, {}).items():
            if part >> _OFFSET < last and part & _LAST_OFFSET > first:
                within.append((mask, nodes))
            else:
                without.append((mask, nodes))
        few = {place for _, nodes in without if isinstance(nodes, tuple) for place in nodes}
        if all(isinstance(nodes, tuple) for _, nodes in without):
            within = [
                (mask, nodes)
                for mask, nodes in within
                if isinstance(nodes, int) or not few.isdisjoint(nodes)
            ]
        also = self._planes_of(within)
        return [plane & ~also[at] for at, plane in enumerate(self._planes_of(without))]

    def _planes_of(self, groups: Iterable[tuple[int, _Nodes]]) -> list[int]:
        """For each device the nodes of the masks that it is in."""
        planes = [0] * self._count
        few: defaultdict[int, list[int]] = defaultdict(list)
        for mask, nodes in groups:
            if isinstance(nodes, tuple):
                few[mask] += nodes
                continue
            for position in positions(mask):
                planes[position] |= nodes
        for mask, places in few.items():
            among = bits_of(places)
            for position in positions(mask):
                planes[position] |= among
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


def _with(nodes: _Nodes, place: int) -> _Nodes:
    if isinstance(nodes, int):
        return nodes | 1 << place
    return (*nodes, place) if len(nodes) < _FEW else bits_of((*nodes, place))


def _without(nodes: _Nodes, place: int) -> _Nodes:
    if isinstance(nodes, int):
        return nodes & ~(1 << place)
    return tuple(other for other in nodes if other != place)
