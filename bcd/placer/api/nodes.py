"""Nodes as tenants and administrators see them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.errors import InvalidInput, InvalidState
from bcd.model.ids import NodeId, parse_type_id
from bcd.model.texts import check_text
from bcd.placer.api.edge import Context, Edge, require_admin
from bcd.placer.api.node_messages import Viewer, encode_node
from bcd.placer.api.paging import cut_messages, page_of
from bcd.placer.api.pools import require_sight, seen_pool
from bcd.store import (
    bookings,
    certificates,
    enrolments,
    nodes,
    offers,
    pools,
    reservations,
    shares,
    work,
)
from bcd.store.database import Database, Transaction
from bcd.store.pools import PoolLock
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1 import admin_pb2_grpc

_SYSTEM = "bc.dev/"
_MAX_LABELS = 64
_FOREVER = 1 << 62
_EVERYTHING = Viewer()


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """Calls about nodes, for verified callers."""

    database: Database

    async def get_node(self, caller: Caller, request: pb.GetNodeRequest) -> pb.GetNodeResponse:
        """One node of a pool that the tenant owns or was offered."""
        require_sight(caller, request.tenant_id)
        node_id = _node_id(request.node_id)
        viewer = _viewer(caller, request.tenant_id)
        node = await self.database.read(_seen, request.tenant_id, node_id, viewer)
        return pb.GetNodeResponse(node=node)

    async def list_nodes(
        self, caller: Caller, request: pb.ListNodesRequest
    ) -> pb.ListNodesResponse:
        """A page of the nodes of a tenant's pools, or of one of them, by id."""
        require_sight(caller, request.tenant_id)
        cursor, limit = page_of(request)
        viewer = _viewer(caller, request.tenant_id)
        found = await self.database.read(_page, request, cursor, limit + 1, viewer)
        shown, following = cut_messages(found, limit, lambda node: node.id)
        return pb.ListNodesResponse(nodes=shown, next_cursor=following)

    async def cordon_node(
        self, caller: Caller, request: pb.CordonNodeRequest
    ) -> pb.CordonNodeResponse:
        """Keep new bookings off a node, or let them back."""

        def cordon(tx: Transaction, node_id: NodeId) -> None:
            nodes.set_cordoned(tx, node_id, request.cordoned)

        return pb.CordonNodeResponse(node=await self._change(caller, request.node_id, cordon))

    async def drain_node(
        self, caller: Caller, request: pb.DrainNodeRequest
    ) -> pb.DrainNodeResponse:
        """Cordon a node, and let what has not started move away."""
        node = await self._change(caller, request.node_id, nodes.drain)
        return pb.DrainNodeResponse(node=node)

    async def trust_node(
        self, caller: Caller, request: pb.TrustNodeRequest
    ) -> pb.TrustNodeResponse:
        """Take a node's trust away, or give it back."""

        def trust(tx: Transaction, node_id: NodeId) -> None:
            nodes.set_trusted(tx, node_id, request.trusted)

        return pb.TrustNodeResponse(node=await self._change(caller, request.node_id, trust))

    async def label_node(
        self, caller: Caller, request: pb.LabelNodeRequest
    ) -> pb.LabelNodeResponse:
        """Set and remove an operator's labels."""
        require_admin(caller)
        for key, value in request.set.items():
            _check_key("set", key)
            check_text(f"set.{key}", value, empty=True)
        for position, key in enumerate(request.remove):
            _check_key(f"remove[{position}]", key)

        def label(tx: Transaction, node_id: NodeId) -> None:
            for key in request.remove:
                nodes.remove_label(tx, node_id, key)
            for key, value in sorted(request.set.items()):
                nodes.set_label(tx, node_id, key, value)
            own = [key for key, _, source in nodes.labels(tx, node_id) if source == "operator"]
            if len(own) > _MAX_LABELS:
                raise InvalidInput("set", f"would give the node more than {_MAX_LABELS} labels")

        return pb.LabelNodeResponse(node=await self._change(caller, request.node_id, label))

    async def revoke_node(
        self, caller: Caller, request: pb.RevokeNodeRequest
    ) -> pb.RevokeNodeResponse:
        """Revoke a node's certificates; gateways end its session."""
        require_admin(caller)
        node_id = _node_id(request.node_id)
        revoked = await self.database.write(_revoke, node_id)
        return pb.RevokeNodeResponse(certificates=revoked)

    async def remove_node(
        self, caller: Caller, request: pb.RemoveNodeRequest
    ) -> pb.RemoveNodeResponse:
        """Take a node out for good; raises InvalidState while something is booked on it."""
        require_admin(caller)
        await self.database.write(_remove, _node_id(request.node_id))
        return pb.RemoveNodeResponse()

    async def _change(
        self, caller: Caller, node_id: str, change: Callable[[Transaction, NodeId], None]
    ) -> pb.Node:
        require_admin(caller)
        return await self.database.write(_changed, _node_id(node_id), change)


def _node_id(text: str) -> NodeId:
    return NodeId(parse_type_id("node", text, "nodeId"))


def _viewer(caller: Caller, tenant_id: str) -> Viewer:
    return _EVERYTHING if caller.admin else Viewer(tenant_id)


def _check_key(field: str, key: str) -> None:
    check_text(field, key)
    if key.startswith(_SYSTEM):
        raise InvalidInput(f"{field}.{key}", f"keys that begin with {_SYSTEM} are the system's own")


def _seen(tx: Transaction, tenant_id: str, node_id: NodeId, viewer: Viewer) -> pb.Node:
    """Somebody else's node is not found, in the same words as one that does not exist."""
    node = nodes.current(tx, node_id)
    pool = pools.get(tx, node.pool_id)
    if tenant_id and not offers.sees(tx, pool, tenant_id):
        raise nodes.missing(node_id)
    return encode_node(tx, node, tx.now_ms(), viewer)


def _page(
    tx: Transaction, request: pb.ListNodesRequest, cursor: str, limit: int, viewer: Viewer
) -> Sequence[pb.Node]:
    if request.pool_id:
        seen_pool(tx, request.tenant_id, request.pool_id)
    now_ms = tx.now_ms()
    found = nodes.page(tx, request.tenant_id, request.pool_id, cursor, limit)
    return [encode_node(tx, node, now_ms, viewer) for node in found]


def _lock_of(tx: Transaction, node_id: NodeId) -> PoolLock:
    """The lock of a node's pool; raises NotFound also for a node removed just before."""
    held = pools.lock(tx, nodes.current(tx, node_id).pool_id)
    nodes.current(tx, node_id)
    return held


def _changed(
    tx: Transaction, node_id: NodeId, change: Callable[[Transaction, NodeId], None]
) -> pb.Node:
    """Change a node, and wake whoever the change concerns: those on it, those who wait."""
    held = _lock_of(tx, node_id)
    change(tx, node_id)
    pools.note_changes(tx, held, [node_id], "node")
    work.poke(tx, held.pool.id, held.now_ms)
    for reservation_id in reservations.on_node(tx, node_id):
        work.poke(tx, reservation_id, held.now_ms)
    return encode_node(tx, nodes.current(tx, node_id), held.now_ms, _EVERYTHING)


def _revoke(tx: Transaction, node_id: NodeId) -> int:
    """Without trust it takes no new bookings from this moment on; joining again brings it back."""
    held = _lock_of(tx, node_id)
    nodes.set_trusted(tx, node_id, trusted=False)
    pools.note_changes(tx, held, [node_id], "node")
    for reservation_id in reservations.on_node(tx, node_id):
        work.poke(tx, reservation_id, held.now_ms)
    return certificates.revoke_subject(tx, node_id, "revoked by an administrator")


def _remove(tx: Transaction, node_id: NodeId) -> None:
    """The tokens go first: nobody joins as this node between the look and the commit."""
    held = _lock_of(tx, node_id)
    enrolments.drop_tokens(tx, node_id=node_id)
    booked = bookings.booked_on(tx, node_id, held.now_ms, _FOREVER)
    in_way = sorted({*booked, *reservations.on_node(tx, node_id)})
    if in_way:
        raise InvalidState(
            f"node {node_id} has bookings of {', '.join(in_way[:8])}; drain it and let them end,"
            " or have their owners release them",
            nodeId=node_id,
            reservations=",".join(in_way[:64]),
        )
    nodes.remove(tx, node_id)
    pools.keep_models(tx, held.pool.id)
    shares.keep(tx, held.pool.id)
    pools.note_changes(tx, held, [node_id], "node")
    certificates.revoke_subject(tx, node_id, "the node was removed")


class NodesServicer(admin_pb2_grpc.NodesServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: NodeCalls) -> None:
        self._edge = edge
        self._calls = calls

    async def GetNode(  # noqa: N802 - the service's name
        self, request: pb.GetNodeRequest, context: Context
    ) -> pb.GetNodeResponse:
        return await self._edge.serve(self._calls.get_node, request, context)

    async def ListNodes(  # noqa: N802
        self, request: pb.ListNodesRequest, context: Context
    ) -> pb.ListNodesResponse:
        return await self._edge.serve(self._calls.list_nodes, request, context)

    async def CordonNode(  # noqa: N802
        self, request: pb.CordonNodeRequest, context: Context
    ) -> pb.CordonNodeResponse:
        return await self._edge.serve(self._calls.cordon_node, request, context)

    async def DrainNode(  # noqa: N802
        self, request: pb.DrainNodeRequest, context: Context
    ) -> pb.DrainNodeResponse:
        return await self._edge.serve(self._calls.drain_node, request, context)

    async def TrustNode(  # noqa: N802
        self, request: pb.TrustNodeRequest, context: Context
    ) -> pb.TrustNodeResponse:
        return await self._edge.serve(self._calls.trust_node, request, context)

    async def LabelNode(  # noqa: N802
        self, request: pb.LabelNodeRequest, context: Context
    ) -> pb.LabelNodeResponse:
        return await self._edge.serve(self._calls.label_node, request, context)

    async def RevokeNode(  # noqa: N802
        self, request: pb.RevokeNodeRequest, context: Context
    ) -> pb.RevokeNodeResponse:
        return await self._edge.serve(self._calls.revoke_node, request, context)

    async def RemoveNode(  # noqa: N802
        self, request: pb.RemoveNodeRequest, context: Context
    ) -> pb.RemoveNodeResponse:
        return await self._edge.serve(self._calls.remove_node, request, context)
