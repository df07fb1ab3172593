"""Sessions of nodes at gateways. Every write is conditional on the epoch, which fences."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bcd.model.ids import NodeId
from bcd.store.database import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a Hello says of the session that it opens."""

    node_id: NodeId
    gateway_id: str
    process_instance: str
    boot_id: str
    daemon_version: str
    protocol_version: int
    ttl_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The newest session of a node."""

    node_id: NodeId
    epoch: int
    gateway_id: str
    process_instance: str
    daemon_version: str
    connected: bool
    last_seen_ms: int
    ttl_ms: int
    acked_epoch: int
    acked_generation: int
    ack_status: str


_COLUMNS = (
    "node_id, epoch, gateway_id, process_instance, daemon_version, connected, last_seen_ms,"
    " ttl_ms, acked_epoch, acked_generation, ack_status"
)


def register_gateway(tx: Transaction, gateway_id: str) -> None:
    """Record a gateway's start: nodes get time to come back before they count as unreachable."""
    tx.run(
        "INSERT INTO gateways (id, started_ms) VALUES (:id, compute_now())"
        " ON CONFLICT (id) DO UPDATE SET started_ms = excluded.started_ms",
        id=gateway_id,
    )


def last_gateway_start_ms(tx: Transaction) -> int:
    """When a gateway last started, 0 when none ever did."""
    row = tx.one("SELECT max(started_ms) AS started FROM gateways")
    return int(row["started"] or 0) if row is not None else 0


def open_session(tx: Transaction, opening: Opening) -> int:
    """Open a session and fence every older one of the node; returns the new epoch.

    A node that the placer does not know violates the foreign key; callers check the certificate
    first, so that this means a removed node.
    """
    row = tx.one(
        "INSERT INTO sessions (node_id, epoch, gateway_id, process_instance, boot_id,"
        " daemon_version, protocol_version, connected, opened_ms, last_seen_ms, ttl_ms)"
        " VALUES (:node_id, 1, :gateway_id, :process_instance, :boot_id, :daemon_version,"
        " :protocol_version, 1, compute_now(), compute_now(), :ttl_ms)"
        " ON CONFLICT (node_id) DO UPDATE SET epoch = sessions.epoch + 1,"
        " gateway_id = excluded.gateway_id, process_instance = excluded.process_instance,"
        " boot_id = excluded.boot_id, daemon_version = excluded.daemon_version,"
        " protocol_version = excluded.protocol_version, connected = 1,"
        " opened_ms = excluded.opened_ms, last_seen_ms = excluded.last_seen_ms,"
        " ttl_ms = excluded.ttl_ms RETURNING epoch",
        node_id=opening.node_id,
        gateway_id=opening.gateway_id,
        process_instance=opening.process_instance,
        boot_id=opening.boot_id,
        daemon_version=opening.daemon_version,
        protocol_version=opening.protocol_version,
        ttl_ms=opening.ttl_ms,
    )
    assert row is not None
    tx.wake("session", opening.node_id)
    return int(row["epoch"])


def touch_all(tx: Transaction, live: Sequence[tuple[NodeId, int]]) -> Sequence[NodeId]:
    """Record one heartbeat of each (node, epoch); returns the nodes whose session was fenced.

    One transaction a second for a whole gateway costs less than one for every heartbeat.
    """
    rows = [{"node_id": node_id, "epoch": epoch} for node_id, epoch in sorted(live)]
    touched = tx.many(
        "UPDATE sessions SET last_seen_ms = compute_now(), connected = 1"
        " WHERE node_id = :node_id AND epoch = :epoch",
        rows,
    )
    if touched == len(rows):
        return ()
    return [node_id for node_id, epoch in sorted(live) if not is_current(tx, node_id, epoch)]


def is_current(tx: Transaction, node_id: NodeId, epoch: int) -> bool:
    """Whether this is still the node's session; locks its row until the commit."""
    row = tx.one(
        f"SELECT epoch FROM sessions WHERE node_id = :node_id{tx.for_update}", node_id=node_id
    )
    return row is not None and row["epoch"] == epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """A node's answer to a desired state."""

    epoch: int
    generation: int
    hash: str
    status: str
    errors: tuple[tuple[str, str], ...]


def acknowledge(tx: Transaction, node_id: NodeId, epoch: int, ack: Acknowledgement) -> bool:
    """Record what the node made of a desired state; False when fenced."""
    return bool(
        tx.run(
            "UPDATE sessions SET acked_epoch = :acked_epoch, acked_generation = :generation,"
            " acked_hash = :hash, ack_status = :status, ack_errors = :errors,"
            " last_seen_ms = compute_now() WHERE node_id = :node_id AND epoch = :epoch",
            node_id=node_id,
            epoch=epoch,
            acked_epoch=ack.epoch,
            generation=ack.generation,
            hash=ack.hash,
            status=ack.status,
            errors=msgspec.json.encode(ack.errors).decode(),
        )
    )


def close_all(tx: Transaction, ended: Sequence[tuple[NodeId, int]]) -> None:
    """The streams of these (node, epoch) ended.

    A node counts as connected no longer, unless it opened a newer session.
    """
    for node_id, epoch in sorted(ended):
        changed = tx.run(
            "UPDATE sessions SET connected = 0 WHERE node_id = :node_id AND epoch = :epoch",
            node_id=node_id,
            epoch=epoch,
        )
        if changed:
            tx.wake("session", node_id)


def get(tx: Transaction, node_id: NodeId) -> Session | None:
    """A node's newest session."""
    row = tx.one(f"SELECT {_COLUMNS} FROM sessions WHERE node_id = :id", id=node_id)
    return None if row is None else Session(**{**row, "connected": bool(row["connected"])})


def every(tx: Transaction) -> Sequence[Session]:
    """The newest session of each node that ever had one."""
    rows = tx.all(f"SELECT {_COLUMNS} FROM sessions")
    return [Session(**{**row, "connected": bool(row["connected"])}) for row in rows]
