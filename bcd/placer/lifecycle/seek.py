"""Looks for a place: the one way in which a reservation gets bookings, whoever asks for them."""

from dataclasses import replace

from bcd.model.ids import NodeId
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.preempt import make_room
from bcd.placer.placement.allowed import barred
from bcd.placer.placement.booking import Placed, Placements
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store.reservations import StoredReservation


def seek(
    hand: Hand,
    placements: Placements,
    row: StoredReservation,
    avoid: frozenset[NodeId] = frozenset(),
    *,
    rehearse: bool = False,
) -> Placed | Unschedulable:
    """Book what a reservation asks for, for as long as it has come to by extensions.

    Where that fits nowhere, spot reservations yield, unless it is one itself; nothing is looked for
    where the pool no longer allows it. See ``Placements.place`` for ``avoid`` and ``rehearse``.
    """
    bar = barred(hand.tx, hand.held.pool, row)
    if bar is not None:
        return bar
    request = row.asking_ms(row.duration_ms)
    whole = row if request is row.request else replace(row, request=request)
    outcome = placements.place(hand.tx, hand.held, whole, avoid, rehearse=rehearse)
    if isinstance(outcome, Placed) or row.request.spot:
        return outcome
    return make_room(hand, placements, whole, outcome, avoid, rehearse=rehearse)
