"""Join tokens: ``<id>.<secret>.<pin>``, single use, at most an hour, for one node."""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass

from bcd.model.errors import InvalidInput, NotFound
from bcd.model.ids import NodeId, PoolId, parse_type_id
from bcd.model.units import HOUR_MS, MINUTE_MS
from bcd.signing.certificates import WORKLOAD_ROLES, Role
from bcd.store import enrolments, nodes, pools
from bcd.store.database import Transaction
from bcd.store.enrolments import JoinToken

MAX_LIFETIME_MS = HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """What an administrator asks a token for.

    An empty node id means a new node; a known node joins its own pool again, named or not.
    """

    pool_id: str
    role: str = Role.NODE.value
    node_id: str = ""
    trusted: bool = True
    lifetime_ms: int = 15 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Minted:
    """The token's text, to be shown once, and what it is for."""

    text: str
    node_id: NodeId
    expires_ms: int


def mint(tx: Transaction, request: JoinRequest, pin: str) -> Minted:
    """Make a token; raises InvalidInput or NotFound naming the field."""
    if request.role not in WORKLOAD_ROLES:
        raise InvalidInput("role", f"must be one of {', '.join(sorted(WORKLOAD_ROLES))}")
    if not 0 < request.lifetime_ms <= MAX_LIFETIME_MS:
        raise InvalidInput("lifetimeMs", "must be at most an hour")
    pool_id, node_id = request.pool_id, NodeId(tx.new_id("node"))
    if request.node_id:
        node_id = NodeId(parse_type_id("node", request.node_id, "nodeId"))
        known = nodes.current(tx, node_id).pool_id
        if pool_id not in ("", known):
            raise NotFound(f"there is no node {node_id} in pool {pool_id[:64]}", nodeId=node_id)
        pool_id = known
    pool = pools.get(tx, PoolId(parse_type_id("pool", pool_id, "poolId")))
    if pool.deleted:
        raise pools.missing(pool.id)
    secret = secrets.token_bytes(32)
    token_id = tx.new_id("join")
    expires_ms = tx.now_ms() + request.lifetime_ms
    enrolments.add_token(
        tx,
        JoinToken(
            id=token_id,
            hmac_key=hashlib.sha256(secret).digest(),
            node_id=node_id,
            pool_id=pool.id,
            role=request.role,
            trusted=request.trusted,
            expires_ms=expires_ms,
        ),
    )
    encoded = urlsafe_b64encode(secret).decode().rstrip("=")
    return Minted(f"{token_id}.{encoded}.{pin}", node_id, expires_ms)


def authentic(token: JoinToken, csr: bytes, tag: bytes) -> bool:
    """Whether whoever knows the token's secret sent exactly this request."""
    return hmac.compare_digest(hmac.digest(token.hmac_key, csr, "sha256"), tag)
