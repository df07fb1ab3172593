"""Explains why a request fits nowhere, filter by filter, and when it would. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from bcd.model.reservation import DeviceAsk, Topology
from bcd.placer.placement.choose import choose
from bcd.placer.placement.view import NodeView, PoolView

FILTERS = ("state", "trust", "labels", "model", "topology", "devices", "resources")
_MAX_LOOKS = 4_000


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """No node fits now: how many nodes each filter rejected, and the nearest time that would do.

    ``earliest_ms`` is None when none of the bookings known now has to end first, or too many
    would have to be looked at.
    """

    rejected: Mapping[str, int]
    earliest_ms: int | None

    @property
    def sentence(self) -> str:
        """For people: what was looked at, and what to do."""
        total = sum(self.rejected.values())
        if not total:
            return "the pool has no nodes; add one, or use another pool"
        parts = [
            f"{name} rejected {self.rejected[name]}" for name in FILTERS if self.rejected.get(name)
        ]
        return f"none of {total} nodes fits: {', '.join(parts)}"


def explain(
    view: PoolView, asks: tuple[DeviceAsk, ...], start_ms: int, duration_ms: int
) -> Unschedulable:
    """Count each node under the first filter that rejects it, and look for the nearest fit."""
    end_ms = start_ms + duration_ms
    rejected: Counter[str] = Counter()
    hopeful: list[NodeView] = []
    for node in view.nodes.values():
        reason = _rejection(node, asks, start_ms, end_ms)
        rejected[reason] += 1
        if reason in ("devices", "topology") and node.taken:
            hopeful.append(node)
    return Unschedulable(rejected, _earliest(hopeful, asks, start_ms, duration_ms))


def _rejection(node: NodeView, asks: tuple[DeviceAsk, ...], start_ms: int, end_ms: int) -> str:
    facts = node.facts
    if not facts.trusted:
        return "trust"
    if not facts.schedulable:
        return "state"
    shape, bookable = facts.shape, facts.bookable
    if not all(shape.matching(ask) for ask in asks):
        return "model"
    loose = tuple(msgspec.structs.replace(ask, topology=Topology.ANY) for ask in asks)
    if choose(shape, bookable, bookable, loose) is None:
        return "devices"  # too few, or some are unhealthy, gone, or shared in another mode
    if choose(shape, bookable, bookable, asks) is None:
        return "topology"
    if choose(shape, bookable, node.free(start_ms, end_ms), loose) is not None:
        return "topology"
    return "devices"


def _earliest(
    nodes: list[NodeView], asks: tuple[DeviceAsk, ...], start_ms: int, duration_ms: int
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
            free = node.free(moment, moment + duration_ms)
            if choose(node.facts.shape, node.facts.bookable, free, asks) is not None:
                best = moment
                break
    return best
