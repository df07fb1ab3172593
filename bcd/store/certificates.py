"""Certificates that the CA issued, those revoked, and the bundle that everyone trusts."""

from collections.abc import Sequence
from dataclasses import dataclass

from bcd.model.errors import InvalidInput
from bcd.store.database import Row, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate:
    """A certificate on record; ``subject_id`` is the last part of its SPIFFE id."""

    serial: str
    role: str
    subject_id: str
    key_id: str
    der: bytes
    not_after_ms: int
    revoked: bool = False


def record(tx: Transaction, certificate: IssuedCertificate) -> None:
    """Keep a certificate that was issued, in the transaction that answers with it."""
    tx.run(
        "INSERT INTO certificates (serial, role, subject_id, key_id, der, not_after_ms, issued_ms)"
        " VALUES (:serial, :role, :subject_id, :key_id, :der, :not_after_ms, compute_now())",
        serial=certificate.serial,
        role=certificate.role,
        subject_id=certificate.subject_id,
        key_id=certificate.key_id,
        der=certificate.der,
        not_after_ms=certificate.not_after_ms,
    )


def by_key(tx: Transaction, key_id: str) -> Sequence[IssuedCertificate]:
    """Certificates of one key, the longest-lived first."""
    rows = tx.all(
        "SELECT c.serial, c.role, c.subject_id, c.key_id, c.der, c.not_after_ms,"
        " r.serial IS NOT NULL AS revoked FROM certificates c"
        " LEFT JOIN revocations r ON r.serial = c.serial"
        " WHERE c.key_id = :key_id ORDER BY c.not_after_ms DESC LIMIT 16",
        key_id=key_id,
    )
    return [
        IssuedCertificate(**{**row, "der": bytes(row["der"]), "revoked": bool(row["revoked"])})
        for row in rows
    ]


def revoke_subject(tx: Transaction, subject_id: str, reason: str) -> int:
    """Revoke every certificate of a node or gateway; returns how many were not revoked yet."""
    revoked = tx.run(
        "INSERT INTO revocations (serial, revoked_ms, reason)"
        " SELECT serial, compute_now(), :reason FROM certificates WHERE subject_id = :subject_id"
        " ON CONFLICT (serial) DO NOTHING",
        subject_id=subject_id,
        reason=reason,
    )
    tx.wake("revocation", subject_id)
    return revoked


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRecord:
    """What administrators see of a certificate; ``revoked_ms`` is None for one that is not."""

    serial: str
    role: str
    subject_id: str
    key_id: str
    issued_ms: int
    not_after_ms: int
    revoked_ms: int | None
    reason: str


_RECORD = (
    "SELECT c.serial, c.role, c.subject_id, c.key_id, c.issued_ms, c.not_after_ms,"
    " r.revoked_ms, coalesce(r.reason, '') AS reason FROM certificates c"
    " LEFT JOIN revocations r ON r.serial = c.serial"
)


def _record(row: Row) -> CertificateRecord:
    return CertificateRecord(**row)


def page(tx: Transaction, subject_id: str, after: str, limit: int) -> Sequence[CertificateRecord]:
    """At most ``limit`` certificates older than the one with the serial ``after``, newest first.

    An empty subject means everybody's. Raises InvalidInput for a serial that is not on record.
    """
    issued_ms = 1 << 62
    if after:
        issued_ms = get(tx, after, "cursor").issued_ms
    rows = tx.all(
        f"{_RECORD} WHERE (:subject_id = '' OR c.subject_id = :subject_id)"
        " AND (c.issued_ms < :issued_ms OR (c.issued_ms = :issued_ms AND c.serial < :after))"
        " ORDER BY c.issued_ms DESC, c.serial DESC LIMIT :limit",
        subject_id=subject_id,
        issued_ms=issued_ms,
        after=after,
        limit=limit,
    )
    return [_record(row) for row in rows]


def get(tx: Transaction, serial: str, field: str) -> CertificateRecord:
    """The certificate with a serial; raises InvalidInput naming ``field``."""
    row = tx.one(f"{_RECORD} WHERE c.serial = :serial", serial=serial)
    if row is None:
        raise InvalidInput(field, "is the serial of no certificate on record")
    return _record(row)


def revoke(tx: Transaction, serial: str, reason: str) -> CertificateRecord | None:
    """Revoke one certificate, once, and wake the gateways; None when it is not on record."""
    row = tx.one("SELECT subject_id FROM certificates WHERE serial = :serial", serial=serial)
    if row is None:
        return None
    tx.run(
        "INSERT INTO revocations (serial, revoked_ms, reason)"
        " VALUES (:serial, compute_now(), :reason) ON CONFLICT (serial) DO NOTHING",
        serial=serial,
        reason=reason,
    )
    tx.wake("revocation", row["subject_id"])
    return get(tx, serial, "serial")


def is_revoked(tx: Transaction, serial: str) -> bool:
    """Whether a serial number (lower-case hex) was revoked."""
    return (
        tx.one("SELECT serial FROM revocations WHERE serial = :serial", serial=serial) is not None
    )


def revoked_serials(tx: Transaction) -> frozenset[str]:
    """Every revoked serial number that is still on record."""
    return frozenset(row["serial"] for row in tx.all("SELECT serial FROM revocations"))


def prune(tx: Transaction, before_ms: int) -> None:
    """Forget certificates, and their revocations, that nobody would accept any more anyway."""
    tx.run(
        "DELETE FROM revocations WHERE serial IN"
        " (SELECT serial FROM certificates WHERE not_after_ms < :before_ms)",
        before_ms=before_ms,
    )
    tx.run("DELETE FROM certificates WHERE not_after_ms < :before_ms", before_ms=before_ms)


def trust(tx: Transaction, pin: str, der: bytes) -> None:
    """Add a CA to the bundle, and wake the gateways that check clients against it."""
    tx.run(
        "INSERT INTO trust_bundles (pin, der, created_ms) VALUES (:pin, :der, compute_now())"
        " ON CONFLICT (pin) DO NOTHING",
        pin=pin,
        der=der,
    )
    tx.wake("trust")


def bundle(tx: Transaction) -> Sequence[bytes]:
    """The trusted CAs in DER, newest first."""
    rows = tx.all("SELECT der FROM trust_bundles ORDER BY created_ms DESC, pin")
    return [bytes(row["der"]) for row in rows]
