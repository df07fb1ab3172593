"""Bearer tokens: made by the placer's own issuer, checked on every call (spec 15.4)."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from bcd.durable import replace_file
from bcd.model.caller import Caller
from bcd.model.errors import BadConfiguration, BrokenFile, InvalidInput, Unauthenticated
from bcd.model.texts import check_text
from bcd.model.units import DAY_MS, MINUTE_MS
from bcd.signing.keyfile import unreadable
from bcd.signing.keys import generate_key, key_from_pem, key_id, key_to_pem

# gRPC turns headers of more than 8 KiB in all away, at first only sometimes.
MAX_TOKEN_BYTES = 7 * 1024
MAX_LIFETIME_MS = 366 * DAY_MS
_AUDIENCE = "bcd-placer"
ISSUER_KEY = "issuer.pem"
_REMEMBERED = 4096
_REMEMBER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a token says of its bearer."""

    subject: str
    tenants: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    admin: bool = False
    actor: str = ""


class Issuer:
    """ES256 tokens of one issuer. Signatures that held are remembered for a minute at most."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, name: str) -> None:
        self._key = key
        self._key_id = key_id(key.public_key())
        self._name = name
        self._known: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()

    def issue(self, grant: Grant, now_ms: int, lifetime_ms: int) -> str:
        """Make a token; raises InvalidInput for names that no call can use and absurd lifetimes."""
        _check_names(grant.subject, grant.actor, grant.tenants, grant.groups)
        if not MINUTE_MS <= lifetime_ms <= MAX_LIFETIME_MS:
            raise InvalidInput("lifetimeMs", "must be from a minute to a year")
        claims: dict[str, Any] = {
            "iss": self._name,
            "aud": _AUDIENCE,
            "sub": grant.subject,
            "iat": now_ms // 1000,
            "exp": (now_ms + lifetime_ms) // 1000,
            "tenants": sorted(grant.tenants),
            "groups": sorted(grant.groups),
        }
        if grant.admin:
            claims["admin"] = True
        if grant.actor:
            claims["act"] = {"sub": grant.actor}
        token = jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": self._key_id})
        if len(token) > MAX_TOKEN_BYTES:
            raise InvalidInput("tenants", "and groups make a token that is too long to be sent")
        return token

    def caller_of(self, token: str) -> Caller:
        """Who bears the token; raises Unauthenticated."""
        if len(token) > MAX_TOKEN_BYTES:
            raise Unauthenticated("the bearer token is too long to be one of ours")
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        now = time.time()
        if known is not None and now < known[1]:
            return known[0]
        claims = self._claims(token)
        caller = _caller(claims)
        self._known[digest] = (caller, min(now + _REMEMBER_S, float(claims["exp"])))
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return caller

    def _claims(self, token: str) -> Mapping[str, Any]:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                self._key.public_key(),
                algorithms=["ES256"],
                audience=_AUDIENCE,
                issuer=self._name,
                options={"require": ["exp", "iat", "sub", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError as error:
            raise Unauthenticated("the bearer token has expired; ask for a new one") from error
        except jwt.InvalidTokenError as error:
            raise Unauthenticated(f"the bearer token is not valid: {error}") from error
        return claims


def _check_names(subject: str, actor: str, tenants: Sequence[str], groups: Sequence[str]) -> None:
    check_text("subject", subject)
    check_text("actor", actor, empty=True)
    for field, names in (("tenants", tenants), ("groups", groups)):
        for position, name in enumerate(names):
            check_text(f"{field}[{position}]", name)


def _caller(claims: Mapping[str, Any]) -> Caller:
    tenants, groups = claims.get("tenants", []), claims.get("groups", [])
    act = claims.get("act", {})
    subject, actor = claims["sub"], act.get("sub", "") if isinstance(act, dict) else None
    lists_hold = all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in (tenants, groups)
    )
    if not lists_hold or not isinstance(subject, str) or not isinstance(actor, str):
        raise Unauthenticated("the bearer token's claims are malformed")
    try:
        _check_names(subject, actor, tenants, groups)
    except InvalidInput as error:
        raise Unauthenticated(f"the bearer token's {error.message}; ask for a new one") from error
    return Caller(
        issuer=str(claims["iss"]),
        subject=subject,
        actor=actor,
        tenants=frozenset(tenants),
        groups=frozenset(groups),
        admin=claims.get("admin") is True,
    )


def has_issuer_key(state: Path) -> bool:
    """Whether an installation has its issuer's key."""
    return (state / ISSUER_KEY).exists()


def create_issuer_key(state: Path) -> None:
    """Make the key of a new installation."""
    replace_file(state / ISSUER_KEY, key_to_pem(generate_key()))


def load_issuer(state: Path, domain: str) -> Issuer:
    """Read the issuer's key; raises BadConfiguration or BrokenFile with what to do."""
    path = state / ISSUER_KEY
    try:
        mode = path.stat().st_mode
        key = key_from_pem(path.read_bytes())
    except FileNotFoundError as error:
        raise BadConfiguration(f"{path} does not exist; run: bcd-placer init") from error
    except OSError as error:
        raise unreadable(path, error, "restore it from a backup") from error
    except ValueError as error:
        raise BrokenFile(str(path), str(error), "restore it from a backup") from error
    if mode & 0o077:
        raise BrokenFile(str(path), f"has mode {mode & 0o777:o}", f"run: chmod 600 {path}")
    return Issuer(key, f"https://{domain}/placer")
