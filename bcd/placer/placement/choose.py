"""Picks devices on one node: what satisfies every entry and breaks the least. Pure.

"Breaking" a set (an NVLink clique, the devices of one class on a NUMA node or a physical GPU)
means taking a part of one that was whole: a set that is already broken, or is taken whole, costs
nothing. So shares go to GPUs that are shared already. A set counts by its pairs, so that a large
one is kept whole rather than two small ones. Results are remembered by shape and free mask, which
thousands of nodes share.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from bcd.model.device import DeviceClass
from bcd.model.reservation import DeviceAsk, Topology
from bcd.placer.placement.shape import Shape, bits

_MAX_TRIES = 2_000
# An 8-GPU node has at most 70 ways to choose for one entry, and 2,520 for four of two.
_MAX_WAYS = 5_000
_MAX_KNOWN = 16_384
_STRICTNESS = {Topology.NVLINK_ALL: 0, Topology.SAME_NUMA: 1, Topology.ANY: 2}

_Picked = dict[int, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """Masks of the chosen atoms, one for each entry of the request, and what the choice costs.

    ``broken`` counts the pairs of newly broken sets, ``leftover`` matching atoms that stay free on
    the node.
    """

    masks: tuple[int, ...]
    broken: int
    leftover: int


class Chooser:
    """The best choices for the same entries, each worked out once: comparing entries costs time."""

    def __init__(self, asks: tuple[DeviceAsk, ...]) -> None:
        self._asks = asks
        self._known: dict[tuple[Shape, int, int], Choice | None] = {}

    def best(self, shape: Shape, bookable: int, free: int) -> Choice | None:
        """See ``choose``."""
        key = (shape, bookable, free)
        try:
            return self._known[key]
        except KeyError:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            choice = self._known[key] = choose(shape, bookable, free, self._asks)
            return choice


@lru_cache(maxsize=256)
def chooser(asks: tuple[DeviceAsk, ...]) -> Chooser:
    """What remembers the choices for these entries."""
    return Chooser(asks)


def choose(shape: Shape, bookable: int, free: int, asks: tuple[DeviceAsk, ...]) -> Choice | None:
    """The best choice of free atoms for all entries at once, or None when there is none.

    ``bookable`` are the atoms that exist for tenants at all, ``free`` those free in the window.
    Every way is looked at where there are few; on nodes with many devices the likeliest ones are.
    """
    wanted = 0
    for ask in asks:
        wanted |= shape.matching(ask)
    search = _Search(shape, bookable, free, asks)
    picked = search.best()
    if picked is None:
        return None
    taken = sum(picked.values())
    return Choice(
        tuple(picked[position] for position in range(len(asks))),
        search.broken_by(taken),
        (free & wanted & ~shape.consumed(taken)).bit_count(),
    )


class _Search:
    """Entry by entry, the strictest and largest first, going back where a later one finds none."""

    def __init__(self, shape: Shape, bookable: int, free: int, asks: Sequence[DeviceAsk]) -> None:
        self._shape = shape
        self._bookable = bookable
        self._free = free
        self._asks = asks
        self._sets = _sets_of(shape, bookable)
        self._whole = tuple(mask for mask in self._sets if mask & free == mask)
        self._order = sorted(range(len(asks)), key=self._rank)
        self._tries = 0

    def _rank(self, position: int) -> tuple[int, int, int, int]:
        ask = self._asks[position]
        matching = self._shape.matching(ask).bit_count()
        return (_STRICTNESS[ask.topology], matching, -ask.count, position)

    def best(self) -> _Picked | None:
        """The cheapest way for every entry, by position."""
        if not self._may_fit():
            return None
        if self._ways() > _MAX_WAYS:
            return self._first(self._free, self._order)
        return min(self._every(self._free, self._order), key=self._cost, default=None)

    def _may_fit(self) -> bool:
        """No entry, together with those that can only take from the same, asks for too much."""
        asked = [(self._matching(ask), ask.count) for ask in self._asks]
        return all(
            sum(count for part, count in asked if not part & ~matching) <= matching.bit_count()
            for matching, _ in asked
        )

    def broken_by(self, taken: int) -> int:
        """Pairs of the sets that were wholly free and are left in part."""
        gone = self._shape.consumed(taken)
        return sum(
            math.comb(mask.bit_count(), 2) for mask in self._whole if mask & gone and mask & ~gone
        )

    def _cost(self, picked: _Picked) -> tuple[int, int, list[int]]:
        """What breaks, then what stays together of what was broken before, then by position."""
        taken = sum(picked.values())
        rest = self._free & ~self._shape.consumed(taken)
        together = sum(math.comb((mask & rest).bit_count(), 2) for mask in self._sets)
        return (self.broken_by(taken), -together, [picked[i] for i in range(len(self._asks))])

    def _matching(self, ask: DeviceAsk) -> int:
        return self._free & self._shape.matching(ask)

    def _ways(self) -> int:
        """How many there are at most; entries that match the same devices share them.

        Twins count once: of shares of one GPU only how many are taken matters.
        """
        ways = 1
        left: dict[int, int] = {}
        for ask in self._asks:
            matching = self._matching(ask)
            among = left.get(matching, matching.bit_count())
            kinds = sum(1 for twins in self._shape.twins if twins & matching)
            ways *= min(math.comb(among, ask.count), math.comb(kinds + ask.count - 1, ask.count))
            left[matching] = among - ask.count
        return ways

    def _every(self, free: int, order: Sequence[int]) -> Iterator[_Picked]:
        if not order:
            yield {}
            return
        ask = self._asks[order[0]]
        seen = set()
        for group in self._groups(free, ask):
            parts = [twins & group for twins in self._shape.twins if twins & group]
            for mask in _combinations(parts, ask.count):
                if mask not in seen:
                    seen.add(mask)
                    for rest in self._every(self._without(free, mask), order[1:]):
                        yield rest | {order[0]: mask}

    def _first(self, free: int, order: Sequence[int]) -> _Picked | None:
        if not order:
            return {}
        for mask in self._likely(free, order):
            self._tries += 1
            if self._tries > _MAX_TRIES:
                return None
            rest = self._first(self._without(free, mask), order[1:])
            if rest is not None:
                return rest | {order[0]: mask}
        return None

    def _likely(self, free: int, order: Sequence[int]) -> Sequence[int]:
        """For each group its tightest part, and the tightest that no later entry could use."""
        ask = self._asks[order[0]]
        later = 0
        for position in order[1:]:
            later |= self._shape.matching(self._asks[position])
        found: dict[int, tuple[int, int]] = {}
        for group in self._groups(free, ask):
            for part in (group, group & ~later):
                if part.bit_count() >= ask.count:
                    mask = self._tightest(free, part, ask)
                    found.setdefault(mask, (self.broken_by(mask), group.bit_count()))
        return sorted(found, key=lambda mask: (*found[mask], mask))

    def _groups(self, free: int, ask: DeviceAsk) -> Sequence[int]:
        """Sets of free atoms of which any choice satisfies the entry."""
        matching = free & self._shape.matching(ask)
        if ask.count == 1:
            return (matching,) if matching else ()  # one device lies well to itself
        return self._shape.groups(matching, ask.topology)

    def _without(self, free: int, mask: int) -> int:
        """What is free once these are taken: a GPU taken in one mode is so in no other."""
        return free & ~self._shape.consumed(mask)

    def _tightest(self, free: int, group: int, ask: DeviceAsk) -> int:
        """``count`` atoms of a group: from the fewest, tightest and already broken parts of it."""
        shape = self._shape
        if ask.device_class is not DeviceClass.GPU:
            return _packed(shape, self._bookable, free, group, ask.count)
        apart = group
        for numa in shape.numa_masks:
            apart &= ~numa
        return _from_parts((*shape.numa_masks, apart), self._bookable, free, group, ask.count)


def _combinations(parts: Sequence[int], count: int) -> Iterator[int]:
    """Every way to take so many of these atoms; of each part the first ones."""
    if len(parts) == sum(part.bit_count() for part in parts):
        for chosen in itertools.combinations(parts, count):
            yield sum(chosen)
        return
    first, rest = parts[0], parts[1:]
    others = sum(part.bit_count() for part in rest)
    for number in range(max(0, count - others), min(count, first.bit_count()) + 1):
        mine = sum(1 << position for position in itertools.islice(bits(first), number))
        for more in _combinations(rest, count - number):
            yield mine | more


def _packed(shape: Shape, bookable: int, free: int, group: int, count: int) -> int:
    """Shares of GPUs: those of shared GPUs first, the fullest ones before."""

    def idle(gpu: int) -> bool:
        return gpu & bookable & ~free == 0

    parts = [(idle(gpu), (gpu & group).bit_count(), gpu & group) for gpu in shape.gpu_masks]
    order = itertools.chain.from_iterable(bits(part) for _, _, part in sorted(parts))
    return sum(1 << position for position in itertools.islice(order, count))


def _from_parts(parts: Sequence[int], bookable: int, free: int, group: int, count: int) -> int:
    """Whole GPUs: all from the tightest NUMA node that has them, else the largest ones whole."""

    def cost(part: int) -> tuple[bool, int, int]:
        mine = part & group
        breaks = part & bookable & ~free == 0 and mine.bit_count() > count
        return (breaks, mine.bit_count(), mine)

    fitting = [part for part in parts if (part & group).bit_count() >= count]
    if fitting:
        tightest = min(fitting, key=cost) & group
        return sum(1 << position for position in itertools.islice(bits(tightest), count))
    largest = max((part & group for part in parts), key=lambda part: (part.bit_count(), -part))
    rest = count - largest.bit_count()
    return largest | _from_parts(parts, bookable, free, group & ~largest, rest)


@lru_cache(maxsize=4096)
def _sets_of(shape: Shape, bookable: int) -> tuple[int, ...]:
    """What should stay whole: cliques, and of each NUMA node and GPU the devices of one class.

    Those with at least two atoms, each once.
    """
    sets = {*shape.cliques_within(bookable)}
    for device_class in {slot.device_class for slot in shape.slots}:
        own = bookable & shape.of_class(device_class)
        sets.update(mask & own for mask in (*shape.numa_masks, *shape.gpu_masks))
    return tuple(sorted(mask for mask in sets if mask.bit_count() > 1))
