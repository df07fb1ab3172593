"""When each step of a reservation is allowed, and what it changes.

Part of the reference: knows nothing of the program that it judges.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.model_trace.claims import (
    BIND_TIMEOUT_MS,
    LIVE,
    SECOND_MS,
    STEPS,
    TERMINAL,
    TRIES,
    Claim,
    Due,
    Wish,
)
from tests.model_trace.fits import Amounts, Books, Host, Shadow, clash

Row = Mapping[str, Any]


class Wrong(AssertionError):
    """The program did what no rule allows."""


def must(true: object, sentence: str, *about: object) -> None:
    """Raise Wrong with what it was about, unless it is true."""
    if not true:
        raise Wrong(f"{sentence}: {', '.join(map(repr, about))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A change of state, for the count of what was reached; ``cause`` is the caller's word."""

    before: str
    after: str
    event: str
    reason: str
    cause: str


@dataclass(slots=True)
class Moves:
    """The reservations, and what may become of them now. ``cause`` is what was asked for last.

    ``ending`` is the reservation that it was about, ``gap`` the pool's turnaround.
    """

    now: int
    gap: int = 0
    queued: bool = False
    grace_ms: int = 120_000
    cause: str = ""
    ending: str = ""
    until: int = 0
    shadow: Shadow | None = None
    books: Books = field(default_factory=Books)
    hosts: dict[str, Host] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    steps: Counter[Step] = field(default_factory=Counter)

    def window_of(self, wish: Wish, duration_ms: int) -> tuple[int, int]:
        """The window that a placement now would give."""
        start = max(self.now, wish.start)
        return start, start + duration_ms

    def fits(self, wish: Wish, share: Amounts, claim: Claim | None = None) -> bool:
        """Whether it fits where it asks for, beside what is kept from it for an older one."""
        start, end = self.window_of(wish, claim.duration_ms if claim else wish.duration_ms)
        kept = self.kept_from(claim)
        books = self.books if kept is None else self.books.beside(kept)
        return books.fits(wish.need(share), self.hosts.values(), start, end + self.gap)

    def claim_fits(self, claim: Claim) -> bool:
        """Whether a reservation that waits would fit now."""
        return self.fits(claim.wish, claim.share, claim)

    def kept_from(self, claim: Claim | None) -> Shadow | None:
        """What is kept for a reservation that waits and is older than this one."""
        if self.shadow is None or self.claims[self.shadow.claim].state != "pending":
            return None
        if claim is None:
            return self.shadow
        older = self.claims[self.shadow.claim].seq < claim.seq
        return self.shadow if older else None

    def waits_behind(self, claim: Claim | None) -> bool:
        """Whether an older one waits, for which something may be kept."""
        older = (other for other in self.claims.values() if not claim or other.seq < claim.seq)
        return any(other.state == "pending" and not other.wish.spot for other in older)

    @property
    def spot_lives(self) -> bool:
        """Whether anything could yield."""
        return any(c.wish.spot and c.state in LIVE for c in self.claims.values())

    def move(self, claim: Claim, row: Row) -> None:
        """Check one change of a reservation's row, and take it in."""
        before, after = claim.state, row["state"]
        must(before not in TERMINAL, "an end is an end", claim, row)
        claim.take_in()
        if before == after:
            self._same_state(claim, row)
        else:
            must((before, after) in STEPS, "there is no such step", before, after)
            getattr(self, "_to_" + after.replace("-", "_"))(claim, row)
            claim.state = after
            if not STEPS[before, after]:
                self.count(before, after, "", "")
        must(row["owner"] == claim.owner, "the owner changes alone", row, claim)
        claim.conditions = frozenset(_types(row))
        must(row["attempts"] == claim.tries, "attempts", row, claim)
        must((row["lease_until_ms"] or 0) == claim.lease, "lease", row, claim)
        if claim.state in LIVE:
            must(window_in(row) == claim.window, "window", row, claim)

    def count(self, before: str, after: str, event: str, reason: str) -> None:
        """Note that a step was reached."""
        step = Step(before=before, after=after, event=event, reason=reason, cause=self.cause)
        self.steps[step] += 1

    def _due(self, claim: Claim, after: str, event: str, **data: Any) -> None:
        claim.due.append(Due(before=claim.state, after=after, event=event, data=data))

    # --- within a state ------------------------------------------------------------------

    def _same_state(self, claim: Claim, row: Row) -> None:
        if row["owner"] != claim.owner:
            must(self.cause == "reassign", "nobody handed it over", claim, row)
            claim.owner = row["owner"]
            self._due(claim, claim.state, "reassigned", to=claim.owner)
            return
        if claim.state == "pending":
            self._still_pending(claim, row)
            return
        must(claim.state in LIVE, "nothing changes before it is decided", claim, row)
        end = row["end_ms"]
        if end > claim.window[1]:
            self._extended(claim, end)
        elif end < claim.window[1]:
            self._yields(claim, end)
        elif (row["lease_until_ms"] or 0) != claim.lease:
            self._renewed(claim)
        elif claim.moved:
            self._repaired(claim)

    def _still_pending(self, claim: Claim, row: Row) -> None:
        must(not self.claim_fits(claim), "it waits although it fits", claim)
        if claim.queued:
            claim.queued = False
            must(row["operation"] == "succeeded", "it was looked at", row)
            self._due(claim, "pending", "pending")
        else:
            self.count("pending", "pending", "", "")

    def _extended(self, claim: Claim, end: int) -> None:
        must(self.cause == "extend" and claim.id == self.ending, "nobody extended it", claim)
        must(end == self.until and not claim.yields, "extended otherwise", claim, self.until)
        claim.window = (claim.window[0], end)
        claim.extended = end - claim.window[0]
        self._must_leave(claim, self.kept_from(None))
        self._due(claim, claim.state, "extended", start=claim.window[0], end=end)

    def _renewed(self, claim: Claim) -> None:
        must(self.cause == "renew" and claim.id == self.ending, "nobody renewed it", claim)
        claim.lease = self.now + claim.wish.lease_s * SECOND_MS
        self.count(claim.state, claim.state, "", "")

    def _yields(self, claim: Claim, end: int) -> None:
        """A spot reservation that has started makes room after a grace (spec 7.7)."""
        must(claim.wish.spot and claim.state in ("binding", "active"), "it need not yield", claim)
        must(not claim.yields and end >= self.now + self.grace_ms, "without a grace", claim, end)
        claim.window = (claim.window[0], end)
        claim.yields = True
        self._due(claim, claim.state, "preempting", end=end)

    def _repaired(self, claim: Claim) -> None:
        must(claim.state == "placed" and self.now < claim.window[0], "repaired late", claim)
        claim.moved = False
        self._due(claim, "placed", "repaired", nodeIds=sorted(g.host for g in claim.live))

    # --- from one state to another -------------------------------------------------------

    def _to_denied(self, claim: Claim, row: Row) -> None:
        must(self.cause == "deny", "nobody denied it", claim)
        must(row["operation"] == "failed", "a denied operation failed", row)

    def _to_awaiting_confirmation(self, claim: Claim, row: Row) -> None:
        must(self.cause == "confirm", "nobody has to confirm it", claim)
        claim.deadline = row["bind_deadline_ms"]
        must(self.now < claim.deadline <= self.now + 1_800_000, "within 30 minutes", row)
        must(_types(row) == ["ConfirmationRequired"], "it says what it waits for", row)
        self._due(claim, "awaiting-confirmation", "awaiting-confirmation")

    def _to_expired(self, claim: Claim, row: Row) -> None:
        must(self.now >= claim.deadline, "there is time to confirm it", claim, self.now)
        must(row["operation"] == "failed", "an expired operation failed", row)
        self._due(claim, "expired", "expired")

    def _to_placed(self, claim: Claim, row: Row) -> None:
        self._tried(claim)
        wanted = self.window_of(claim.wish, claim.duration_ms)
        late = row["start_ms"] - wanted[0]
        must(late == 0 or late <= self.grace_ms + self.gap, "the window begins later", row, wanted)
        must(late == 0 or not claim.wish.spot, "spot makes nobody yield", claim)
        claim.window = (wanted[0] + late, wanted[1] + late)
        must(row["bind_deadline_ms"] is None, "nothing to bind yet", row)
        must(row["operation"] == "succeeded", "a placed operation succeeded", row)
        must(_types(row) == [], "a placed one has no conditions", row)
        if claim.wish.lease_s and not claim.lease:
            claim.lease = self.now + claim.wish.lease_s * SECOND_MS
        claim.queued = claim.moved = False
        self._must_leave(claim, self.kept_from(claim))
        hosts = sorted({grant.host for grant in claim.live})
        start, end = claim.window
        self._due(claim, "placed", "placed", nodeIds=hosts, start=start, end=end)

    def _must_leave(self, claim: Claim, kept: Shadow | None) -> None:
        """What is kept for another one is not given away, as long as it could be had."""
        if kept is None or kept.start < self.now:
            return
        if not all(self.hosts[h].open and p.key in self.hosts[h].well for h, p in kept.parts):
            return
        for entry in self.books.booked.values():
            meets = entry.start < kept.end and kept.start < entry.end
            taken = [p for h, p in kept.parts if h == entry.host and clash(p, entry.part)]
            must(entry.claim != claim.id or not (meets and taken), "kept for another one", claim)

    def _to_pending(self, claim: Claim, row: Row) -> None:
        self._tried(claim)
        claim.lease = 0
        claim.queued = claim.state != "binding" and self.queued
        must(window_in(row) is None, "what waits has no window", row)
        if claim.queued:
            must(_types(row) == ["Queued"], "what is queued says so", row)
            must(row["operation"] == "running", "nobody has looked at it yet", row)
        else:
            must(not self.claim_fits(claim), "it fits and has to wait", claim)
            must(_types(row) == ["Unschedulable"], "what waits says why", row)
            must(row["operation"] == "succeeded", "it was looked at", row)
        self._due(claim, "pending", "queued" if claim.queued else "pending")

    def _tried(self, claim: Claim) -> None:
        """A placement that did not bind is tried again, but not for ever (spec 10.1)."""
        if claim.state == "binding":
            self._must_have_failed(claim)
            claim.tries += 1
            must(claim.tries < TRIES, "placed again too often", claim)

    def _must_have_failed(self, claim: Claim) -> None:
        failed = claim.failed or any(grant.failed for grant in claim.live)
        must(failed or self.now >= claim.deadline, "its bind did not fail", claim, self.now)
        must(not claim.yields, "what yields is not placed again", claim)
        claim.failed = False

    def _to_binding(self, claim: Claim, row: Row) -> None:
        must(self.now >= claim.window[0], "it started too early", claim, self.now)
        claim.deadline = self.now + BIND_TIMEOUT_MS
        must(row["bind_deadline_ms"] == claim.deadline, "bind deadline", row, claim)
        for grant in claim.live:
            grant.state = "assigned"
        self._due(claim, "binding", "binding")

    def _to_active(self, claim: Claim, row: Row) -> None:
        must(all(g.state == "bound" for g in claim.live), "active before all is bound", claim)
        must(row["bind_deadline_ms"] is None, "nothing to bind any more", row)
        self._due(claim, "active", "active")

    def _to_failed(self, claim: Claim, row: Row) -> None:
        self._must_have_failed(claim)
        claim.tries += 1
        must(claim.tries == TRIES, "given up too early", claim)
        must(row["operation"] == "failed", "a failed operation", row)
        self._due(claim, "failed", "failed")

    def _to_released(self, claim: Claim, _row: Row) -> None:
        reasons = set()
        if self.cause == "release" and claim.id == self.ending:
            reasons = {"release"}
        elif claim.yields or (claim.wish.spot and claim.state == "placed"):
            reasons = {"preempted"}
        if self.now >= claim.window[1] and not claim.yields:
            reasons.add("expired")
        if claim.lease and claim.lease <= self.now:
            reasons.add("lease-lapsed")
        must(reasons, "nobody released it and its time is not over", claim, self.now)
        self._due(claim, "released", "released", reason=frozenset(reasons))

    def _to_cancelled(self, claim: Claim, _row: Row) -> None:
        allowed = {
            "pending": ("cancel", "release"),
            "placed": ("cancel",),
            "awaiting-confirmation": ("release",),
        }[claim.state]
        asked = self.cause in allowed and claim.id == self.ending
        must(asked, "nobody cancelled it", claim, self.cause)
        claim.lease = claim.lease if claim.state == "placed" else 0
        self._due(claim, "cancelled", "cancelled")


def window_in(row: Row) -> tuple[int, int] | None:
    """A row's window."""
    return None if row["start_ms"] is None else (row["start_ms"], row["end_ms"])


def _types(row: Row) -> list[str]:
    return [condition["type"] for condition in json.loads(row["conditions"])]
