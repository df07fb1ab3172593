"""The events of one's tenants: a stream that can be resumed anywhere, and a list."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from bcd.model.caller import Caller
from bcd.model.errors import InvalidInput, QuotaExceeded, Unavailable
from bcd.model.event import EVENT_TYPES
from bcd.model.texts import check_text
from bcd.placer.api.edge import Context, Edge
from bcd.placer.api.paging import fitting
from bcd.placer.api.pools import require_tenant
from bcd.placer.events.feed import Feed, Position
from bcd.store.events import Event, Wanted
from bcd.wire.compute.v1 import events_pb2 as pb
from bcd.wire.compute.v1 import events_pb2_grpc

HEARTBEAT_S = 10.0
_PAGE = 100
_MAX_STREAMS = 256
_MAX_STREAMS_OF_TENANT = 32
_MAX_STREAMS_OF_ONE = 16
_DEFAULT_LIMIT = 50
_MAX_LIMIT = 200
# A burst of events is read in a few pages, not one by one; by all streams together at most so many
# in a second.
_PACE_S = 0.05
_READS_PER_S = 200

Send = Callable[[pb.WatchEventsResponse], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class EventCalls:
    """The two calls, for verified callers."""

    feed: Feed
    heartbeat_s: float = HEARTBEAT_S
    streams: Counter[str] = field(default_factory=Counter)  # by caller
    tenants: Counter[str] = field(default_factory=Counter)  # the same by tenant

    async def watch(self, caller: Caller, request: pb.WatchEventsRequest, send: Send) -> None:
        """Send events as they are published, and heartbeats; ends by what it raises.

        Everything is read from the database, page by page: a reader that is slow is only late.
        """
        wanted = _wanted(caller, request.tenant_id, request.subject, request.types)
        with self._counted(caller, wanted.tenant_id):
            position = await self._begin(request.cursor)
            await send(pb.WatchEventsResponse(cursor=position.cursor))
            async with self._woken() as woken:
                while True:
                    woken.clear()
                    position = await self._catch_up(caller, wanted, position, send)
                    await _wait(woken, self.heartbeat_s)
                    if woken.is_set():
                        await asyncio.sleep(max(_PACE_S, self.streams.total() / _READS_PER_S))
                    else:
                        await send(pb.WatchEventsResponse(cursor=position.cursor))

    async def _begin(self, cursor: str) -> Position:
        return await (self.feed.position(cursor) if cursor else self.feed.newest())

    async def _catch_up(
        self, caller: Caller, wanted: Wanted, position: Position, send: Send
    ) -> Position:
        loop = asyncio.get_running_loop()
        said_s = loop.time()
        while True:
            page = await self.feed.page(caller, wanted, position, _PAGE)
            for event in page.events:
                assert event.published_seq is not None
                cursor = position.at(event.published_seq).cursor
                await send(pb.WatchEventsResponse(event=encode_event(event), cursor=cursor))
                said_s = loop.time()
            position = position.at(page.upto)
            if page.upto >= page.newest:
                return position
            if loop.time() >= said_s + self.heartbeat_s:
                await send(pb.WatchEventsResponse(cursor=position.cursor))
                said_s = loop.time()

    async def list(self, caller: Caller, request: pb.ListEventsRequest) -> pb.ListEventsResponse:
        """A page, oldest first."""
        wanted = _wanted(caller, request.tenant_id, request.subject, request.types)
        limit = page_limit(request.limit if request.HasField("limit") else None)
        position = await (
            self.feed.position(request.cursor) if request.cursor else self.feed.oldest()
        )
        page = await self.feed.page(caller, wanted, position, limit)
        shown = [encode_event(event) for event in page.events]
        count, upto = fitting(shown), page.upto
        if count < len(shown):
            upto = page.events[count - 1].published_seq or upto
        return pb.ListEventsResponse(
            events=shown[:count],
            next_cursor=position.at(upto).cursor,
            more=upto < page.newest,
        )

    @contextlib.asynccontextmanager
    async def _woken(self) -> AsyncIterator[asyncio.Event]:
        woken = asyncio.Event()
        stop = self.feed.database.wakes.listen("published", lambda _: woken.set())
        try:
            yield woken
        finally:
            stop()

    @contextlib.contextmanager
    def _counted(self, caller: Caller, tenant_id: str) -> Iterator[None]:
        """Take a place; an administrator's is no tenant's."""
        own = self.streams[caller.identity]
        if own >= _MAX_STREAMS_OF_ONE or self.streams.total() >= _MAX_STREAMS:
            raise Unavailable("too many watchers at once; end some, or try again later")
        if not caller.admin and self.tenants[tenant_id] >= _MAX_STREAMS_OF_TENANT:
            raise QuotaExceeded(
                f"{tenant_id} has {_MAX_STREAMS_OF_TENANT} watchers, which is all that a tenant may"
                " have at once; end some, or list the events instead",
                resource="watchers",
                limit=str(_MAX_STREAMS_OF_TENANT),
                tenantId=tenant_id,
            )
        tenant = "" if caller.admin else tenant_id
        with _one_more(self.streams, caller.identity), _one_more(self.tenants, tenant):
            yield


@contextlib.contextmanager
def _one_more(counts: Counter[str], key: str) -> Iterator[None]:
    counts[key] += 1
    try:
        yield
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]


async def _wait(woken: asyncio.Event, longest_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(longest_s):
            await woken.wait()


def _wanted(caller: Caller, tenant_id: str, subject: str, types: Sequence[str]) -> Wanted:
    require_tenant(caller, tenant_id)
    return Wanted(
        tenant_id=check_text("tenantId", tenant_id, empty=True),
        subject=check_text("subject", subject, empty=True),
        types=known_types(types),
    )


def known_types(types: Sequence[str]) -> tuple[str, ...]:
    """Types without repetition; raises InvalidInput for one that no event has."""
    for position, name in enumerate(types):
        if name not in EVENT_TYPES:
            rule = f"must be one of {', '.join(EVENT_TYPES)}"
            raise InvalidInput(f"types[{position}]", rule)
    return tuple(dict.fromkeys(types))


def page_limit(given: int | None) -> int:
    """A page's size; raises InvalidInput."""
    if given is None:
        return _DEFAULT_LIMIT
    if not 1 <= given <= _MAX_LIMIT:
        raise InvalidInput("limit", f"must be 1 to {_MAX_LIMIT}")
    return given


def encode_event(event: Event) -> pb.Event:
    """A published event as the API shows it."""
    return pb.Event(
        id=event.id or "",
        type=event.type,
        subject=event.subject,
        tenant_id=event.tenant_id,
        time=event.at_ms,
        data=msgspec.json.encode(event.data).decode(),
    )


class EventsServicer(events_pb2_grpc.EventsServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: EventCalls) -> None:
        self._edge = edge
        self._calls = calls

    async def WatchEvents(  # type: ignore[override]  # noqa: N802 - the service's name
        self, request: pb.WatchEventsRequest, context: Context
    ) -> None:
        """Writes to the context, so that one task has the whole of it when the caller leaves."""
        await self._edge.stream(self._calls.watch, request, context)

    async def ListEvents(  # noqa: N802
        self, request: pb.ListEventsRequest, context: Context
    ) -> pb.ListEventsResponse:
        return await self._edge.serve(self._calls.list, request, context)
