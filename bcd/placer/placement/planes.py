"""Who has what taken when, for thousands of like nodes at once: one bit a node. Pure.

Time is cut into buckets. For each bucket and device there is a plane: an integer with a bit for
every node whose device is taken at some moment of the bucket. A window's planes are the union of
those of its buckets. Of the first and the last, of which it may have only a part, it leaves out
what is taken in the rest alone: for each bucket it is known when in it a device's time begins or
ends. Long bookings are kept in coarse buckets, so that neither a booking nor a window of years
costs much.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bcd.model.ids import NodeId
from bcd.placer.placement.node import NodeView
from bcd.placer.placement.parts import (
    FINE,
    FINE_MS,
    Part,
    Parts,
    add_part,
    bits_of,
    parts_in,
    positions,
)
from bcd.placer.placement.shape import Shape, bits
from bcd.placer.placement.timeline import FOREVER, Span

_COARSE = 27  # 37 hours
_PER_COARSE = 1 << (_COARSE - FINE)
# What a plane is about: a fine bucket; a coarse one that is taken throughout, or at any moment; a
# fine one in which something changes, host resources included.
_PART, _THROUGHOUT, _TOUCHED, _CHANGES = range(4)
_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Alike:
    """Nodes, as bits of their kind, with the same devices bookable and free in a window."""

    kind: "Kind"
    bookable: int
    free: int
    nodes: int

    def node_ids(self) -> Iterator[NodeId]:
        """The nodes, in the order in which the kind came to know them."""
        return self.kind.named(self.nodes)


class Kind:
    """Schedulable nodes of one shape and with the same labels."""

    __slots__ = (
        "_changes", "_count", "_ids", "_members", "_out", "_parts", "_places", "_planes", "labels",
        "shape",
    )  # fmt: skip

    def __init__(self, shape: Shape, labels: frozenset[str]) -> None:
        self.shape = shape
        self.labels = labels
        self._count = len(shape.slots)
        self._ids: list[NodeId] = []
        self._places: dict[NodeId, int] = {}
        self._members = 0
        self._out = [0] * self._count
        self._planes: dict[_Key, list[int]] = {}
        self._parts = Parts(self._count)
        self._changes: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._members)

    def named(self, nodes: int) -> Iterator[NodeId]:
        """The ids of these bits, ascending."""
        text = bin(nodes)[:1:-1]
        place = text.find("1")
        while place >= 0:
            yield self._ids[place]
            place = text.find("1", place + 1)

    def fill(self, nodes: Iterable[NodeView]) -> None:
        """Take in many nodes that it does not know, which is far faster than one by one."""
        found: defaultdict[tuple[_Key, int], list[int]] = defaultdict(list)
        for place, node in enumerate(nodes, start=len(self._ids)):
            self._places[node.facts.id] = place
            self._ids.append(node.facts.id)
            self._members |= 1 << place
            marks, parts = _marks(node, (0, FOREVER))
            for mark in marks.items():
                found[mark].append(place)
            self._parts.toggle(place, {}, parts)
            for position in bits(self._unbookable(node)):
                self._out[position] |= 1 << place
        for (key, mask), places in found.items():
            among = bits_of(places)
            if key[0] == _CHANGES:
                self._changes[key[1]] = self._changes.get(key[1], 0) | among
                continue
            planes = self._planes.setdefault(key, [0] * self._count)
            for position in positions(mask):
                planes[position] |= among

    def put(self, after: NodeView, before: NodeView | None) -> None:
        """Take a node in, or what became of it."""
        place = self._places.get(after.facts.id)
        if place is None:
            place = self._places[after.facts.id] = len(self._ids)
            self._ids.append(after.facts.id)
        self._members |= 1 << place
        self._toggle(place, before, after)

    def book(
        self, before: NodeView, after: NodeView, mask: int, start_ms: int, end_ms: int
    ) -> None:
        """Take in that these devices of a member are taken for a window, and host resources.

        They must have been free in it, and just before and after it: what is taken without a
        break is marked as one.
        """
        place = self._places[after.facts.id]
        bit = 1 << place
        marks: dict[_Key, int] = {}
        _mark(marks, mask, start_ms, end_ms - 1)
        for key, devices in marks.items():
            planes = self._planes.get(key)
            if planes is None:
                planes = self._planes[key] = [0] * self._count
            for position in positions(devices):
                planes[position] |= bit
        for bucket in {start_ms >> FINE, (end_ms - 1) >> FINE}:
            old, new = parts_in(before, bucket), parts_in(after, bucket)
            self._parts.toggle(place, old, new)
        for bucket in (start_ms >> FINE, end_ms >> FINE):
            self._changes[bucket] = self._changes.get(bucket, 0) | bit

    def drop(self, before: NodeView) -> None:
        """Forget a node; its place is kept for its return."""
        place = self._places[before.facts.id]
        self._members &= ~(1 << place)
        self._toggle(place, before, None)

    def _toggle(self, place: int, before: NodeView | None, after: NodeView | None) -> None:
        bit = 1 << place
        span: Span | None = (0, FOREVER)
        if before is not None and after is not None:
            span = after.differs(before)
        old, old_parts = ({}, {}) if before is None or span is None else _marks(before, span)
        new, new_parts = ({}, {}) if after is None or span is None else _marks(after, span)
        self._parts.toggle(place, old_parts, new_parts)
        for key in old.keys() | new.keys():
            mask = new.get(key, 0)
            changed = old.get(key, 0) ^ mask
            if changed and key[0] == _CHANGES:
                self._toggle_change(key[1], bit)
            elif changed:
                planes = self._planes.get(key)
                if planes is None:
                    planes = self._planes[key] = [0] * self._count
                for position in positions(changed):
                    planes[position] ^= bit
                if not mask and not any(planes):
                    del self._planes[key]
        for position in bits(self._unbookable(before) ^ self._unbookable(after)):
            self._out[position] ^= bit

    def _toggle_change(self, bucket: int, bit: int) -> None:
        nodes = self._changes.get(bucket, 0) ^ bit
        if nodes:
            self._changes[bucket] = nodes
        else:
            del self._changes[bucket]

    def changes(self, after_ms: int) -> Iterable[tuple[int, int]]:
        """Stretches of time that end after ``after_ms``, by their ends, in which nodes change.

        With the nodes' bits; in no order.
        """
        first = after_ms >> FINE
        return [
            ((bucket + 1) << FINE, nodes)
            for bucket, nodes in self._changes.items()
            if bucket >= first
        ]

    def _unbookable(self, node: NodeView | None) -> int:
        return 0 if node is None else ((1 << self._count) - 1) & ~node.facts.bookable

    def alike(self, start_ms: int, end_ms: int) -> Iterator[Alike]:
        """The members by what they have bookable and free in the window, each once."""
        whole = (1 << self._count) - 1
        taken = self._taken(start_ms, end_ms)
        for out, among in _split(self._members, self._out):
            bookable = whole & ~out
            found: dict[int, int] = {}
            for blocked, nodes in _split(among, taken):
                free = bookable & ~blocked
                found[free] = found.get(free, 0) | nodes
            for free, nodes in found.items():
                yield Alike(self, bookable, free, nodes)

    def _taken(self, start_ms: int, end_ms: int) -> list[int]:
        """For each device who has it taken in the window."""
        edges = {moment >> FINE for moment in (start_ms, end_ms) if moment % FINE_MS}
        taken = self._union(self._keys(start_ms, end_ms, edges))
        for bucket in edges:
            planes = self._planes.get((_PART, bucket))
            if planes is not None:
                outside = self._parts.outside(bucket, start_ms, end_ms)
                for position, plane in enumerate(planes):
                    taken[position] |= plane & ~outside[position]
        return taken

    def _union(self, keys: Iterable[_Key]) -> list[int]:
        union = [0] * self._count
        for key in keys:
            planes = self._planes.get(key)
            if planes is not None:
                for position, plane in enumerate(planes):
                    if plane:
                        union[position] |= plane
        return union

    def _keys(self, start_ms: int, end_ms: int, edges: set[int]) -> Iterable[_Key]:
        """The buckets that make up a window but for its edges; of a very long one those there are.

        What is taken throughout a coarse bucket is so in every part of it.
        """
        last_ms = end_ms - 1
        if (last_ms - start_ms) >> _COARSE > len(self._planes):
            return [
                key
                for key in self._planes
                if _within(key, start_ms, last_ms) and not (key[0] == _PART and key[1] in edges)
            ]
        keys = []
        for coarse in range(start_ms >> _COARSE, (last_ms >> _COARSE) + 1):
            if start_ms <= coarse << _COARSE and (coarse + 1) << _COARSE <= end_ms:
                keys.append((_TOUCHED, coarse))
                continue
            keys.append((_THROUGHOUT, coarse))
            first = max(start_ms >> FINE, coarse * _PER_COARSE)
            last = min(last_ms >> FINE, (coarse + 1) * _PER_COARSE - 1)
            keys += [(_PART, fine) for fine in range(first, last + 1) if fine not in edges]
        return keys


def _within(key: _Key, start_ms: int, last_ms: int) -> bool:
    about, bucket = key
    if about == _PART:
        return start_ms >> FINE <= bucket <= last_ms >> FINE
    return about == _THROUGHOUT and start_ms >> _COARSE <= bucket <= last_ms >> _COARSE


def _split(nodes: int, planes: list[int]) -> Iterable[tuple[int, int]]:
    """The nodes by the mask of the planes that they are in."""
    parts = [(0, nodes)] if nodes else []
    for position, plane in enumerate(planes):
        if plane:
            bit = 1 << position
            divided = []
            for mask, part in parts:
                inside = part & plane
                if inside:
                    divided.append((mask | bit, inside))
                if inside != part:
                    divided.append((mask, part ^ inside))
            parts = divided
    return parts


def _marks(node: NodeView, span: Span) -> tuple[dict[_Key, int], dict[Part, int]]:
    """Which planes a node is in, by what they are about, in all coarse buckets of a span.

    And when in a fine bucket its devices are taken that are so in a part of it.
    """
    marks: dict[_Key, int] = {}
    parts: dict[Part, int] = {}
    times = node.devices.times
    first_ms = span[0] >> _COARSE << _COARSE
    last_ms = (((span[1] - 1) >> _COARSE) + 1 << _COARSE) - 1
    for mask, start_ms, until_ms in node.devices.runs(first_ms, last_ms + 1):
        _mark(marks, mask, start_ms, until_ms - 1)
        for bucket in {start_ms >> FINE, (until_ms - 1) >> FINE}:
            add_part(parts, bucket, mask, start_ms, until_ms)
    for moment in (*times, *node.amounts.times):
        if first_ms <= moment <= last_ms:
            marks[(_CHANGES, moment >> FINE)] = 1
    return marks, parts


def _mark(marks: dict[_Key, int], mask: int, start_ms: int, last_ms: int) -> None:
    """Add the planes of devices that are taken without a break."""
    for coarse in range(start_ms >> _COARSE, (last_ms >> _COARSE) + 1):
        key = (_TOUCHED, coarse)
        marks[key] = marks.get(key, 0) | mask
        first = max(start_ms >> FINE, coarse * _PER_COARSE)
        last = min(last_ms >> FINE, (coarse + 1) * _PER_COARSE - 1)
        if start_ms <= coarse << _COARSE and last_ms >= ((coarse + 1) << _COARSE) - 1:
            key = (_THROUGHOUT, coarse)
            marks[key] = marks.get(key, 0) | mask
        else:
            for fine in range(first, last + 1):
                key = (_PART, fine)
                marks[key] = marks.get(key, 0) | mask
