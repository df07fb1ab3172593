"""The outbox: events are written in the transaction of the change that they tell of.

Types: ``reservation.`` and what a move says (``placer/lifecycle/transitions``),
``reservation.binding-rejected`` (``placer/lifecycle/judge``), ``node.enrolment-rejected``
(``placer/pki/enrolment``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bcd.store.database import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event; ``subject`` is ``reservation/<id>``, ``type`` ``reservation.placed`` and so on."""

    seq: int
    subject: str
    type: str
    data: Mapping[str, Any]
    at_ms: int


def emit(tx: Transaction, subject: str, event_type: str, data: Mapping[str, Any]) -> None:
    """Write an event."""
    tx.run(
        "INSERT INTO events (subject, type, data, at_ms)"
        " VALUES (:subject, :type, :data, compute_now())",
        subject=subject,
        type=event_type,
        data=msgspec.json.encode(data).decode(),
    )
    tx.wake("event")


def of_subject(tx: Transaction, subject: str) -> Sequence[Event]:
    """Every event of a subject, oldest first."""
    rows = tx.all(
        "SELECT seq, subject, type, data, at_ms FROM events WHERE subject = :subject ORDER BY seq",
        subject=subject,
    )
    return [Event(**{**row, "data": msgspec.json.decode(row["data"])}) for row in rows]
