"""Enrolments: join tokens (the placer's alone) and requests on their way through a gateway."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bcd.model.ids import NodeId, PoolId
from bcd.store.database import Row, Transaction

Kind = Literal["join", "renewal"]
MAX_OPEN = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """A single-use right to join; ``hmac_key`` is SHA-256 of the secret."""

    id: str
    hmac_key: bytes
    node_id: NodeId
    pool_id: PoolId
    role: str
    trusted: bool
    expires_ms: int
    used_csr: str | None = None


def add_token(tx: Transaction, token: JoinToken) -> None:
    """Keep a new token; those that ran out a day ago are dropped."""
    now_ms = tx.now_ms()
    tx.run("DELETE FROM join_tokens WHERE expires_ms < :before_ms", before_ms=now_ms - 86_400_000)
    tx.run(
        "INSERT INTO join_tokens (id, hmac_key, node_id, pool_id, role, trusted, expires_ms)"
        " VALUES (:id, :hmac_key, :node_id, :pool_id, :role, :trusted, :expires_ms)",
        id=token.id,
        hmac_key=token.hmac_key,
        node_id=token.node_id,
        pool_id=token.pool_id,
        role=token.role,
        trusted=int(token.trusted),
        expires_ms=token.expires_ms,
    )


def lock_token(tx: Transaction, token_id: str) -> JoinToken | None:
    """Read a token and keep others from using it before the commit."""
    row = tx.one(f"SELECT * FROM join_tokens WHERE id = :id{tx.for_update}", id=token_id)
    return None if row is None else _token(row)


def _token(row: Row) -> JoinToken:
    fields = {**row, "hmac_key": bytes(row["hmac_key"]), "trusted": bool(row["trusted"])}
    return JoinToken(**fields)


def use_token(tx: Transaction, token_id: str, csr_hash: str) -> None:
    """Bind a token to the one request that it serves."""
    tx.run(
        "UPDATE join_tokens SET used_csr = :csr_hash WHERE id = :id",
        id=token_id,
        csr_hash=csr_hash,
    )


def page_of_tokens(tx: Transaction, pool_id: str, after: str, limit: int) -> Sequence[JoinToken]:
    """At most ``limit`` tokens, the newest first, behind the one with the id ``after``.

    An empty pool means every pool's. Ids of tokens ascend with the time they were made at.
    """
    rows = tx.all(
        "SELECT * FROM join_tokens WHERE (:pool_id = '' OR pool_id = :pool_id)"
        " AND (:after = '' OR id < :after) ORDER BY id DESC LIMIT :limit",
        pool_id=pool_id,
        after=after,
        limit=limit,
    )
    return [_token(row) for row in rows]


def expire_token(tx: Transaction, token_id: str) -> bool:
    """From now on nobody joins with a token; returns whether it is on record."""
    return bool(
        tx.run(
            "UPDATE join_tokens SET expires_ms = CASE WHEN expires_ms < compute_now()"
            " THEN expires_ms ELSE compute_now() END WHERE id = :id",
            id=token_id,
        )
    )


def drop_tokens(tx: Transaction, *, pool_id: str = "", node_id: str = "") -> None:
    """Forget the tokens of a pool or a node that goes away."""
    tx.run(
        "DELETE FROM join_tokens WHERE pool_id = :pool_id OR node_id = :node_id",
        pool_id=pool_id,
        node_id=node_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """A request that waits for the placer; ``body`` is the frame as received."""

    id: str
    kind: Kind
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A Credentials frame, or why there is none."""

    credentials: bytes | None
    refusal: str | None


def submit(tx: Transaction, kind: Kind, body: bytes) -> str | None:
    """Queue a request for the placer; returns its id, or None when too many are waiting."""
    row = tx.one("SELECT count(*) AS waiting FROM enrolments WHERE answered_ms IS NULL")
    assert row is not None
    if row["waiting"] >= MAX_OPEN:
        return None
    enrolment_id = tx.new_id("enrol")
    tx.run(
        "INSERT INTO enrolments (id, kind, body, created_ms)"
        " VALUES (:id, :kind, :body, compute_now())",
        id=enrolment_id,
        kind=kind,
        body=body,
    )
    tx.wake("enrolment", enrolment_id)
    return enrolment_id


def answer_of(tx: Transaction, enrolment_id: str) -> Answer | None:
    """The placer's answer, None while it is out."""
    row = tx.one(
        "SELECT answer, refusal, answered_ms FROM enrolments WHERE id = :id", id=enrolment_id
    )
    if row is None or row["answered_ms"] is None:
        return None
    return Answer(bytes(row["answer"]) if row["answer"] is not None else None, row["refusal"])


def claim(tx: Transaction, limit: int) -> Sequence[Enrolment]:
    """Requests that wait, oldest first, kept from other placers until the commit."""
    rows = tx.all(
        "SELECT id, kind, body FROM enrolments WHERE answered_ms IS NULL"
        f" ORDER BY created_ms LIMIT :limit{tx.skip_locked}",
        limit=limit,
    )
    return [Enrolment(id=row["id"], kind=row["kind"], body=bytes(row["body"])) for row in rows]


def take(tx: Transaction, enrolment_id: str) -> Enrolment | None:
    """One request, kept from other placers until the commit; None when it waits no longer."""
    row = tx.one(
        "SELECT id, kind, body FROM enrolments WHERE id = :id AND answered_ms IS NULL"
        f"{tx.skip_locked}",
        id=enrolment_id,
    )
    if row is None:
        return None
    return Enrolment(id=row["id"], kind=row["kind"], body=bytes(row["body"]))


def answer(tx: Transaction, enrolment_id: str, reply: Answer) -> None:
    """Answer a request and wake the gateway that waits for it."""
    tx.run(
        "UPDATE enrolments SET answer = :answer, refusal = :refusal, answered_ms = compute_now()"
        " WHERE id = :id",
        id=enrolment_id,
        answer=reply.credentials,
        refusal=reply.refusal,
    )
    tx.wake("enrolment-answer", enrolment_id)


def prune(tx: Transaction, before_ms: int) -> int:
    """Drop requests made before ``before_ms``, answered or given up; returns how many."""
    return tx.run("DELETE FROM enrolments WHERE created_ms < :before_ms", before_ms=before_ms)
