"""Nodes as messages; whose reservation holds a device is told to those only who may know."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from bcd.model.reservation import Condition
from bcd.placer.capacity.inventory import ELSEWHERE
from bcd.store import atoms, bookings, nodes, sessions
from bcd.store.atoms import Atom
from bcd.store.bookings import Holder
from bcd.store.database import Transaction
from bcd.store.nodes import Node
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.reservation import encode_condition


@dataclass(frozen=True, slots=True)
class Viewer:
    """For whom a node is shown: a tenant, or an administrator when None."""

    tenant_id: str | None = None

    def may_know(self, holder: Holder) -> bool:
        """Whether the holder's reservation is the viewer's own."""
        return self.tenant_id in (None, holder.tenant_id)


def encode_node(tx: Transaction, node: Node, now_ms: int, viewer: Viewer) -> pb.Node:
    """The node with its session, devices and labels."""
    session = sessions.get(tx, node.id)
    holders = bookings.holders(tx, node.id, now_ms)
    own = atoms.on_node(tx, node.id)
    return pb.Node(
        id=node.id,
        pool_id=node.pool_id,
        hostname=node.hostname,
        connected=session is not None and session.connected,
        ready=node.ready,
        schedulable=node.schedulable,
        cordoned=node.cordoned,
        draining=node.draining,
        trusted=node.trusted,
        daemon_version="" if session is None else session.daemon_version,
        driver_version=node.driver_version,
        last_seen=0 if session is None else session.last_seen_ms,
        devices=[_device(atom, holders, viewer) for atom in own],
        labels=[
            pb.NodeLabel(key=key, value=value, source=source)
            for key, value, source in nodes.labels(tx, node.id)
        ],
        conditions=[encode_condition(_told(condition, viewer)) for condition in node.conditions],
    )


def _told(condition: Condition, viewer: Viewer) -> Condition:
    """The condition; only administrators hear which other node has a GPU: it may be anybody's."""
    if condition.type != ELSEWHERE or viewer.tenant_id is None:
        return condition
    told = "another node has some of this node's GPUs; ask an administrator"
    return msgspec.structs.replace(condition, message=told)


def _device(atom: Atom, holders: Mapping[int, Holder], viewer: Viewer) -> pb.NodeDevice:
    holder = holders.get(atom.id)
    return pb.NodeDevice(
        id=atom.uuid,
        **{"class": atom.device_class.value},
        model=atom.model,
        profile=atom.profile,
        health=atom.health,
        reservation_id=holder.reservation_id if holder and viewer.may_know(holder) else "",
        bookable=atom.bookable,
        held=holder is not None,
    )
