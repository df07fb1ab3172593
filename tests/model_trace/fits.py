"""A pool small enough to try every choice of devices: does anything fit, and is a choice allowed?

Part of the reference: knows nothing of the program that it judges.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

DeviceKey = tuple[str, str]  # class and id
Amounts = tuple[int, int, int]  # CPUs, GiB of memory, huge pages of 1 GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One device of a host. Equal ``fabric`` words mean NVLink between them; empty means none."""

    kind: str
    id: str
    gpu: str
    numa: int
    fabric: str = ""

    @property
    def key(self) -> DeviceKey:
        """Class and id."""
        return (self.kind, self.id)


@dataclass(frozen=True, slots=True)
class Ask:
    """``count`` devices of a class that lie to each other as ``topology`` says."""

    kind: str
    count: int
    topology: str = "any"


@dataclass(slots=True)
class Host:
    """A host as the reference believes it to be; ``spare`` is what it can give beside devices."""

    id: str
    spare: Amounts = (0, 0, 0)
    parts: dict[DeviceKey, Part] = field(default_factory=dict)
    well: set[DeviceKey] = field(default_factory=set)
    reachable: bool = True
    cordoned: bool = False
    draining: bool = False
    trusted: bool = True

    @property
    def open(self) -> bool:
        """Whether it takes new bookings."""
        return self.reachable and self.trusted and not self.cordoned

    def can_serve(self, parts: Iterable[DeviceKey]) -> bool:
        """Whether it could serve these at a start that is still to come."""
        standing = self.reachable and self.trusted and not self.draining
        return standing and self.well.issuperset(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """A device booked for ``[start, end)``."""

    claim: str
    grant: str
    host: str
    part: Part
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Host resources booked for ``[start, end)``."""

    claim: str
    grant: str
    host: str
    amounts: Amounts
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Need:
    """The devices and amounts that each of ``size`` distinct hosts has to give."""

    asks: tuple[Ask, ...]
    size: int = 1
    amounts: Amounts = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """What is kept for the oldest reservation that waits, from all younger ones (spec 7.5)."""

    claim: str
    parts: tuple[tuple[str, Part], ...]
    amounts: Amounts
    start: int
    end: int


@dataclass(slots=True)
class Books:
    """Everything booked, by the program's row numbers."""

    booked: dict[int, Booked] = field(default_factory=dict)
    taken: dict[int, Taken] = field(default_factory=dict)

    def beside(self, shadow: Shadow) -> "Books":
        """These, and what is kept, as if it were booked."""
        made = Books(dict(self.booked), dict(self.taken))
        common: dict[str, Any] = {
            "claim": shadow.claim,
            "grant": "",
            "start": shadow.start,
            "end": shadow.end,
        }
        for number, (host, part) in enumerate(shadow.parts, start=1):
            made.booked[-number] = Booked(host=host, part=part, **common)
        for number, host in enumerate({host for host, _ in shadow.parts}, start=1):
            made.taken[-number] = Taken(host=host, amounts=shadow.amounts, **common)
        return made

    def able(self, need: Need, hosts: Iterable[Host], start: int, end: int) -> list[Host]:
        """The hosts that could give one member of it for the window."""
        return [host for host in hosts if host.open and self._could(host, need, start, end)]

    def fits(self, need: Need, hosts: Iterable[Host], start: int, end: int) -> bool:
        """Whether distinct hosts could give all of it for the window."""
        return len(self.able(need, hosts, start, end)) >= need.size

    def _could(self, host: Host, need: Need, start: int, end: int) -> bool:
        free = self.free_parts(host, start, end)
        return serves(need.asks, free) and self.could_give(host, need, start, end)

    def could_give(self, host: Host, need: Need, start: int, end: int) -> bool:
        """Whether the host has the amounts left at every instant of the window."""
        return all(
            wanted + peak <= whole or not wanted
            for wanted, peak, whole in zip(
                need.amounts, self.peak(host.id, start, end), host.spare, strict=True
            )
        )

    def free_parts(self, host: Host, start: int, end: int) -> list[Part]:
        """Devices in service that nobody has in the window, as they are or in another mode."""
        taken = [
            entry.part
            for entry in self.booked.values()
            if entry.host == host.id and entry.start < end and start < entry.end
        ]
        return [
            part
            for key, part in sorted(host.parts.items())
            if key in host.well and not any(clash(part, other) for other in taken)
        ]

    def peak(self, host: str, start: int, end: int) -> Amounts:
        """The most of each amount that is booked on a host at one instant of the window."""
        mine = [t for t in self.taken.values() if t.host == host and t.start < end > start < t.end]
        moments = {start, *(entry.start for entry in mine if entry.start > start)}
        sums = [
            tuple(
                sum(entry.amounts[i] for entry in mine if entry.start <= moment < entry.end)
                for i in range(3)
            )
            for moment in moments
        ]
        return (max(s[0] for s in sums), max(s[1] for s in sums), max(s[2] for s in sums))


def serves(asks: Sequence[Ask], parts: Sequence[Part]) -> bool:
    """Whether these devices serve every ask at once; every choice is tried."""
    if not asks:
        return True
    first, rest = asks[0], asks[1:]
    for chosen in _choices(first, parts):
        left = [p for p in parts if p not in chosen and not any(clash(p, c) for c in chosen)]
        if serves(rest, left):
            return True
    return False


def is_exactly(asks: Sequence[Ask], parts: Sequence[Part]) -> bool:
    """Whether these devices are what the asks call for, no more and no fewer."""
    return len(parts) == sum(ask.count for ask in asks) and serves(asks, parts)


def overlap(booked: Sequence[Booked]) -> tuple[Booked, Booked] | None:
    """Two bookings of one device, or of one GPU in two modes, at one time."""
    for one, other in itertools.combinations(booked, 2):
        meets = one.host == other.host and one.start < other.end and other.start < one.end
        if meets and clash(one.part, other.part):
            return one, other
    return None


def clash(one: Part, other: Part) -> bool:
    return one.key == other.key or (one.gpu == other.gpu and one.kind != other.kind)


def _choices(ask: Ask, parts: Sequence[Part]) -> Iterator[tuple[Part, ...]]:
    matching = [part for part in parts if part.kind == ask.kind]
    for chosen in itertools.combinations(matching, ask.count):
        if _lies_well(chosen, ask.topology):
            yield chosen


def _lies_well(chosen: Sequence[Part], topology: str) -> bool:
    if topology == "same-numa":
        return len({part.numa for part in chosen}) == 1
    if topology == "nvlink-all" and len(chosen) > 1:
        fabrics = {part.fabric for part in chosen}
        return len(fabrics) == 1 and "" not in fabrics
    return True
