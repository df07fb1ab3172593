"""Enrolment and renewal, on the gateway's port without client certificates (spec 11.5).

The gateway is not trusted here: an enrolment is proved by an HMAC under the join token's secret,
and its answer by the CA's pin in the token; a renewal is signed by the old key. ``bcd enroll``
calls the first, ``link`` the second.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError

from bcd.model.errors import BadConfiguration, BcdError, Reason, Unavailable
from bcd.model.ids import is_type_id
from bcd.model.printable import printable
from bcd.signing.certificates import (
    WORKLOAD_ROLES,
    SpiffeId,
    chain_problem,
    make_csr,
    parse_certificate,
    parse_certificates,
    pin_of,
    public_key,
    spiffe_id,
    validity_ms,
)
from bcd.signing.envelope import PayloadType, seal
from bcd.signing.keyfile import Credentials
from bcd.signing.keys import generate_key, key_id
from bcd.wire.bounds import NODE_CHANNEL_OPTIONS
from bcd.wire.node.v1 import enrollment_pb2 as pb

_TIMEOUT_S = 30.0
_TLS_TIMEOUT_S = 10.0
_PAUSES_S = (0.5, 2.0)
_TOKEN = re.compile(r"([A-Za-z0-9_-]{1,64})\.([A-Za-z0-9_-]{43}=?)\.([0-9a-f]{64})\Z")
_MAX_CHAIN = 4
_MAX_BUNDLE = 16
# How the gateway's port for nodes and the placer's API end the call of who has no certificate.
_OTHER_PORT = (Reason.UNAVAILABLE, Reason.UNSUPPORTED)
_WHICH_PORT = (
    "; check that this is the gateway's port for enrolments (gateway.enroll_address, 7444 in the"
    " samples), not its port for nodes or the placer's API"
)
_SERVICE = pb.DESCRIPTOR.services_by_name["EnrollmentService"].full_name


class Untrusted(BcdError):
    """An answer that does not prove itself: the gateway, or somebody before it, is not ours."""

    reason = Reason.ACCESS_DENIED


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A one-time token: its id, its secret and the pin of the CA that answers to it."""

    id: str
    secret: bytes
    pin: str

    def __repr__(self) -> str:
        return f"JoinToken({self.id!r})"


def parse_token(text: str) -> JoinToken:
    """Read ``id.secret.pin``; raises BadConfiguration without showing any of it."""
    match = _TOKEN.match(text.strip())
    if match is None:
        raise BadConfiguration(
            "join token: is not of the form id.secret.pin; copy the whole line that"
            " better-compute token join printed"
        )
    try:
        secret = base64.urlsafe_b64decode(match[2].rstrip("=") + "=")
    except binascii.Error as error:
        raise BadConfiguration("join token: its secret is not base64url") from error
    return JoinToken(match[1], secret, match[3])


@dataclass(frozen=True, slots=True)
class Attempt:
    """A new key and the request for its certificate (DER).

    A token serves one request only: an attempt that is made again has to be the same one.
    """

    key: ec.EllipticCurvePrivateKey
    csr: bytes


def new_attempt() -> Attempt:
    """An attempt with a key of its own."""
    key = generate_key()
    return Attempt(key, make_csr(key))


async def enroll(
    address: str, token: JoinToken, now_ms: int, attempt: Attempt | None = None
) -> Credentials:
    """Get this host its first identity from the gateway's enrolment port.

    Raises BcdError: Unavailable when nobody answers, Untrusted when the answer does not prove
    itself, and what the control plane refuses with (a token used, expired or unknown).
    """
    leaf_pem = await _presented_certificate(address)
    try:
        gateway = parse_certificates(leaf_pem.encode())[0]
    except ValueError as error:
        raise Untrusted(f"{address}: its certificate cannot be read ({error})") from error
    attempt = attempt or new_attempt()
    request = pb.EnrollRequest(
        token_id=token.id,
        csr=attempt.csr,
        hmac=hmac.digest(hashlib.sha256(token.secret).digest(), attempt.csr, "sha256"),
    )
    # Whoever presented this certificate only carries bytes; the pin judges the answer.
    answer = await _call_again(address, leaf_pem.encode(), request)
    credentials = _credentials(answer, attempt.key, now_ms, token.pin)
    problem = chain_problem(gateway, credentials.bundle, now_ms)
    if problem is not None:
        raise Untrusted(
            f"{address}: its certificate is not of the token's authority ({problem});"
            " check the gateway's address and the token"
        )
    return credentials


async def _presented_certificate(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        return await asyncio.to_thread(
            ssl.get_server_certificate, (host.strip("[]"), int(port)), timeout=_TLS_TIMEOUT_S
        )
    except socket.gaierror as error:
        raise Unavailable(
            f"{address}: the name cannot be resolved ({error.strerror}); check the address, and"
            " this host's name service"
        ) from error
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise Unavailable(
            f"{address}: no TLS server answers there ({problem}){_WHICH_PORT}"
        ) from error


async def renew(address: str, current: Credentials, subject: SpiffeId, now_ms: int) -> Credentials:
    """Get a new certificate for a new key; the current key signs for it, expired or not.

    Raises BcdError as ``enroll`` does; the answer must be for the same subject.
    """
    key = generate_key()
    renewal = pb.Renewal(csr=make_csr(key), signed_at_ms=now_ms)
    envelope = seal(current.key, PayloadType.RENEWAL, renewal.SerializeToString())
    answer = await _call(address, current.bundle_pem, pb.RenewRequest(envelope=envelope))
    credentials = _credentials(answer, key, now_ms, None, current.bundle)
    if spiffe_id(credentials.leaf) != subject:
        raise Untrusted(f"{address}: renewed another identity than ours")
    return credentials


async def _call_again(address: str, roots: bytes, request: pb.EnrollRequest) -> pb.Credentials:
    """A token serves one request only, so a lost answer is asked for with the same request."""
    for pause_s in _PAUSES_S:
        try:
            return await _call(address, roots, request)
        except BcdError as error:
            if error.reason is not Reason.UNAVAILABLE:
                raise
            await asyncio.sleep(pause_s)
    return await _call(address, roots, request)


async def _call(
    address: str, roots: bytes, request: pb.EnrollRequest | pb.RenewRequest
) -> pb.Credentials:
    credentials = grpc.ssl_channel_credentials(root_certificates=roots)
    options: Sequence[tuple[str, int]] = NODE_CHANNEL_OPTIONS
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        method = "Enroll" if isinstance(request, pb.EnrollRequest) else "Renew"
        # Bytes both ways: what gRPC cannot parse it logs with a traceback, and answers None.
        ask = channel.unary_unary(
            f"/{_SERVICE}/{method}", request_serializer=bytes, response_deserializer=bytes
        )
        try:
            answer = await ask(request.SerializeToString(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            # The table of reasons is needed for failures only; it brings Google's types along.
            from bcd.wire.status import RemoteError, decode_error

            refusal = decode_error(error)
            message = f"{address}: {printable(refusal.message)}"
            if method == "Enroll" and not refusal.told and refusal.reason in _OTHER_PORT:
                message += _WHICH_PORT
            raise RemoteError(
                refusal.reason, message, dict(refusal.details), told=refusal.told
            ) from error
    try:
        # Both answers are the credentials, in the same field.
        return pb.EnrollResponse.FromString(answer).credentials
    except DecodeError as error:
        raise Untrusted(
            f"{address}: its answer is no message of the protocol; check the address of the"
            " gateway's enrolment port"
        ) from error


def _credentials(
    answer: pb.Credentials,
    key: ec.EllipticCurvePrivateKey,
    now_ms: int,
    pin: str | None,
    trusted: Sequence[x509.Certificate] = (),
) -> Credentials:
    """Check an answer against the pin, or against the authorities that we trust already.

    Only what the pin or our own bundle vouches for is kept: the rest of the answer's bundle
    passed through the gateway unsigned.
    """
    if not 0 < len(answer.chain) <= _MAX_CHAIN or not 0 < len(answer.bundle) <= _MAX_BUNDLE:
        raise Untrusted("the answer to the enrolment has no certificates, or too many")
    try:
        chain = tuple(parse_certificate(der) for der in answer.chain)
        bundle = tuple(parse_certificate(der) for der in answer.bundle)
        own = key_id(public_key(chain[0])) == key_id(key.public_key())
    except ValueError as error:
        raise Untrusted(f"the answer to the enrolment has a broken certificate: {error}") from error
    if pin is not None and not hmac.compare_digest(pin_of(bundle[0]), pin):
        raise Untrusted(
            "the answer is of another authority than the join token names; make a new token there,"
            " or name the right gateway"
        )
    if not own:
        raise Untrusted("the answer certifies a key that is not ours")
    within_ms = min(max(now_ms, validity_ms(chain[0])[0]), validity_ms(chain[0])[1])
    problem = chain_problem(chain[0], trusted or bundle[:1], within_ms)
    if problem is not None:
        raise Untrusted(f"the answer's certificate does not chain to its authority: {problem}")
    subject = spiffe_id(chain[0])
    if subject is None or subject.role not in WORKLOAD_ROLES or not is_type_id("node", subject.id):
        raise Untrusted("the answer's certificate is not that of a node")
    return Credentials(key, chain, tuple(trusted) or bundle[:1])
