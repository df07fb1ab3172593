"""What lets people, nodes and gateways in; for administrators."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.errors import InvalidInput
from bcd.model.ids import is_plain_name
from bcd.model.units import HOUR_MS, MINUTE_MS
from bcd.placer.api.edge import Context, Edge, require_admin
from bcd.placer.pki.authority import Authority, Issued
from bcd.placer.pki.issuer import Grant, Issuer
from bcd.placer.pki.join import JoinRequest, mint
from bcd.signing.certificates import Role, to_der
from bcd.store import certificates
from bcd.store.database import Database, Transaction
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1 import admin_pb2_grpc

_DEFAULT_TOKEN_MS = 8 * HOUR_MS
_DEFAULT_JOIN_MS = 15 * MINUTE_MS
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DNS_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\Z")
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

    async def EnrollGateway(  # noqa: N802
        self, request: pb.EnrollGatewayRequest, context: Context
    ) -> pb.EnrollGatewayResponse:
        return await self._edge.serve(self._calls.enroll_gateway, request, context)
