"""When a demand would fit, and for how long it could stay. Pure."""

from collections.abc import Iterator
from itertools import groupby

from bcd.model.ids import NodeId
from bcd.placer.placement.choose import chooser
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.node import NodeView
from bcd.placer.placement.search import Where, count_fitting, fitting_ids
from bcd.placer.placement.view import PoolView

_MAX_LOOKS = 4_000
_NONE: frozenset[NodeId] = frozenset()


def earliest(
    view: PoolView,
    demand: Demand,
    not_before_ms: int,
    duration_ms: int,
    exclude: frozenset[NodeId] = _NONE,
) -> int | None:
    """The first moment from ``not_before_ms`` on from which all members fit for the duration.

    The duration includes the pool's turnaround. None when none of the bookings known now has to
    end first, or too many would have to be looked at.
    """
    where = Where(start_ms=not_before_ms, end_ms=not_before_ms + duration_ms, exclude=exclude)
    size = demand.gang_size
    fitting = set(fitting_ids(view, demand, where))
    if len(fitting) >= size:
        return not_before_ms
    looks = 0
    # What fits at some moment goes on to fit until something starts, and begins to only at an end.
    for moment, freed in _ends(view, demand, not_before_ms):
        for node in freed:
            looks += 1
            if node.facts.id not in exclude and _fits(node, demand, moment, duration_ms):
                fitting.add(node.facts.id)
        if len(fitting) >= size:
            looks += len(fitting)
            fitting = {
                node_id
                for node_id in fitting
                if _fits(view.nodes[node_id], demand, moment, duration_ms)
            }
            if len(fitting) >= size:
                return moment
        if looks > _MAX_LOOKS:
            return None
    return None


def longest_free(view: PoolView, demand: Demand, start_ms: int) -> int | None:
    """For how many milliseconds from ``start_ms`` on all members fit, the turnaround included.

    0 when they do not fit at all, None when nothing that is booked now would end it.
    """

    def fits(duration_ms: int) -> bool:
        where = Where(start_ms=start_ms, end_ms=start_ms + duration_ms)
        return count_fitting(view, demand, where, demand.gang_size) >= demand.gang_size

    too_long = max(view.horizon_ms - start_ms, 0) + 1
    if fits(too_long):
        return None
    longest = 0
    while too_long - longest > 1:
        middle = (longest + too_long) // 2
        if fits(middle):
            longest = middle
        else:
            too_long = middle
    return longest


def next_end(view: PoolView, demand: Demand, after_ms: int) -> int | None:
    """The first moment after ``after_ms`` at which something becomes free on a node that would do.

    Up to then, what fits nowhere fits nowhere. None when nothing that is booked ends any more.
    """
    return next((moment for moment, _ in _ends(view, demand, after_ms)), None)


def _ends(
    view: PoolView, demand: Demand, after_ms: int
) -> Iterator[tuple[int, Iterator[NodeView]]]:
    """The moments at which something becomes free, ascending, each with the nodes concerned."""
    for node_ids, upto_ms in view.changes(demand.labels, after_ms):
        freed = []
        for node_id in node_ids:
            for moment in view.nodes[node_id].ends(after_ms):
                if moment >= upto_ms:
                    break
                freed.append((moment, node_id))
        for moment, entries in groupby(sorted(freed), key=lambda entry: entry[0]):
            yield moment, (view.nodes[node_id] for _, node_id in entries)
        after_ms = max(after_ms, upto_ms - 1)


def _fits(node: NodeView, demand: Demand, start_ms: int, duration_ms: int) -> bool:
    facts, end_ms = node.facts, start_ms + duration_ms
    choice = chooser(demand.devices).best(facts.shape, facts.bookable, node.free(start_ms, end_ms))
    return choice is not None and node.gives(demand.resources, start_ms, end_ms)
