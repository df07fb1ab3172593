"""One node as the search sees it: its standing, its devices, and what is booked there. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge

from bcd.model.ids import NodeId
from bcd.model.reservation import Resources
from bcd.placer.placement.shape import Shape
from bcd.placer.placement.timeline import (
    Amounts,
    AmountTimeline,
    DeviceTimeline,
    Span,
    amounts_of,
    both,
    differing,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node's standing, devices and host. ``atom_ids`` are in the order of the shape's bits.

    ``capacity`` is what the host can give beside devices, None where it books none; ``rack`` and
    ``block`` say where it stands, empty where nobody said.
    """

    id: NodeId
    ready: bool
    reachable: bool
    cordoned: bool
    trusted: bool
    labels: frozenset[str]
    shape: Shape
    bookable: int
    atom_ids: tuple[int, ...]
    capacity: Resources | None = None
    rack: str = ""
    block: str = ""

    @property
    def schedulable(self) -> bool:
        """Whether the node takes new bookings at all (spec 1.3)."""
        return self.ready and self.reachable and self.trusted and not self.cordoned


class NodeView:
    """A node with its live bookings; times in milliseconds, windows half-open."""

    __slots__ = ("_whole", "amounts", "devices", "facts")

    def __init__(
        self,
        facts: NodeFacts,
        bookings: Iterable[tuple[int, int, int]] = (),
        amounts: Iterable[tuple[Resources, int, int]] = (),
    ) -> None:
        """``bookings`` are (atom id, start, end), ``amounts`` (host resources, start, end)."""
        self.facts = facts
        self._whole = _amounts_in_all(facts)
        places = {atom_id: position for position, atom_id in enumerate(facts.atom_ids)}
        self.devices = DeviceTimeline(
            (facts.shape.consumed(1 << places[atom_id]), start_ms, end_ms)
            for atom_id, start_ms, end_ms in bookings
        )
        self.amounts = AmountTimeline(
            (amounts_of(resources), start_ms, end_ms) for resources, start_ms, end_ms in amounts
        )

    def with_facts(self, facts: NodeFacts) -> "NodeView":
        """The same bookings under facts that do not concern the devices' order."""
        node = self._with(self.devices, self.amounts)
        node.facts, node._whole = facts, _amounts_in_all(facts)
        return node

    def with_booking(
        self, atom_ids: Iterable[int], resources: Resources, start_ms: int, end_ms: int
    ) -> "NodeView":
        """This node with one more booking of these atoms and host resources."""
        devices = self.devices.with_interval(self.taken_by(atom_ids), start_ms, end_ms)
        amounts = self.amounts
        if resources:
            amounts = amounts.with_interval(amounts_of(resources), start_ms, end_ms)
        return self._with(devices, amounts)

    def taken_by(self, atom_ids: Iterable[int]) -> int:
        """The mask of these atoms and of those that cannot be taken beside them."""
        places = self.facts.atom_ids
        mask = 0
        for atom_id in atom_ids:
            mask |= 1 << places.index(atom_id)
        return self.facts.shape.consumed(mask)

    def _with(self, devices: DeviceTimeline, amounts: AmountTimeline) -> "NodeView":
        node = NodeView.__new__(NodeView)
        node.facts, node._whole = self.facts, self._whole
        node.devices, node.amounts = devices, amounts
        return node

    def free(self, start_ms: int, end_ms: int) -> int:
        """The bookable atoms with no booking in the window, nor a rival mode on their GPU."""
        return self.facts.bookable & ~self.devices.during(start_ms, end_ms)

    def gives(self, resources: Resources, start_ms: int, end_ms: int) -> bool:
        """Whether its host has these amounts left at every instant of the window."""
        if not resources:
            return True
        whole = self._whole
        return whole is not None and self.amounts.leaves(
            amounts_of(resources), whole, start_ms, end_ms
        )

    def lacks(self, resources: Resources, start_ms: int, end_ms: int) -> Mapping[str, int]:
        """What the host has left of each resource that it has too little of, by its API name.

        Empty when at every instant of the window it can give these amounts beside what is booked.
        """
        if not resources:
            return {}
        capacity = self.facts.capacity or Resources()
        peak = self.amounts.peak(start_ms, end_ms)
        names = ("vcpu", "memoryGiB", "hugepages1Gi")
        asked, whole = amounts_of(resources), amounts_of(capacity)
        return {
            name: max(0, total - taken)
            for name, wanted, total, taken in zip(names, asked, whole, peak, strict=True)
            if wanted and wanted > total - taken
        }

    def differs(self, other: "NodeView") -> Span | None:
        """The stretch of time in which something else is booked than on an ``other``."""
        mine, theirs = self.devices, other.devices
        devices = differing((mine.times, mine.masks), (theirs.times, theirs.masks))
        own, its = self.amounts, other.amounts
        return both(devices, differing((own.times, own.sums), (its.times, its.sums)))

    def ends(self, after_ms: int) -> Iterator[int]:
        """The moments after ``after_ms`` at which something becomes free, ascending."""
        return merge(self.devices.ends(after_ms), self.amounts.ends(after_ms))

    def idle(self, mask: int, start_ms: int, end_ms: int, since_ms: int) -> int:
        """The idle time that a booking of these atoms would leave before it and after it.

        Before it counts from ``since_ms`` on.
        """
        return self.devices.idle(mask, start_ms, end_ms, since_ms)


def _amounts_in_all(facts: NodeFacts) -> Amounts | None:
    return None if facts.capacity is None else amounts_of(facts.capacity)
