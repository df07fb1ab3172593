"""The reference: a control plane in memory that knows the rules and is told of every change.

Each committed transaction is replayed on it. It predicts what the rules determine, row by row and
in order, and refuses every change that no rule allows. It knows nothing of the program that it
judges.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.model_trace.claims import (
    BIND_TIMEOUT_MS,
    CHARGED,
    LIVE,
    QUIET,
    STEPS,
    TERMINAL,
    TRIES,
    Claim,
    Grant,
    Wish,
)
from tests.model_trace.fits import Booked, Host, Part, fits, is_exactly, overlap

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
class Reference:
    """What must be, as far as the rules determine it. ``now`` is the database's clock."""

    now: int
    gap: int = 0
    cause: str = ""
    asked: dict[tuple[str, str], list[Claim]] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    grants: dict[str, Grant] = field(default_factory=dict)
    booked: dict[int, Booked] = field(default_factory=dict)
    ceilings: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    atoms: dict[int, tuple[str, Part]] = field(default_factory=dict)
    steps: Counter[Step] = field(default_factory=Counter)
    rejected: int = 0
    ending: frozenset[str] = frozenset()

    # --- what is asked -------------------------------------------------------------------

    def find(self, who: str, key: str) -> Claim | None:
        """The reservation of a caller's key."""
        return next((c for c in self.claims.values() if (c.who, c.key) == (who, key)), None)

    def over_quota(self, wish: Wish) -> tuple[str, int, int, int] | None:
        """The first resource that a charge would exceed: with ceiling, used and asked."""
        for resource, amount in sorted(wish.charges().items()):
            ceiling, used = self.ceilings.get(resource, 0), self.used.get(resource, 0)
            if used + amount > ceiling:
                return resource, ceiling, used, amount
        return None

    def fits(self, wish: Wish) -> bool:
        """Whether it could start now."""
        window = (self.now, self.now + wish.duration_ms + self.gap)
        return fits(wish.asks, wish.size, self.hosts.values(), tuple(self.booked.values()), window)

    # --- what happened -------------------------------------------------------------------

    def replay(self, commits: Iterable[Sequence[Any]]) -> None:
        """Take in what was committed, transaction by transaction."""
        for changes in commits:
            touched: set[str] = set()
            for change in changes:
                take = getattr(self, f"_on_{change.table}")
                touched.update(filter(None, [take(change.before, change.after)]))
            self._after_commit(touched)

    def _on_reservations(self, before: Row, after: Row) -> str:
        if not before:
            return self._new_draft(after)
        must(after, "a reservation is never deleted", before)
        claim = self.claims[after["id"]]
        must(before["version"] == claim.version, "a version was skipped", before, after)
        must(after["version"] == claim.version + 1, "a version grows by one", before, after)
        must(before["state"] == claim.state, "a state changed unseen", before, claim)
        for name in ("id", "tenant_id", "pool_id", "owner", "identity", "idempotency_key",
                     "request_hash", "request", "created_ms", "seq"):  # fmt: skip
            must(before[name] == after[name], f"{name} never changes", before, after)
        self._move(claim, after)
        claim.version = after["version"]
        return claim.id

    def _new_draft(self, row: Row) -> str:
        must(row["state"] == "draft", "every life begins as a draft", row)
        must(row["version"] == 1, "a draft begins at version 1", row)
        must(row["id"] not in self.claims, "one key, one row", row)
        asked = self.asked.pop((row["owner"], row["idempotency_key"]), [])
        claim = next((c for c in asked if c.wish.is_written_as(json.loads(row["request"]))), None)
        must(claim, "nobody asked for it", row)
        assert claim is not None
        claim.id = row["id"]
        self.claims[claim.id] = claim
        return claim.id

    def _move(self, claim: Claim, row: Row) -> None:
        before, after = claim.state, row["state"]
        must(before not in TERMINAL, "an end is an end", claim, row)
        if before == after and before in QUIET:
            self._unmoved(claim, row)
            self._count(before, after)
            return
        must((before, after) in STEPS, "there is no such step", before, after)
        claim.take_in()
        getattr(self, "_to_" + after)(claim, row)
        claim.state = after
        self._count(before, after, STEPS[before, after], claim)

    def _count(self, before: str, after: str, event: str = "", claim: Claim | None = None) -> None:
        data = claim.due[-1][1] if claim is not None and event else {}
        reason = data.get("reason") or ""
        step = Step(before=before, after=after, event=event, reason=reason, cause=self.cause)
        self.steps[step] += 1

    def _unmoved(self, claim: Claim, row: Row) -> None:
        must(_window(row) == (claim.window if claim.state in LIVE else None), "window", row)
        if claim.state == "pending":
            must(not self.fits(claim.wish), "it waits although it fits", claim)

    def _to_denied(self, claim: Claim, row: Row) -> None:
        must(self.cause == "deny", "nobody denied it", claim)
        must(row["operation"] == "failed", "a denied operation failed", row)

    def _to_placed(self, claim: Claim, row: Row) -> None:
        self._tried(claim, row)
        claim.window = (self.now, self.now + claim.wish.duration_ms)
        must(_window(row) == claim.window, "the window begins at placement", row, claim.window)
        must(row["bind_deadline_ms"] is None, "nothing to bind yet", row)
        must(row["operation"] == "succeeded", "a placed operation succeeded", row)
        must(json.loads(row["conditions"]) == [], "a placed one has no conditions", row)
        hosts = sorted({grant.host for grant in claim.live})
        self._due(claim, "placed", nodeIds=hosts, start=claim.window[0], end=claim.window[1])

    def _to_pending(self, claim: Claim, row: Row) -> None:
        self._tried(claim, row)
        must(not self.fits(claim.wish), "it fits and has to wait", claim)
        must(_window(row) is None, "what waits has no window", row)
        kinds = [condition["type"] for condition in json.loads(row["conditions"])]
        must(kinds == ["Unschedulable"], "what waits says why", row)
        self._due(claim, "pending")

    def _tried(self, claim: Claim, row: Row) -> None:
        """A placement that did not bind is tried again, but not for ever (spec 10.1)."""
        if claim.state == "binding":
            self._must_have_failed(claim)
            claim.tries += 1
            must(claim.tries < TRIES, "placed again too often", claim)
        must(row["attempts"] == claim.tries, "attempts", row, claim)

    def _must_have_failed(self, claim: Claim) -> None:
        failed = claim.failed or any(grant.failed for grant in claim.live)
        must(failed or self.now >= claim.deadline, "its bind did not fail", claim, self.now)
        claim.failed = False

    def _to_binding(self, claim: Claim, row: Row) -> None:
        must(self.now >= claim.window[0], "it started too early", claim, self.now)
        claim.deadline = self.now + BIND_TIMEOUT_MS
        must(row["bind_deadline_ms"] == claim.deadline, "bind deadline", row, claim)
        for grant in claim.live:
            grant.state = "assigned"
        self._due(claim, "binding")

    def _to_active(self, claim: Claim, row: Row) -> None:
        must(all(g.state == "bound" for g in claim.live), "active before all is bound", claim)
        must(row["bind_deadline_ms"] is None, "nothing to bind any more", row)
        self._due(claim, "active")

    def _to_failed(self, claim: Claim, row: Row) -> None:
        self._must_have_failed(claim)
        claim.tries += 1
        must(claim.tries == TRIES, "given up too early", claim)
        must(row["operation"] == "failed", "a failed operation", row)
        self._due(claim, "failed", reason=None)

    def _to_released(self, claim: Claim, _row: Row) -> None:
        over = self.now >= claim.window[1]
        asked = self.cause == "release" and claim.id in self.ending
        must(over or asked, "nobody released it and its time is not over", claim, self.now)
        self._due(claim, "released", reason="release" if asked else "expired")

    def _to_cancelled(self, claim: Claim, _row: Row) -> None:
        allowed = {"pending": ("cancel", "release"), "placed": ("cancel",)}[claim.state]
        asked = self.cause in allowed and claim.id in self.ending
        must(asked, "nobody cancelled it", claim, self.cause)
        self._due(claim, "cancelled")

    def _due(self, claim: Claim, event: str, **data: Any) -> None:
        claim.due.append((event, data))

    def _on_events(self, _before: Row, row: Row) -> str:
        must(row["subject"].startswith("reservation/"), "an event of a reservation", row)
        claim = self.claims[row["subject"].removeprefix("reservation/")]
        name, data = row["type"].removeprefix("reservation."), json.loads(row["data"])
        must(data["state"] == claim.state, "an event tells the state", row, claim)
        claim.told.append(name)
        if name == "binding-rejected":
            self.rejected -= 1
            return claim.id
        must(claim.due, "nothing happened that this event tells of", row)
        expected, extra = claim.due.pop(0)
        must(name == expected, "another event was due", row, expected)
        for key, value in extra.items():
            same = sorted(data[key]) == value if key == "nodeIds" else data[key] == value
            must(same or (value is None and data[key]), f"the event's {key}", row, value)
        return claim.id

    def _on_allocations(self, before: Row, after: Row) -> str:
        must(after, "an allocation is never deleted", before)
        if not before:
            return self._new_grant(after)
        grant = self.grants[after["id"]]
        if after["state"] == "ended":
            claim = self.claims[grant.claim]
            claim.take_in()
            claim.failed |= grant.failed
            grant.state = "ended"
        return grant.claim

    def _new_grant(self, row: Row) -> str:
        host = self.hosts[row["node_id"]]
        must(host.open, "a host that takes no bookings was booked", row, host)
        keys = frozenset((kind, uuid) for uuid, kind in json.loads(row["devices"]))
        must(keys <= host.well, "a device out of service was booked", row, host.well)
        grant = Grant(row["id"], row["reservation_id"], row["node_id"], keys)
        self.grants[grant.id] = grant
        self.claims[grant.claim].grants[grant.id] = grant
        return grant.claim

    def _on_bookings(self, before: Row, after: Row) -> str:
        row = after or before
        if not after:
            del self.booked[row["id"]]
            return str(row["reservation_id"])
        host, part = self.atoms[row["atom_id"]]
        must(row["start_ms"] < row["end_ms"], "a booking has a length", row)
        self.booked[row["id"]] = Booked(
            claim=row["reservation_id"],
            grant=row["allocation_id"],
            host=host,
            part=part,
            start=row["start_ms"],
            end=row["end_ms"],
        )
        return str(row["reservation_id"])

    def _on_quotas(self, _before: Row, after: Row) -> str:
        self.ceilings[after["resource"]] = after["ceiling"]
        self.used[after["resource"]] = after["used"]
        return ""

    def _on_quota_charges(self, before: Row, after: Row) -> str:
        row = after or before
        claim = self.claims[row["reservation_id"]]
        if before:
            must(not after, "a charge never changes", before, after)
            must(claim.charges.pop(row["resource"]) == row["amount"], "refund", row)
        else:
            claim.charges[row["resource"]] = row["amount"]
            used, ceiling = self.used[row["resource"]], self.ceilings[row["resource"]]
            must(used <= ceiling, "charged above the quota", row)
        return claim.id

    # --- what must be true after every transaction ---------------------------------------

    def _after_commit(self, touched: Iterable[str]) -> None:
        pair = overlap(tuple(self.booked.values()))
        must(pair is None, "one device for two", pair)
        for claim_id in touched:
            self._check_claim(self.claims[claim_id])
        for resource, used in self.used.items():
            charged = sum(c.charges.get(resource, 0) for c in self.claims.values())
            must(used == charged, "used is the sum of the charges", resource, used, charged)

    def _check_claim(self, claim: Claim) -> None:
        must(not claim.due, "an event is missing", claim)
        wanted = dict(claim.wish.charges()) if claim.state in CHARGED else {}
        must(claim.charges == wanted, "charges", claim, wanted)
        mine = [entry for entry in self.booked.values() if entry.claim == claim.id]
        if claim.state in LIVE:
            self._check_placement(claim, mine)
        else:
            must(not claim.live, "a placement without a window", claim)
            must(all(e.end <= self.now + self.gap for e in mine), "bookings stay", claim, mine)

    def _check_placement(self, claim: Claim, mine: Sequence[Booked]) -> None:
        """All of its hosts or none, each with all that was asked, for the whole window."""
        must(len(claim.live) == claim.wish.size, "a gang is whole", claim)
        hosts = {grant.host for grant in claim.live}
        must(len(hosts) == claim.wish.size, "a gang's hosts differ", claim)
        window = (claim.window[0], claim.window[1] + self.gap)
        for grant in claim.live:
            own = [entry for entry in mine if entry.grant == grant.id]
            parts = [entry.part for entry in own]
            must({p.key for p in parts} == grant.parts, "what is booked is granted", grant, own)
            must(is_exactly(claim.wish.asks, parts), "what was asked for", claim, parts)
            must({(e.start, e.end) for e in own} == {window}, "booked window", own, window)


def _window(row: Row) -> tuple[int, int] | None:
    return None if row["start_ms"] is None else (row["start_ms"], row["end_ms"])
