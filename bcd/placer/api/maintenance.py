"""Maintenance windows: for administrators."""

from collections.abc import Sequence
from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.errors import InvalidInput
from bcd.model.ids import NodeId, ReservationId, parse_type_id
from bcd.model.texts import check_text
from bcd.model.units import MAX_DURATION_MS
from bcd.placer.api.edge import Context, Edge, require_admin
from bcd.placer.api.paging import cut, page_of
from bcd.placer.lifecycle import maintenance as lifecycle
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.maintenance import Wanted
from bcd.placer.pki.command import CommandSigner
from bcd.store import maintenance, nodes, pools
from bcd.store.database import Database, Transaction
from bcd.store.maintenance import Filter, Maintenance
from bcd.wire.compute.v1 import maintenance_pb2 as pb
from bcd.wire.compute.v1 import maintenance_pb2_grpc

_LATEST_MS = 1 << 43  # the year 2248


@dataclass(frozen=True, slots=True)
class MaintenanceCalls:
    """Calls about maintenance windows, for verified administrators."""

    database: Database
    signer: CommandSigner

    async def add(
        self, caller: Caller, request: pb.AddMaintenanceRequest
    ) -> pb.AddMaintenanceResponse:
        """Keep a node free for a time; raises Conflict while reservations are in the way."""
        require_admin(caller)
        start_ms = request.start if request.HasField("start") else None
        if start_ms is not None and not 0 <= start_ms <= _LATEST_MS:
            raise InvalidInput("start", "must be a time in epoch milliseconds")
        if not 0 < request.duration_ms <= MAX_DURATION_MS:
            raise InvalidInput("durationMs", "must be more than 0 and at most ten years")
        wanted = Wanted(
            node_id=NodeId(parse_type_id("node", request.node_id, "nodeId")),
            start_ms=start_ms,
            duration_ms=request.duration_ms,
            reason=check_text("reason", request.reason, empty=True),
            caller=caller,
        )
        window = await self.database.write(self._add, wanted)
        return pb.AddMaintenanceResponse(window=_encode(window))

    async def list(
        self, caller: Caller, request: pb.ListMaintenanceRequest
    ) -> pb.ListMaintenanceResponse:
        """A page of the windows that are not over, the next first."""
        require_admin(caller)
        cursor, limit = page_of(request)
        wanted = Filter(pool_id=request.pool_id, node_id=request.node_id)
        found: Sequence[Maintenance] = await self.database.read(
            maintenance.page, wanted, cursor, limit + 1
        )
        shown, following = cut(found, limit, lambda window: window.id)
        return pb.ListMaintenanceResponse(
            windows=[_encode(window) for window in shown], next_cursor=following
        )

    async def remove(
        self, caller: Caller, request: pb.RemoveMaintenanceRequest
    ) -> pb.RemoveMaintenanceResponse:
        """End a window, or drop one that has not begun."""
        require_admin(caller)
        window_id = ReservationId(parse_type_id("maint", request.id, "id"))
        await self.database.write(self._remove, window_id)
        return pb.RemoveMaintenanceResponse()

    def _add(self, tx: Transaction, wanted: Wanted) -> Maintenance:
        pool_id = nodes.current(tx, wanted.node_id).pool_id
        return lifecycle.add(Hand(tx, pools.lock(tx, pool_id), self.signer), wanted)

    def _remove(self, tx: Transaction, window_id: ReservationId) -> None:
        pool_id = maintenance.get(tx, window_id).pool_id
        lifecycle.remove(Hand(tx, pools.lock(tx, pool_id), self.signer), window_id)


def _encode(window: Maintenance) -> pb.MaintenanceWindow:
    return pb.MaintenanceWindow(
        id=window.id,
        pool_id=window.pool_id,
        node_id=window.node_id,
        start=window.during.start_ms,
        end=window.during.end_ms,
        reason=window.reason,
    )


class MaintenanceServicer(maintenance_pb2_grpc.MaintenanceServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: MaintenanceCalls) -> None:
        self._edge = edge
        self._calls = calls

    async def AddMaintenance(  # noqa: N802 - the service's name
        self, request: pb.AddMaintenanceRequest, context: Context
    ) -> pb.AddMaintenanceResponse:
        return await self._edge.serve(self._calls.add, request, context)

    async def ListMaintenance(  # noqa: N802
        self, request: pb.ListMaintenanceRequest, context: Context
    ) -> pb.ListMaintenanceResponse:
        return await self._edge.serve(self._calls.list, request, context)

    async def RemoveMaintenance(  # noqa: N802
        self, request: pb.RemoveMaintenanceRequest, context: Context
    ) -> pb.RemoveMaintenanceResponse:
        return await self._edge.serve(self._calls.remove, request, context)
