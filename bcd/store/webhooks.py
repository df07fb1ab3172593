"""Webhooks: who wants which events where. One placer at a time works on one, under a lease."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bcd.model.caller import Caller
from bcd.store import events
from bcd.store.database import Row, Transaction
from bcd.store.events import Wanted

LEASE_MS = 20_000
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


def of_tenant(tx: Transaction, tenant_id: str | None) -> Sequence[Webhook]:
    """A tenant's webhooks, or all, oldest first."""
    where = "" if tenant_id is None else " WHERE tenant_id = :tenant_id"
    rows = tx.all(f"SELECT * FROM webhooks{where} ORDER BY created_ms, id", tenant_id=tenant_id)
    return [_webhook(row) for row in rows]


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


def lease(tx: Transaction, webhook_id: str, token: str) -> Webhook | None:
    """Take or keep a webhook for twenty seconds; None when another has it, or it is disabled."""
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


def disable(tx: Transaction, webhook_id: str, why: str) -> None:
    """Deliver nothing more until it is enabled again; what waits goes on waiting."""
    tx.run("UPDATE webhooks SET disabled = :why WHERE id = :id", id=webhook_id, why=why)


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
