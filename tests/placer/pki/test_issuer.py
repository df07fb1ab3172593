"""Bearer tokens: only those of our own issuer, for this audience, in time."""

import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from bcd.model.caller import Caller
from bcd.model.errors import BadConfiguration, BrokenFile, InvalidInput, Unauthenticated
from bcd.placer.pki.issuer import (
    MAX_TOKEN_BYTES,
    Grant,
    Issuer,
    create_issuer_key,
    load_issuer,
)
from bcd.signing.keys import generate_key, key_id

NAME = "https://test.example/placer"
HOUR_MS = 3_600_000
KEY = generate_key()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def issuer() -> Issuer:
    return Issuer(KEY, NAME)


def forged(key: Any = KEY, algorithm: str = "ES256", **changes: Any) -> str:
    """A token as the issuer would make it, but for the changes; None leaves a claim out."""
    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": NAME,
        "aud": "bcd-placer",
        "sub": "alice",
        "iat": now,
        "exp": now + 3600,
        "tenants": ["acme"],
        "groups": [],
    }
    claims = {k: v for k, v in (claims | changes).items() if v is not None}
    return jwt.encode(claims, key, algorithm=algorithm)


def test_a_token_says_who_its_bearer_is() -> None:
    grant = Grant(subject="alice", tenants=("b", "a"), groups=("g",), admin=True, actor="agent")
    assert issuer().caller_of(issuer().issue(grant, now_ms(), HOUR_MS)) == Caller(
        issuer=NAME,
        subject="alice",
        actor="agent",
        tenants=frozenset({"a", "b"}),
        groups=frozenset({"g"}),
        admin=True,
    )


def test_a_plain_token_has_no_powers() -> None:
    caller = issuer().caller_of(issuer().issue(Grant(subject="bob"), now_ms(), HOUR_MS))
    assert (caller.tenants, caller.groups, caller.admin, caller.actor) == (
        frozenset(),
        frozenset(),
        False,
        "",
    )
    assert caller.owner == f"{NAME}|bob"


def test_the_helper_forges_what_would_count_were_it_not_changed() -> None:
    assert issuer().caller_of(forged()).tenants == {"acme"}


PUBLIC = KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
BAD = {
    "expired": forged(exp=int(time.time()) - 1),
    "another key": forged(generate_key()),
    "no algorithm": forged(None, "none"),
    "a shared secret": forged("s" * 32, "HS256"),
    "another issuer": forged(iss="https://evil/placer"),
    "no issuer": forged(iss=None),
    "another audience": forged(aud="other"),
    "no audience": forged(aud=None),
    "no expiry": forged(exp=None),
    "no subject": forged(sub=None),
    "a number as subject": forged(sub=7),
    "no time of issue": forged(iat=None),
    "not valid yet": forged(nbf=int(time.time()) + 3600),
    "tenants as text": forged(tenants="acme"),
    "tenants of numbers": forged(tenants=[1]),
    "groups as an object": forged(groups={"a": 1}),
    "an actor as text": forged(act="agent"),
    "an actor as a number": forged(act={"sub": 7}),
    "an expiry as text": forged(exp="soon"),
    "empty": "",
    "no token": "hello",
    "dots": "..",
    "a cut token": forged()[:-10],
    "a changed token": forged()[:-8] + "AAAAAAAA",
    "control characters": "a\x00\n.b.c",
    "not ASCII": "tökén",
    "oversized": "x" * (MAX_TOKEN_BYTES + 1),
}


@pytest.mark.parametrize("token", BAD.values(), ids=BAD.keys())
def test_any_other_token_is_refused(token: str) -> None:
    mine = issuer()
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            mine.caller_of(token)


def test_a_public_key_does_not_pass_for_a_shared_secret() -> None:
    header, payload, _ = forged().split(".")
    with pytest.raises(Unauthenticated):
        issuer().caller_of(f"{header}.{payload}.{PUBLIC.hex()}")


def test_administration_is_true_and_nothing_like_it() -> None:
    for claim in ("true", 1, "yes", [True]):
        assert not issuer().caller_of(forged(admin=claim)).admin
    assert issuer().caller_of(forged(admin=True)).admin


def test_a_token_that_held_is_not_verified_twice() -> None:
    mine, token = issuer(), forged()
    assert mine.caller_of(token) is mine.caller_of(token)


@pytest.mark.parametrize("lifetime_ms", [-1, 0, 59_999, 367 * 24 * HOUR_MS])
def test_absurd_lifetimes_are_refused(lifetime_ms: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        issuer().issue(Grant(subject="alice"), now_ms(), lifetime_ms)
    assert refused.value.field == "lifetimeMs"


UNSOUND = ["", "x" * 257, "é" * 129, "a\nb", "\x1b[31m", "nul\0", "\ud800", "\u202e"]


@pytest.mark.parametrize("text", UNSOUND, ids=ascii)
def test_no_token_is_made_for_names_that_no_call_can_use(text: str) -> None:
    for grant, field in (
        (Grant(subject=text), "subject"),
        (Grant(subject="alice", tenants=("acme", text)), "tenants[1]"),
        (Grant(subject="alice", groups=(text,)), "groups[0]"),
        (Grant(subject="alice", actor=text or "\0"), "actor"),
    ):
        with pytest.raises(InvalidInput) as refused:
            issuer().issue(grant, now_ms(), HOUR_MS)
        assert refused.value.field == field


@pytest.mark.parametrize("text", UNSOUND, ids=ascii)
def test_a_token_with_such_names_is_nobodys(text: str) -> None:
    for claims in (
        {"sub": text},
        {"tenants": [text]},
        {"groups": ["g", text]},
        {"act": {"sub": text or "\0"}},
    ):
        with pytest.raises(Unauthenticated):
            issuer().caller_of(forged(**claims))


def test_no_token_is_made_that_would_not_be_taken() -> None:
    tenants = tuple(f"tenant-{i:03}-{'x' * 200}" for i in range(64))
    with pytest.raises(InvalidInput):
        issuer().issue(Grant(subject="alice", tenants=tenants), now_ms(), HOUR_MS)


# The key on disk


def test_a_key_survives_a_restart(tmp_path: Path) -> None:
    create_issuer_key(tmp_path)
    token = load_issuer(tmp_path, "d").issue(Grant(subject="alice"), now_ms(), HOUR_MS)
    assert load_issuer(tmp_path, "d").caller_of(token).subject == "alice"
    assert (tmp_path / "issuer.pem").stat().st_mode & 0o777 == 0o600
    with pytest.raises(Unauthenticated):
        load_issuer(tmp_path, "other").caller_of(token)


def test_a_missing_key_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="bcd-placer init"):
        load_issuer(tmp_path, "d")


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"-----BEGIN PRIVATE KEY-----\nx"])
def test_a_broken_key_names_its_file_and_not_its_content(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "issuer.pem").write_bytes(content)
    with pytest.raises(BrokenFile, match=r"issuer\.pem.*backup"):
        load_issuer(tmp_path, "d")


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    create_issuer_key(tmp_path)
    (tmp_path / "issuer.pem").chmod(0o640)
    with pytest.raises(BrokenFile, match="chmod 600"):
        load_issuer(tmp_path, "d")


def test_the_key_id_stands_in_the_header() -> None:
    token = issuer().issue(Grant(subject="alice"), now_ms(), HOUR_MS)
    assert jwt.get_unverified_header(token)["kid"] == key_id(KEY.public_key())
