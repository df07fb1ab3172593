"""The gateway's own key and certificate: loaded, renewed before they run out, shown to nodes.

The renewal is a request like a node's, signed by the old key, and goes to the placer through the
database. gRPC asks for the configuration at every handshake, so a new certificate and a changed
bundle of trusted CAs need no restart; live streams stay.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import grpc
from cryptography.hazmat.primitives.asymmetric import ec

from bcd.gateway.enrol import Relay
from bcd.model.errors import BrokenFile, InvalidInput
from bcd.signing import keys
from bcd.signing.certificates import (
    Role,
    chain_problem,
    make_csr,
    parse_certificate,
    public_key,
    spiffe_id,
    to_pem,
    validity_ms,
)
from bcd.signing.envelope import PayloadType, seal
from bcd.signing.keyfile import (
    CREDENTIALS,
    Credentials,
    load_credentials,
    prepare_folder,
    save_credentials,
    unwritable,
)
from bcd.wire.node.v1 import enrollment_pb2 as pb
from bcd.wire.rotation import rotating_credentials

logger = logging.getLogger(__name__)

_REMEDY = "remove it and run: bcd-gateway enroll"


class Identity:
    """Who this gateway is; the trust domain and the gateway's id are its certificate's."""

    def __init__(self, folder: Path, credentials: Credentials) -> None:
        subject = spiffe_id(credentials.leaf)
        if subject is None or subject.role != Role.GATEWAY:
            raise BrokenFile(str(folder / CREDENTIALS), "is not a gateway's", _REMEDY)
        self.domain = subject.domain
        self.gateway_id = subject.id
        self._folder = folder
        self._credentials = credentials
        self._trusted = credentials.bundle
        self._prepare()

    @classmethod
    def load(cls, folder: Path) -> "Identity":
        """Read the credentials that enrolment saved; raises BrokenFile with the remedy."""
        try:
            return cls(folder, load_credentials(folder, _REMEDY))
        except FileNotFoundError as error:
            raise BrokenFile(
                str(folder / CREDENTIALS), "is not there", "run: bcd-gateway enroll"
            ) from error

    def trust(self, bundle: Sequence[bytes]) -> None:
        """Check clients against these CAs (DER) from now on; an empty bundle changes nothing."""
        trusted = tuple(parse_certificate(der) for der in bundle)
        if trusted and trusted != self._trusted:
            logger.info("trusted CAs changed", extra={"count": len(trusted)})
            self._trusted = trusted
            self._prepare()

    def _prepare(self) -> None:
        pair = [(self._credentials.key_pem, self._credentials.chain_pem)]
        self._for_nodes = grpc.ssl_server_certificate_configuration(pair, to_pem(self._trusted))
        self._for_anyone = grpc.ssl_server_certificate_configuration(pair)

    def node_port_credentials(self) -> grpc.ServerCredentials:
        """Mutual TLS, always with the newest certificate and CAs."""
        return rotating_credentials(lambda: self._for_nodes, client_certificates=True)

    def enrolment_port_credentials(self) -> grpc.ServerCredentials:
        """Server TLS only: who enrols has no certificate yet."""
        return rotating_credentials(lambda: self._for_anyone, client_certificates=False)

    def renewal_due(self, now_ms: int) -> bool:
        """Whether half of the certificate's life is over."""
        not_before_ms, not_after_ms = validity_ms(self._credentials.leaf)
        return now_ms >= (not_before_ms + not_after_ms) // 2

    async def renew(self, relay: Relay, now_ms: int) -> None:
        """Replace key and certificate, on disk first.

        Raises AccessDenied with the placer's reason, Unavailable, InvalidInput when the answer is
        no certificate of ours, or BadConfiguration when it cannot be saved; the old credentials
        stay then.
        """
        prepare_folder(self._folder)
        key = keys.generate_key()
        renewal = pb.Renewal(csr=make_csr(key), signed_at_ms=now_ms)
        envelope = seal(self._credentials.key, PayloadType.RENEWAL, renewal.SerializeToString())
        body = pb.RenewRequest(envelope=envelope).SerializeToString()
        answer = pb.Credentials.FromString(await relay.ask("renewal", body))
        renewed = credentials_of(key, answer.chain, answer.bundle, now_ms)
        if spiffe_id(renewed.leaf) != spiffe_id(self._credentials.leaf):
            raise InvalidInput("chain", "is for another gateway")
        try:
            save_credentials(self._folder, renewed)
        except OSError as error:
            raise unwritable(self._folder, error) from error
        self._credentials = renewed
        self._prepare()
        logger.info("certificate renewed", extra={"not_after_ms": validity_ms(renewed.leaf)[1]})


def credentials_of(
    key: ec.EllipticCurvePrivateKey,
    chain: Sequence[bytes],
    bundle: Sequence[bytes],
    now_ms: int,
) -> Credentials:
    """The credentials that an answer (DER) completes; raises InvalidInput saying what is wrong."""
    try:
        leafs = tuple(parse_certificate(der) for der in chain)
        trusted = tuple(parse_certificate(der) for der in bundle)
        if not leafs or not trusted:
            raise ValueError("chain or bundle is empty")
        if keys.key_id(public_key(leafs[0])) != keys.key_id(key.public_key()):
            raise ValueError("the certificate is for another key")
        problem = chain_problem(leafs[0], trusted, now_ms)
        if problem is not None:
            raise ValueError(problem)
    except ValueError as error:
        raise InvalidInput("credentials", f"cannot be used: {error}") from error
    return Credentials(key, leafs, trusted)
