"""A certificate authority for tests: issues what a placer's would, and what no placer would."""

import time
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from bcd.model.units import DAY_MS, HOUR_MS
from bcd.signing import keys
from bcd.signing.certificates import (
    LeafProfile,
    Role,
    SpiffeId,
    issue_ca,
    issue_leaf,
    pin_of,
    to_der,
)
from bcd.signing.keyfile import Credentials

DOMAIN = "test.example"


def now_ms() -> int:
    """This host's clock."""
    return time.time_ns() // 1_000_000


@dataclass
class Authority:
    """The CA of one trust domain."""

    domain: str = DOMAIN
    key: ec.EllipticCurvePrivateKey = field(default_factory=keys.generate_key)
    certificate: x509.Certificate = field(init=False)

    def __post_init__(self) -> None:
        start = now_ms() - DAY_MS
        self.certificate = issue_ca(self.key, self.domain, start, start + 3650 * DAY_MS)

    @property
    def der(self) -> bytes:
        """The CA's certificate."""
        return to_der(self.certificate)

    @property
    def pin(self) -> str:
        """What a join token carries."""
        return pin_of(self.certificate)

    def sign(
        self,
        key: ec.EllipticCurvePublicKey,
        role: str,
        subject_id: str,
        *,
        names: tuple[str, ...] = (),
        not_before_ms: int | None = None,
        not_after_ms: int | None = None,
    ) -> x509.Certificate:
        """A certificate for a key, valid from an hour ago for a day unless told otherwise."""
        before = now_ms() - HOUR_MS if not_before_ms is None else not_before_ms
        return issue_leaf(
            self.key,
            self.certificate,
            key,
            LeafProfile(
                subject=SpiffeId(self.domain, role, subject_id),
                names=names,
                not_before_ms=before,
                not_after_ms=before + DAY_MS if not_after_ms is None else not_after_ms,
            ),
        )

    def issue(
        self,
        role: str,
        subject_id: str,
        *,
        names: tuple[str, ...] = (),
        not_before_ms: int | None = None,
        not_after_ms: int | None = None,
    ) -> Credentials:
        """A new key with its certificate."""
        key = keys.generate_key()
        leaf = self.sign(
            key.public_key(),
            role,
            subject_id,
            names=names,
            not_before_ms=not_before_ms,
            not_after_ms=not_after_ms,
        )
        return Credentials(key, (leaf,), (self.certificate,))

    def gateway(self, gateway_id: str = "gw1") -> Credentials:
        """Credentials that clients on this host accept."""
        return self.issue(Role.GATEWAY, gateway_id, names=("localhost", "127.0.0.1"))
