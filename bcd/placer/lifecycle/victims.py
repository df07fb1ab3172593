"""Chooses which spot reservations yield: as few as may be, the youngest first. Pure (spec 7.7)."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from bcd.model.ids import NodeId, ReservationId
from bcd.model.reservation import Resources
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.node import NodeFacts, NodeView
from bcd.placer.placement.search import Where, find
from bcd.placer.placement.view import PoolView

Age = Mapping[ReservationId, int]
_NOBODY: frozenset[ReservationId] = frozenset()


@dataclass(frozen=True, slots=True)
class Room:
    """A node and what is booked on it, by whom.

    ``devices`` are (reservation, atom id, start, end), ``amounts`` (reservation, host resources,
    start, end).
    """

    facts: NodeFacts
    devices: Sequence[tuple[ReservationId, int, int, int]]
    amounts: Sequence[tuple[ReservationId, Resources, int, int]]


def choose_victims(
    rooms: Iterable[Room], spot: Age, demand: Demand, where: Where, elsewhere: int
) -> frozenset[ReservationId] | None:
    """Whom to displace so that the demand fits; None where that would not help.

    ``spot`` gives those who may be displaced with their age, higher is younger; ``elsewhere`` is
    how many nodes beside these rooms could take a member as they are. In each room nobody is
    displaced in vain; that the whole set of a gang is the smallest there is, is not promised.
    """
    offers: dict[NodeId, frozenset[ReservationId]] = {}
    for room in rooms:
        needed = _needed(room, spot, demand, where)
        if needed is not None:
            offers[room.facts.id] = needed
    chosen = _NOBODY
    for _ in range(demand.gang_size - elsewhere):
        if not offers:
            return None
        cheapest = min(offers, key=lambda node_id: _cost(offers[node_id] - chosen, spot, node_id))
        chosen |= offers.pop(cheapest)
    return chosen


def _cost(more: frozenset[ReservationId], spot: Age, node_id: NodeId) -> tuple[int, int, NodeId]:
    """Fewer first, then those whose oldest is the youngest."""
    oldest = min((spot[one] for one in more), default=0)
    return (len(more), -oldest, node_id)


def _needed(room: Room, spot: Age, demand: Demand, where: Where) -> frozenset[ReservationId] | None:
    """A smallest set of a node's spot reservations without which a member fits there.

    Smallest in that none of it can stay; the oldest are kept before the younger ones.
    """
    firm = {atom for one, atom, *_ in room.devices if one not in spot}
    if room.facts.bookable.bit_count() - len(firm) < sum(ask.count for ask in demand.devices):
        return None  # said at once for most nodes of a full pool
    here = {one for one, *_ in (*room.devices, *room.amounts)} & spot.keys()
    gone = frozenset(here)
    if not _fits(room, gone, demand, where):
        return None
    for one in sorted(here, key=lambda reservation_id: spot[reservation_id]):
        if _fits(room, gone - {one}, demand, where):
            gone -= {one}
    return gone


def _fits(room: Room, gone: frozenset[ReservationId], demand: Demand, where: Where) -> bool:
    node = without(room, gone)
    return find(PoolView([node]), demand.of(1), where) is not None


def without(room: Room, gone: Set[ReservationId]) -> NodeView:
    """The node as it would be without these reservations."""
    return NodeView(
        room.facts,
        ((atom, start, end) for who, atom, start, end in room.devices if who not in gone),
        ((amounts, start, end) for who, amounts, start, end in room.amounts if who not in gone),
    )
