"""The reference: a control plane in memory that knows the rules and is told of every change.

Each committed transaction is replayed on it. It predicts what the rules determine, row by row and
in order, and refuses every change that no rule allows. It knows nothing of the program that it
judges.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tests.model_trace.claims import CHARGED, HOLD_MS, LIVE, Claim, Grant, Wish, amounts_of
from tests.model_trace.fits import Amounts, Booked, Part, Shadow, Taken, is_exactly, overlap
from tests.model_trace.moves import Moves, Row, must

_UNCHANGING = (
    "id", "tenant_id", "pool_id", "identity", "idempotency_key", "request_hash", "request",
    "host_share", "resources", "created_ms", "seq",
)  # fmt: skip
_API = ("vcpu", "memoryGiB", "hugepages1Gi")
_COLUMNS = ("vcpu", "memory_gib", "hugepages_1gi")


@dataclass(slots=True)
class Reference(Moves):
    """What must be, as far as the rules determine it. ``now`` is the database's clock."""

    asked: dict[tuple[str, str], list[Claim]] = field(default_factory=dict)
    grants: dict[str, Grant] = field(default_factory=dict)
    ceilings: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    atoms: dict[int, tuple[str, Part]] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    rejected: int = 0

    # --- what is asked -------------------------------------------------------------------

    def find(self, who: str, key: str) -> Claim | None:
        """The reservation of a caller's key."""
        return next((c for c in self.claims.values() if (c.who, c.key) == (who, key)), None)

    def share_of(self, wish: Wish) -> Amounts:
        """What rides on its GPUs on each host: the smallest host's share (spec 6.2)."""
        hosts = [(self.hosts[name].spare, gpus) for name, gpus in self.gpus.items() if gpus]
        if not hosts:
            return (0, 0, 0)
        vcpu = min(Fraction(spare[0], gpus) for spare, gpus in hosts)
        memory = min(Fraction(spare[1], gpus) for spare, gpus in hosts)
        return (int(vcpu * wish.worth()), int(memory * wish.worth()), 0)

    def over_quota(self, wish: Wish, share: Amounts) -> tuple[str, int, int, int] | None:
        """The first resource that a charge would exceed: with ceiling, used and asked."""
        for resource, amount in sorted(wish.charges(share).items()):
            ceiling, used = self.ceilings.get(resource, 0), self.used.get(resource, 0)
            if used + amount > ceiling:
                return resource, ceiling, used, amount
        return None

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
        for name in _UNCHANGING:
            must(before[name] == after[name], f"{name} never changes", before, after)
        self.move(claim, after)
        claim.version = after["version"]
        return claim.id

    def _new_draft(self, row: Row) -> str:
        must(row["state"] == "draft", "every life begins as a draft", row)
        must(row["version"] == 1, "a draft begins at version 1", row)
        must(row["id"] not in self.claims, "one key, one row", row)
        asked = self.asked.pop((row["identity"], row["idempotency_key"]), [])
        claim = next((c for c in asked if c.wish.is_written_as(json.loads(row["request"]))), None)
        must(claim, "nobody asked for it", row)
        assert claim is not None
        claim.id, claim.owner, claim.seq = row["id"], row["owner"], row["seq"]
        claim.share = self.share_of(claim.wish)
        share = amounts_of(json.loads(row["host_share"]), _API)
        must(share == claim.share, "host share", share, claim)
        booked = amounts_of(json.loads(row["resources"]), _API)
        must(booked == claim.wish.booked(share), "host resources", booked, claim)
        self.claims[claim.id] = claim
        return claim.id

    def _on_events(self, _before: Row, row: Row) -> str:
        must(row["subject"].startswith("reservation/"), "an event of a reservation", row)
        claim = self.claims[row["subject"].removeprefix("reservation/")]
        name, data = row["type"].removeprefix("reservation."), json.loads(row["data"])
        must(data["state"] == claim.state, "an event tells the state", row, claim)
        if name == "binding-rejected":
            self.rejected -= 1
            return claim.id
        if name == "preempted":
            must(claim.wish.spot and claim.state in LIVE, "only spot yields", claim)
            return claim.id
        must(claim.due, "nothing happened that this event tells of", row)
        due = claim.due.pop(0)
        must(name == due.event, "another event was due", row, due)
        for key, value in due.data.items():
            found = sorted(data[key]) if key == "nodeIds" else data[key]
            choice = value if isinstance(value, frozenset) else (value,)
            must(found in choice, f"the event's {key}", row, value)
        self.count(due.before, due.after, name, str(data.get("reason", "")))
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
            if claim.state == "placed" and self.now < claim.window[0]:
                able = self.hosts[grant.host].can_serve(grant.parts)
                must(not able, "a member that could serve was moved", claim, grant)
                claim.moved = True
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
            del self.books.booked[row["id"]]
            return str(row["reservation_id"])
        host, part = self.atoms[row["atom_id"]]
        self.books.booked[row["id"]] = Booked(
            claim=row["reservation_id"],
            grant=row["allocation_id"],
            host=host,
            part=part,
            start=row["start_ms"],
            end=row["end_ms"],
        )
        return str(row["reservation_id"])

    def _on_host_bookings(self, before: Row, after: Row) -> str:
        row = after or before
        if not after:
            del self.books.taken[row["id"]]
            return str(row["reservation_id"])
        self.books.taken[row["id"]] = Taken(
            claim=row["reservation_id"],
            grant=row["allocation_id"],
            host=row["node_id"],
            amounts=amounts_of(row, _COLUMNS),
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

    def _on_extend_holds(self, before: Row, after: Row) -> str:
        """One extend at a time; a hold of more than a minute is taken over (spec 14.3)."""
        row = after or before
        claim = self.claims[row["reservation_id"]]
        if before and after:
            must(before["taken_ms"] < self.now - HOLD_MS, "a hold was taken away", before, after)
        claim.held_since = after["taken_ms"] if after else 0
        return claim.id

    def _on_shadows(self, _before: Row, row: Row) -> str:
        claim = self.claims[row["reservation_id"]]
        must(not claim.wish.spot, "nothing is kept for spot", claim)
        members = json.loads(row["members"])
        parts = tuple(self.atoms[atom] for atoms in members.values() for atom in atoms)
        must(len(members) == claim.wish.size, "kept for a whole gang", row, claim)
        for host in members:
            mine = [part for name, part in parts if name == host]
            must(is_exactly(claim.wish.asks, mine), "what is kept is what was asked", row, claim)
        self.shadow = Shadow(
            claim=claim.id,
            parts=parts,
            amounts=claim.wish.booked(claim.share),
            start=row["start_ms"],
            end=row["end_ms"],
        )
        return ""

    # --- what must be true after every transaction ---------------------------------------

    def _after_commit(self, touched: Iterable[str]) -> None:
        pair = overlap(tuple(self.books.booked.values()))
        must(pair is None, "one device for two", pair)
        for claim_id in touched:
            self._check_claim(self.claims[claim_id])
        for host in self.hosts.values():
            peak = self.books.peak(host.id, 0, 1 << 62)
            within = all(one <= most for one, most in zip(peak, host.spare, strict=True))
            must(within, "more of a host than it has", host, peak)
        for resource, used in self.used.items():
            charged = sum(c.charges.get(resource, 0) for c in self.claims.values())
            must(used == charged, "used is the sum of the charges", resource, used, charged)

    def _check_claim(self, claim: Claim) -> None:
        must(not claim.due, "an event is missing", claim)
        wanted = claim.wish.charges(claim.share) if claim.state in CHARGED else {}
        must(claim.charges == wanted, "charges", claim, wanted)
        if claim.state in LIVE:
            self._check_placement(claim)
            return
        must(not claim.live, "a placement without a window", claim)
        ends = [e.end for e in self.books.booked.values() if e.claim == claim.id]
        ends += [e.end for e in self.books.taken.values() if e.claim == claim.id]
        must(all(end <= self.now + self.gap for end in ends), "bookings stay", claim, ends)

    def _check_placement(self, claim: Claim) -> None:
        """All of its hosts or none, each with all that was asked, for the whole window."""
        must(len(claim.live) == claim.wish.size, "a gang is whole", claim)
        hosts = {grant.host for grant in claim.live}
        must(len(hosts) == claim.wish.size, "a gang's hosts differ", claim)
        window = (claim.window[0], claim.window[1] + self.gap)
        wanted = claim.wish.booked(claim.share)
        for grant in claim.live:
            own = [e for e in self.books.booked.values() if e.grant == grant.id]
            parts = [entry.part for entry in own]
            must({p.key for p in parts} == grant.parts, "what is booked is granted", grant, own)
            must(is_exactly(claim.wish.asks, parts), "what was asked for", claim, parts)
            must({(e.start, e.end) for e in own} == {window}, "booked window", own, window)
            given = [t for t in self.books.taken.values() if t.grant == grant.id]
            found = [(t.amounts, (t.start, t.end)) for t in given]
            must(found == ([(wanted, window)] if any(wanted) else []), "amounts", given, wanted)
