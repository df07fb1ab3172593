"""Join tokens: what is minted, for whom and for how long."""

import hashlib
import hmac
from base64 import urlsafe_b64decode

import pytest

from bcd.model.errors import InvalidInput, NotFound
from bcd.model.ids import NodeId, is_type_id
from bcd.placer.pki.join import JoinRequest, authentic, mint
from bcd.store import enrolments
from bcd.store.enrolments import JoinToken
from tests.clock import DatabaseClock
from tests.placer.world import World, dgx

MINUTE_MS = 60_000


async def stored(world: World, text: str) -> JoinToken:
    token = await world.database.write(enrolments.lock_token, text.split(".")[0])
    assert token is not None
    return token


async def test_a_token_carries_id_secret_and_pin_and_the_database_only_the_secrets_hash(
    world: World, clock: DatabaseClock
) -> None:
    clock.advance(0)
    minted = await world.database.write(
        mint, JoinRequest(pool_id=world.pool_id), world.authority.pin
    )
    token_id, secret, pin = minted.text.split(".")
    assert is_type_id("join", token_id)
    assert pin == world.authority.pin
    assert is_type_id("node", minted.node_id)
    assert minted.expires_ms == clock.read() + 15 * MINUTE_MS
    raw = urlsafe_b64decode(secret + "=")
    assert len(raw) == 32
    token = await stored(world, minted.text)
    assert token.hmac_key == hashlib.sha256(raw).digest()
    assert (token.node_id, token.role, token.trusted) == (minted.node_id, "node", True)


async def test_tokens_are_for_an_hour_at_most(world: World) -> None:
    for lifetime_ms in (1, 60 * MINUTE_MS):
        request = JoinRequest(pool_id=world.pool_id, lifetime_ms=lifetime_ms)
        await world.database.write(mint, request, world.authority.pin)
    for lifetime_ms in (-1, 0, 60 * MINUTE_MS + 1, 1 << 62):
        request = JoinRequest(pool_id=world.pool_id, lifetime_ms=lifetime_ms)
        with pytest.raises(InvalidInput) as refused:
            await world.database.write(mint, request, world.authority.pin)
        assert refused.value.field == "lifetimeMs"


@pytest.mark.parametrize("role", ["gateway", "placer", "command", "", "Node", "x"])
async def test_only_roles_of_nodes_join(world: World, role: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await world.database.write(
            mint, JoinRequest(pool_id=world.pool_id, role=role), world.authority.pin
        )
    assert refused.value.field == "role"


@pytest.mark.parametrize("pool_id", ["", "pool_x", "a\x00b", "x" * 10_000])
async def test_a_pool_that_is_none_is_refused(world: World, pool_id: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await world.database.write(mint, JoinRequest(pool_id=pool_id), world.authority.pin)
    assert refused.value.field == "poolId"


async def test_an_existing_node_joins_its_own_pool_only(world: World) -> None:
    node = await world.add_node(dgx("a"))
    elsewhere = await world.add_pool("other")
    request = JoinRequest(pool_id=world.pool_id, node_id=node.id)
    assert (await world.database.write(mint, request, "pin")).node_id == node.id
    for pool_id, node_id in (
        (elsewhere, node.id),
        (world.pool_id, NodeId("node_00000000000000000000000000")),
        ("pool_00000000000000000000000000", ""),
    ):
        with pytest.raises(NotFound):
            await world.database.write(mint, JoinRequest(pool_id=pool_id, node_id=node_id), "pin")


def test_a_tag_is_authentic_for_exactly_its_request_and_token() -> None:
    key = hashlib.sha256(b"secret").digest()
    token = JoinToken(
        id="t",
        hmac_key=key,
        node_id="n",  # type: ignore[arg-type]
        pool_id="p",  # type: ignore[arg-type]
        role="node",
        trusted=True,
        expires_ms=0,
    )
    tag = hmac.digest(key, b"csr", "sha256")
    assert authentic(token, b"csr", tag)
    assert not authentic(token, b"csr2", tag)
    for forged in (b"", tag[:-1], tag + b"\x00", bytes(32), hmac.digest(b"k", b"csr", "sha256")):
        assert not authentic(token, b"csr", forged)
