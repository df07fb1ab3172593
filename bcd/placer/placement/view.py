"""A pool as the search sees it: every node, and the schedulable ones by kind. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bcd.model.ids import NodeId
from bcd.model.reservation import Resources, Window
from bcd.placer.placement.node import NodeFacts, NodeView
from bcd.placer.placement.planes import Alike, Kind
from bcd.placer.placement.shape import Shape


class PoolView:
    """Every node of a pool; ``put`` and ``drop`` keep the kinds in step."""

    def __init__(self, nodes: Iterable[NodeView] = ()) -> None:
        self._nodes = {node.facts.id: node for node in nodes}
        self._kinds: dict[tuple[Shape, frozenset[str]], Kind] = {}
        self._placed = sum(_says_where(node) for node in self._nodes.values())
        by_kind: defaultdict[tuple[Shape, frozenset[str]], list[NodeView]] = defaultdict(list)
        for node in self._nodes.values():
            if node.facts.schedulable:
                by_kind[(node.facts.shape, node.facts.labels)].append(node)
        for key, alike in by_kind.items():
            self._kinds[key] = Kind(*key)
            self._kinds[key].fill(alike)

    @property
    def nodes(self) -> Mapping[NodeId, NodeView]:
        """Nodes by id, schedulable or not."""
        return self._nodes

    @property
    def knows_places(self) -> bool:
        """Whether some node says in which rack or block it stands."""
        return self._placed > 0

    def alike(self, labels: frozenset[str], start_ms: int, end_ms: int) -> Iterator[Alike]:
        """Schedulable nodes with these labels, by what they have free in the window."""
        for kind in self._kinds.values():
            if labels <= kind.labels:
                yield from kind.alike(start_ms, end_ms)

    @property
    def horizon_ms(self) -> int:
        """Behind everything that is booked on schedulable nodes."""
        ends = (upto_ms for kind in self._kinds.values() for upto_ms, _ in kind.changes(0))
        return max(ends, default=0)

    def changes(
        self, labels: frozenset[str], after_ms: int
    ) -> Iterator[tuple[Sequence[NodeId], int]]:
        """Schedulable nodes with these labels of which something changes, stretch by stretch.

        From the stretch of ``after_ms`` on, in order of time, each with its end; a node comes once
        a stretch.
        """
        found: defaultdict[int, list[tuple[Kind, int]]] = defaultdict(list)
        for kind in self._kinds.values():
            if labels <= kind.labels:
                for upto_ms, nodes in kind.changes(after_ms):
                    found[upto_ms].append((kind, nodes))
        for upto_ms in sorted(found):
            among = found[upto_ms]
            yield [node_id for kind, nodes in among for node_id in kind.named(nodes)], upto_ms

    def put(self, node: NodeView) -> None:
        """Add a node or replace what was known of it."""
        before = self._nodes.get(node.facts.id)
        self._placed += _says_where(node) - (before is not None and _says_where(before))
        known = None if before is None else self._kind_of(before.facts)
        kind = self._kind_of(node.facts)
        if before is not None and known is not None and known is not kind:
            self._leave(known, before)
            before = None
        if kind is not None:
            kind.put(node, before if known is kind else None)
        self._nodes[node.facts.id] = node

    def book(
        self, node_id: NodeId, atom_ids: Sequence[int], resources: Resources, window: Window
    ) -> None:
        """Take in one more booking on a node.

        Where devices that were free before it, in it and after it are taken, only its own moments
        are looked at, whatever else is booked on the node.
        """
        node = self._nodes[node_id]
        start_ms, end_ms = window.start_ms, window.end_ms
        after = node.with_booking(atom_ids, resources, start_ms, end_ms)
        mask = node.taken_by(atom_ids)
        kind = self._kind_of(node.facts)
        if kind is None or node.devices.during(start_ms - 1, end_ms + 1) & mask:
            self.put(after)
            return
        kind.book(node, after, mask, start_ms, end_ms)
        self._nodes[node_id] = after

    def drop(self, node_id: NodeId) -> None:
        """Forget a node, if it was known."""
        node = self._nodes.pop(node_id, None)
        self._placed -= node is not None and _says_where(node)
        kind = None if node is None else self._kind_of(node.facts)
        if node is not None and kind is not None:
            self._leave(kind, node)

    def _kind_of(self, facts: NodeFacts) -> Kind | None:
        if not facts.schedulable:
            return None
        key = (facts.shape, facts.labels)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = Kind(*key)
        return kind

    def _leave(self, kind: Kind, node: NodeView) -> None:
        kind.drop(node)
        if not kind:
            del self._kinds[(kind.shape, kind.labels)]


def _says_where(node: NodeView) -> bool:
    return bool(node.facts.rack or node.facts.block)
