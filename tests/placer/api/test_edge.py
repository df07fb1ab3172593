"""The API's edge over real TLS: callers, unknown fields, errors that say enough and no more."""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any

import grpc
import jwt
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from bcd.model.errors import (
    AccessDenied,
    BcdError,
    BrokenFile,
    Conflict,
    InvalidInput,
    InvalidState,
    NotFound,
    QuotaExceeded,
    Reason,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from bcd.placer.api import edge
from bcd.placer.api.edge import Edge
from bcd.signing.certificates import to_pem
from bcd.signing.keys import generate_key
from bcd.store.database import StoreUnavailable
from bcd.wire.compute.v1 import admin_pb2
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.status import CODES
from tests.placer.api.conftest import Client, Site, creation, is_refusal
from tests.placer.world import TENANT, new_authority

LIST = pb.ListReservationsRequest(tenant_id=TENANT)


def token_with(**changes: Any) -> str:
    """A token of a key that is not the issuer's."""
    now = int(time.time())
    claims = {"iss": "i", "aud": "bcd-placer", "sub": "x", "iat": now, "exp": now + 60} | changes
    return jwt.encode(claims, generate_key(), algorithm="ES256")


@pytest.mark.parametrize(
    "token",
    ["", "garbage", "a.b.c", "x" * 7_000, token_with(), token_with(tenants=[TENANT], admin=True)],
    ids=["none", "garbage", "dots", "long", "foreign", "foreign administrator"],
)
async def test_a_bearer_without_a_token_of_ours_is_nobody(site: Site, token: str) -> None:
    refused = await site.bearer(token).refused(site.client().reservations.ListReservations, LIST)
    assert refused.reason is Reason.UNAUTHENTICATED
    assert "eyJ" not in refused.message


async def test_an_expired_token_is_told_apart(site: Site) -> None:
    claims = jwt.decode(site.token(), options={"verify_signature": False})
    claims["exp"] = int(time.time()) - 1
    expired = jwt.encode(claims, site.issuer._key, algorithm="ES256")
    client = site.bearer(expired)
    refused = await client.refused(client.reservations.ListReservations, LIST)
    assert refused.reason is Reason.UNAUTHENTICATED
    assert "expired" in refused.message


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Basic YTpi"),),
        (("authorization", ""),),
        (("authorization-bin", b"Bearer x"),),
        (("x-authorization", "Bearer x"),),
    ],
    ids=str,
)
async def test_a_call_without_a_bearer_token_is_nobodys(
    site: Site, metadata: tuple[tuple[str, Any], ...]
) -> None:
    stub = site.client().reservations
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stub.ListReservations(LIST, metadata=metadata, timeout=10)
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_an_oversized_token_gets_nothing(site: Site) -> None:
    client = site.bearer("x" * 100_000)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await client.call(client.reservations.ListReservations, LIST)
    assert error.value.code() in (
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )
    assert await site.client().call(client.reservations.ListReservations, LIST)


async def test_the_longest_token_that_is_made_can_be_used(site: Site) -> None:
    """What the issuer makes must fit through the header's limits."""
    tenants = [TENANT]
    longest = site.token(tenants=tuple(tenants))
    while True:
        tenants.append(f"tenant-{len(tenants):04}-" + "x" * 80)
        try:
            longest = site.token(tenants=tuple(tenants))
        except InvalidInput:
            break
    client = site.bearer(longest)
    assert len(longest) > 4_000
    assert await client.call(client.reservations.ListReservations, LIST) is not None


async def test_a_client_with_another_ca_does_not_connect(site: Site) -> None:
    foreign = to_pem([new_authority(site.clock.read()).certificate])
    client = Client(site.channel(foreign), site.token())
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await client.reservations.ListReservations(LIST, metadata=client.metadata, timeout=5)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_there_is_no_plain_text(site: Site) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{site.placer.port}") as channel:
        stub = Client(channel, site.token()).reservations
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.ListReservations(LIST, timeout=5)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


# Unknown fields and texts


def with_unknown(message: Any, tag: int = 9_999) -> bytes:
    """A message's bytes with one more field, which nobody knows."""
    key = tag << 3
    varint = bytearray()
    while key > 0x7F:
        varint.append(key & 0x7F | 0x80)
        key >>= 7
    return bytes(message.SerializeToString()) + bytes(varint) + bytes([key]) + b"\x01"


def nested(tag: int, body: bytes) -> bytes:
    """A length-delimited field around bytes."""
    assert len(body) < 128
    return bytes([tag << 3 | 2, len(body)]) + body


UNKNOWN = {
    "#9999": lambda: with_unknown(creation("p")),
    "devices[1].#9999": lambda: (
        creation("p").SerializeToString() + nested(3, with_unknown(pb.DeviceRequest(count=1)))
    ),
    "resources.#9999": lambda: (
        creation("p").SerializeToString() + nested(7, with_unknown(pb.Resources(vcpu=1)))
    ),
    "gang.#9999": lambda: (
        creation("p").SerializeToString() + nested(8, with_unknown(pb.Gang(size=1)))
    ),
    "wait.#9999": lambda: (
        creation("p").SerializeToString() + nested(13, with_unknown(pb.Wait(timeout_ms=1)))
    ),
}


@pytest.mark.parametrize("path", UNKNOWN)
async def test_an_unknown_field_in_binary_is_refused_by_its_path(
    site: Site, alice: Client, path: str
) -> None:
    raw = alice.channel.unary_unary(
        "/bcd.wire.compute.v1.ReservationsService/CreateReservation",
        request_serializer=lambda body: body,
        response_deserializer=pb.CreateReservationResponse.FromString,
    )
    refused = await alice.refused(raw, UNKNOWN[path]())
    assert is_refusal(refused, Reason.INVALID_INPUT, field=path, rule="is not a known field")


async def test_unknown_fields_are_refused_in_every_service(site: Site, admin: Client) -> None:
    for method, message in (
        ("PoolsService/CreatePool", admin_pb2.CreatePoolRequest(name="x")),
        ("NodesService/ListNodes", admin_pb2.ListNodesRequest()),
        ("QuotasService/SetQuota", admin_pb2.SetQuotaRequest(tenant_id="x")),
        ("CredentialsService/IssueToken", admin_pb2.IssueTokenRequest(subject="x")),
    ):
        raw = admin.channel.unary_unary(
            f"/bcd.wire.compute.v1.{method}",
            request_serializer=lambda body: body,
            response_deserializer=bytes,
        )
        refused = await admin.refused(raw, with_unknown(message))
        assert is_refusal(refused, Reason.INVALID_INPUT, field="#9999")


async def test_a_nul_is_refused_by_its_path_wherever_it_stands(
    site: Site, alice: Client, admin: Client
) -> None:
    create, stub = alice.reservations.CreateReservation, alice.reservations
    devices = [pb.DeviceRequest(**{"class": "gpu"}, count=1, model="a\x00")]
    for method, message, path in (
        (create, creation("p", "a\x00b"), "idempotencyKey"),
        (create, creation("p", tenant_id="\x00"), "tenantId"),
        (create, creation("p", devices=devices), "devices[0].model"),
        (create, creation("p", labels={"k": "\x00"}), "labels"),
        (create, creation("p", labels={"\x00": ""}), "labels"),
        (
            stub.ListReservations,
            pb.ListReservationsRequest(tenant_id=TENANT, pool_id="\x00"),
            "poolId",
        ),
        (
            stub.GetReservation,
            pb.GetReservationRequest(tenant_id=TENANT, reservation_id="\x00"),
            "reservationId",
        ),
        (admin.nodes.ListNodes, admin_pb2.ListNodesRequest(pool_id="\x00"), "poolId"),
        (admin.quotas.ListQuotas, admin_pb2.ListQuotasRequest(tenant_id="\x00"), "tenantId"),
        (admin.pools.ListPools, admin_pb2.ListPoolsRequest(tenant_id="\x00"), "tenantId"),
        (
            admin.credentials.IssueToken,
            admin_pb2.IssueTokenRequest(subject="s", tenants=["a", "\x00"]),
            "tenants[1]",
        ),
    ):
        bearer = admin if method not in (create, *vars(stub).values()) else alice
        refused = await bearer.refused(method, message)
        assert is_refusal(refused, Reason.INVALID_INPUT, field=path), (path, refused.message)


HOSTILE = {
    "a path": "../../etc/passwd",
    "a line end": "a\nb",
    "SQL": "'; DROP TABLE reservations; --",
    "an escape": "\x1b[2J",
    "a direction": "\u202epool",
    "many bytes": "😀" * 999,
    "a format": "%s%n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_texts_end_in_a_refusal_that_fits_its_header(
    site: Site, alice: Client, admin: Client, text: str
) -> None:
    stub = alice.reservations
    asked: list[tuple[Any, Any]] = [
        (stub.CreateReservation, creation(text)),
        (stub.CreateReservation, creation("p", tenant_id=text)),
        (stub.CreateReservation, creation("p", idempotency_key=text, binding=text)),
        (stub.CreateReservation, creation("p", duration=text)),
        (
            stub.CreateReservation,
            creation("p", devices=[pb.DeviceRequest(**{"class": text}, count=1)]),
        ),
        (stub.GetReservation, pb.GetReservationRequest(tenant_id=TENANT, reservation_id=text)),
        (stub.GetReservation, pb.GetReservationRequest(tenant_id=text, reservation_id=text)),
        (stub.ReleaseReservation, pb.ReleaseReservationRequest(tenant_id=text)),
        (stub.ListReservations, pb.ListReservationsRequest(tenant_id=text)),
        (stub.ListReservations, pb.ListReservationsRequest(tenant_id=TENANT, cursor=text)),
        (stub.ListReservations, pb.ListReservationsRequest(tenant_id=TENANT, state=text)),
        (stub.ListReservations, pb.ListReservationsRequest(tenant_id=TENANT, scope=text)),
        (alice.pools.ListPools, admin_pb2.ListPoolsRequest(tenant_id=text)),
        (alice.nodes.ListNodes, admin_pb2.ListNodesRequest(tenant_id=TENANT, pool_id=text)),
    ]
    for method, message in asked:
        refused = await alice.refused(method, message)
        assert refused.details, "the details came through"
        assert all(said.isprintable() for said in (refused.message, *refused.details.values()))
        assert refused.reason in (Reason.INVALID_INPUT, Reason.ACCESS_DENIED, Reason.NOT_FOUND)
    asked = [
        (admin.nodes.CordonNode, admin_pb2.CordonNodeRequest(node_id=text)),
        (admin.nodes.RevokeNode, admin_pb2.RevokeNodeRequest(node_id=text)),
        (
            admin.credentials.CreateJoinToken,
            admin_pb2.CreateJoinTokenRequest(pool_id=text),
        ),
        (
            admin.credentials.EnrollGateway,
            admin_pb2.EnrollGatewayRequest(gateway_id=text, names=["x"]),
        ),
    ]
    for method, message in asked:
        refused = await admin.refused(method, message)
        assert refused.reason is Reason.INVALID_INPUT


async def test_a_message_beyond_a_megabyte_is_refused_and_the_next_one_served(
    site: Site, alice: Client
) -> None:
    labels = {f"k{i}": "x" * 100_000 for i in range(11)}
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await alice.call(alice.reservations.CreateReservation, creation("p", labels=labels))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await alice.create()).state == "pending"


@pytest.mark.parametrize(
    "method",
    [
        "bcd.wire.compute.v1.ReservationsService/CreateReservation",
        "bcd.wire.compute.v1.PoolsService/ListPools",
        "grpc.health.v1.Health/Check",
    ],
)
async def test_bytes_that_are_no_message_are_the_callers_mistake_and_fill_no_log(
    site: Site, alice: Client, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    raw = alice.channel.unary_unary(
        f"/{method}", request_serializer=lambda body: body, response_deserializer=bytes
    )
    caplog.clear()
    refused = await alice.refused(raw, b"\xff\xff\xff\xff")
    assert (refused.reason, refused.told) == (Reason.INVALID_INPUT, True)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []
    assert (await alice.create()).state == "pending"


# Errors


ERRORS: list[BcdError] = [
    InvalidInput("devices[0].count", "must be small"),
    Unsupported("spot is not supported yet", field="spot"),
    Conflict("used before", reservationId="rsv_x"),
    AccessDenied("the policy refuses", caps="gpus,duration"),
    Unauthenticated("no token"),
    QuotaExceeded("gpu", resource="gpu", limit="1", used="1", asked="2"),
    NotFound("nothing", poolId="pool_x"),
    InvalidState("too late", state="active"),
    Unavailable("try again"),
]


@dataclass
class Ended(Exception):
    """What a call's status was."""

    status: Any


class FakeContext:
    """A call that ends with whatever status it is given."""

    def __init__(self, token: str) -> None:
        self._token = token

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token}"),)

    async def abort_with_status(self, status: Any) -> None:
        raise Ended(status)


async def ended(site: Site, error: Exception) -> tuple[int, str, error_details_pb2.ErrorInfo]:
    """How a handler's error leaves: (code, message, details)."""

    async def handler(_caller: object, _request: object) -> Any:
        raise error

    context: Any = FakeContext(site.token())
    with pytest.raises(Ended) as end:
        await Edge(site.issuer).serve(handler, LIST, context)
    status = end.value.status
    (packed,) = [v for k, v in status.trailing_metadata if k == "grpc-status-details-bin"]
    rich = rpc_status.status_pb2.Status.FromString(packed)
    info = error_details_pb2.ErrorInfo()
    detail: AnyMessage = rich.details[0]
    assert detail.Unpack(info)
    assert (rich.code, rich.message) == (status.code.value[0], status.details)
    return rich.code, rich.message, info


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.reason)
async def test_a_refusal_carries_reason_domain_and_details(site: Site, error: BcdError) -> None:
    code, message, info = await ended(site, error)
    assert code == CODES[error.reason]
    assert message == error.message
    assert (info.reason, info.domain) == (error.reason, "bcd.dev")
    assert dict(info.metadata) == dict(error.details)


SECRET = "postgresql://placer:hunter2@10.0.0.1/db"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(SECRET),
        KeyError(SECRET),
        AssertionError(SECRET),
        BrokenFile(SECRET, SECRET, SECRET),
        BcdError(SECRET, path=SECRET),
        StoreUnavailable(SECRET),
        TimeoutError(SECRET),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_breaks_inside_is_logged_and_never_told(
    site: Site, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        _, message, info = await ended(site, error)
    assert info.reason in ("INTERNAL", "UNAVAILABLE")
    assert dict(info.metadata) == {}
    for part in ("hunter2", "10.0.0.1", "Traceback", "Error", "File "):
        assert part not in message
    assert any(record.name == "bcd.placer.api.edge" for record in caplog.records)


async def test_a_database_that_is_gone_is_told_as_unavailable(site: Site, alice: Client) -> None:
    await site.world.database.close()
    refused = await alice.refused(alice.reservations.ListReservations, LIST)
    assert refused.reason is Reason.UNAVAILABLE
    assert refused.message == "the database does not answer; try again"


async def test_one_caller_or_all_together_have_so_many_calls_at_once_and_strangers_none(
    site: Site, alice: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "_MAX_CALLS", 3)
    monkeypatch.setattr(edge, "_MAX_CALLS_OF_ONE", 2)
    started, finish = asyncio.Semaphore(0), asyncio.Event()
    read = site.placer._database.read

    async def slow(*arguments: Any, **values: Any) -> Any:
        started.release()
        await finish.wait()
        return await read(*arguments, **values)

    monkeypatch.setattr(site.placer._database, "read", slow)
    request = pb.ListReservationsRequest(tenant_id=TENANT)
    bob, carol = site.client("bob"), site.client("carol")

    def listing(client: Client) -> "asyncio.Task[Any]":
        return asyncio.ensure_future(client.call(client.reservations.ListReservations, request))

    running = [listing(alice), listing(alice)]
    async with asyncio.timeout(20):
        for _ in running:
            await started.acquire()
        refused = await alice.refused(alice.reservations.ListReservations, request)
        assert (refused.reason, refused.told) == (Reason.UNAVAILABLE, True)
        assert "too many calls at once" in refused.message
        running.append(listing(bob))
        await started.acquire()
        refused = await carol.refused(carol.reservations.ListReservations, request)
        assert refused.reason is Reason.UNAVAILABLE
        stranger = site.bearer("not.a.token")
        refused = await stranger.refused(stranger.reservations.ListReservations, request)
        assert refused.reason is Reason.UNAUTHENTICATED
        finish.set()
        await asyncio.gather(*running)
        await carol.call(carol.reservations.ListReservations, request)
