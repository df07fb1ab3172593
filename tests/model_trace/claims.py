"""A reservation as the reference keeps it, and the table of what may become of one.

Part of the reference: knows nothing of the program that it judges.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tests.model_trace.fits import Amounts, Ask, DeviceKey, Need

SECOND_MS = 1_000
MINUTE_MS = 60_000
HOLD_MS = MINUTE_MS
BIND_TIMEOUT_MS = 5 * MINUTE_MS
TRIES = 3
LIVE = frozenset({"placed", "binding", "active"})
CHARGED = LIVE | {"pending"}
TERMINAL = frozenset({"denied", "released", "failed", "cancelled", "expired"})
UNDECIDED = frozenset({"draft", "awaiting-confirmation"})
# What each step is told by; an empty word for a step that nobody is told of (spec 9.1, 9.4).
STEPS: Mapping[tuple[str, str], str] = {
    ("draft", "denied"): "",
    ("draft", "placed"): "placed",
    ("draft", "pending"): "pending",
    ("draft", "awaiting-confirmation"): "awaiting-confirmation",
    ("awaiting-confirmation", "denied"): "",
    ("awaiting-confirmation", "placed"): "placed",
    ("awaiting-confirmation", "pending"): "pending",
    ("awaiting-confirmation", "expired"): "expired",
    ("awaiting-confirmation", "cancelled"): "cancelled",
    ("pending", "placed"): "placed",
    ("pending", "cancelled"): "cancelled",
    ("placed", "binding"): "binding",
    ("placed", "released"): "released",
    ("placed", "cancelled"): "cancelled",
    ("binding", "active"): "active",
    ("binding", "placed"): "placed",
    ("binding", "pending"): "pending",
    ("binding", "failed"): "failed",
    ("binding", "released"): "released",
    ("active", "released"): "released",
}
# What a device counts for: a MIG instance is a seventh of a GPU, a slot one of four (spec 6.2).
WORTH = {"gpu": Fraction(1), "gpu.mig": Fraction(1, 7), "gpu.slot": Fraction(1, 4)}
NONE: Amounts = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A request in the reference's own normal form; two are one request when they are equal.

    ``amounts`` are None where it asks for none, ``start`` and ``lease_s`` 0 likewise.
    """

    asks: tuple[Ask, ...]
    duration_ms: int
    start: int = 0
    size: int = 1
    amounts: Amounts | None = None
    lease_s: int = 0
    spot: bool = False

    def is_written_as(self, request: Mapping[str, Any]) -> bool:
        """Whether a stored request is this one; what is the default is not written."""
        asks = tuple(
            Ask(entry["class"], entry["count"], entry.get("topology", "any"))
            for entry in request["devices"]
        )
        amounts = request.get("resources")
        names = ("vcpu", "memoryGiB", "hugepages1Gi")
        return self == Wish(
            asks=asks,
            duration_ms=int(request["duration"].removesuffix("ms")),
            start=request.get("start", 0),
            size=request.get("gang", {"size": 1})["size"],
            amounts=None if amounts is None else amounts_of(amounts, names),
            lease_s=request.get("leaseSeconds", 0),
            spot=request.get("spot", False),
        )

    def worth(self) -> Fraction:
        """How many GPUs' worth of devices it asks for on each host."""
        return sum((WORTH[ask.kind] * ask.count for ask in self.asks), Fraction())

    def charges(self, share: Amounts) -> dict[str, int]:
        """What it costs, by quota resource: devices, and what is above the share (spec 5.2)."""
        found: dict[str, int] = {}
        for ask in self.asks:
            found[ask.kind] = found.get(ask.kind, 0) + ask.count * self.size
        vcpu, memory, pages = self.booked(share)
        found["vcpu"] = (vcpu - share[0]) * self.size
        found["memoryGiB"] = (memory + pages - share[1]) * self.size
        return {name: amount for name, amount in found.items() if amount}

    def booked(self, share: Amounts) -> Amounts:
        """What it books of each host: what it asks for, and nothing below the share (spec 6.2)."""
        asked = self.amounts or NONE
        return (max(asked[0], share[0]), max(asked[1], share[1]), max(asked[2], share[2]))

    def need(self, share: Amounts) -> Need:
        """What hosts have to give."""
        return Need(self.asks, self.size, self.booked(share))


def amounts_of(row: Mapping[str, Any], names: tuple[str, str, str]) -> Amounts:
    """Three amounts under their names, absent ones 0."""
    return (row.get(names[0], 0), row.get(names[1], 0), row.get(names[2], 0))


@dataclass(slots=True)
class Grant:
    """One allocation: a host's part of one placement."""

    id: str
    claim: str
    host: str
    parts: frozenset[DeviceKey]
    state: str = "booked"
    failed: bool = False
    reports: list[str] = field(default_factory=list)

    def take_in(self, binding: bool) -> None:
        """What the reports that arrived make of it, in the order in which they were signed."""
        for outcome in self.reports:
            if outcome == "bound":
                self.state, self.failed = "bound", False
                continue
            if self.state == "bound":
                self.state = "lost"
            if outcome == "failed" and binding:
                self.failed = True
        self.reports.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """An event that must follow, with what it says; a frozenset is a choice of words."""

    before: str
    after: str
    event: str
    data: Mapping[str, Any]


@dataclass(slots=True)
class Claim:
    """One reservation. ``grants`` are those of every placement, ``moved`` what repair changed.

    ``seq`` is its age: of drafts that are written at once, the older may be committed later.
    """

    id: str
    who: str
    key: str
    wish: Wish
    state: str = "draft"
    version: int = 1
    seq: int = 0
    owner: str = ""
    share: Amounts = NONE
    window: tuple[int, int] = (0, 0)
    extended: int = 0
    lease: int = 0
    tries: int = 0
    deadline: int = 0
    failed: bool = False
    queued: bool = False
    yields: bool = False
    moved: bool = False
    held_since: int = 0
    conditions: frozenset[str] = frozenset()
    charges: dict[str, int] = field(default_factory=dict)
    grants: dict[str, Grant] = field(default_factory=dict)
    due: list[Due] = field(default_factory=list)

    @property
    def live(self) -> list[Grant]:
        """The grants of the placement that counts."""
        return [grant for grant in self.grants.values() if grant.state != "ended"]

    @property
    def duration_ms(self) -> int:
        """The length of its window, as far as it was extended."""
        return self.extended or self.wish.duration_ms

    def take_in(self) -> None:
        """Take in the reports of a reservation that has started."""
        if self.state in ("binding", "active"):
            for grant in self.live:
                grant.take_in(self.state == "binding")
