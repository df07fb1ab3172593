"""Picks devices on one node: what satisfies every entry and breaks the least. Pure.

"Breaking" a set (an NVLink clique, a NUMA node, a physical GPU's instances) means taking a part
of one that was whole: a set that is already broken, or is taken whole, costs nothing. Results are
remembered by shape and free mask, which thousands of nodes share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from bcd.model.reservation import DeviceAsk, Topology
from bcd.placer.placement.shape import Shape, bits

_MAX_TRIES = 2_000
_STRICTNESS = {Topology.NVLINK_ALL: 0, Topology.SAME_NUMA: 1, Topology.ANY: 2}


@dataclass(frozen=True, slots=True)
class Choice:
    """Masks of the chosen atoms, one for each entry of the request, and what the choice costs.

    ``broken`` counts newly broken sets, ``leftover`` matching atoms that stay free on the node.
    """

    masks: tuple[int, ...]
    broken: int
    leftover: int


@lru_cache(maxsize=65536)
def choose(shape: Shape, bookable: int, free: int, asks: tuple[DeviceAsk, ...]) -> Choice | None:
    """The best choice of free atoms for all entries at once, or None when there is none.

    ``bookable`` are the atoms that exist for tenants at all, ``free`` those free in the window.
    """
    order = sorted(
        range(len(asks)), key=lambda i: (_STRICTNESS[asks[i].topology], -asks[i].count, i)
    )
    picked = _Search(shape, bookable, asks).pick(free, order)
    if picked is None:
        return None
    taken = sum(picked.values())
    wanted = 0
    for ask in asks:
        wanted |= shape.matching(ask)
    return Choice(
        tuple(picked[position] for position in range(len(asks))),
        _newly_broken(shape, bookable, free, taken),
        (free & wanted & ~taken).bit_count(),
    )


class _Search:
    """Entry by entry, best set first, going back when a later entry finds no place."""

    def __init__(self, shape: Shape, bookable: int, asks: Sequence[DeviceAsk]) -> None:
        self._shape = shape
        self._bookable = bookable
        self._asks = asks
        self._tries = 0

    def pick(self, free: int, order: Sequence[int]) -> dict[int, int] | None:
        if not order:
            return {}
        ask = self._asks[order[0]]
        for mask in self._candidates(free, ask):
            self._tries += 1
            if self._tries > _MAX_TRIES:
                return None
            rest = self.pick(free & ~mask, order[1:])
            if rest is not None:
                return rest | {order[0]: mask}
        return None

    def _candidates(self, free: int, ask: DeviceAsk) -> Sequence[int]:
        shape = self._shape
        matching = free & shape.matching(ask)
        found: dict[int, tuple[int, int]] = {}
        for group in _groups(shape, matching, ask):
            if group.bit_count() >= ask.count:
                mask = _tightest(shape, self._bookable, free, group, ask.count)
                broken = _newly_broken(shape, self._bookable, free, mask)
                found[mask] = (broken, group.bit_count())
        return sorted(found, key=lambda mask: (*found[mask], mask))


def _groups(shape: Shape, matching: int, ask: DeviceAsk) -> Sequence[int]:
    if ask.count == 1 and ask.topology is Topology.NVLINK_ALL:
        return (matching,)  # no pair to link
    return shape.groups(matching, ask.topology)


def _tightest(shape: Shape, bookable: int, free: int, group: int, count: int) -> int:
    """``count`` atoms of a group: from the fewest, tightest and already broken parts of it."""
    apart = group
    for numa in shape.numa_masks:
        apart &= ~numa
    levels = ((*shape.numa_masks, apart), shape.gpu_masks)
    return _from_parts(levels, bookable, free, group, count)


def _from_parts(
    levels: Sequence[Sequence[int]], bookable: int, free: int, group: int, count: int
) -> int:
    if not levels:
        return sum(1 << position for position in list(bits(group))[:count])
    parts = [part & group for part in levels[0] if part & group]
    wholes = {part & group: part & bookable for part in levels[0]}

    def cost(part: int) -> tuple[bool, int, int]:
        whole = wholes[part]
        breaks = whole & free == whole and part.bit_count() > count
        return (breaks, part.bit_count(), part)

    fitting = [part for part in parts if part.bit_count() >= count]
    if fitting:
        return _from_parts(levels[1:], bookable, free, min(fitting, key=cost), count)
    largest = max(parts, key=lambda part: (part.bit_count(), -part))
    rest = _from_parts(levels, bookable, free, group & ~largest, count - largest.bit_count())
    return largest | rest


def _newly_broken(shape: Shape, bookable: int, free: int, taken: int) -> int:
    """How many sets of at least two atoms were wholly free and are left in part."""
    sets = {*shape.cliques_within(bookable)}
    sets.update(mask & bookable for mask in (*shape.numa_masks, *shape.gpu_masks))
    return sum(
        1
        for mask in sets
        if mask.bit_count() > 1 and mask & free == mask and mask & taken and mask & ~taken
    )
