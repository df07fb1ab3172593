"""Events on their way to webhooks.

An event that a webhook wants becomes a delivery, a row that stays until the receiver acknowledged
it: a crash may deliver once more, and loses nothing. What another placer took over, with its lease
on the webhook, is not written any more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bcd.store import events, webhooks
from bcd.store.database import Row, Transaction
from bcd.store.events import Event
from bcd.store.webhooks import Webhook

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
    """When a webhook must be looked at next, None while nothing is there for it.

    ``behind`` is how many places it is behind the newest event.
    """

    webhook_id: str
    due_ms: int | None
    behind: int


def counts(tx: Transaction, webhook_id: str) -> Counts:
    """What is on its way to a webhook, and what was given up."""
    rows = tx.all(
        "SELECT state, count(*) AS number FROM webhook_deliveries WHERE webhook_id = :id"
        " GROUP BY state",
        id=webhook_id,
    )
    return Counts(**{row["state"]: int(row["number"]) for row in rows})


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
    """When each enabled webhook must be looked at next.

    ``token`` is the asking placer's lease; another one's is waited for.
    """
    newest = events.bounds(tx).newest
    rows = tx.all(
        "SELECT w.id, w.rest_until_ms, w.lease_token, w.lease_until_ms, w.taken_seq,"
        " CASE WHEN EXISTS (SELECT 1 FROM events e WHERE e.published_seq > w.taken_seq"
        "  AND e.published_seq <= :newest AND w.tenant_id IN ('', e.tenant_id)"
        "  AND (w.types = '' OR w.types LIKE '% ' || e.type || ' %')) THEN 1 ELSE 0 END AS more"
        " FROM webhooks w WHERE w.disabled = '' ORDER BY w.id",
        newest=newest,
    )
    # Of each subject the oldest; one pass over all that waits.
    waiting = tx.all(
        "SELECT h.webhook_id, min(d.due_ms) AS due_ms, sum(h.number) AS number FROM"
        " (SELECT webhook_id, min(published_seq) AS place, count(*) AS number"
        "  FROM webhook_deliveries WHERE state = 'waiting' GROUP BY webhook_id, subject) h"
        " JOIN webhook_deliveries d ON d.webhook_id = h.webhook_id AND d.published_seq = h.place"
        " GROUP BY h.webhook_id"
    )
    known = {row["webhook_id"]: (int(row["due_ms"]), int(row["number"])) for row in waiting}
    return [
        Turn(row["id"], _due_ms(row, known.get(row["id"]), token), newest - row["taken_seq"])
        for row in rows
    ]


def _due_ms(row: Row, waiting: tuple[int, int] | None, token: str) -> int | None:
    due_ms, number = waiting or (None, 0)
    if row["more"] and number < MAX_WAITING:
        due_ms = 0
    if due_ms is None:
        return None
    leased = row["lease_token"] not in ("", token)
    return max(due_ms, int(row["rest_until_ms"]), int(row["lease_until_ms"]) if leased else 0)


def pass_over(tx: Transaction) -> int:
    """Bring webhooks that want none of the events in front of them up to the newest.

    Else each look at them would go through all of these again. Returns how many moved.
    """
    return tx.run(
        "UPDATE webhooks SET taken_seq = :newest WHERE taken_seq < :newest AND NOT EXISTS"
        " (SELECT 1 FROM events e WHERE e.published_seq > webhooks.taken_seq"
        " AND e.published_seq <= :newest AND webhooks.tenant_id IN ('', e.tenant_id)"
        " AND (webhooks.types = '' OR webhooks.types LIKE '% ' || e.type || ' %'))",
        newest=events.bounds(tx).newest,
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
        webhooks.disable(tx, webhook_id, f"it has {MAX_DEAD} dead letters")
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
