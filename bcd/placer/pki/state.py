"""The placer's secrets as a whole: made once by ``init``, read at every start."""

import time
from dataclasses import dataclass
from pathlib import Path

from bcd.durable import replace_file
from bcd.model.errors import BadConfiguration
from bcd.placer.pki.authority import (
    AUTHORITY,
    Authority,
    create_authority,
    has_authority,
    load_authority,
)
from bcd.placer.pki.issuer import ISSUER_KEY, Issuer, create_issuer_key, has_issuer_key, load_issuer
from bcd.signing.certificates import BACKDATE_MS, is_trust_domain, to_pem
from bcd.signing.keyfile import CREDENTIALS, hand_over, unwritable

CA_FILE = "ca.pem"


@dataclass(frozen=True, slots=True)
class Secrets:
    """The CA and the bearer tokens' issuer."""

    authority: Authority
    issuer: Issuer


def init_state(state: Path, domain: str) -> Secrets:
    """Make the secrets of a new installation, and ``ca.pem`` for clients to trust.

    One that was interrupted is completed. What root makes is the folder's owner's, as whom the
    unit runs. Raises BadConfiguration when all exist already or the
    trust domain is no such thing.
    """
    if not is_trust_domain(domain):
        raise BadConfiguration(f"trust-domain: {domain!r} is not a lower-case DNS name")
    try:
        if has_authority(state) and has_issuer_key(state):
            raise BadConfiguration(
                f"{state}: has a CA and an issuer's key already; nothing was changed"
            )
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not has_authority(state):
            create_authority(state, domain, time.time_ns() // 1_000_000)
        authority = load_authority(state, domain)
        replace_file(state / CA_FILE, to_pem([authority.certificate]), mode=0o644)
        create_issuer_key(state)
        made = (AUTHORITY, f"{AUTHORITY}/{CREDENTIALS}", CA_FILE, ISSUER_KEY)
        hand_over(state, *(state / name for name in made))
    except OSError as error:
        raise unwritable(state, error) from error
    return Secrets(authority, load_issuer(state, domain))


def load_state(state: Path, domain: str, *, backdate_ms: int = BACKDATE_MS) -> Secrets:
    """Read the secrets; raises BadConfiguration or BrokenFile with what to do."""
    return Secrets(
        load_authority(state, domain, backdate_ms=backdate_ms), load_issuer(state, domain)
    )
