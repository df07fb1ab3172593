"""The durable work queue: what must be looked at, and when.

One row a subject (a reservation's or a pool's id) holds its nearest moment. A worker claims rows
under a token with a lease; whatever changes the row meanwhile clears the token, so that the
worker's own finish does nothing and the row comes up again.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from bcd.store.database import Transaction

LEASE_MS = 30_000
# Whoever takes goes on at once; a crash in between should not be felt.
TAKE_LEASE_MS = 3_000
TICK_MS = 1_000


@dataclass(frozen=True, slots=True)
class Claim:
    """A row that this worker may work on until its lease runs out."""

    key: str
    token: str
    attempts: int


def schedule(tx: Transaction, key: str, wake_ms: int, *, soon: bool = True) -> None:
    """Set a subject's next moment, whatever it was; fences a worker that holds it.

    Workers look at the queue every second anyway: without ``soon`` nobody is woken.
    """
    tx.run(
        "INSERT INTO work (key, wake_ms) VALUES (:key, :wake_ms) ON CONFLICT (key) DO UPDATE SET"
        " wake_ms = excluded.wake_ms, attempts = 0, lock_token = NULL, lock_until_ms = 0",
        key=key,
        wake_ms=wake_ms,
    )
    if soon:
        tx.wake("work")


def poke(tx: Transaction, key: str, wake_ms: int) -> None:
    """Bring a subject's moment forward to ``wake_ms``; fences a worker that holds it."""
    tx.run(
        "INSERT INTO work (key, wake_ms) VALUES (:key, :wake_ms) ON CONFLICT (key) DO UPDATE SET"
        " wake_ms = CASE WHEN work.wake_ms < excluded.wake_ms THEN work.wake_ms"
        " ELSE excluded.wake_ms END, lock_token = NULL, lock_until_ms = 0",
        key=key,
        wake_ms=wake_ms,
    )
    tx.wake("work")


def bring_forward(tx: Transaction, key: str, wake_ms: int) -> None:
    """As ``poke``, but a worker that holds the subject goes on with it.

    For what that worker comes to anyway before it sets the next moment. A poke at every newcomer
    of a busy queue would send it back to the start each time, and it never got to the end.
    """
    tx.run(
        "INSERT INTO work (key, wake_ms) VALUES (:key, :wake_ms) ON CONFLICT (key) DO UPDATE SET"
        " wake_ms = CASE WHEN work.wake_ms < excluded.wake_ms THEN work.wake_ms"
        " ELSE excluded.wake_ms END",
        key=key,
        wake_ms=wake_ms,
    )
    tx.wake("work")


def take(tx: Transaction, key: str, now_ms: int) -> Claim:
    """A poke and the claim that would follow, in one; whoever asks goes on with it at once."""
    token = secrets.token_hex(8)
    row = tx.one(
        "INSERT INTO work (key, wake_ms, attempts, lock_token, lock_until_ms)"
        " VALUES (:key, :now_ms, 1, :token, :until_ms) ON CONFLICT (key) DO UPDATE SET"
        " wake_ms = CASE WHEN work.wake_ms < excluded.wake_ms THEN work.wake_ms"
        " ELSE excluded.wake_ms END, attempts = work.attempts + 1,"
        " lock_token = excluded.lock_token, lock_until_ms = excluded.lock_until_ms"
        " RETURNING attempts",
        key=key,
        now_ms=now_ms,
        token=token,
        until_ms=now_ms + TAKE_LEASE_MS,
    )
    assert row is not None
    return Claim(key, token, row["attempts"])


def drop(tx: Transaction, key: str) -> None:
    """Nothing will ever be due for this subject again."""
    tx.run("DELETE FROM work WHERE key = :key", key=key)


def claim(tx: Transaction, limit: int) -> Sequence[Claim]:
    """Take up to ``limit`` due subjects, most overdue first."""
    token = secrets.token_hex(8)
    # Chosen once and for all: a sub-query that skips what it locked itself may be run again for
    # every row, and then it finds others.
    rows = tx.all(
        "WITH due AS MATERIALIZED (SELECT key AS due_key FROM work"
        " WHERE wake_ms <= compute_now() AND lock_until_ms <= compute_now()"
        f" ORDER BY wake_ms, key LIMIT :limit{tx.skip_locked})"
        " UPDATE work SET lock_token = :token, lock_until_ms = compute_now() + :lease_ms,"
        " attempts = attempts + 1 FROM due WHERE key = due_key RETURNING key, attempts, wake_ms",
        token=token,
        lease_ms=LEASE_MS,
        limit=limit,
    )
    ordered = sorted(rows, key=lambda row: (row["wake_ms"], row["key"]))
    return [Claim(row["key"], token, row["attempts"]) for row in ordered]


def holds(tx: Transaction, claim: Claim) -> bool:
    """Whether a claim is still this worker's; locks the row until the commit."""
    row = tx.one(f"SELECT lock_token FROM work WHERE key = :key{tx.for_update}", key=claim.key)
    return row is not None and row["lock_token"] == claim.token


def keep(tx: Transaction, claim: Claim) -> None:
    """Go on with a claim in a further transaction: its lease starts anew.

    Only in a transaction that found ``holds`` true; what it did itself to the row fences nobody.
    """
    tx.run(
        "UPDATE work SET lock_token = :token, lock_until_ms = compute_now() + :lease_ms"
        " WHERE key = :key",
        key=claim.key,
        token=claim.token,
        lease_ms=LEASE_MS,
    )


def retry(tx: Transaction, claim: Claim, wake_ms: int) -> None:
    """Give a claim back after a failure; its attempts stay counted."""
    tx.run(
        "UPDATE work SET wake_ms = :wake_ms, lock_token = NULL, lock_until_ms = 0"
        " WHERE key = :key AND lock_token = :token",
        key=claim.key,
        token=claim.token,
        wake_ms=wake_ms,
    )


def next_wake_ms(tx: Transaction) -> int | None:
    """When the next subject is due, None for an empty queue."""
    row = tx.one(
        "SELECT min(CASE WHEN wake_ms > lock_until_ms THEN wake_ms ELSE lock_until_ms END) AS due"
        " FROM work"
    )
    return None if row is None or row["due"] is None else int(row["due"])
