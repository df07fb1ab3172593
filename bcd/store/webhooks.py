"""Webhooks and what is on its way to them.

An event that a webhook wants becomes a delivery, a row that stays until the receiver acknowledged
it: a crash may deliver once more, and loses nothing. One placer at a time works on a webhook,
under a lease; what another one took over is not written any more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from bcd.model.caller import Caller
from bcd.store import events
from bcd.store.database import Row, Transaction
from bcd.store.events import Event, Wanted

LEASE_MS = 60_000
# Of one webhook: what waits is taken in no further, and so many dead letters disable it.
MAX_WAITING = 256
MAX_DEAD = 1_000
_HEAD = (
    "d.state = 'waiting' AND NOT EXISTS (SELECT 1 FROM webhook_deliveries o"
    " WHERE o.webhook_id = d.webhook_id AND o.state = 'waiting' AND o.subject = d.subject"
    " AND o.published_seq < d.published_seq)"
)
_DELIVERY = (
    "e.seq, e.id, e.tenant_id, e.subject, e.type, e.data, e.at_ms, e.published_seq,"
    " d.state, d.attempts, d.due_ms, d.problem"
)
_CREATOR = msgspec.json.Decoder(Caller)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A receiver; ``tenant_id`` is empty for every tenant's events, ``types`` for all of them.

    ``creator`` is who it delivers for: what they may not read is not sent. ``disabled`` says why
    nothing is delivered, empty for an enabled one.
    """

    id: str
    tenant_id: str
    url: str
    types: tuple[str, ...]
    creator: Caller
    secret: bytes
    disabled: str = ""
    taken_seq: int = 0
    skipped: int = 0
    failures: int = 0
    rest_until_ms: int = 0
    problem: str = ""
    delivered_ms: int | None = None
    created_ms: int = 0

    def __repr__(self) -> str:
        return f"Webhook({self.id})"  # neither the secret nor the URL belongs into a log

    @property
    def wanted(self) -> Wanted:
        """Which events it is for."""
        return Wanted(tenant_id=self.tenant_id, types=self.types)


@dataclass(frozen=True, slots=True)
class Counts:
    """Deliveries of a webhook that wait, and those that were given up."""

    waiting: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """An event on its way; ``attempts`` were made, the last one failed with ``problem``."""

    event: Event
    state: Literal["waiting", "dead"]
    attempts: int
    due_ms: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one attempt came to: acknowledged without a problem, due again, or given up."""

    published_seq: int
    problem: str = ""
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """When a webhook must be looked at next."""

    webhook_id: str
    due_ms: int


def add(tx: Transaction, webhook: Webhook, webhook_id: str) -> Webhook:
    """Keep a new webhook under that id; it gets what is published from now on."""
    tx.run(
        "INSERT INTO webhooks (id, tenant_id, url, types, creator, secret, taken_seq, created_ms)"
        " VALUES (:id, :tenant_id, :url, :types, :creator, :secret, :taken_seq, compute_now())",
        id=webhook_id,
        tenant_id=webhook.tenant_id,
        url=webhook.url,
        types=events.spaced(webhook.types),
        creator=msgspec.json.encode(webhook.creator, order="deterministic").decode(),
        secret=webhook.secret,
        taken_seq=events.bounds(tx).newest,
    )
    made = get(tx, webhook_id)
    assert made is not None
    return made


def get(tx: Transaction, webhook_id: str) -> Webhook | None:
    """One webhook."""
    row = tx.one("SELECT * FROM webhooks WHERE id = :id", id=webhook_id)
    return None if row is None else _webhook(row)


def count(tx: Transaction, tenant_id: str | None = None) -> int:
    """How many there are, of a tenant or in all."""
    where = "" if tenant_id is None else " WHERE tenant_id = :tenant_id"
    row = tx.one(f"SELECT count(*) AS number FROM webhooks{where}", tenant_id=tenant_id)
    assert row is not None
    return int(row["number"])


def of_tenant(tx: Transaction, tenant_id: str | None) -> Sequence[tuple[Webhook, Counts]]:
    """A tenant's webhooks, or all, oldest first."""
    where = "" if tenant_id is None else " WHERE tenant_id = :tenant_id"
    rows = tx.all(f"SELECT * FROM webhooks{where} ORDER BY created_ms, id", tenant_id=tenant_id)
    return [(_webhook(row), counts(tx, row["id"])) for row in rows]


def counts(tx: Transaction, webhook_id: str) -> Counts:
    """What is on its way to a webhook, and what was given up."""
    rows = tx.all(
        "SELECT state, count(*) AS number FROM webhook_deliveries WHERE webhook_id = :id"
        " GROUP BY state",
        id=webhook_id,
    )
    return Counts(**{row["state"]: int(row["number"]) for row in rows})


def delete(tx: Transaction, webhook_id: str) -> None:
    """Drop a webhook and everything that was on its way to it."""
    tx.one(f"SELECT id FROM webhooks WHERE id = :id{tx.for_update}", id=webhook_id)
    tx.run("DELETE FROM webhook_deliveries WHERE webhook_id = :id", id=webhook_id)
    tx.run("DELETE FROM webhooks WHERE id = :id", id=webhook_id)


def enable(tx: Transaction, webhook_id: str) -> None:
    """Deliver again, at once; an enabled one only stops to rest."""
    tx.run(
        "UPDATE webhooks SET disabled = '', failures = 0, rest_until_ms = 0 WHERE id = :id",
        id=webhook_id,
    )
    tx.wake("webhook", webhook_id)


def dead_letters(tx: Transaction, webhook_id: str, after: int, limit: int) -> Sequence[Delivery]:
    """Deliveries that were given up, in the events' order, behind the place ``after``."""
    rows = tx.all(
        f"SELECT {_DELIVERY} FROM webhook_deliveries d JOIN events e"
        " ON e.published_seq = d.published_seq WHERE d.webhook_id = :id AND d.state = 'dead'"
        " AND d.published_seq > :after ORDER BY d.published_seq LIMIT :limit",
        id=webhook_id,
        after=after,
        limit=limit,
    )
    return [_delivery(row) for row in rows]


def redeliver(tx: Transaction, webhook_id: str, event_ids: Sequence[str]) -> int:
    """Try dead letters again, all of them when none is named; returns how many."""
    change = (
        "UPDATE webhook_deliveries SET state = 'waiting', attempts = 0, due_ms = compute_now()"
        " WHERE webhook_id = :id AND state = 'dead'"
    )
    if event_ids:
        named = (
            " AND :event_id = (SELECT e.id FROM events e"
            " WHERE e.published_seq = webhook_deliveries.published_seq)"
        )
        done = sum(tx.run(change + named, id=webhook_id, event_id=one) for one in event_ids)
    else:
        done = tx.run(change, id=webhook_id)
    tx.wake("webhook", webhook_id)
    return done


def turns(tx: Transaction, token: str) -> Sequence[Turn]:
    """When each enabled webhook must be looked at next, where that is known.

    ``token`` is the asking placer's lease; another one's is waited for.
    """
    newest = events.bounds(tx).newest
    rows = tx.all(
        "SELECT w.id, w.rest_until_ms, w.lease_token, w.lease_until_ms,"
        " (SELECT count(*) FROM webhook_deliveries d WHERE d.webhook_id = w.id"
        "  AND d.state = 'waiting') AS waiting,"
        " (SELECT min(d.due_ms) FROM webhook_deliveries d WHERE d.webhook_id = w.id"
        f"  AND {_HEAD}) AS due_ms,"
        " CASE WHEN EXISTS (SELECT 1 FROM events e WHERE e.published_seq > w.taken_seq"
        "  AND e.published_seq <= :newest AND w.tenant_id IN ('', e.tenant_id)"
        "  AND (w.types = '' OR w.types LIKE '% ' || e.type || ' %')) THEN 1 ELSE 0 END AS more"
        " FROM webhooks w WHERE w.disabled = '' ORDER BY w.id",
        newest=newest,
    )
    found = []
    for row in rows:
        due_ms = 0 if row["more"] and row["waiting"] < MAX_WAITING else row["due_ms"]
        if due_ms is None:
            continue
        leased_ms = 0 if row["lease_token"] in ("", token) else row["lease_until_ms"]
        found.append(Turn(row["id"], max(due_ms, row["rest_until_ms"], leased_ms)))
    return found


def lease(tx: Transaction, webhook_id: str, token: str) -> Webhook | None:
    """Take or keep a webhook for a minute; None when another has it, or it is disabled."""
    row = tx.one(
        "UPDATE webhooks SET lease_token = :token, lease_until_ms = compute_now() + :lease_ms"
        " WHERE id = :id AND disabled = '' AND (lease_token IN ('', :token)"
        " OR lease_until_ms <= compute_now()) RETURNING *",
        id=webhook_id,
        token=token,
        lease_ms=LEASE_MS,
    )
    return None if row is None else _webhook(row)


def let_go(tx: Transaction, webhook_id: str, token: str) -> None:
    """Give a lease back."""
    tx.run(
        "UPDATE webhooks SET lease_token = '', lease_until_ms = 0"
        " WHERE id = :id AND lease_token = :token",
        id=webhook_id,
        token=token,
    )


def take_in(
    tx: Transaction, webhook: Webhook, token: str, places: Mapping[int, str], upto: int
) -> None:
    """Make deliveries of events (their subjects, by place), and go on behind ``upto``.

    Does nothing when somebody else went on meanwhile.
    """
    row = _leased(tx, webhook.id, token)
    if row is None or row["taken_seq"] != webhook.taken_seq:
        return
    tx.many(
        "INSERT INTO webhook_deliveries (webhook_id, published_seq, subject, state, due_ms)"
        " VALUES (:webhook_id, :place, :subject, 'waiting', compute_now())",
        [
            {"webhook_id": webhook.id, "place": place, "subject": subject}
            for place, subject in sorted(places.items())
        ],
    )
    tx.run("UPDATE webhooks SET taken_seq = :upto WHERE id = :id", id=webhook.id, upto=upto)


def due(tx: Transaction, webhook_id: str, now_ms: int, limit: int) -> Sequence[Delivery]:
    """The next deliveries to attempt, oldest first and never two of one subject."""
    rows = tx.all(
        f"SELECT {_DELIVERY} FROM webhook_deliveries d JOIN events e"
        " ON e.published_seq = d.published_seq WHERE d.webhook_id = :id AND d.due_ms <= :now_ms"
        f" AND {_HEAD} ORDER BY d.published_seq LIMIT :limit",
        id=webhook_id,
        now_ms=now_ms,
        limit=limit,
    )
    return [_delivery(row) for row in rows]


def settle(
    tx: Transaction, webhook_id: str, token: str, outcomes: Sequence[Outcome], rest_ms: int
) -> bool:
    """Write what attempts came to; when all failed nothing is tried for ``rest_ms``.

    False, and nothing written, for who lost the lease: then somebody else tries again.
    """
    row = _leased(tx, webhook_id, token)
    if row is None:
        return False
    for outcome in outcomes:
        _settle_one(tx, webhook_id, outcome)
    problems = [outcome.problem for outcome in outcomes if outcome.problem]
    well = len(problems) < len(outcomes)
    tx.run(
        "UPDATE webhooks SET failures = :failures, rest_until_ms = compute_now() + :rest_ms,"
        " problem = :problem, delivered_ms = CASE WHEN :well = 1 THEN compute_now()"
        " ELSE delivered_ms END WHERE id = :id",
        id=webhook_id,
        failures=0 if well else row["failures"] + 1,
        rest_ms=0 if well else rest_ms,
        problem=problems[-1] if problems else "",
        well=int(well),
    )
    if counts(tx, webhook_id).dead >= MAX_DEAD:
        disable(tx, webhook_id, f"it has {MAX_DEAD} dead letters")
    return True


def _settle_one(tx: Transaction, webhook_id: str, outcome: Outcome) -> None:
    key = {"id": webhook_id, "place": outcome.published_seq}
    where = " WHERE webhook_id = :id AND published_seq = :place AND state = 'waiting'"
    if not outcome.problem:
        tx.run(f"DELETE FROM webhook_deliveries{where}", **key)
        return
    tx.run(
        "UPDATE webhook_deliveries SET attempts = attempts + 1, problem = :problem,"
        f" state = :state, due_ms = coalesce(:due_ms, compute_now()){where}",
        problem=outcome.problem,
        state="dead" if outcome.due_ms is None else "waiting",
        due_ms=outcome.due_ms,
        **key,
    )


def disable(tx: Transaction, webhook_id: str, why: str) -> None:
    """Deliver nothing more until it is enabled again; what waits goes on waiting."""
    tx.run("UPDATE webhooks SET disabled = :why WHERE id = :id", id=webhook_id, why=why)


def forget(tx: Transaction, before_ms: int) -> None:
    """Drop dead letters that were given up before ``before_ms``."""
    tx.run(
        "DELETE FROM webhook_deliveries WHERE state = 'dead' AND due_ms < :before_ms",
        before_ms=before_ms,
    )


def _leased(tx: Transaction, webhook_id: str, token: str) -> Row | None:
    return tx.one(
        "SELECT taken_seq, failures FROM webhooks WHERE id = :id AND lease_token = :token"
        f"{tx.for_update}",
        id=webhook_id,
        token=token,
    )


def _delivery(row: Row) -> Delivery:
    return Delivery(
        event=events.event_of(row),
        state=row["state"],
        attempts=row["attempts"],
        due_ms=row["due_ms"],
        problem=row["problem"],
    )


def _webhook(row: Row) -> Webhook:
    return Webhook(
        id=row["id"],
        tenant_id=row["tenant_id"],
        url=row["url"],
        types=tuple(row["types"].split()),
        creator=_CREATOR.decode(row["creator"]),
        secret=bytes(row["secret"]),
        disabled=row["disabled"],
        taken_seq=row["taken_seq"],
        skipped=row["skipped"],
        failures=row["failures"],
        rest_until_ms=row["rest_until_ms"],
        problem=row["problem"],
        delivered_ms=row["delivered_ms"],
        created_ms=row["created_ms"],
    )
