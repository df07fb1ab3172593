"""Certificates on record, revocations, and the trusted CAs."""

import asyncio

import pytest

from bcd.store import certificates
from bcd.store.certificates import IssuedCertificate
from bcd.store.database import ConstraintViolated, Database
from tests.clock import DatabaseClock


def issued(serial: str, subject_id: str = "node_a", not_after_ms: int = 100) -> IssuedCertificate:
    return IssuedCertificate(
        serial=serial,
        role="node",
        subject_id=subject_id,
        key_id="key",
        der=b"\0der",
        not_after_ms=not_after_ms,
    )


async def test_certificates_of_a_key_come_longest_lived_first(database: Database) -> None:
    for serial, not_after_ms in (("a1", 100), ("b2", 300), ("c3", 200)):
        await database.write(certificates.record, issued(serial, not_after_ms=not_after_ms))
    found = await database.read(certificates.by_key, "key")
    assert [certificate.serial for certificate in found] == ["b2", "c3", "a1"]
    assert found[2] == issued("a1")
    assert list(await database.read(certificates.by_key, "other")) == []


async def test_a_serial_number_is_issued_once(database: Database) -> None:
    await database.write(certificates.record, issued("a1"))
    with pytest.raises(ConstraintViolated):
        await database.write(certificates.record, issued("a1"))


async def test_revoking_a_subject_revokes_all_it_has_and_wakes_gateways(
    database: Database,
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    database.wakes.listen("revocation", heard.put_nowait)
    for serial, subject in (("a1", "node_a"), ("b2", "node_a"), ("c3", "node_b")):
        await database.write(certificates.record, issued(serial, subject))
    assert await database.write(certificates.revoke_subject, "node_a", "lost") == 2
    assert await database.write(certificates.revoke_subject, "node_a", "lost") == 0
    async with asyncio.timeout(10):
        assert await heard.get() == "node_a"
    assert await database.read(certificates.revoked_serials) == {"a1", "b2"}
    assert await database.read(certificates.is_revoked, "a1")
    assert not await database.read(certificates.is_revoked, "c3")
    revoked = {c.serial: c.revoked for c in await database.read(certificates.by_key, "key")}
    assert revoked == {"a1": True, "b2": True, "c3": False}


async def test_what_nobody_would_accept_any_more_is_forgotten(database: Database) -> None:
    for serial, not_after_ms in (("a1", 100), ("b2", 300)):
        await database.write(certificates.record, issued(serial, not_after_ms=not_after_ms))
    await database.write(certificates.revoke_subject, "node_a", "lost")
    await database.write(certificates.prune, 200)
    assert [c.serial for c in await database.read(certificates.by_key, "key")] == ["b2"]
    assert await database.read(certificates.revoked_serials) == {"b2"}


async def test_the_bundle_has_every_trusted_ca_newest_first(
    database: Database, clock: DatabaseClock
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    database.wakes.listen("trust", heard.put_nowait)
    clock.set(2_000_000_000_000)
    await database.write(certificates.trust, "pin1", b"ca1")
    clock.advance(1)
    await database.write(certificates.trust, "pin2", b"ca2")
    await database.write(certificates.trust, "pin1", b"ca1")
    assert list(await database.read(certificates.bundle)) == [b"ca2", b"ca1"]
    async with asyncio.timeout(10):
        await heard.get()
