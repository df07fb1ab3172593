"""What a pool could give, and its calendar; for those who may book in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.errors import InvalidInput
from bcd.model.ids import NodeId, parse_type_id
from bcd.model.reservation import Window
from bcd.model.units import DAY_MS
from bcd.placer.admission.preview import Preview, Previews
from bcd.placer.api.calendar import encode_calendar
from bcd.placer.api.edge import Context, Edge
from bcd.placer.api.node_messages import Viewer
from bcd.placer.api.paging import cut, page_of
from bcd.placer.api.pools import require_sight, seen_pool
from bcd.placer.placement.booking import Placed
from bcd.placer.placement.unschedulable import FILTERS, Unschedulable
from bcd.store import nodes
from bcd.store.database import Database, Transaction
from bcd.store.nodes import Node
from bcd.wire.compute.v1 import capacity_pb2 as pb
from bcd.wire.compute.v1 import capacity_pb2_grpc
from bcd.wire.compute.v1.reservations_pb2 import Window as WindowMessage
from bcd.wire.document import to_document
from bcd.wire.reservation import encode_resources

MAX_WINDOW_MS = 92 * DAY_MS
_DEFAULT_WINDOW_MS = 7 * DAY_MS
_LATEST_MS = 1 << 43  # the year 2248
# Devices and times at which one is taken, of a page; it ends behind the node that goes over that.
_MAX_ENTRIES = 16_384


@dataclass(frozen=True, slots=True)
class CapacityCalls:
    """The service's calls, for verified callers."""

    database: Database
    previews: Previews

    async def preview(
        self, caller: Caller, request: pb.PreviewCapacityRequest
    ) -> pb.PreviewCapacityResponse:
        """What a create with these fields would be given."""
        return _encode(await self.previews.preview(caller, to_document(request)))

    async def calendar(
        self, caller: Caller, request: pb.GetCalendarRequest
    ) -> pb.GetCalendarResponse:
        """A page of a pool's nodes with what is taken of them in a window."""
        require_sight(caller, request.tenant_id)
        viewer = Viewer() if caller.admin else Viewer(request.tenant_id)
        cursor, limit = page_of(request)
        if request.node_id:
            parse_type_id("node", request.node_id, "nodeId")
        return await self.database.read(_calendar, request, cursor, limit, viewer)


def _calendar(
    tx: Transaction, request: pb.GetCalendarRequest, cursor: str, limit: int, viewer: Viewer
) -> pb.GetCalendarResponse:
    during = _window(request, tx.now_ms())
    found, following = cut(_nodes(tx, request, cursor, limit + 1), limit, lambda node: node.id)
    shown: list[pb.CalendarNode] = []
    entries = 0
    for node in found:
        if entries > _MAX_ENTRIES:
            following = shown[-1].id
            break
        shown.append(encode_calendar(tx, node, during, viewer))
        entries += sum(1 + len(device.taken) for device in shown[-1].devices)
    return pb.GetCalendarResponse(
        window=WindowMessage(start=during.start_ms, end=during.end_ms),
        nodes=shown,
        next_cursor=following,
    )


def _window(request: pb.GetCalendarRequest, now_ms: int) -> Window:
    start_ms = request.start if request.HasField("start") else now_ms
    if not 0 <= start_ms <= _LATEST_MS:
        raise InvalidInput("start", "must be a time in epoch milliseconds")
    end_ms = request.end if request.HasField("end") else start_ms + _DEFAULT_WINDOW_MS
    if not start_ms < end_ms <= start_ms + MAX_WINDOW_MS:
        raise InvalidInput("end", "must be after the start, and at most 92 days after it")
    return Window(start_ms, end_ms)


def _nodes(
    tx: Transaction, request: pb.GetCalendarRequest, cursor: str, limit: int
) -> Sequence[Node]:
    """The pool's nodes behind the cursor, or the one that is asked for; raises NotFound."""
    pool = seen_pool(tx, request.tenant_id, request.pool_id)
    if not request.node_id:
        return nodes.page(tx, request.tenant_id, pool.id, cursor, limit)
    node = nodes.current(tx, NodeId(request.node_id))
    if node.pool_id != pool.id:
        raise nodes.missing(request.node_id)
    return [node]


def _encode(preview: Preview) -> pb.PreviewCapacityResponse:
    answer = pb.PreviewCapacityResponse(
        earliest_start=preview.earliest_ms,
        longest_free_ms=preview.longest_free_ms,
        host_share=encode_resources(preview.host_share),
        resources=encode_resources(preview.resources),
    )
    match preview.outcome:
        case Placed() as placed:
            answer.fits = True
            answer.node_ids.extend(sorted(one.node_id for one in placed.allocations))
            answer.window.start = placed.window.start_ms
            answer.window.end = placed.window.end_ms
            answer.displaced = len(placed.displaced)
        case Unschedulable() as refused:
            answer.reason = refused.sentence
            answer.rejected.extend(_rejected(refused))
    return answer


def _rejected(refused: Unschedulable) -> Sequence[pb.FilterCount]:
    return [
        pb.FilterCount(
            filter=name, nodes=refused.rejected[name], nearest=refused.nearest.get(name, "")
        )
        for name in FILTERS
        if refused.rejected.get(name)
    ]


class CapacityServicer(capacity_pb2_grpc.CapacityServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: CapacityCalls) -> None:
        self._edge = edge
        self._calls = calls

    async def PreviewCapacity(  # noqa: N802 - the service's name
        self, request: pb.PreviewCapacityRequest, context: Context
    ) -> pb.PreviewCapacityResponse:
        return await self._edge.serve(self._calls.preview, request, context)

    async def GetCalendar(  # noqa: N802
        self, request: pb.GetCalendarRequest, context: Context
    ) -> pb.GetCalendarResponse:
        return await self._edge.serve(self._calls.calendar, request, context)
