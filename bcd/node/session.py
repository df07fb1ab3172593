"""One stream to a gateway: Hello, Welcome, then reports up and desired states down, to its end.

One reader and one writer task per stream: gRPC allows no concurrent writes, and cancelling a
read ends the call. What waits to be written is bounded: inventory and heartbeat are slots where
the newest wins, Acks a short queue, and reports stay in the outbox until they are acknowledged.
``link`` opens sessions; ``daemon`` is the sink of what they bring.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from bcd.model.printable import printable
from bcd.node.execute import AfterStep
from bcd.node.outbox import Entry, Outbox
from bcd.node.ports import Clock
from bcd.node.steps import StepName
from bcd.wire.bounds import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from bcd.wire.node.v1 import desired_pb2, envelope_pb2, gateway_pb2, inventory_pb2

log = logging.getLogger(__name__)

_WINDOW = 64
_MAX_ACKS = 16
_WRITE_TIMEOUT_S = 10.0
_GOODBYE_TIMEOUT_S = 2.0
_LAST_READ_S = 1.0
_RESEND_AFTER_S = 60.0
_HEARTBEAT_S = (0.1, 600.0)
# A gateway may ask for patience, not for days of it: after an hour a host looks for itself again.
_MAX_RETRY_AFTER_MS = 3_600_000
_CONNECT = f"/{gateway_pb2.DESCRIPTOR.services_by_name['NodeGatewayService'].full_name}/Connect"


class Sink(Protocol):
    """Who takes what a session brings; called on the loop, returns at once."""

    def on_desired(self, frame: desired_pb2.SignedDesiredState) -> None:
        """A desired state, unverified."""
        ...

    def on_report_ack(self, ack: gateway_pb2.ReportAck) -> None:
        """An answer to a report."""
        ...


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream broke, or never came to be."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneAway:
    """The gateway ended the session and said why."""

    reason: int
    retry_after_ms: int
    message: str
    process_instance: str


@dataclass(frozen=True, slots=True)
class Closed:
    """We ended it."""


SessionEnd = Lost | GoneAway | Closed


class Session:
    """One stream. ``open`` once, then ``run`` until it ends."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        clock: Clock,
        outbox: Outbox,
        sink: Sink,
        inventory: Callable[[], inventory_pb2.Inventory],
        after_step: AfterStep,
        unknown: Counter[str],
    ) -> None:
        self.welcome = gateway_pb2.Welcome()
        self._channel = channel
        # Answers come as bytes: gRPC would log a traceback for a frame that does not parse, and
        # then end the call as if all was well.
        self._call = channel.stream_stream(
            _CONNECT,
            request_serializer=gateway_pb2.ConnectRequest.SerializeToString,
            response_deserializer=bytes,
        )()
        self._clock = clock
        self._outbox = outbox
        self._sink = sink
        self._inventory = inventory
        self._after_step = after_step
        self._unknown = unknown
        self._wake = asyncio.Event()
        self._acks: deque[gateway_pb2.Ack] = deque(maxlen=_MAX_ACKS)
        self._inventory_due = False
        self._heartbeat_due = False
        self._reports: deque[Entry] = deque()
        self._in_flight: dict[int, float] = {}
        self._goodbye: str | None = None

    async def open(self, hello: gateway_pb2.Hello, timeout_s: float) -> SessionEnd | None:
        """Say Hello and wait for the Welcome; None when the session stands."""
        greeting = asyncio.ensure_future(self._greet(hello))
        timer = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            await asyncio.wait({greeting, timer}, return_when=asyncio.FIRST_COMPLETED)
            if greeting.done():
                return greeting.result()
            return Lost("the gateway did not answer the Hello in time")
        finally:
            if not self.welcome.protocol_version:
                self._call.cancel()
            # Cancelling the call alone is not enough: a write that waits for the connection of a
            # call that is cancelled meanwhile never returns.
            for task in (greeting, timer):
                task.cancel()
            await asyncio.gather(greeting, timer, return_exceptions=True)

    async def _greet(self, hello: gateway_pb2.Hello) -> SessionEnd | None:
        try:
            await self._call.write(gateway_pb2.ConnectRequest(hello=hello))
            answer = await self._read()
        except grpc.aio.AioRpcError as error:
            return Lost(_explain(error.code(), error.details()))
        except (asyncio.InvalidStateError, asyncio.CancelledError):
            return Lost("the call ended before it began")
        if isinstance(answer, Lost):
            return answer
        kind = answer.WhichOneof("message")
        if kind == "goaway":
            return _gone(answer.goaway)
        if kind != "welcome":
            return Lost("the gateway's first message was no Welcome")
        version = answer.welcome.protocol_version
        if not MIN_PROTOCOL_VERSION <= version <= PROTOCOL_VERSION:
            return Lost(f"the gateway speaks protocol {version}, this daemon {PROTOCOL_VERSION}")
        self.welcome = answer.welcome
        self._inventory_due = answer.welcome.need_inventory
        return None

    # What goes out.

    def send_inventory(self) -> None:
        """Send the newest inventory."""
        self._inventory_due = True
        self._wake.set()

    def send_ack(self, ack: gateway_pb2.Ack) -> None:
        """Send an Ack; it takes the place of an unsent one for the same state."""
        if self._acks and self._acks[-1].hash == ack.hash:
            self._acks.pop()
        self._acks.append(ack)
        self._wake.set()

    def send_reports(self) -> None:
        """Look into the outbox for reports that this session has not sent."""
        self._reports = deque(
            entry for entry in self._outbox.pending() if entry.number not in self._in_flight
        )
        self._wake.set()

    async def close(self, reason: str) -> None:
        """Say Goodbye and end the stream."""
        self._goodbye = reason
        self._wake.set()

    async def run(self) -> SessionEnd:
        """Read and write until the stream ends, then say how."""
        self.send_reports()
        reader = asyncio.ensure_future(self._read_all())
        others = [
            asyncio.ensure_future(self._write_all()),
            asyncio.ensure_future(self._beat()),
        ]
        try:
            done, _ = await asyncio.wait({reader, *others}, return_when=asyncio.FIRST_COMPLETED)
            if reader in done:
                return reader.result()
            end = done.pop().result()
            # A write fails as soon as the gateway is gone, its Goaway may be still unread; and a
            # Goodbye is only on its way until the gateway ends the stream.
            await asyncio.wait({reader}, timeout=_LAST_READ_S)
            return reader.result() if reader.done() and isinstance(end, Lost) else end
        finally:
            for task in (reader, *others):
                task.cancel()
            self._call.cancel()
            await asyncio.gather(reader, *others, return_exceptions=True)
            await self._channel.close()

    async def _write_all(self) -> SessionEnd:
        while True:
            message = self._next()
            if message is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                async with asyncio.timeout(_WRITE_TIMEOUT_S):
                    await self._call.write(message)
            except TimeoutError:
                return Lost(f"the gateway did not read for {_WRITE_TIMEOUT_S:.0f} s")
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return Lost(await self._reason())
            match message.WhichOneof("message"):
                case "report":
                    self._after_step(StepName.SEND_REPORT)
                case "ack":
                    self._after_step(StepName.SEND_ACK)
                case "goodbye":
                    with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
                        await asyncio.wait_for(self._call.done_writing(), _GOODBYE_TIMEOUT_S)
                    return Closed()
                case _:
                    pass

    def _next(self) -> gateway_pb2.ConnectRequest | None:
        if self._heartbeat_due:
            self._heartbeat_due = False
            beat = gateway_pb2.Heartbeat(inventory_hash=self._inventory().hash)
            return gateway_pb2.ConnectRequest(heartbeat=beat)
        if self._reports and len(self._in_flight) < _WINDOW:
            entry = self._reports.popleft()
            self._in_flight[entry.number] = self._clock.monotonic()
            envelope = envelope_pb2.Envelope.FromString(entry.envelope)
            return gateway_pb2.ConnectRequest(report=envelope)
        if self._acks:
            return gateway_pb2.ConnectRequest(ack=self._acks.popleft())
        if self._inventory_due and self._inventory().hash:  # the first one is not made yet
            self._inventory_due = False
            return gateway_pb2.ConnectRequest(inventory=self._inventory())
        if self._goodbye is not None:
            goodbye = gateway_pb2.Goodbye(reason=self._goodbye)
            return gateway_pb2.ConnectRequest(goodbye=goodbye)
        return None

    async def _beat(self) -> SessionEnd:
        low, high = _HEARTBEAT_S
        interval = min(max(self.welcome.heartbeat_interval_ms / 1000, low), high)
        while True:
            await self._clock.sleep(interval)
            self._heartbeat_due = True
            self._wake.set()
            oldest = min(self._in_flight.values(), default=None)
            if oldest is not None and self._clock.monotonic() - oldest > _RESEND_AFTER_S:
                self._in_flight.clear()
                self.send_reports()

    # What comes in.

    async def _read_all(self) -> SessionEnd:
        while True:
            try:
                message = await self._read()
            except grpc.aio.AioRpcError as error:
                return Lost(_explain(error.code(), error.details()))
            if isinstance(message, Lost):
                return message
            match message.WhichOneof("message"):
                case "desired_state":
                    self._sink.on_desired(message.desired_state)
                case "report_ack":
                    self._take_report_ack(message.report_ack)
                case "goaway":
                    return _gone(message.goaway)
                case kind:
                    # A second Welcome, or a kind that a later version knows.
                    self._unknown[kind or "unknown"] += 1

    async def _read(self) -> gateway_pb2.ConnectResponse | Lost:
        """The next message; raises AioRpcError."""
        frame = await self._call.read()
        if not isinstance(frame, bytes):
            return Lost(await self._reason())
        try:
            return gateway_pb2.ConnectResponse.FromString(frame)
        except DecodeError:
            return Lost(
                f"the gateway sent {len(frame)} bytes that are no message of the protocol;"
                " check that gateway.address is the gateway's port for nodes"
            )

    def _take_report_ack(self, ack: gateway_pb2.ReportAck) -> None:
        self._in_flight.pop(ack.number, None)
        self._sink.on_report_ack(ack)
        self._wake.set()

    async def _reason(self) -> str:
        try:
            code = await asyncio.wait_for(self._call.code(), _GOODBYE_TIMEOUT_S)
            details = await asyncio.wait_for(self._call.details(), _GOODBYE_TIMEOUT_S)
        except (TimeoutError, asyncio.CancelledError):
            return "the stream ended"
        return _explain(code, details)


def _explain(code: grpc.StatusCode, details: str | None) -> str:
    if code is grpc.StatusCode.OK:
        return "the gateway ended the stream"
    return f"{code.name.lower()}: {printable(details or 'the gateway ended the stream')}"


def ack_fields(ack: gateway_pb2.ReportAck) -> dict[str, object]:
    """A gateway's answer to a report, for the log."""
    known = gateway_pb2.ReportAckStatus.DESCRIPTOR.values_by_number.get(ack.status)
    name = known.name.removeprefix("REPORT_ACK_STATUS_").lower() if known else str(ack.status)
    return {"number": ack.number, "status": name, "reason": printable(ack.reason, 256)}


def _gone(goaway: gateway_pb2.Goaway) -> GoneAway:
    return GoneAway(
        reason=goaway.reason,
        retry_after_ms=min(goaway.retry_after_ms, _MAX_RETRY_AFTER_MS),
        message=printable(goaway.message, 256),
        process_instance=goaway.process_instance,
    )
