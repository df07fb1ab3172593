"""A pool small enough to try every choice of devices: does anything fit, and is a choice allowed?

Part of the reference: knows nothing of the program that it judges.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

DeviceKey = tuple[str, str]  # class and id


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
    """A host as the reference believes it to be."""

    id: str
    parts: dict[DeviceKey, Part] = field(default_factory=dict)
    well: set[DeviceKey] = field(default_factory=set)
    reachable: bool = True
    cordoned: bool = False

    @property
    def open(self) -> bool:
        """Whether it takes new bookings."""
        return self.reachable and not self.cordoned


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """A device booked for ``[start, end)``."""

    claim: str
    grant: str
    host: str
    part: Part
    start: int
    end: int


def free_parts(host: Host, booked: Iterable[Booked], start: int, end: int) -> list[Part]:
    """Devices in service that nobody has in the window, as they are or in another mode."""
    taken = [
        entry.part
        for entry in booked
        if entry.host == host.id and entry.start < end and start < entry.end
    ]
    return [
        part
        for key, part in sorted(host.parts.items())
        if key in host.well and not any(_clash(part, other) for other in taken)
    ]


def fits(
    asks: Sequence[Ask],
    size: int,
    hosts: Iterable[Host],
    booked: Sequence[Booked],
    window: tuple[int, int],
) -> bool:
    """Whether ``size`` distinct hosts could each give all of the asks for the window."""
    good = 0
    for host in hosts:
        if host.open and serves(asks, free_parts(host, booked, *window)):
            good += 1
    return good >= size


def serves(asks: Sequence[Ask], parts: Sequence[Part]) -> bool:
    """Whether these devices serve every ask at once; every choice is tried."""
    if not asks:
        return True
    first, rest = asks[0], asks[1:]
    for chosen in _choices(first, parts):
        left = [p for p in parts if p not in chosen and not any(_clash(p, c) for c in chosen)]
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
        if meets and _clash(one.part, other.part):
            return one, other
    return None


def _clash(one: Part, other: Part) -> bool:
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
