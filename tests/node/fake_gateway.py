"""A gateway in the test's own process: real mTLS, both services, everything received on record.

It does what nodes rely on (fencing by session epoch, acknowledgements, renewals) and whatever a
test tells it to do otherwise. It also signs desired states, as the placer behind it would.
"""

import asyncio
import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from cryptography import x509

from bcd.model.assignment import Assignment, DesiredState, HostReserve
from bcd.model.ids import NodeId
from bcd.model.report import Report
from bcd.model.units import DAY_MS, HOUR_MS
from bcd.signing import certificates
from bcd.signing.certificates import Role, issue_ca, key_of_csr, to_der
from bcd.signing.envelope import PayloadType, opens, seal
from bcd.signing.keyfile import Credentials
from bcd.signing.keys import key_id
from bcd.wire.bounds import NODE_SERVER_OPTIONS
from bcd.wire.desired import encode_desired
from bcd.wire.node.v1 import (
    desired_pb2,
    enrollment_pb2,
    envelope_pb2,
    gateway_pb2,
    inventory_pb2,
)
from bcd.wire.report import decode_report
from tests.authority import Authority, now_ms

WAIT_S = 20.0
# TLS runs on real time while tests move the clocks by days: for those, certificates begin long
# before they are issued.
LONG_BEFORE_MS = 60 * HOUR_MS

_Context = grpc.aio.ServicerContext[Any, Any]


def old_authority(domain: str = "test.example") -> Authority:
    """An authority that began a year ago, for certificates that are backdated by days."""
    authority = Authority(domain)
    begin = now_ms() - 365 * DAY_MS
    authority.certificate = issue_ca(authority.key, domain, begin, begin + 3650 * DAY_MS)
    return authority


@dataclass(frozen=True)
class Received:
    """A report whose signature held, and the key that made it."""

    node_id: str
    key_id: str
    report: Report


@dataclass
class Stream:
    """One connected node."""

    node_id: str
    epoch: int
    hello: gateway_pb2.Hello
    out: asyncio.Queue[gateway_pb2.ConnectResponse | bytes | None] = field(
        default_factory=asyncio.Queue
    )

    def send(self, **message: Any) -> None:
        self.out.put_nowait(gateway_pb2.ConnectResponse(**message))

    def end(self) -> None:
        self.out.put_nowait(None)


@dataclass
class FakeGateway:
    """Start it, point daemons at ``address`` and ``enroll_address``, read the records."""

    authority: Authority = field(default_factory=old_authority)
    clock_ms: Callable[[], int] = now_ms
    heartbeat_interval_ms: int = 10_000
    node_life_ms: int = DAY_MS
    backdate_ms: int = HOUR_MS
    acknowledge: bool = True
    report_status: gateway_pb2.ReportAckStatus.ValueType = gateway_pb2.REPORT_ACK_STATUS_STORED
    refuse_renewals: bool = False
    refusal: str = ""  # of every enrolment
    answer: bytes | None = None  # in place of every answer on the enrolment port
    on_hello: Callable[[gateway_pb2.Hello], gateway_pb2.ConnectResponse | None] = lambda _: None

    hellos: list[gateway_pb2.Hello] = field(default_factory=list)
    inventories: dict[str, inventory_pb2.Inventory] = field(default_factory=dict)
    heartbeats: int = 0
    acks: list[gateway_pb2.Ack] = field(default_factory=list)
    reports: list[Received] = field(default_factory=list)
    forged: int = 0
    goodbyes: list[str] = field(default_factory=list)
    fencings: list[tuple[str, str]] = field(default_factory=list)
    renewals: int = 0
    streams: dict[str, Stream] = field(default_factory=dict)
    desired: dict[str, desired_pb2.SignedDesiredState] = field(default_factory=dict)
    leaves: dict[str, x509.Certificate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._command = self.command_credentials()
        self._identity = self.authority.issue(
            Role.GATEWAY,
            "gw1",
            names=("localhost", "127.0.0.1"),
            not_before_ms=now_ms() - LONG_BEFORE_MS,
            not_after_ms=now_ms() + 30 * DAY_MS,
        )
        self._tokens: dict[str, tuple[bytes, str]] = {}
        self._served: dict[str, bytes] = {}  # token id to the one request that it served
        self._epochs: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._servers: list[grpc.aio.Server] = []
        self._ports = (0, 0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def enroll_address(self) -> str:
        return f"127.0.0.1:{self._ports[1]}"

    async def start(self) -> None:
        """Listen; a second time on the same ports."""
        pair = (self._identity.key_pem, self._identity.chain_pem)
        ca = self._identity.bundle_pem
        nodes, enrolment = (
            grpc.aio.server(options=NODE_SERVER_OPTIONS),
            grpc.aio.server(options=NODE_SERVER_OPTIONS),
        )
        nodes.add_generic_rpc_handlers((_Nodes(self).handlers(),))
        enrolment.add_generic_rpc_handlers((_Enrolments(self).handlers(),))
        mutual = grpc.ssl_server_credentials([pair], ca, require_client_auth=True)
        self._ports = (
            nodes.add_secure_port(f"127.0.0.1:{self._ports[0]}", mutual),
            enrolment.add_secure_port(
                f"127.0.0.1:{self._ports[1]}", grpc.ssl_server_credentials([pair])
            ),
        )
        self._servers = [nodes, enrolment]
        for server in self._servers:
            await server.start()

    async def stop(self) -> None:
        """Go away without a word."""
        for stream in list(self.streams.values()):
            stream.end()
        for server in self._servers:
            await server.stop(0)
        self._servers = []

    async def until(self, predicate: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Wait until something that was received makes ``predicate`` true."""
        async with asyncio.timeout(wait_s):
            while not predicate():
                self._changed.clear()
                await self._changed.wait()

    def touch(self) -> None:
        self._changed.set()

    # What a placer would do.

    def token(self, node_id: NodeId) -> str:
        """A join token for a node."""
        secret = secrets.token_bytes(32)
        token_id = f"join_{secrets.token_hex(8)}"
        self._tokens[token_id] = (hashlib.sha256(secret).digest(), node_id)
        text = urlsafe_b64encode(secret).rstrip(b"=").decode()
        return f"{token_id}.{text}.{self.authority.pin}"

    def node_credentials(self, node_id: NodeId) -> Credentials:
        """What an enrolment would have given the node."""
        credentials = self.authority.issue(
            Role.NODE,
            node_id,
            not_before_ms=self.clock_ms() - self.backdate_ms,
            not_after_ms=self.clock_ms() + self.node_life_ms,
        )
        self._know(credentials.leaf)
        return credentials

    def command_credentials(self, **changes: Any) -> Credentials:
        """A command key with its certificate."""
        fields = {
            "not_before_ms": self.clock_ms() - LONG_BEFORE_MS,
            "not_after_ms": self.clock_ms() + 10 * DAY_MS,
        }
        return self.authority.issue(Role.COMMAND, "command1", **(fields | changes))

    def sign_state(
        self, state: DesiredState, command: Credentials | None = None
    ) -> desired_pb2.SignedDesiredState:
        """The frame of a state."""
        signer = command or self._command
        return desired_pb2.SignedDesiredState(
            envelope=seal(signer.key, PayloadType.DESIRED_STATE, encode_desired(state)),
            certificate=to_der(signer.leaf),
        )

    def want(
        self,
        node_id: NodeId,
        *assignments: Assignment,
        generation: int,
        epoch: int = 1,
    ) -> DesiredState:
        """Sign a node's state and send it, now and to every later session."""
        state = DesiredState(
            node_id=node_id,
            epoch=epoch,
            generation=generation,
            host_reserve=HostReserve(2, 4 << 30),
            assignments=assignments,
        )
        self.send(node_id, self.sign_state(state))
        return state

    def send(self, node_id: NodeId, frame: desired_pb2.SignedDesiredState) -> None:
        """Send a frame as it is, now and to every later session."""
        self.desired[node_id] = frame
        if node_id in self.streams:
            self.streams[node_id].send(desired_state=frame)

    def said(self, kind: type[Any]) -> list[Report]:
        """Reports with outcomes of one kind, in the order of arrival."""
        return [r.report for r in self.reports if isinstance(r.report.outcome, kind)]

    def _know(self, leaf: x509.Certificate) -> None:
        self.leaves[key_id(certificates.public_key(leaf))] = leaf

    def issue(self, csr: bytes, node_id: str) -> enrollment_pb2.Credentials:
        key = key_of_csr(csr)
        leaf = self.authority.sign(
            key,
            Role.NODE,
            node_id,
            not_before_ms=self.clock_ms() - self.backdate_ms,
            not_after_ms=self.clock_ms() + self.node_life_ms,
        )
        self._know(leaf)
        return enrollment_pb2.Credentials(
            id=node_id, chain=[to_der(leaf)], bundle=[self.authority.der]
        )

    def take_report(self, stream: Stream, envelope: envelope_pb2.Envelope) -> None:
        leaf = self.leaves.get(envelope.key_id)
        if leaf is None or not opens(
            envelope, PayloadType.ATTESTED_REPORT, certificates.public_key(leaf)
        ):
            self.forged += 1
            return
        report = decode_report(envelope.payload)
        self.reports.append(Received(stream.node_id, envelope.key_id, report))
        if self.acknowledge:
            stream.send(
                report_ack=gateway_pb2.ReportAck(
                    key_id=envelope.key_id, number=report.number, status=self.report_status
                )
            )

    def enter(self, stream: Stream) -> None:
        older = self.streams.get(stream.node_id)
        if older is not None:
            self.fencings.append((older.hello.process_instance, stream.hello.process_instance))
            older.send(
                goaway=gateway_pb2.Goaway(
                    reason=gateway_pb2.GOAWAY_REASON_SUPERSEDED,
                    process_instance=stream.hello.process_instance,
                )
            )
            older.end()
        self.streams[stream.node_id] = stream

    def next_epoch(self, node_id: str) -> int:
        self._epochs[node_id] = self._epochs.get(node_id, 0) + 1
        return self._epochs[node_id]


def _frame(message: Any) -> bytes:
    """Tests may answer with bytes that are no message."""
    frame: bytes = message if isinstance(message, bytes) else message.SerializeToString()
    return frame


class _Nodes:
    def __init__(self, gateway: FakeGateway) -> None:
        self._gateway = gateway

    def handlers(self) -> grpc.GenericRpcHandler:
        connect = grpc.stream_stream_rpc_method_handler(
            self.connect,
            request_deserializer=gateway_pb2.ConnectRequest.FromString,
            response_serializer=_frame,
        )
        service = gateway_pb2.DESCRIPTOR.services_by_name["NodeGatewayService"]
        return grpc.method_handlers_generic_handler(service.full_name, {"Connect": connect})

    async def connect(
        self, request_iterator: AsyncIterator[gateway_pb2.ConnectRequest], context: _Context
    ) -> AsyncIterator[gateway_pb2.ConnectResponse | bytes]:
        gateway = self._gateway
        first = await anext(request_iterator)
        gateway.hellos.append(first.hello)
        gateway.touch()
        instead = gateway.on_hello(first.hello)
        if instead is not None:
            yield instead
            return
        node_id = first.hello.node_id
        stream = Stream(node_id, gateway.next_epoch(node_id), first.hello)
        known = gateway.inventories.get(node_id)
        stream.send(
            welcome=gateway_pb2.Welcome(
                protocol_version=1,
                session_epoch=stream.epoch,
                heartbeat_interval_ms=gateway.heartbeat_interval_ms,
                heartbeat_ttl_ms=3 * gateway.heartbeat_interval_ms,
                need_inventory=known is None or known.hash != first.hello.inventory_hash,
                server_time_ms=gateway.clock_ms(),
            )
        )
        if node_id in gateway.desired:
            stream.send(desired_state=gateway.desired[node_id])
        gateway.enter(stream)
        gateway.touch()
        reader = asyncio.ensure_future(self._read(stream, request_iterator))
        try:
            while (message := await stream.out.get()) is not None:
                yield message
        finally:
            reader.cancel()
            if gateway.streams.get(node_id) is stream:
                del gateway.streams[node_id]
            gateway.touch()

    async def _read(
        self, stream: Stream, requests: AsyncIterator[gateway_pb2.ConnectRequest]
    ) -> None:
        gateway = self._gateway
        async for request in requests:
            match request.WhichOneof("message"):
                case "inventory":
                    gateway.inventories[stream.node_id] = request.inventory
                case "heartbeat":
                    gateway.heartbeats += 1
                case "ack":
                    gateway.acks.append(request.ack)
                case "report":
                    gateway.take_report(stream, request.report)
                case "goodbye":
                    gateway.goodbyes.append(request.goodbye.reason)
                case _:
                    raise AssertionError("a frame that no daemon sends")
            gateway.touch()
        stream.end()


class _Enrolments:
    def __init__(self, gateway: FakeGateway) -> None:
        self._gateway = gateway

    def handlers(self) -> grpc.GenericRpcHandler:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Enroll": grpc.unary_unary_rpc_method_handler(
                self.enroll,
                request_deserializer=enrollment_pb2.EnrollRequest.FromString,
                response_serializer=self._frame,
            ),
            "Renew": grpc.unary_unary_rpc_method_handler(
                self.renew,
                request_deserializer=enrollment_pb2.RenewRequest.FromString,
                response_serializer=self._frame,
            ),
        }
        service = enrollment_pb2.DESCRIPTOR.services_by_name["EnrollmentService"]
        return grpc.method_handlers_generic_handler(service.full_name, handlers)

    def _frame(self, message: Any) -> bytes:
        return _frame(message) if self._gateway.answer is None else self._gateway.answer

    async def enroll(
        self, request: enrollment_pb2.EnrollRequest, context: _Context
    ) -> enrollment_pb2.EnrollResponse:
        if self._gateway.refusal:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, self._gateway.refusal)
        key, node_id = self._gateway._tokens.get(request.token_id, (b"", ""))
        if not key or not hmac.compare_digest(
            hmac.digest(key, request.csr, "sha256"), request.hmac
        ):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the join token is not known")
        if self._gateway._served.setdefault(request.token_id, request.csr) != request.csr:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the join token is used")
        issued = self._gateway.issue(request.csr, node_id)
        return enrollment_pb2.EnrollResponse(credentials=issued)

    async def renew(
        self, request: enrollment_pb2.RenewRequest, context: _Context
    ) -> enrollment_pb2.RenewResponse:
        gateway, envelope = self._gateway, request.envelope
        leaf = gateway.leaves.get(envelope.key_id)
        known = leaf is not None and opens(
            envelope, PayloadType.RENEWAL, certificates.public_key(leaf)
        )
        if not known or gateway.refuse_renewals:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the renewal does not count")
        renewal = enrollment_pb2.Renewal.FromString(envelope.payload)
        gateway.renewals += 1
        gateway.touch()
        assert leaf is not None
        subject = certificates.spiffe_id(leaf)
        assert subject is not None
        issued = gateway.issue(renewal.csr, subject.id)
        return enrollment_pb2.RenewResponse(credentials=issued)
