"""Atoms: the bookable devices of each node, kept in step with its applied inventory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bcd.model.device import DeviceClass
from bcd.model.ids import NodeId
from bcd.model.units import HOUR_MS
from bcd.store.database import Row, Transaction

_VANISHED = "not in the inventory"
_THERE = f"(a.bookable = 1 OR a.health_reason <> '{_VANISHED}')"
# A MIG instance that vanished is of no use to anybody who has not booked it: each reconfiguration
# of a GPU makes others. A whole GPU that vanished is missed. The hour more is for transactions that
# hold an earlier moment for now, and for clocks that are set back.
_KNOWN = (
    f"({_THERE} OR a.class <> '{DeviceClass.MIG.value}' OR EXISTS (SELECT 1 FROM bookings b"
    f" WHERE b.atom_id = a.id AND b.end_ms > compute_now() - {HOUR_MS}))"
)
MODE: Mapping[DeviceClass, int] = {DeviceClass.GPU: 0, DeviceClass.MIG: 1, DeviceClass.SLOT: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomFacts:
    """What the inventory says of a device; ``bookable`` is false for one that is gone, not
    healthy, or a GPU in MIG mode."""

    device_class: DeviceClass
    uuid: str
    gpu_uuid: str
    model: str
    profile: str
    memory_bytes: int
    numa_node: int | None
    nvlink_domain: str
    nvlink_peers: tuple[str, ...]
    bookable: bool
    health: str
    health_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Atom:
    """A device on record; ``gpu_id`` is its physical GPU, ``mode`` how it takes part of it."""

    id: int
    node_id: NodeId
    gpu_id: int
    mode: int
    device_class: DeviceClass
    uuid: str
    model: str
    profile: str
    numa_node: int | None
    nvlink_domain: str
    nvlink_peers: tuple[str, ...]
    bookable: bool
    health: str
    health_reason: str


def _atom(row: Row) -> Atom:
    return Atom(
        id=row["id"],
        node_id=row["node_id"],
        gpu_id=row["gpu_id"],
        mode=row["mode"],
        device_class=DeviceClass(row["class"]),
        uuid=row["uuid"],
        model=row["model"],
        profile=row["profile"],
        numa_node=row["numa_node"],
        nvlink_domain=row["nvlink_domain"],
        nvlink_peers=tuple(msgspec.json.decode(row["nvlink_peers"], type=list[str])),
        bookable=bool(row["bookable"]),
        health=row["health"],
        health_reason=row["health_reason"],
    )


def on_node(tx: Transaction, node_id: NodeId) -> Sequence[Atom]:
    """A node's atoms by id, also those that are not bookable now.

    But for MIG instances that vanished, an hour after what had them booked is over.
    """
    rows = tx.all(
        f"SELECT a.* FROM atoms a WHERE a.node_id = :id AND {_KNOWN} ORDER BY a.id", id=node_id
    )
    return [_atom(row) for row in rows]


def in_pool(tx: Transaction, pool_id: str) -> Sequence[Atom]:
    """Every atom of a pool's nodes, as ``on_node`` has them, by node and id."""
    rows = tx.all(
        "SELECT a.* FROM atoms a JOIN nodes n ON n.id = a.node_id"
        f" WHERE n.pool_id = :pool_id AND {_KNOWN} ORDER BY a.node_id, a.id",
        pool_id=pool_id,
    )
    return [_atom(row) for row in rows]


def sync(tx: Transaction, node_id: NodeId, facts: Sequence[AtomFacts]) -> None:
    """Bring a node's atoms in step with its inventory. Call under the pool's lock.

    A device that vanished stays on record, not bookable: bookings may name it. MIG instances that
    none ever named are forgotten at the next change. Where all is as it should be nothing is
    written: a placer that starts looks at every node.
    """
    if _in_step(tx, node_id, facts):
        return
    tx.run(
        f"DELETE FROM atoms AS a WHERE a.node_id = :node_id AND NOT {_THERE}"
        f" AND a.class = '{DeviceClass.MIG.value}'"
        " AND NOT EXISTS (SELECT 1 FROM bookings b WHERE b.atom_id = a.id)",
        node_id=node_id,
    )
    tx.run(
        "UPDATE atoms AS a SET bookable = 0, health = 'unknown', health_reason = :reason"
        f" WHERE a.node_id = :node_id AND {_THERE}",
        node_id=node_id,
        reason=_VANISHED,
    )
    uuids = dict.fromkeys(fact.gpu_uuid for fact in facts)
    gpu_ids = {uuid: _gpu_id(tx, node_id, uuid) for uuid in uuids}
    for fact in facts:
        _put(tx, node_id, gpu_ids[fact.gpu_uuid], fact)


def _put(tx: Transaction, node_id: NodeId, gpu_id: int, fact: AtomFacts) -> None:
    tx.run(
        "INSERT INTO atoms (node_id, gpu_id, mode, class, uuid, model, profile, memory_bytes,"
        " numa_node, nvlink_domain, nvlink_peers, bookable, health, health_reason)"
        " VALUES (:node_id, :gpu_id, :mode, :class, :uuid, :model, :profile, :memory_bytes,"
        " :numa_node, :nvlink_domain, :nvlink_peers, :bookable, :health, :health_reason)"
        " ON CONFLICT (node_id, class, uuid) DO UPDATE SET gpu_id = excluded.gpu_id,"
        " model = excluded.model, profile = excluded.profile,"
        " memory_bytes = excluded.memory_bytes, numa_node = excluded.numa_node,"
        " nvlink_domain = excluded.nvlink_domain, nvlink_peers = excluded.nvlink_peers,"
        " bookable = excluded.bookable, health = excluded.health,"
        " health_reason = excluded.health_reason",
        node_id=node_id,
        gpu_id=gpu_id,
        mode=MODE[fact.device_class],
        **{"class": fact.device_class.value},
        uuid=fact.uuid,
        model=fact.model,
        profile=fact.profile,
        memory_bytes=fact.memory_bytes,
        numa_node=fact.numa_node,
        nvlink_domain=fact.nvlink_domain,
        nvlink_peers=msgspec.json.encode(fact.nvlink_peers).decode(),
        bookable=int(fact.bookable),
        health=fact.health,
        health_reason=fact.health_reason,
    )


def _in_step(tx: Transaction, node_id: NodeId, facts: Sequence[AtomFacts]) -> bool:
    rows = tx.all(
        "SELECT a.*, g.uuid AS gpu_uuid FROM atoms a JOIN gpus g ON g.id = a.gpu_id"
        f" WHERE a.node_id = :node_id AND {_THERE}",
        node_id=node_id,
    )
    return {_recorded(row) for row in rows} == set(facts)


def _recorded(row: Row) -> AtomFacts:
    return AtomFacts(
        device_class=DeviceClass(row["class"]),
        uuid=row["uuid"],
        gpu_uuid=row["gpu_uuid"],
        model=row["model"],
        profile=row["profile"],
        memory_bytes=row["memory_bytes"],
        numa_node=row["numa_node"],
        nvlink_domain=row["nvlink_domain"],
        nvlink_peers=tuple(msgspec.json.decode(row["nvlink_peers"], type=list[str])),
        bookable=bool(row["bookable"]),
        health=row["health"],
        health_reason=row["health_reason"],
    )


def _gpu_id(tx: Transaction, node_id: NodeId, uuid: str) -> int:
    row = tx.one(
        "INSERT INTO gpus (node_id, uuid) VALUES (:node_id, :uuid)"
        " ON CONFLICT (node_id, uuid) DO UPDATE SET uuid = excluded.uuid RETURNING id",
        node_id=node_id,
        uuid=uuid,
    )
    assert row is not None
    return int(row["id"])
