"""Finds the best nodes for a demand: break least, fit tightest, then first by id. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from bcd.model.ids import NodeId
from bcd.placer.placement.choose import Choice, chooser
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.gang import Candidate, best_gang
from bcd.placer.placement.node import NodeView
from bcd.placer.placement.planes import Alike
from bcd.placer.placement.view import PoolView

# Of nodes that are equal but for their calendars, the tightest of so many is taken.
_COMPARED = 16
_TIGHTEST = itemgetter(0, 1)
_NONE: frozenset[NodeId] = frozenset()


@dataclass(frozen=True, slots=True)
class Found:
    """Where one member fits: the node, and for each entry the ids of the chosen atoms."""

    node_id: NodeId
    atom_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """When, and which nodes: never those in ``exclude``, those in ``avoid`` only if need be.

    Idle time before the window is counted from ``now_ms`` on.
    """

    start_ms: int
    end_ms: int
    now_ms: int = 0
    avoid: frozenset[NodeId] = _NONE
    exclude: frozenset[NodeId] = _NONE


def find(view: PoolView, demand: Demand, where: Where) -> tuple[Found, ...] | None:
    """The best distinct nodes for the whole window, by node id; None unless all members fit."""
    ranked = _ranked(view, demand, where)
    gang = best_gang(ranked, demand.gang_size, places=view.knows_places)
    if gang is None:
        return None
    members = sorted(gang, key=lambda candidate: candidate.node.facts.id)
    return tuple(_found(member.node, member.choice) for member in members)


def count_fitting(view: PoolView, demand: Demand, where: Where, most: int) -> int:
    """How many nodes could take a member; stops counting at ``most``."""
    found = 0
    for alike, _ in _choices(view, demand, where):
        if demand.resources or where.exclude:
            found += sum(1 for _ in islice(_able(view, demand, where, alike), most - found))
        else:
            found += alike.nodes.bit_count()
        if found >= most:
            return most
    return found


def fitting_ids(view: PoolView, demand: Demand, where: Where) -> Iterator[NodeId]:
    """The nodes that could take a member, in no order."""
    for alike, _ in _choices(view, demand, where):
        for node in _able(view, demand, where, alike):
            yield node.facts.id


def _choices(view: PoolView, demand: Demand, where: Where) -> Iterator[tuple[Alike, Choice]]:
    choices = chooser(demand.devices)
    for alike in view.alike(demand.labels, where.start_ms, where.end_ms):
        choice = choices.best(alike.kind.shape, alike.bookable, alike.free)
        if choice is not None:
            yield alike, choice


def _able(view: PoolView, demand: Demand, where: Where, alike: Alike) -> Iterator[NodeView]:
    """The nodes among these that are not excluded and give the host resources."""
    for node_id in alike.node_ids():
        node = view.nodes[node_id]
        if node_id not in where.exclude and node.gives(
            demand.resources, where.start_ms, where.end_ms
        ):
            yield node


def _ranked(view: PoolView, demand: Demand, where: Where) -> Iterator[Candidate]:
    """Every node that can take a member, the best first."""
    levels: defaultdict[tuple[int, int], list[tuple[Alike, Choice]]] = defaultdict(list)
    for alike, choice in _choices(view, demand, where):
        levels[(choice.broken, choice.leftover)].append((alike, choice))
    order = sorted(levels)
    for avoided in (False, True) if where.avoid else (False,):
        for level in order:
            yield from _level(view, demand, where, levels[level], avoided=avoided)


def _level(
    view: PoolView,
    demand: Demand,
    where: Where,
    level: Iterable[tuple[Alike, Choice]],
    *,
    avoided: bool,
) -> Iterator[Candidate]:
    """Nodes that break and leave the same, those with the tightest calendars first.

    Whether the host gives its part is asked in that order, of no more nodes than are looked at.
    """
    start_ms, end_ms, avoid, exclude = where.start_ms, where.end_ms, where.avoid, where.exclude
    candidates = (
        (node.devices.idle(mask, start_ms, end_ms, where.now_ms), node_id, node, choice)
        for alike, choice in level
        for mask in (sum(choice.masks),)
        for node_id in alike.node_ids()
        if node_id not in exclude and (node_id in avoid) == avoided
        for node in (view.nodes[node_id],)
    )
    while compared := list(islice(candidates, _COMPARED)):
        compared.sort(key=_TIGHTEST)
        for idle_ms, node_id, node, choice in compared:
            if node.gives(demand.resources, start_ms, end_ms):
                score = (avoided, choice.broken, choice.leftover, idle_ms, node_id)
                yield Candidate(node, choice, score)


def _found(node: NodeView, choice: Choice) -> Found:
    return Found(node.facts.id, tuple(_ids(node, mask) for mask in choice.masks))


def _ids(node: NodeView, mask: int) -> tuple[int, ...]:
    return tuple(
        atom_id for position, atom_id in enumerate(node.facts.atom_ids) if mask >> position & 1
    )
