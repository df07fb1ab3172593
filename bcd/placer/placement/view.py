"""A pool as the search sees it: nodes, their free devices over time, grouped by likeness. Pure.

Nodes with the same shape and the same devices taken are interchangeable until a booking of
theirs ends or starts, so that a search asks once for a whole group of them.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bcd.model.ids import NodeId
from bcd.placer.placement.shape import Shape, bits

FOREVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node's standing and devices. ``atom_ids`` are in the order of the shape's bits."""

    id: NodeId
    ready: bool
    reachable: bool
    cordoned: bool
    trusted: bool
    labels: frozenset[str]
    shape: Shape
    bookable: int
    atom_ids: tuple[int, ...]

    @property
    def schedulable(self) -> bool:
        """Whether the node takes new bookings at all (spec 1.3)."""
        return self.ready and self.reachable and self.trusted and not self.cordoned


class NodeView:
    """A node with its live bookings: (atom id, start, end) in milliseconds, half-open."""

    __slots__ = ("_intervals", "facts", "first_end", "last_start", "taken")

    def __init__(self, facts: NodeFacts, bookings: Iterable[tuple[int, int, int]]) -> None:
        self.facts = facts
        places = {atom_id: position for position, atom_id in enumerate(facts.atom_ids)}
        self._intervals: dict[int, list[tuple[int, int]]] = {}
        self.first_end = FOREVER
        self.last_start = 0
        self.taken = 0
        for atom_id, start_ms, end_ms in bookings:
            position = places[atom_id]
            self._intervals.setdefault(position, []).append((start_ms, end_ms))
            self.first_end = min(self.first_end, end_ms)
            self.last_start = max(self.last_start, start_ms)
            self.taken |= 1 << position
        for intervals in self._intervals.values():
            intervals.sort()

    def with_booking(self, atom_ids: Iterable[int], start_ms: int, end_ms: int) -> "NodeView":
        """This node with one more booking of these atoms."""
        ids = self.facts.atom_ids
        live = [
            (ids[position], start, end)
            for position, intervals in self._intervals.items()
            for start, end in intervals
        ]
        return NodeView(self.facts, (*live, *((one, start_ms, end_ms) for one in atom_ids)))

    def free(self, start_ms: int, end_ms: int) -> int:
        """The bookable atoms with no booking in the window, nor a rival mode on their GPU."""
        busy = 0
        for position, intervals in self._intervals.items():
            if any(start < end_ms and end > start_ms for start, end in intervals):
                busy |= 1 << position
        return self._without(busy)

    def free_of_all(self) -> int:
        """The bookable atoms without any live booking."""
        return self._without(self.taken)

    def _without(self, busy: int) -> int:
        rivals = self.facts.shape.rival_masks
        blocked = busy
        for position in bits(busy):
            blocked |= rivals[position]
        return self.facts.bookable & ~blocked

    def is_simple(self, start_ms: int, end_ms: int) -> bool:
        """Whether every live booking overlaps the window, so that ``free`` is ``free_of_all``."""
        return self.first_end > start_ms and self.last_start < end_ms

    def ends(self) -> Sequence[int]:
        """When bookings end, ascending, each once."""
        return sorted({end for intervals in self._intervals.values() for _, end in intervals})

    def gap_after(self, mask: int, end_ms: int) -> int:
        """The shortest idle time that these atoms would have after ``end_ms``."""
        gap = FOREVER
        for position in bits(mask):
            for start, _ in self._intervals.get(position, ()):
                if start >= end_ms:
                    gap = min(gap, start - end_ms)
                    break
        return gap


@dataclass(slots=True)
class Group:
    """Schedulable nodes of one shape with the same atoms free of all bookings; ids ascend.

    ``first_end`` and ``last_start`` bound those of the members, also of some that left; the view's
    ``apart`` puts them right.
    """

    shape: Shape
    bookable: int
    free: int
    ids: list[NodeId] = field(default_factory=list)
    first_end: int = FOREVER
    last_start: int = 0

    def is_simple(self, start_ms: int, end_ms: int) -> bool:
        """Whether every member is simple for the window."""
        return self.first_end > start_ms and self.last_start < end_ms


class PoolView:
    """Every node of a pool; ``put`` and ``drop`` keep the groups in step."""

    def __init__(self, nodes: Iterable[NodeView] = ()) -> None:
        self._nodes: dict[NodeId, NodeView] = {}
        self._groups: dict[tuple[Shape, int, int], Group] = {}
        for node in nodes:
            self.put(node)

    @property
    def nodes(self) -> Mapping[NodeId, NodeView]:
        """Nodes by id, schedulable or not."""
        return self._nodes

    @property
    def groups(self) -> Iterable[Group]:
        """Groups of schedulable nodes."""
        return self._groups.values()

    def apart(self, group: Group, start_ms: int, end_ms: int) -> Sequence[NodeId]:
        """The members that are not simple for the window: each must be looked at by itself."""
        if group.is_simple(start_ms, end_ms):
            return ()
        members = [self._nodes[node_id] for node_id in group.ids]
        group.first_end = min(node.first_end for node in members)
        group.last_start = max(node.last_start for node in members)
        return [node.facts.id for node in members if not node.is_simple(start_ms, end_ms)]

    def put(self, node: NodeView) -> None:
        """Add a node or replace what was known of it."""
        self.drop(node.facts.id)
        self._nodes[node.facts.id] = node
        if not node.facts.schedulable:
            return
        key = self._key(node)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(*key)
        insort(group.ids, node.facts.id)
        group.first_end = min(group.first_end, node.first_end)
        group.last_start = max(group.last_start, node.last_start)

    def drop(self, node_id: NodeId) -> None:
        """Forget a node, if it was known."""
        node = self._nodes.pop(node_id, None)
        if node is None or not node.facts.schedulable:
            return
        key = self._key(node)
        group = self._groups[key]
        del group.ids[bisect_left(group.ids, node_id)]
        if not group.ids:
            del self._groups[key]

    @staticmethod
    def _key(node: NodeView) -> tuple[Shape, int, int]:
        return (node.facts.shape, node.facts.bookable, node.free_of_all())
