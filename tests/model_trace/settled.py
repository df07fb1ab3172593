"""What must be true of a control plane once nothing is due any more.

Part of the reference: knows nothing of the program that it judges.
"""

from collections.abc import Mapping
from typing import Any

from tests.model_trace.claims import LIVE, TERMINAL, Claim
from tests.model_trace.moves import must
from tests.model_trace.reference import Reference

Row = Mapping[str, Any]


def check_settled(reference: Reference, rows: Mapping[str, Row]) -> None:
    """Nothing that the rules call for is left undone, and the rows say what the reference knows."""
    must(rows.keys() == reference.claims.keys(), "one row a reservation", rows.keys())
    must(reference.rejected == 0, "rejected reports are told once", reference.rejected)
    for claim in reference.claims.values():
        claim.take_in()
        row = rows[claim.id]
        must((row["state"], row["version"]) == (claim.state, claim.version), "row", row, claim)
        _check_left_undone(reference, claim)
        wanted = _conditions(reference, claim)
        # What was damaged before its start says so until it is active.
        found = claim.conditions - ({"Degraded"} if claim.state == "binding" else set())
        must(wanted is None or found == wanted, "conditions", claim, wanted)


def any_waits_although_it_fits(reference: Reference) -> bool:
    """Whether one waits behind another, and would fit: it must get its place in 30 seconds."""
    waiting = [claim for claim in reference.claims.values() if claim.state == "pending"]
    return any(reference.claim_fits(claim) for claim in waiting)


def check_grants(
    reference: Reference,
    states: Mapping[str, str],
    assigned: Mapping[str, frozenset[str]],
) -> None:
    """Allocations are as the reports made them, and each host is told to hold exactly its own."""
    must(states.keys() == reference.grants.keys(), "allocations", states.keys())
    for grant in reference.grants.values():
        must(states[grant.id] == grant.state, "an allocation's state", grant, states[grant.id])
    for host in reference.hosts:
        handed = {
            grant.id
            for grant in reference.grants.values()
            if grant.host == host and grant.state in ("assigned", "bound", "lost")
        }
        must(assigned.get(host, frozenset()) == handed, "desired state", host, assigned, handed)


def _check_left_undone(reference: Reference, claim: Claim) -> None:
    now = reference.now
    if claim.state in LIVE:
        must(now < claim.window[1], "its time is over", claim, now)
        must(not claim.lease or now < claim.lease, "its lease is over", claim, now)
    match claim.state:
        case "awaiting-confirmation":
            must(now < claim.deadline, "nobody confirmed it in time", claim, now)
        case "pending":
            must(not claim.queued, "nobody looked at it", claim)
            if not reference.waits_behind(claim):
                must(not reference.claim_fits(claim), "it waits although it fits", claim)
        case "placed":
            must(now < claim.window[0], "it did not start", claim, now)
        case "binding":
            must(now < claim.deadline, "its bind is overdue", claim, now)
            must(not any(g.failed for g in claim.live), "its bind failed", claim)
            must(not all(g.state == "bound" for g in claim.live), "all is bound", claim)


def _conditions(reference: Reference, claim: Claim) -> set[str] | None:
    """The types that must be there; None for an end, which keeps what was said last."""
    if claim.state in TERMINAL:
        return None
    found = {"Preempting"} if claim.yields else set()
    match claim.state:
        case "draft" | "binding":
            return found
        case "awaiting-confirmation":
            return {"ConfirmationRequired"}
        case "pending":
            return {"Unschedulable"}
        case "placed":
            unable = any(not reference.hosts[g.host].can_serve(g.parts) for g in claim.live)
            return {"Degraded"} if unable else set()
    for grant in claim.live:
        host = reference.hosts[grant.host]
        if grant.state == "lost":
            found.add("Degraded")
        if not host.reachable:
            found.add("NodeUnreachable")
        if not grant.parts <= host.well:
            found.add("DeviceUnhealthy")
    return found
