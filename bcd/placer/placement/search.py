"""Finds the best node for a request: breaks least, fits tightest, then first by id. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bcd.model.ids import NodeId
from bcd.model.reservation import DeviceAsk
from bcd.placer.placement.choose import Choice, choose
from bcd.placer.placement.view import FOREVER, Group, NodeView, PoolView


@dataclass(frozen=True, slots=True)
class Found:
    """Where a request fits: the node, and for each entry the ids of the chosen atoms."""

    node_id: NodeId
    atom_ids: tuple[tuple[int, ...], ...]


_Score = tuple[int, int, int, NodeId]


def find(
    view: PoolView,
    asks: tuple[DeviceAsk, ...],
    start_ms: int,
    end_ms: int,
    *,
    avoid: frozenset[NodeId] = frozenset(),
) -> Found | None:
    """The best schedulable node outside ``avoid`` for the window, or None."""
    best: tuple[_Score, Choice] | None = None
    for group in view.groups:
        for score, choice in _scored(view, group, asks, start_ms, end_ms, avoid):
            if best is None or score < best[0]:
                best = (score, choice)
    if best is None:
        return None
    node = view.nodes[best[0][3]]
    return Found(node.facts.id, tuple(_ids(node, mask) for mask in best[1].masks))


def _scored(
    view: PoolView,
    group: Group,
    asks: tuple[DeviceAsk, ...],
    start_ms: int,
    end_ms: int,
    avoid: frozenset[NodeId],
) -> Iterator[tuple[_Score, Choice]]:
    apart = view.apart(group, start_ms, end_ms)
    for node_id in apart:
        if node_id not in avoid:
            yield from _scored_node(view.nodes[node_id], asks, start_ms, end_ms)
    out = avoid.union(apart)
    first = next((node_id for node_id in group.ids if node_id not in out), None)
    if first is not None:
        choice = choose(group.shape, group.bookable, group.free, asks)
        if choice is not None:
            yield (choice.broken, choice.leftover, FOREVER, first), choice


def _scored_node(
    node: NodeView, asks: tuple[DeviceAsk, ...], start_ms: int, end_ms: int
) -> Iterable[tuple[_Score, Choice]]:
    facts = node.facts
    choice = choose(facts.shape, facts.bookable, node.free(start_ms, end_ms), asks)
    if choice is None:
        return ()
    gap = node.gap_after(sum(choice.masks), end_ms)
    return (((choice.broken, choice.leftover, gap, facts.id), choice),)


def _ids(node: NodeView, mask: int) -> tuple[int, ...]:
    return tuple(
        atom_id for position, atom_id in enumerate(node.facts.atom_ids) if mask >> position & 1
    )
