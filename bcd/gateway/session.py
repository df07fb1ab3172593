"""One node's session, from its Welcome to its end: frames in, frames out, and what ends it.

Three tasks share a stream: one reads, one stores what was read, one writes. Whatever ends the
session (the node, the registry, a failure of one of them) names its reason once, in ``end``;
the node is told, if it still listens, and the tasks go together.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from bcd.gateway import ending
from bcd.gateway.ending import Ending
from bcd.gateway.hello import Admission, Greeting, Peer, StateVersion
from bcd.gateway.intake import Item, read_ack, store_items
from bcd.gateway.inventory import read_inventory
from bcd.gateway.outbox import Outbox, SlowPeer
from bcd.gateway.reports import UnreadableReport, acknowledgement, read_report
from bcd.gateway.settings import Settings
from bcd.model.errors import InvalidInput
from bcd.model.ids import NodeId
from bcd.model.pace import Pace
from bcd.store import desired_states, sessions
from bcd.store.database import Database, StoreUnavailable
from bcd.store.reports import Received
from bcd.wire.node.v1 import desired_pb2
from bcd.wire.node.v1 import gateway_pb2 as pb

logger = logging.getLogger(__name__)

# Frames are at most 1 MiB: this bounds what a node can make a gateway hold.
_INBOX = 16
_FAREWELL_S = 2.0
# Reading an inventory costs up to 40 ms. A daemon sends one when its hardware changed, and of
# changes that come faster only the newest.
_INVENTORY_BURST = 60
_INVENTORY_INTERVAL_S = 1.0
_NO_ROOM_RETRY_MS = 15_000


class Stream(Protocol):
    """The part of gRPC's servicer context that a session uses."""

    async def read(self) -> Any:
        """The next frame, or ``grpc.aio.EOF``; raises DecodeError."""

    async def write(self, message: pb.ConnectResponse) -> None:
        """Send a frame; one at a time."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Everything that a Hello settled."""

    peer: Peer
    greeting: Greeting
    admission: Admission


class Session:
    """A node's newest session in this process, until something ends it."""

    def __init__(
        self,
        stream: Stream,
        admitted: Admitted,
        database: Database,
        settings: Settings,
        counters: Counter[str],
    ) -> None:
        self.node_id: NodeId = admitted.peer.node_id
        self.epoch = admitted.admission.epoch
        self.serial = admitted.peer.serial
        self.not_after_ms = admitted.peer.not_after_ms
        self.process_instance = admitted.greeting.process_instance
        self.known_state: StateVersion = admitted.greeting.applied
        loop = asyncio.get_running_loop()
        self.heard_at = loop.time()
        self.heard = False
        self._loop = loop
        self._stream = stream
        self._admitted = admitted
        self._database = database
        self._settings = settings
        self._counters = counters
        # None is the end: what came before it is stored first.
        self._inbox: asyncio.Queue[pb.ConnectRequest | None] = asyncio.Queue(_INBOX)
        self._inventories = Pace(_INVENTORY_BURST, _INVENTORY_INTERVAL_S)
        self._outbox = Outbox(stream.write, self._newest_state, settings.write_timeout_ms)
        self._listening = True
        self._ended: asyncio.Future[Ending | None] = loop.create_future()

    def end(self, reason: Ending | None) -> None:
        """End the session; None when the node needs no telling. The first reason counts."""
        if not self._ended.done():
            self._ended.set_result(reason)

    def state_changed(self) -> None:
        """The node's desired state may be another one now."""
        self._outbox.state_changed()

    async def run(self) -> None:
        """Serve the stream until it ends."""
        self._outbox.put(self._welcome())
        self._outbox.state_changed()
        writing = asyncio.create_task(self._outbox.run())
        tasks = [writing, asyncio.create_task(self._read()), asyncio.create_task(self._store())]
        for task in tasks:
            task.add_done_callback(self._task_ended)
        try:
            reason = await self._ended
            if reason is not None:
                self._counters[f"goaway_{reason.name}"] += 1
            self._outbox.close(reason.frame() if reason is not None else None)
            if self._listening:
                await asyncio.wait({writing}, timeout=_FAREWELL_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        match error:
            case None:
                return
            case SlowPeer():
                self._counters["slow_peers"] += 1
                logger.warning("node does not read", extra=self.fields(reason=str(error)))
                self._listening = False
                self.end(None)
            case grpc.aio.BaseError():  # the stream broke under a write
                self._listening = False
                self.end(None)
            case StoreUnavailable():
                self.end(ending.overloaded("the database is out of reach"))
            case _:
                logger.error("session failed", extra=self.fields(), exc_info=error)
                self.end(ending.overloaded("internal error"))

    def fields(self, **more: object) -> dict[str, object]:
        """What every log line about this session says."""
        return {"node_id": self.node_id, "session_epoch": self.epoch, **more}

    def _welcome(self) -> pb.ConnectResponse:
        greeting, admission = self._admitted.greeting, self._admitted.admission
        stored = admission.stored_inventory
        return pb.ConnectResponse(
            welcome=pb.Welcome(
                protocol_version=greeting.protocol_version,
                session_epoch=admission.epoch,
                heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
                heartbeat_ttl_ms=self._settings.heartbeat_ttl_ms,
                need_inventory=not stored or greeting.inventory_hash != stored,
                server_time_ms=admission.now_ms,
            )
        )

    async def _newest_state(self) -> pb.ConnectResponse | None:
        """The node's desired state, unless it has it or was sent it in this session."""
        try:
            stored = await self._database.read(desired_states.get, self.node_id)
        except StoreUnavailable:
            self._counters["states_unread"] += 1
            return None  # the registry's tick finds out that this one was not sent
        if stored is None:
            return None
        version = (stored.epoch, stored.generation, stored.hash)
        if version == self.known_state:
            return None
        self.known_state = version
        self._counters["states_sent"] += 1
        logger.info("desired state sent", extra=self.fields(generation=stored.generation))
        signed = desired_pb2.SignedDesiredState.FromString(stored.signed)
        return pb.ConnectResponse(desired_state=signed)

    async def _read(self) -> None:
        while not self._ended.done():
            try:
                frame = await self._stream.read()
            except DecodeError:
                self.end(ending.bad_protocol("a frame does not parse"))
                return
            if frame is grpc.aio.EOF:
                await self._inbox.put(None)
                return
            self._hear()
            await self._take(frame)

    def _hear(self) -> None:
        self.heard_at = self._loop.time()
        self.heard = True

    async def _take(self, frame: pb.ConnectRequest) -> None:
        match frame.WhichOneof("message"):
            case "heartbeat":
                self._counters["frames_heartbeat"] += 1
            case "inventory" if not self._inventories.allows(self.heard_at):
                self.end(ending.overloaded("inventories come faster than hardware changes"))
            case "inventory" | "report" | "ack":
                await self._inbox.put(frame)
            case "goodbye":
                logger.info("node said goodbye", extra=self.fields())
                await self._inbox.put(None)
            case "hello":
                self.end(ending.bad_protocol("a second hello"))
            case _:
                self._counters["frames_unknown"] += 1

    async def _store(self) -> None:
        while not self._ended.done():
            frames = [await self._inbox.get()]
            while not self._inbox.empty():
                frames.append(self._inbox.get_nowait())
            parsed = [self._parse(frame) for frame in frames if frame is not None]
            items = [item for item in parsed if item is not None]
            if items:
                await self._keep(items)
            if None in frames:
                self.end(None)

    async def _keep(self, items: Sequence[Item]) -> None:
        """Store what came since the last commit, and acknowledge the reports among it."""
        arrivals = await self._database.write(store_items, self.node_id, self.epoch, items)
        self._hear()
        if arrivals is None:
            self.end(ending.superseded(await self._newer_instance()))
            return
        for item, arrival in zip(items, arrivals, strict=True):
            if isinstance(item, Received | UnreadableReport):
                answer = acknowledgement(item, arrival)
                if answer is not None:
                    self._outbox.put(answer)
        if "no-room" in arrivals:
            # Stored now, a later report would make replays of these. The next session brings
            # everything under new numbers.
            self._counters["sessions_without_room"] += 1
            logger.warning("too many reports wait for the placer", extra=self.fields())
            self.end(ending.overloaded("too many reports wait for the placer", _NO_ROOM_RETRY_MS))

    async def _newer_instance(self) -> str:
        newest = await self._database.read(sessions.get, self.node_id)
        return newest.process_instance if newest is not None else ""

    def _parse(self, frame: pb.ConnectRequest) -> Item | None:
        kind = frame.WhichOneof("message")
        assert kind is not None
        self._counters[f"frames_{kind}"] += 1
        match kind:
            case "report":
                return read_report(self.node_id, frame.report)
            case "ack":
                return self._parse_ack(frame.ack)
            case _:
                return self._parse_inventory(frame)

    def _parse_ack(self, frame: pb.Ack) -> Item | None:
        ack = read_ack(frame)
        if ack is None:
            self._counters["acks_unreadable"] += 1
        elif ack.status != "applied":
            logger.warning(
                "desired state not applied as a whole",
                extra=self.fields(generation=ack.generation, status=ack.status, errors=ack.errors),
            )
        return ack

    def _parse_inventory(self, frame: pb.ConnectRequest) -> Item | None:
        try:
            return read_inventory(frame.inventory)
        except InvalidInput as error:
            self._counters["inventories_rejected"] += 1
            logger.warning("inventory rejected", extra=self.fields(reason=error.message))
            return None
