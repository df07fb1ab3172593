"""Enrolments: carried to the placer and back, bounded on the way, refused with its reason."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from bcd.gateway.enrol import MAX_CSR_BYTES
from bcd.gateway.server import Gateway
from bcd.model.errors import Reason
from bcd.signing import keys
from bcd.signing.certificates import make_csr
from bcd.signing.envelope import PayloadType, seal
from bcd.store import enrolments
from bcd.store.enrolments import Answer, Enrolment
from bcd.wire.node.v1 import enrollment_pb2 as pb
from bcd.wire.node.v1.enrollment_pb2_grpc import EnrollmentServiceStub
from bcd.wire.status import decode_error
from tests.gateway.conftest import Site
from tests.gateway.waiting import until

CREDENTIALS = pb.Credentials(id="node_x", chain=[b"\0leaf"], bundle=[b"ca"])
JOIN = pb.EnrollRequest(token_id="token1", csr=make_csr(keys.generate_key()), hmac=b"h" * 32)


def renewal() -> pb.RenewRequest:
    key = keys.generate_key()
    body = pb.Renewal(csr=make_csr(key), signed_at_ms=1).SerializeToString()
    return pb.RenewRequest(envelope=seal(key, PayloadType.RENEWAL, body))


class Placer:
    """Answers enrolments as a placer would, by a decision that the test gives."""

    def __init__(self, site: Site, decide: Callable[[Enrolment], Answer]) -> None:
        self.seen: list[Enrolment] = []
        self._database = site.database
        self._decide = decide
        self._due = asyncio.Event()
        site.database.wakes.listen("enrolment", lambda _: self._due.set())

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            for enrolment in await self._database.write(enrolments.claim, 100):
                self.seen.append(enrolment)
                answer = self._decide(enrolment)
                await self._database.write(enrolments.answer, enrolment.id, answer)


def grant(_: Enrolment) -> Answer:
    return Answer(CREDENTIALS.SerializeToString(), None)


@pytest.fixture
async def stub(site: Site, gateway: Gateway) -> AsyncIterator[Any]:
    """A client of the enrolment port, without a certificate of its own."""
    credentials = grpc.ssl_channel_credentials(site.authority.gateway().bundle_pem)
    target = f"127.0.0.1:{gateway.enrolment_port}"
    async with grpc.aio.secure_channel(target, credentials) as channel:
        yield EnrollmentServiceStub(channel)


async def refused(call: Any) -> tuple[Reason, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = decode_error(caught.value)
    return error.reason, error.message


async def test_a_granted_enrolment_comes_back_as_the_placer_gave_it(site: Site, stub: Any) -> None:
    placer = Placer(site, grant)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(placer.run())
        answer = await stub.Enroll(JOIN)
        renewed = await stub.Renew(renewal())
        working.cancel()
    assert answer.credentials == renewed.credentials == CREDENTIALS
    assert [entry.kind for entry in placer.seen] == ["join", "renewal"]
    assert placer.seen[0].body == JOIN.SerializeToString()


async def test_a_refusal_comes_back_with_the_placers_reason(site: Site, stub: Any) -> None:
    placer = Placer(site, lambda _: Answer(None, "the token was used"))
    async with asyncio.TaskGroup() as group:
        working = group.create_task(placer.run())
        for call in (stub.Enroll(JOIN), stub.Renew(renewal())):
            assert await refused(call) == (Reason.ACCESS_DENIED, "the token was used")
        working.cancel()


async def test_an_answer_is_found_without_a_wake_up(site: Site, stub: Any) -> None:
    """The wake-up may be lost: the gateway asks again every second."""
    call = stub.Enroll(JOIN)

    async def asked() -> bool:
        return bool(await site.database.write(enrolments.claim, 1))

    await until(asked)
    (entry,) = await site.database.write(enrolments.claim, 1)
    await site.database.write(
        lambda tx: tx.run(
            "UPDATE enrolments SET answer = :answer, answered_ms = 1 WHERE id = :id",
            answer=CREDENTIALS.SerializeToString(),
            id=entry.id,
        )
    )
    assert (await call).credentials == CREDENTIALS


async def test_a_placer_that_does_not_answer_is_said_so_in_time(stub: Any) -> None:
    reason, message = await refused(stub.Enroll(JOIN))
    assert reason == Reason.UNAVAILABLE
    assert "try again later" in message


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("tokenId", {"token_id": ""}),
        ("tokenId", {"token_id": "../../x"}),
        ("tokenId", {"token_id": "t" * 1000}),
        ("csr", {"csr": b""}),
        ("csr", {"csr": b"x" * (MAX_CSR_BYTES + 1)}),
        ("hmac", {"hmac": b"short"}),
        ("hmac", {"hmac": b"h" * 33}),
    ],
)
async def test_a_join_out_of_bounds_never_reaches_the_placer(
    site: Site, stub: Any, field: str, change: dict[str, Any]
) -> None:
    request = pb.EnrollRequest(
        **{"token_id": JOIN.token_id, "csr": JOIN.csr, "hmac": JOIN.hmac} | change
    )
    reason, message = await refused(stub.Enroll(request))
    assert reason == Reason.INVALID_INPUT
    assert message.startswith(field)
    assert await site.database.write(enrolments.claim, 10) == []


async def test_a_renewal_without_a_payload_or_with_too_much_is_refused(
    site: Site, stub: Any
) -> None:
    big = pb.RenewRequest()
    big.envelope.payload = b"x" * (MAX_CSR_BYTES + 1)
    for request in (pb.RenewRequest(), big):
        assert (await refused(stub.Renew(request)))[0] == Reason.INVALID_INPUT
    assert await site.database.write(enrolments.claim, 10) == []


@pytest.mark.parametrize("name", ["Enroll", "Renew"])
async def test_bytes_that_are_no_message_are_the_callers_mistake_and_fill_no_log(
    site: Site, gateway: Gateway, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    credentials = grpc.ssl_channel_credentials(site.authority.gateway().bundle_pem)
    target = f"127.0.0.1:{gateway.enrolment_port}"
    async with grpc.aio.secure_channel(target, credentials) as channel:
        method: Any = channel.unary_unary(f"/bcd.wire.node.v1.EnrollmentService/{name}")
        caplog.clear()
        for _ in range(3):
            assert (await refused(method(b"\xff\xff")))[0] is Reason.INVALID_INPUT
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


async def test_refusals_without_number_are_a_few_lines_in_the_log(
    stub: Any, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        await refused(stub.Enroll(pb.EnrollRequest()))
    lines = [r for r in caplog.records if r.getMessage() == "enrolment refused"]
    assert 20 <= len(lines) <= 40
    assert gateway.counters["enrolments_refused"] == 100


async def test_a_message_over_the_limit_is_refused_before_it_is_read(site: Site, stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Enroll(pb.EnrollRequest(csr=b"x" * 100_000))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_bounded_number_of_callers_waits_at_a_time(site: Site) -> None:
    gateway = await site.start(max_enrolments=2)
    credentials = grpc.ssl_channel_credentials(site.authority.gateway().bundle_pem)
    target = f"127.0.0.1:{gateway.enrolment_port}"
    async with grpc.aio.secure_channel(target, credentials) as channel:
        stub: Any = EnrollmentServiceStub(channel)
        waiting = [stub.Enroll(JOIN) for _ in range(2)]

        async def both_wait() -> bool:
            return len(await site.database.write(enrolments.claim, 10)) == 2

        await until(both_wait)
        reason, message = await refused(stub.Enroll(JOIN))
        assert reason == Reason.UNAVAILABLE
        assert "too many" in message
        for call in waiting:
            call.cancel()

        async def room_again() -> bool:
            count = len(await site.database.write(enrolments.claim, 10))
            stub.Enroll(JOIN)
            return count == 3

        await until(room_again)


async def test_the_placer_is_not_flooded(site: Site, stub: Any) -> None:
    def fill(tx: Any) -> None:
        for _ in range(enrolments.MAX_OPEN):
            enrolments.submit(tx, "join", b"x")

    await site.database.write(fill)
    reason, message = await refused(stub.Enroll(JOIN))
    assert reason == Reason.UNAVAILABLE
    assert "too many" in message
