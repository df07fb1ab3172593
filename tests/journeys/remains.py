"""What an operation leaves in the database, so that two runs of it can be compared."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bcd.wire.desired import decode_desired
from bcd.wire.node.v1 import desired_pb2
from tests.journeys.records import query

_ENDED = frozenset({"released", "cancelled", "expired", "failed"})


@dataclass(frozen=True, kw_only=True)
class Remains:
    """All that remains of a reservation, but for what differs from one to the next.

    ``events`` are (name, state, reason, names of the data) in order. ``grants`` are its
    allocations as they came: the state, and which of its nodes it lies on, counted as they came.
    """

    row: Mapping[str, Any]
    conditions: Sequence[tuple[str, str, str]]
    length_ms: int
    events: Sequence[tuple[str, str, str, Sequence[str]]]
    charges: Sequence[tuple[str, int]]
    grants: Sequence[tuple[str, int]]
    devices: int
    work: int

    @property
    def names(self) -> list[str]:
        """The last parts of the events' types, in order."""
        return [name for name, *_ in self.events]


def remains_of(url: str, reservation_id: str) -> Remains:
    """What there is of a reservation now."""
    mine = f"WHERE reservation_id = '{reservation_id}'"
    (row,) = query(url, f"SELECT * FROM reservations WHERE id = '{reservation_id}'")
    whole = row["start_ms"] is not None and row["state"] not in _ENDED
    charges = query(url, f"SELECT resource, amount FROM quota_charges {mine} ORDER BY resource")
    grants = query(url, f"SELECT node_id, state FROM allocations {mine} ORDER BY id")
    nodes = list(dict.fromkeys(grant["node_id"] for grant in grants))
    return Remains(
        row={name: row[name] for name in ("state", "operation", "attempts", "version")},
        conditions=[
            (one["type"], one["status"], one["reason"]) for one in json.loads(row["conditions"])
        ],
        length_ms=row["end_ms"] - row["start_ms"] if whole else 0,
        events=_events(url, reservation_id),
        charges=[(charge["resource"], charge["amount"]) for charge in charges],
        grants=tuple((grant["state"], nodes.index(grant["node_id"])) for grant in grants),
        devices=len(query(url, f"SELECT id FROM bookings {mine}")),
        work=len(query(url, f"SELECT key FROM work WHERE key = '{reservation_id}'")),
    )


def _events(url: str, reservation_id: str) -> list[tuple[str, str, str, Sequence[str]]]:
    rows = query(
        url,
        f"SELECT type, data FROM events WHERE subject = 'reservation/{reservation_id}'"
        " ORDER BY seq",
    )
    told_of = [(row["type"].removeprefix("reservation."), json.loads(row["data"])) for row in rows]
    return [(name, data["state"], data.get("reason", ""), sorted(data)) for name, data in told_of]


def in_order(url: str) -> bool:
    """Whether events have their places without a gap or a double, each subject's in their order."""
    rows = query(
        url,
        "SELECT subject, seq, published_seq, value AS newest FROM events, control"
        " WHERE published_seq IS NOT NULL AND key = 'published' ORDER BY published_seq",
    )
    places = [row["published_seq"] for row in rows]
    by_subject = itertools.groupby(sorted(rows, key=lambda row: row["subject"]), _subject)
    return places == list(range(1, max((row["newest"] for row in rows), default=0) + 1)) and all(
        seqs == sorted(seqs) for seqs in ([row["seq"] for row in mine] for _, mine in by_subject)
    )


def is_told(url: str) -> bool:
    """Whether every event has its place."""
    return not query(url, "SELECT seq FROM events WHERE published_seq IS NULL")


def _subject(row: Mapping[str, Any]) -> str:
    return str(row["subject"])


def told(url: str) -> Mapping[str, int]:
    """How often each node was told what to hold: its desired state's generation."""
    rows = query(url, "SELECT node_id, generation FROM desired_states")
    return {row["node_id"]: row["generation"] for row in rows}


def told_wrongly(url: str) -> Sequence[str]:
    """Nodes whose desired state is not what their allocations call for."""
    return [
        row["node_id"]
        for row in query(url, "SELECT node_id, generation, signed FROM desired_states")
        if not _as_booked(url, row)
    ]


def _as_booked(url: str, row: Mapping[str, Any]) -> bool:
    frame = desired_pb2.SignedDesiredState.FromString(bytes(row["signed"]))
    state = decode_desired(frame.envelope.payload)
    rows = query(
        url,
        "SELECT id, until_ms, devices FROM allocations WHERE state IN ('assigned', 'bound', 'lost')"
        f" AND node_id = '{row['node_id']}'",
    )
    called_for = {(one["id"], one["until_ms"], one["devices"]) for one in rows}
    assigned = {
        (
            one.allocation_id,
            one.until_ms,
            json.dumps([[d.id, d.device_class.value] for d in one.devices], separators=(",", ":")),
        )
        for one in state.assignments
    }
    return state.generation == row["generation"] and assigned == called_for
