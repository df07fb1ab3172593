"""Nodes: listed by the tenants of their pools, cordoned and revoked by administrators."""

from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.errors import NotFound
from bcd.model.ids import NodeId, PoolId, parse_type_id
from bcd.placer.api.edge import Context, Edge, require_admin
from bcd.placer.api.pools import require_tenant
from bcd.store import atoms, bookings, certificates, nodes, pools, sessions, work
from bcd.store.database import Database, Transaction
from bcd.store.nodes import Node
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1 import admin_pb2_grpc
from bcd.wire.reservation import encode_condition


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """Calls about nodes, for verified callers."""

    database: Database

    async def list_nodes(
        self, caller: Caller, request: pb.ListNodesRequest
    ) -> pb.ListNodesResponse:
        """The nodes of a tenant's pools, or of one of them."""
        if request.tenant_id or not caller.admin:
            require_tenant(caller, request.tenant_id)
        found = await self.database.read(_nodes_of, request.tenant_id, request.pool_id)
        return pb.ListNodesResponse(nodes=found)

    async def cordon_node(
        self, caller: Caller, request: pb.CordonNodeRequest
    ) -> pb.CordonNodeResponse:
        """Keep new bookings off a node, or let them back."""
        require_admin(caller)
        node_id = NodeId(parse_type_id("node", request.node_id, "nodeId"))
        node = await self.database.write(_cordon, node_id, request.cordoned)
        return pb.CordonNodeResponse(node=node)

    async def revoke_node(
        self, caller: Caller, request: pb.RevokeNodeRequest
    ) -> pb.RevokeNodeResponse:
        """Revoke a node's certificates; gateways end its session."""
        require_admin(caller)
        node_id = NodeId(parse_type_id("node", request.node_id, "nodeId"))
        revoked = await self.database.write(_revoke, node_id)
        return pb.RevokeNodeResponse(certificates=revoked)


def _nodes_of(tx: Transaction, tenant_id: str, pool_id: str) -> list[pb.Node]:
    now_ms = tx.now_ms()
    found: list[pb.Node] = []
    for pool in pools.every(tx):
        if tenant_id in ("", pool.tenant_id) and pool_id in ("", pool.id):
            found += [_encode(tx, node, now_ms) for node in nodes.in_pool(tx, pool.id)]
    if pool_id and not found:
        pool = pools.get(tx, PoolId(pool_id[:64]))
        if tenant_id not in ("", pool.tenant_id):
            raise NotFound(f"there is no pool {pool.id}", poolId=pool.id)
    return found


def _encode(tx: Transaction, node: Node, now_ms: int) -> pb.Node:
    session = sessions.get(tx, node.id)
    holders = bookings.holders(tx, node.id, now_ms)
    return pb.Node(
        id=node.id,
        pool_id=node.pool_id,
        hostname=node.hostname,
        connected=session is not None and session.connected,
        ready=node.ready,
        schedulable=node.ready and node.reachable and node.trusted and not node.cordoned,
        cordoned=node.cordoned,
        trusted=node.trusted,
        daemon_version="" if session is None else session.daemon_version,
        driver_version=node.driver_version,
        last_seen=0 if session is None else session.last_seen_ms,
        devices=[
            pb.NodeDevice(
                id=atom.uuid,
                **{"class": atom.device_class.value},
                model=atom.model,
                profile=atom.profile,
                health=atom.health,
                reservation_id=holders.get(atom.id, ""),
                bookable=atom.bookable,
            )
            for atom in atoms.on_node(tx, node.id)
        ],
        labels=[
            pb.NodeLabel(key=key, value=value, source=source)
            for key, value, source in nodes.labels(tx, node.id)
        ],
        conditions=[encode_condition(condition) for condition in node.conditions],
    )


def _cordon(tx: Transaction, node_id: NodeId, cordoned: bool) -> pb.Node:
    held = pools.lock(tx, nodes.get(tx, node_id).pool_id)
    nodes.set_cordoned(tx, node_id, cordoned)
    pools.note_changes(tx, held, [node_id], "node")
    if not cordoned:
        work.poke(tx, held.pool.id, held.now_ms)
    return _encode(tx, nodes.get(tx, node_id), held.now_ms)


def _revoke(tx: Transaction, node_id: NodeId) -> int:
    """Without trust it takes no new bookings from this moment on; joining again brings it back."""
    held = pools.lock(tx, nodes.get(tx, node_id).pool_id)
    nodes.distrust(tx, node_id)
    pools.note_changes(tx, held, [node_id], "node")
    return certificates.revoke_subject(tx, node_id, "revoked by an administrator")


class NodesServicer(admin_pb2_grpc.NodesServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: NodeCalls) -> None:
        self._edge = edge
        self._calls = calls

    async def ListNodes(  # noqa: N802 - the service's name
        self, request: pb.ListNodesRequest, context: Context
    ) -> pb.ListNodesResponse:
        return await self._edge.serve(self._calls.list_nodes, request, context)

    async def CordonNode(  # noqa: N802
        self, request: pb.CordonNodeRequest, context: Context
    ) -> pb.CordonNodeResponse:
        return await self._edge.serve(self._calls.cordon_node, request, context)

    async def RevokeNode(  # noqa: N802
        self, request: pb.RevokeNodeRequest, context: Context
    ) -> pb.RevokeNodeResponse:
        return await self._edge.serve(self._calls.revoke_node, request, context)
