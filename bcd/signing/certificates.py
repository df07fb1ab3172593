"""X.509 certificates with SPIFFE ids: issued by one CA, checked against it, read by everyone.

A certificate's subject is its one URI SAN, ``spiffe://<trust domain>/<role>/<id>``; common names
mean nothing. Times are epoch milliseconds outside this module.
"""

import datetime
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from bcd.model.units import DAY_MS, HOUR_MS

LEAF_LIFETIME_MS = 24 * HOUR_MS
OFFLINE_GRACE_MS = 7 * DAY_MS
BACKDATE_MS = HOUR_MS

_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_SPIFFE = re.compile(r"spiffe://([a-z0-9.-]{1,253})/([a-z-]{1,32})/([A-Za-z0-9._-]{1,128})\Z")


class Role(StrEnum):
    """The second part of a SPIFFE id: what the certificate's holder is."""

    NODE = "node"
    NODE_TENANT = "node-tenant"
    GATEWAY = "gateway"
    PLACER = "placer"
    COMMAND = "command"


WORKLOAD_ROLES = frozenset({Role.NODE, Role.NODE_TENANT})


@dataclass(frozen=True, slots=True)
class SpiffeId:
    """``spiffe://<domain>/<role>/<id>``."""

    domain: str
    role: str
    id: str

    def __str__(self) -> str:
        return f"spiffe://{self.domain}/{self.role}/{self.id}"


def is_trust_domain(text: str) -> bool:
    """Whether ``text`` may be a trust domain: lower-case DNS characters."""
    return _DOMAIN.match(text) is not None


# What cryptography raises, beside ValueError, for bytes that parse and that it will not take.
_NOT_TAKEN = (
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    TypeError,
    OverflowError,
)


def parse_certificate(der: bytes) -> x509.Certificate:
    """Read one DER certificate with its key and extensions; raises ValueError for any fault."""
    try:
        return _whole(x509.load_der_x509_certificate(der))
    except _NOT_TAKEN as error:
        raise ValueError(str(error)) from error


def parse_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """The same for PEM: all of its certificates, at least one, in order."""
    try:
        return tuple(_whole(found) for found in x509.load_pem_x509_certificates(pem))
    except _NOT_TAKEN as error:
        raise ValueError(str(error)) from error


def _whole(certificate: x509.Certificate) -> x509.Certificate:
    """Look at all that is parsed on first use, so that nothing raises later."""
    certificate.public_key()
    _ = certificate.extensions
    validity_ms(certificate)
    return certificate


def spiffe_id(certificate: x509.Certificate) -> SpiffeId | None:
    """The certificate's SPIFFE id, None when it has not exactly one well-formed URI SAN."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return None
    uris = extension.value.get_values_for_type(x509.UniformResourceIdentifier)
    match = _SPIFFE.match(uris[0]) if len(uris) == 1 else None
    return SpiffeId(match[1], match[2], match[3]) if match else None


def public_key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """The certificate's P-256 key; raises ValueError for any other kind."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("is not an ECDSA P-256 certificate")
    return key


def validity_ms(certificate: x509.Certificate) -> tuple[int, int]:
    """(not before, not after) in epoch milliseconds."""
    return (
        int(certificate.not_valid_before_utc.timestamp() * 1000),
        int(certificate.not_valid_after_utc.timestamp() * 1000),
    )


def serial_hex(certificate: x509.Certificate) -> str:
    """The serial number in lower-case hex, as the revocation list keeps it."""
    return f"{certificate.serial_number:x}"


def chain_problem(
    leaf: x509.Certificate, bundle: Sequence[x509.Certificate], now_ms: int
) -> str | None:
    """Why the leaf does not chain to the bundle at that time, or None when it does.

    To ask about a leaf that may have expired, pass a time within its life and judge the expiry
    apart. Every CA in the bundle is trusted equally.
    """
    at = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    try:
        builder = PolicyBuilder().store(Store(list(bundle))).time(at)
        builder.build_client_verifier().verify(leaf, [])
    except (VerificationError, ValueError, *_NOT_TAKEN) as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafProfile:
    """What a leaf says: whose it is, the names it is dialled by, its life."""

    subject: SpiffeId
    names: tuple[str, ...] = ()
    not_before_ms: int
    not_after_ms: int


def issue_leaf(
    ca_key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    key: ec.EllipticCurvePublicKey,
    profile: LeafProfile,
) -> x509.Certificate:
    """Sign a leaf. Client authentication for every role; server too where there are names."""
    sans: list[x509.GeneralName] = [x509.UniformResourceIdentifier(str(profile.subject))]
    sans += [_general_name(name) for name in profile.names]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if profile.names:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return (
        _builder(key, ca.subject, profile.not_before_ms, profile.not_after_ms)
        .subject_name(x509.Name([]))
        .add_extension(x509.SubjectAlternativeName(sans), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(ca=False), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )


def issue_ca(
    key: ec.EllipticCurvePrivateKey, domain: str, not_before_ms: int, not_after_ms: int
) -> x509.Certificate:
    """Make the self-signed CA certificate of a trust domain."""
    name = _ca_name(domain)
    return (
        _builder(key.public_key(), name, not_before_ms, not_after_ms)
        .subject_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )


def is_ca_of(certificate: x509.Certificate, domain: str) -> bool:
    """Whether ``issue_ca`` made the certificate for this trust domain."""
    return certificate.subject == _ca_name(domain)


def _ca_name(domain: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"bcd CA {domain}"[:64])])


def _builder(
    key: ec.EllipticCurvePublicKey, issuer: x509.Name, not_before_ms: int, not_after_ms: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.fromtimestamp(not_before_ms // 1000, datetime.UTC))
        .not_valid_after(datetime.datetime.fromtimestamp(not_after_ms // 1000, datetime.UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def make_csr(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A DER PKCS #10 request: proof of the key; the issuer decides everything else."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def key_of_csr(csr: bytes) -> ec.EllipticCurvePublicKey:
    """The P-256 key that a request proves; raises ValueError saying what is wrong."""
    try:
        request = x509.load_der_x509_csr(csr)
        key, signed = request.public_key(), request.is_signature_valid
    except _NOT_TAKEN as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("request is not for an ECDSA P-256 key")
    if not signed:
        raise ValueError("request is not signed by its own key")
    return key


def to_der(certificate: x509.Certificate) -> bytes:
    """DER bytes."""
    return certificate.public_bytes(serialization.Encoding.DER)


def to_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """Concatenated PEM, in order."""
    return b"".join(c.public_bytes(serialization.Encoding.PEM) for c in certificates)


def pin_of(ca: x509.Certificate) -> str:
    """Lower-case hex SHA-256 of the CA certificate: what a join token carries."""
    return ca.fingerprint(hashes.SHA256()).hex()
