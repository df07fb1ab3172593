"""Certificates and join tokens: listed in pages, ended one by one (spec 11.5, 15.1)."""

from typing import Any

import pytest

from bcd.model.errors import Reason
from bcd.store import certificates, enrolments
from bcd.wire.compute.v1 import admin_pb2 as pb
from tests.placer.api.conftest import Client, Site, is_refusal
from tests.placer.waiting import until
from tests.placer.world import dgx


async def listed(admin: Client, **wanted: Any) -> list[pb.Certificate]:
    request = pb.ListCertificatesRequest(**wanted)
    return list((await admin.call(admin.credentials.ListCertificates, request)).certificates)


async def test_one_certificate_is_revoked_and_the_others_stay(site: Site, admin: Client) -> None:
    one, other = await site.world.add_node(dgx("a")), await site.world.add_node(dgx("b"))
    (certificate,) = await listed(admin, subject_id=one.id)
    assert (certificate.role, certificate.revoked) == ("node", False)
    assert certificate.issued < certificate.expires
    request = pb.RevokeCertificateRequest(serial=certificate.serial, reason="key was copied")
    revoked = (await admin.call(admin.credentials.RevokeCertificate, request)).certificate
    assert (revoked.revoked, revoked.reason) == (True, "key was copied")
    assert revoked.revoked_at > 0
    assert await listed(admin, subject_id=one.id) == [revoked]
    assert [entry.revoked for entry in await listed(admin, subject_id=other.id)] == [False]
    request.reason = "again"
    again = (await admin.call(admin.credentials.RevokeCertificate, request)).certificate
    assert again == revoked
    assert await site.world.database.read(certificates.is_revoked, certificate.serial)


async def test_a_revocation_tells_the_gateways(site: Site, admin: Client) -> None:
    node = await site.world.add_node(dgx("a"))
    heard: list[str] = []
    stop = site.world.database.wakes.listen("revocation", heard.append)
    (certificate,) = await listed(admin, subject_id=node.id)
    request = pb.RevokeCertificateRequest(serial=certificate.serial)
    entry = (await admin.call(admin.credentials.RevokeCertificate, request)).certificate
    assert entry.reason == "revoked by an administrator"
    await until(lambda: heard == [node.id])
    stop()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"serial": ""}, Reason.INVALID_INPUT),
        ({"serial": "AB"}, Reason.INVALID_INPUT),
        ({"serial": "1" * 65}, Reason.INVALID_INPUT),
        ({"serial": "ab"}, Reason.NOT_FOUND),
        ({"serial": "ab", "reason": "a\nb"}, Reason.INVALID_INPUT),
    ],
    ids=str,
)
async def test_a_certificate_that_cannot_be_meant_is_refused(
    site: Site, admin: Client, changes: dict[str, Any], reason: Reason
) -> None:
    request = pb.RevokeCertificateRequest(**changes)
    refused = await admin.refused(admin.credentials.RevokeCertificate, request)
    assert refused.reason is reason


async def test_certificates_come_in_pages_newest_first(site: Site, admin: Client) -> None:
    site.clock.advance(0)  # and stand still: all are issued at one moment
    for name in "abc":
        await site.world.add_node(dgx(name, 1))
    whole = [entry.serial for entry in await listed(admin)]
    assert len(whole) >= 3
    request, seen = pb.ListCertificatesRequest(limit=2), []
    while True:
        page = await admin.call(admin.credentials.ListCertificates, request)
        seen += [entry.serial for entry in page.certificates]
        if not page.next_cursor:
            break
        request.cursor = page.next_cursor
    assert seen == whole
    wrong = pb.ListCertificatesRequest(cursor="ab")
    refused = await admin.refused(admin.credentials.ListCertificates, wrong)
    assert is_refusal(refused, Reason.INVALID_INPUT, field="cursor")


async def token(admin: Client, pool_id: str) -> str:
    request = pb.CreateJoinTokenRequest(pool_id=pool_id)
    text: str = (await admin.call(admin.credentials.CreateJoinToken, request)).token
    return text.partition(".")[0]


async def test_join_tokens_are_listed_newest_first_and_expired(site: Site, admin: Client) -> None:
    other = await site.world.add_pool("other")
    first, second = await token(admin, admin.pool_id), await token(admin, admin.pool_id)
    elsewhere = await token(admin, other)

    async def tokens(**wanted: Any) -> list[pb.JoinToken]:
        request = pb.ListJoinTokensRequest(**wanted)
        return list((await admin.call(admin.credentials.ListJoinTokens, request)).tokens)

    assert {entry.id for entry in await tokens()} == {first, second, elsewhere}
    own = await tokens(pool_id=admin.pool_id)
    assert [entry.id for entry in own] == sorted((first, second), reverse=True)
    page = await admin.call(admin.credentials.ListJoinTokens, pb.ListJoinTokensRequest(limit=1))
    rest = pb.ListJoinTokensRequest(limit=2, cursor=page.next_cursor)
    following = await admin.call(admin.credentials.ListJoinTokens, rest)
    assert [*page.tokens, *following.tokens] == await tokens()
    await admin.call(admin.credentials.ExpireJoinToken, pb.ExpireJoinTokenRequest(token_id=first))
    (expired,) = [entry for entry in await tokens() if entry.id == first]
    assert expired.expires <= site.clock.read()
    (before,) = [entry for entry in own if entry.id == second]
    assert before in await tokens()
    missing = pb.ExpireJoinTokenRequest(token_id="join_00000000000000000000000000")
    refused = await admin.refused(admin.credentials.ExpireJoinToken, missing)
    assert refused.reason is Reason.NOT_FOUND


async def test_a_token_expires_once_and_from_that_moment_on(site: Site, admin: Client) -> None:
    token_id = await token(admin, admin.pool_id)
    await admin.call(
        admin.credentials.ExpireJoinToken, pb.ExpireJoinTokenRequest(token_id=token_id)
    )
    stored = await site.world.database.write(enrolments.lock_token, token_id)
    assert stored is not None
    assert stored.expires_ms <= site.clock.read()
    await admin.call(
        admin.credentials.ExpireJoinToken, pb.ExpireJoinTokenRequest(token_id=token_id)
    )
    assert await site.world.database.write(enrolments.lock_token, token_id) == stored
