"""The CA: issues the certificates of nodes, gateways, the placer and the command key."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from bcd.model.errors import BadConfiguration
from bcd.model.units import DAY_MS
from bcd.signing.certificates import (
    BACKDATE_MS,
    LEAF_LIFETIME_MS,
    LeafProfile,
    Role,
    SpiffeId,
    is_ca_of,
    issue_ca,
    issue_leaf,
    key_of_csr,
    pin_of,
    serial_hex,
    spiffe_id,
    to_der,
    validity_ms,
)
from bcd.signing.keyfile import CREDENTIALS, Credentials, load_credentials, save_credentials
from bcd.signing.keys import generate_key, key_id
from bcd.store.certificates import IssuedCertificate

_CA_LIFETIME_MS = 10 * 365 * DAY_MS
_LIFETIMES_MS = {
    Role.NODE: LEAF_LIFETIME_MS,
    Role.NODE_TENANT: LEAF_LIFETIME_MS,
    Role.GATEWAY: 7 * DAY_MS,
    Role.PLACER: 30 * DAY_MS,
    Role.COMMAND: 90 * DAY_MS,
}
AUTHORITY = "ca"


@dataclass(frozen=True, slots=True)
class Issued:
    """A new certificate and the row that records it."""

    certificate: x509.Certificate
    row: IssuedCertificate


class Authority:
    """The CA of one trust domain; its key never leaves this object and its file."""

    def __init__(
        self, credentials: Credentials, domain: str, *, backdate_ms: int = BACKDATE_MS
    ) -> None:
        self._credentials = credentials
        self._backdate_ms = backdate_ms
        self.domain = domain

    @property
    def certificate(self) -> x509.Certificate:
        """The CA certificate."""
        return self._credentials.leaf

    @property
    def pin(self) -> str:
        """What join tokens carry."""
        return pin_of(self.certificate)

    @property
    def bundle(self) -> Sequence[x509.Certificate]:
        """What everyone trusts."""
        return self._credentials.bundle

    def issue(
        self,
        subject: tuple[Role, str],
        key: ec.EllipticCurvePublicKey,
        now_ms: int,
        names: tuple[str, ...] = (),
    ) -> Issued:
        """Issue a leaf for (role, id), backdated against skewed clocks."""
        role, subject_id = subject
        certificate = issue_leaf(
            self._credentials.key,
            self.certificate,
            key,
            LeafProfile(
                subject=SpiffeId(self.domain, role, subject_id),
                names=names,
                not_before_ms=now_ms - self._backdate_ms,
                not_after_ms=now_ms + _LIFETIMES_MS[role],
            ),
        )
        row = IssuedCertificate(
            serial=serial_hex(certificate),
            role=role.value,
            subject_id=subject_id,
            key_id=key_id(key),
            der=to_der(certificate),
            not_after_ms=validity_ms(certificate)[1],
        )
        return Issued(certificate, row)

    def issue_for_csr(
        self, subject: tuple[Role, str], csr: bytes, now_ms: int, names: tuple[str, ...] = ()
    ) -> Issued:
        """Issue a leaf for a request; raises ValueError when the request is not sound."""
        return self.issue(subject, requested_key(csr), now_ms, names)

    def credentials_for(
        self, subject: tuple[Role, str], now_ms: int, names: tuple[str, ...] = ()
    ) -> tuple[Credentials, IssuedCertificate]:
        """A key of this process's own with its certificate."""
        key = generate_key()
        issued = self.issue(subject, key.public_key(), now_ms, names)
        return Credentials(key, (issued.certificate,), tuple(self.bundle)), issued.row


def requested_key(csr: bytes) -> ec.EllipticCurvePublicKey:
    """The key that a request proves to have; raises ValueError when it is not sound."""
    try:
        return key_of_csr(csr)
    except (UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise ValueError("request is of a kind that is not known here") from error


def has_authority(state: Path) -> bool:
    """Whether an installation has its CA."""
    return (state / AUTHORITY / CREDENTIALS).exists()


def create_authority(state: Path, domain: str, now_ms: int) -> Authority:
    """Make the CA of a new installation; raises BadConfiguration when there is one already."""
    folder = state / AUTHORITY
    if has_authority(state):
        raise BadConfiguration(f"{folder} exists already: this placer has its CA")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = generate_key()
    certificate = issue_ca(key, domain, now_ms - BACKDATE_MS, now_ms + _CA_LIFETIME_MS)
    credentials = Credentials(key, (certificate,), (certificate,))
    save_credentials(folder, credentials)
    return Authority(credentials, domain)


def load_authority(state: Path, domain: str, *, backdate_ms: int = BACKDATE_MS) -> Authority:
    """Read the CA; raises BadConfiguration or BrokenFile with what to do."""
    try:
        credentials = load_credentials(state / AUTHORITY, "restore it from a backup")
    except FileNotFoundError as error:
        raise BadConfiguration(
            f"{state / AUTHORITY}: there is no CA; run: bcd-placer init"
        ) from error
    if not is_ca_of(credentials.leaf, domain):
        raise BadConfiguration(
            f"trust_domain: the CA in {state / AUTHORITY} was made for another one than {domain!r};"
            " set it back"
        )
    return Authority(credentials, domain, backdate_ms=backdate_ms)


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The DNS names and addresses that a certificate is dialled by."""
    sans = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = sans.get_values_for_type(x509.IPAddress)
    return (*sans.get_values_for_type(x509.DNSName), *(str(address) for address in addresses))


def role_of(certificate: x509.Certificate) -> tuple[Role, str] | None:
    """(role, id) of a certificate of a role that exists."""
    subject = spiffe_id(certificate)
    if subject is None or subject.role not in tuple(Role):
        return None
    return Role(subject.role), subject.id
