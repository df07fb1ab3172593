"""The outbox: events are written in the transaction of the change that they tell of.

Types: ``bcd/model/event``. A written event has no place in the common order yet: on PostgreSQL a
smaller ``seq`` may be committed later. The publisher gives committed ones their ``published_seq``,
one publisher at a time, without gaps; whoever reads in that order misses nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bcd.store.database import Row, Transaction

# A page looks at so many places in the order at most, whatever its filter leaves of them.
_WINDOW = 20_000
_FORGET_BATCH = 5_000
_COLUMNS = "seq, id, tenant_id, subject, type, data, at_ms, published_seq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event; ``subject`` is ``reservation/<id>``, ``type`` ``reservation.placed`` and so on.

    ``tenant_id`` is empty for what only administrators see; ``id`` and ``published_seq`` are None
    until it is published.
    """

    seq: int
    id: str | None = None
    tenant_id: str = ""
    subject: str
    type: str
    data: Mapping[str, Any]
    at_ms: int
    published_seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which events a reader asks for; what is empty filters nothing."""

    tenant_id: str = ""
    subject: str = ""
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Places up to ``forgotten`` are gone, up to ``newest`` they are given."""

    forgotten: int
    newest: int


@dataclass(frozen=True, slots=True)
class Page:
    """Events in their order. All up to the place ``upto`` were looked at; ``newest`` is the last.

    An ``upto`` below ``newest`` means that there is more to look at.
    """

    events: Sequence[Event]
    upto: int
    newest: int


def emit(
    tx: Transaction, subject: str, event_type: str, data: Mapping[str, Any], *, tenant_id: str = ""
) -> None:
    """Write an event of a tenant, or one that only administrators see."""
    tx.run(
        "INSERT INTO events (tenant_id, subject, type, data, at_ms)"
        " VALUES (:tenant_id, :subject, :type, :data, compute_now())",
        tenant_id=tenant_id,
        subject=subject,
        type=event_type,
        data=msgspec.json.encode(data).decode(),
    )
    tx.wake("event")


def of_subject(tx: Transaction, subject: str) -> Sequence[Event]:
    """Every event of a subject, oldest first, published or not."""
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM events WHERE subject = :subject ORDER BY seq", subject=subject
    )
    return [event_of(row) for row in rows]


def publish(tx: Transaction, limit: int) -> int:
    """Give up to ``limit`` committed events their places, oldest first; returns how many.

    The row of the newest place is the lock: it is held until the commit, so that the next
    publisher, in whichever process, sees what this one did, and no reader sees a gap.
    """
    if tx.one("SELECT seq FROM events WHERE published_seq IS NULL LIMIT 1") is None:
        return 0
    last = tx.one(f"SELECT value FROM control WHERE key = 'published'{tx.for_update}")
    assert last is not None
    rows = tx.all(
        "SELECT seq FROM events WHERE published_seq IS NULL ORDER BY seq LIMIT :limit", limit=limit
    )
    if not rows:
        return 0
    first, now_ms = int(last["value"]) + 1, tx.now_ms()
    tx.many(
        "UPDATE events SET published_seq = :place, id = :id, published_ms = :now_ms"
        " WHERE seq = :seq",
        [
            {"place": place, "id": tx.new_id("evt"), "now_ms": now_ms, "seq": row["seq"]}
            for place, row in enumerate(rows, start=first)
        ],
    )
    tx.run(
        "UPDATE control SET value = :newest WHERE key = 'published'", newest=first + len(rows) - 1
    )
    tx.wake("published")
    return len(rows)


def bounds(tx: Transaction) -> Bounds:
    """Which places are there to be read."""
    rows = tx.all("SELECT key, value FROM control WHERE key IN ('published', 'forgotten')")
    values = {row["key"]: int(row["value"]) for row in rows}
    return Bounds(values["forgotten"], values["published"])


def page(tx: Transaction, wanted: Wanted, after: int, limit: int) -> Page:
    """Up to ``limit`` events behind the place ``after``; read in one snapshot."""
    newest = bounds(tx).newest
    upto = min(newest, after + _WINDOW)
    conditions = ["published_seq > :after", "published_seq <= :upto"]
    if wanted.tenant_id:
        conditions.append("tenant_id = :tenant_id")
    if wanted.subject:
        conditions.append("subject = :subject")
    if wanted.types:
        conditions.append(":types LIKE '% ' || type || ' %'")
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM events WHERE {' AND '.join(conditions)}"
        " ORDER BY published_seq LIMIT :limit",
        after=after,
        upto=upto,
        tenant_id=wanted.tenant_id,
        subject=wanted.subject,
        types=spaced(wanted.types),
        limit=limit,
    )
    if len(rows) == limit:
        upto = rows[-1]["published_seq"]
    return Page([event_of(row) for row in rows], upto, newest)


def forget(tx: Transaction, before_ms: int) -> int:
    """Drop events published before ``before_ms``, but not those on their way to a webhook.

    A webhook that has not taken them in counts them as skipped. Returns the newest place that is
    forgotten now; call again while it grows.
    """
    known = tx.one(f"SELECT value FROM control WHERE key = 'forgotten'{tx.for_update}")
    assert known is not None
    rows = tx.all(
        "SELECT published_seq, published_ms FROM events WHERE published_seq > :forgotten"
        " ORDER BY published_seq LIMIT :limit",
        forgotten=known["value"],
        limit=_FORGET_BATCH,
    )
    old = [row["published_seq"] for row in rows if row["published_ms"] < before_ms]
    last = int(old[-1] if old else known["value"])
    tx.run(
        "UPDATE webhooks SET taken_seq = :last, skipped = skipped + (SELECT count(*) FROM events e"
        " WHERE e.published_seq > webhooks.taken_seq AND e.published_seq <= :last"
        " AND webhooks.tenant_id IN ('', e.tenant_id)"
        " AND (webhooks.types = '' OR webhooks.types LIKE '% ' || e.type || ' %'))"
        " WHERE taken_seq < :last",
        last=last,
    )
    tx.run(
        "DELETE FROM events WHERE published_seq <= :last AND NOT EXISTS (SELECT 1 FROM"
        " webhook_deliveries d WHERE d.published_seq = events.published_seq)",
        last=last,
    )
    tx.run("UPDATE control SET value = :last WHERE key = 'forgotten'", last=last)
    return last


def spaced(types: Sequence[str]) -> str:
    """Types as one text with a space around each, empty for none; no type has a space."""
    return f" {' '.join(types)} " if types else ""


def event_of(row: Row) -> Event:
    """A row of the columns of Event."""
    names = _COLUMNS.split(", ")
    return Event(**{name: row[name] for name in names} | {"data": msgspec.json.decode(row["data"])})
