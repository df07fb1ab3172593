"""The gateway's first certificate: asked for at the placer's API, with an administrator's token.

Later ones are renewals through the database (``identity``); nodes enrol by another way (``enrol``).
"""

from dataclasses import dataclass

import grpc

from bcd.gateway.identity import credentials_of
from bcd.model.errors import InvalidInput
from bcd.signing import keys
from bcd.signing.certificates import Role, make_csr, spiffe_id
from bcd.signing.keyfile import Credentials
from bcd.wire.compute.v1 import admin_pb2, admin_pb2_grpc
from bcd.wire.status import decode_error

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Who asks whom: ``placer`` is ``host:port``, ``ca`` the PEM that its certificate ends in."""

    placer: str
    ca: bytes
    token: str
    gateway_id: str
    names: tuple[str, ...]


def apply(application: Application, now_ms: int) -> Credentials:
    """Make a key and have the placer sign for it; the key does not leave this process.

    Raises RemoteError with the placer's reason, InvalidInput when the answer is not for us.
    """
    key = keys.generate_key()
    request = admin_pb2.EnrollGatewayRequest(
        csr=make_csr(key), names=application.names, gateway_id=application.gateway_id
    )
    channel_credentials = grpc.ssl_channel_credentials(application.ca)
    with grpc.secure_channel(application.placer, channel_credentials) as channel:
        stub = admin_pb2_grpc.CredentialsServiceStub(channel)
        try:
            answer = stub.EnrollGateway(
                request,
                timeout=_TIMEOUT_S,
                metadata=(("authorization", f"Bearer {application.token}"),),
            )
        except grpc.RpcError as error:
            raise decode_error(error) from error
    granted = credentials_of(key, answer.chain, answer.bundle, now_ms)
    subject = spiffe_id(granted.leaf)
    if subject is None or (subject.role, subject.id) != (Role.GATEWAY, application.gateway_id):
        raise InvalidInput("chain", f"is not the certificate of gateway {application.gateway_id}")
    return granted
