"""What lets people, nodes and gateways in; for administrators."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.errors import InvalidInput, NotFound
from bcd.model.ids import is_plain_name, parse_type_id
from bcd.model.texts import check_text
from bcd.model.units import HOUR_MS, MINUTE_MS
from bcd.placer.api.edge import Context, Edge, require_admin
from bcd.placer.api.paging import cut, page_of
from bcd.placer.pki.authority import Authority, Issued
from bcd.placer.pki.issuer import Grant, Issuer
from bcd.placer.pki.join import JoinRequest, mint
from bcd.signing.certificates import Role, to_der
from bcd.store import certificates, enrolments
from bcd.store.certificates import CertificateRecord
from bcd.store.database import Database, Transaction
from bcd.store.enrolments import JoinToken
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1 import admin_pb2_grpc

_DEFAULT_TOKEN_MS = 8 * HOUR_MS
_DEFAULT_JOIN_MS = 15 * MINUTE_MS
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DNS_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\Z")
_SERIAL = re.compile(r"[0-9a-f]{1,64}\Z")
_MAX_NAME = 253
_MAX_NAMES = 16
_MAX_GRANTED = 64


@dataclass(frozen=True, slots=True)
class CredentialCalls:
    """Calls about tokens and certificates, for verified administrators."""

    database: Database
    authority: Authority
    issuer: Issuer

    async def issue_token(
        self, caller: Caller, request: pb.IssueTokenRequest
    ) -> pb.IssueTokenResponse:
        """A bearer token for somebody, or for an agent that acts for them."""
        require_admin(caller)
        if request.actor and request.admin:
            raise InvalidInput("actor", "must be empty: no agent administers the installation")
        grant = Grant(
            subject=request.subject,
            tenants=_few("tenants", request.tenants),
            groups=_few("groups", request.groups),
            admin=request.admin,
            actor=request.actor,
        )
        now_ms = await self.database.read(_now_ms)
        lifetime_ms = request.lifetime_ms or _DEFAULT_TOKEN_MS
        token = self.issuer.issue(grant, now_ms, lifetime_ms)
        return pb.IssueTokenResponse(token=token, expires=now_ms + lifetime_ms)

    async def create_join_token(
        self, caller: Caller, request: pb.CreateJoinTokenRequest
    ) -> pb.CreateJoinTokenResponse:
        """A single-use token with which one node joins a pool."""
        require_admin(caller)
        wanted = JoinRequest(
            pool_id=request.pool_id,
            role=request.role or Role.NODE.value,
            node_id=request.node_id,
            trusted=request.trusted if request.HasField("trusted") else True,
            lifetime_ms=request.lifetime_ms or _DEFAULT_JOIN_MS,
        )
        minted = await self.database.write(mint, wanted, self.authority.pin)
        return pb.CreateJoinTokenResponse(
            token=minted.text, node_id=minted.node_id, expires=minted.expires_ms
        )

    async def list_join_tokens(
        self, caller: Caller, request: pb.ListJoinTokensRequest
    ) -> pb.ListJoinTokensResponse:
        """A page of the join tokens on record, the newest first."""
        require_admin(caller)
        cursor, limit = page_of(request)
        found = await self.database.read(
            enrolments.page_of_tokens, request.pool_id, cursor, limit + 1
        )
        shown, following = cut(found, limit, lambda token: token.id)
        return pb.ListJoinTokensResponse(
            tokens=[_encode_token(token) for token in shown], next_cursor=following
        )

    async def expire_join_token(
        self, caller: Caller, request: pb.ExpireJoinTokenRequest
    ) -> pb.ExpireJoinTokenResponse:
        """Let nobody join with a token from now on."""
        require_admin(caller)
        token_id = parse_type_id("join", request.token_id, "tokenId")
        if not await self.database.write(enrolments.expire_token, token_id):
            raise NotFound(f"there is no join token {token_id}", tokenId=token_id)
        return pb.ExpireJoinTokenResponse()

    async def list_certificates(
        self, caller: Caller, request: pb.ListCertificatesRequest
    ) -> pb.ListCertificatesResponse:
        """A page of the certificates on record, the newest first."""
        require_admin(caller)
        cursor, limit = page_of(request)
        found = await self.database.read(certificates.page, request.subject_id, cursor, limit + 1)
        shown, following = cut(found, limit, lambda record: record.serial)
        return pb.ListCertificatesResponse(
            certificates=[_encode_record(record) for record in shown], next_cursor=following
        )

    async def revoke_certificate(
        self, caller: Caller, request: pb.RevokeCertificateRequest
    ) -> pb.RevokeCertificateResponse:
        """Revoke one certificate; the first reason stays."""
        require_admin(caller)
        if not _SERIAL.match(request.serial):
            raise InvalidInput("serial", "must be lower-case hexadecimal digits")
        reason = check_text("reason", request.reason, empty=True) or "revoked by an administrator"
        record = await self.database.write(certificates.revoke, request.serial, reason)
        if record is None:
            raise NotFound(
                f"there is no certificate {request.serial} on record", serial=request.serial
            )
        return pb.RevokeCertificateResponse(certificate=_encode_record(record))

    async def enroll_gateway(
        self, caller: Caller, request: pb.EnrollGatewayRequest
    ) -> pb.EnrollGatewayResponse:
        """A gateway's certificate, for the names that nodes dial it by."""
        require_admin(caller)
        if not is_plain_name(request.gateway_id):
            raise InvalidInput("gatewayId", "must be a short name of letters, digits, '-._'")
        names = tuple(request.names)
        if not 0 < len(names) <= _MAX_NAMES or not all(_is_host(name) for name in names):
            raise InvalidInput("names", f"must be 1 to {_MAX_NAMES} DNS names or addresses")
        issued = await self.database.write(
            self._issue_gateway, request.gateway_id, request.csr, names
        )
        return pb.EnrollGatewayResponse(
            chain=[issued.row.der],
            bundle=[to_der(ca) for ca in self.authority.bundle],
            gateway_id=request.gateway_id,
        )

    def _issue_gateway(
        self, tx: Transaction, gateway_id: str, csr: bytes, names: tuple[str, ...]
    ) -> Issued:
        subject = (Role.GATEWAY, gateway_id)
        try:
            issued = self.authority.issue_for_csr(subject, csr, tx.now_ms(), names)
        except ValueError as error:
            raise InvalidInput("csr", f"is not sound: {error}") from error
        certificates.record(tx, issued.row)
        return issued


def _encode_token(token: JoinToken) -> pb.JoinToken:
    return pb.JoinToken(
        id=token.id,
        node_id=token.node_id,
        pool_id=token.pool_id,
        role=token.role,
        expires=token.expires_ms,
        used=token.used_csr is not None,
    )


def _encode_record(record: CertificateRecord) -> pb.Certificate:
    return pb.Certificate(
        serial=record.serial,
        role=record.role,
        subject_id=record.subject_id,
        key_id=record.key_id,
        issued=record.issued_ms,
        expires=record.not_after_ms,
        revoked=record.revoked_ms is not None,
        revoked_at=record.revoked_ms or 0,
        reason=record.reason,
    )


def _is_host(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return len(name) <= _MAX_NAME and _DNS_NAME.match(name) is not None
    return "%" not in name  # a zone means something on one host only


def _few(field: str, names: Sequence[str]) -> tuple[str, ...]:
    if len(names) > _MAX_GRANTED:
        raise InvalidInput(field, f"must have at most {_MAX_GRANTED} entries")
    return tuple(names)


def _now_ms(tx: Transaction) -> int:
    return tx.now_ms()


class CredentialsServicer(admin_pb2_grpc.CredentialsServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: CredentialCalls) -> None:
        self._edge = edge
        self._calls = calls

    async def IssueToken(  # noqa: N802 - the service's name
        self, request: pb.IssueTokenRequest, context: Context
    ) -> pb.IssueTokenResponse:
        return await self._edge.serve(self._calls.issue_token, request, context)

    async def CreateJoinToken(  # noqa: N802
        self, request: pb.CreateJoinTokenRequest, context: Context
    ) -> pb.CreateJoinTokenResponse:
        return await self._edge.serve(self._calls.create_join_token, request, context)

    async def ListJoinTokens(  # noqa: N802
        self, request: pb.ListJoinTokensRequest, context: Context
    ) -> pb.ListJoinTokensResponse:
        return await self._edge.serve(self._calls.list_join_tokens, request, context)

    async def ExpireJoinToken(  # noqa: N802
        self, request: pb.ExpireJoinTokenRequest, context: Context
    ) -> pb.ExpireJoinTokenResponse:
        return await self._edge.serve(self._calls.expire_join_token, request, context)

    async def ListCertificates(  # noqa: N802
        self, request: pb.ListCertificatesRequest, context: Context
    ) -> pb.ListCertificatesResponse:
        return await self._edge.serve(self._calls.list_certificates, request, context)

    async def RevokeCertificate(  # noqa: N802
        self, request: pb.RevokeCertificateRequest, context: Context
    ) -> pb.RevokeCertificateResponse:
        return await self._edge.serve(self._calls.revoke_certificate, request, context)

    async def EnrollGateway(  # noqa: N802
        self, request: pb.EnrollGatewayRequest, context: Context
    ) -> pb.EnrollGatewayResponse:
        return await self._edge.serve(self._calls.enroll_gateway, request, context)
