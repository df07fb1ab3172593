"""A reservation as the reference keeps it, and the table of what may become of one.

Part of the reference: knows nothing of the program that it judges.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.model_trace.fits import Ask, DeviceKey

MINUTE_MS = 60_000
BIND_TIMEOUT_MS = 5 * MINUTE_MS
TRIES = 3
LIVE = frozenset({"placed", "binding", "active"})
CHARGED = LIVE | {"pending"}
TERMINAL = frozenset({"denied", "released", "failed", "cancelled", "expired"})
# What each step is told by; an empty word for a step that nobody is told of (spec 9.1, 9.4).
STEPS: Mapping[tuple[str, str], str] = {
    ("draft", "denied"): "",
    ("draft", "placed"): "placed",
    ("draft", "pending"): "pending",
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
# Changes that leave the state alone: conditions and bindings.
QUIET = frozenset({"pending", "active"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A request in the reference's own normal form; two are one request when they are equal."""

    asks: tuple[Ask, ...]
    duration_ms: int

    @property
    def size(self) -> int:
        """On how many distinct hosts."""
        return 1

    def is_written_as(self, request: Mapping[str, Any]) -> bool:
        """Whether a stored request is this one; what is the default is not written."""
        asks = tuple(
            Ask(entry["class"], entry["count"], entry.get("topology", "any"))
            for entry in request["devices"]
        )
        return self == Wish(asks=asks, duration_ms=int(request["duration"].removesuffix("ms")))

    def charges(self) -> Mapping[str, int]:
        """What it costs, by quota resource (spec 5.2)."""
        amounts: dict[str, int] = {}
        for ask in self.asks:
            amounts[ask.kind] = amounts.get(ask.kind, 0) + ask.count * self.size
        return amounts


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


@dataclass(slots=True)
class Claim:
    """One reservation."""

    id: str
    who: str
    key: str
    wish: Wish
    state: str = "draft"
    version: int = 1
    window: tuple[int, int] = (0, 0)
    tries: int = 0
    deadline: int = 0
    failed: bool = False
    charges: dict[str, int] = field(default_factory=dict)
    grants: dict[str, Grant] = field(default_factory=dict)
    due: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def live(self) -> list[Grant]:
        """The grants of the placement that counts."""
        return [grant for grant in self.grants.values() if grant.state != "ended"]

    def take_in(self) -> None:
        """Take in the reports of a reservation that has started."""
        if self.state in ("binding", "active"):
            for grant in self.live:
                grant.take_in(self.state == "binding")
