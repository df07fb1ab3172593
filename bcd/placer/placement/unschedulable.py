"""Explains why a request fits nowhere, filter by filter, and when it would. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bcd.model.reservation import DeviceAsk, Topology
from bcd.placer.placement.choose import choose
from bcd.placer.placement.shape import Shape
from bcd.placer.placement.view import NodeFacts, NodeView, PoolView

FILTERS = ("state", "trust", "labels", "model", "topology", "devices", "resources")
_MAX_LOOKS = 4_000
_MAX_KINDS = 8


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """No node fits now: how many nodes each filter rejected, and the nearest time that would do.

    ``earliest_ms`` is None when none of the bookings known now has to end first, or too many
    would have to be looked at. ``shortage`` says what no node has enough of at all.
    """

    rejected: Mapping[str, int]
    earliest_ms: int | None
    shortage: str = ""

    @property
    def sentence(self) -> str:
        """For people: what was looked at, and what to do."""
        total = sum(self.rejected.values())
        if not total:
            return "the pool has no nodes; add one, or use another pool"
        parts = [
            f"{name} rejected {self.rejected[name]}" for name in FILTERS if self.rejected.get(name)
        ]
        return f"none of {total} nodes fits: {', '.join(parts)}{self.shortage}"


def explain(
    view: PoolView, asks: tuple[DeviceAsk, ...], start_ms: int, duration_ms: int
) -> Unschedulable:
    """Count each node under the first filter that rejects it, and look for the nearest fit."""
    end_ms = start_ms + duration_ms
    question = _Question(asks)
    rejected: Counter[str] = Counter()
    hopeful: list[NodeView] = []
    for node in view.nodes.values():
        reason = _rejection(node, question, start_ms, end_ms)
        rejected[reason] += 1
        if reason in ("devices", "topology") and node.taken:
            hopeful.append(node)
    earliest_ms = _earliest(hopeful, question, start_ms, duration_ms)
    return Unschedulable(rejected, earliest_ms, _shortage(view, asks))


class _Question:
    """Whether a node's free devices would do, with the topology asked for and with any.

    Nodes are alike and the entries cost time to compare, so that answers are kept by node alone.
    """

    def __init__(self, asks: tuple[DeviceAsk, ...]) -> None:
        self._asks = asks
        self._loose = tuple(msgspec.structs.replace(a, topology=Topology.ANY) for a in asks)
        self._known: dict[tuple[Shape, int, int, bool], bool] = {}
        self._models: dict[Shape, bool] = {}

    def knows_model(self, shape: Shape) -> bool:
        """Whether the shape has a device for every entry, free or not."""
        if shape not in self._models:
            self._models[shape] = all(shape.matching(ask) for ask in self._asks)
        return self._models[shape]

    def fits(self, facts: NodeFacts, free: int, *, loose: bool = False) -> bool:
        """Whether these free devices of the node serve every entry."""
        key = (facts.shape, facts.bookable, free, loose)
        if key not in self._known:
            asks = self._loose if loose else self._asks
            self._known[key] = choose(facts.shape, facts.bookable, free, asks) is not None
        return self._known[key]


def _shortage(view: PoolView, asks: Sequence[DeviceAsk]) -> str:
    """The first entry that no node could serve, in service and free or not, in words."""
    shapes = {node.facts.shape for node in view.nodes.values()}
    for ask in asks:
        most = max((shape.matching(ask).bit_count() for shape in shapes), default=0)
        if not most:
            return f"; no node has such devices{_instead(shapes, ask)}"
        if most < ask.count:
            return f"; no node has {ask.count} such devices, the largest has {most}"
    return ""


def _instead(shapes: Iterable[Shape], ask: DeviceAsk) -> str:
    """What there is of the class that was asked for."""
    own = [
        slot for shape in shapes for slot in shape.slots if slot.device_class is ask.device_class
    ]
    kinds = sorted({" ".join((slot.model, slot.profile)).strip() for slot in own})
    if not kinds:
        return f", and none of class {ask.device_class}"
    more = f" and {len(kinds) - _MAX_KINDS} more" if len(kinds) > _MAX_KINDS else ""
    return f"; there are: {', '.join(kinds[:_MAX_KINDS])}{more}"


def _rejection(node: NodeView, question: _Question, start_ms: int, end_ms: int) -> str:
    facts = node.facts
    if not facts.trusted:
        return "trust"
    if not facts.schedulable:
        return "state"
    if not question.knows_model(facts.shape):
        return "model"
    if not question.fits(facts, facts.bookable, loose=True):
        return "devices"  # too few, or some are unhealthy, gone, or shared in another mode
    if not question.fits(facts, facts.bookable):
        return "topology"
    if question.fits(facts, node.free(start_ms, end_ms), loose=True):
        return "topology"
    return "devices"


def _earliest(
    nodes: list[NodeView], question: _Question, start_ms: int, duration_ms: int
) -> int | None:
    """The nearest end of a booking from which some node fits for the whole duration.

    A view may still know bookings that are over; their ends lie behind ``start_ms``.
    """
    best: int | None = None
    looks = 0
    for node in sorted(nodes, key=lambda node: node.first_end):
        if best is not None and node.first_end >= best:
            break
        for moment in node.ends():
            if moment <= start_ms:
                continue
            looks += 1
            if looks > _MAX_LOOKS or (best is not None and moment >= best):
                break
            if question.fits(node.facts, node.free(moment, moment + duration_ms)):
                best = moment
                break
    return best
