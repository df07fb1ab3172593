"""The whole placer in this process: standard services, restarts, a port that is taken."""

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from bcd.model.errors import Unavailable
from bcd.placer.pki.state import init_state
from bcd.placer.server import Placer
from bcd.placer.settings import ApiSettings, PlacerSettings
from bcd.store import enrolments
from bcd.store.database import Database, StoreUnavailable
from tests.placer.api.conftest import Site, settings_of, site, state
from tests.placer.waiting import until
from tests.placer.world import DOMAIN, dgx

SERVICES = {
    "bcd.wire.compute.v1.ReservationsService",
    "bcd.wire.compute.v1.PoolsService",
    "bcd.wire.compute.v1.NodesService",
    "bcd.wire.compute.v1.QuotasService",
    "bcd.wire.compute.v1.CredentialsService",
    "bcd.wire.compute.v1.EventsService",
    "bcd.wire.compute.v1.WebhooksService",
}
__all__ = ["site", "state"]


async def test_health_answers_for_the_whole_and_for_each_service(site: Site) -> None:
    stub = health_pb2_grpc.HealthStub(site.channel())
    for service in ("", *SERVICES):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stub.Check(health_pb2.HealthCheckRequest(service="nope"), timeout=10)
    assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_and_describes_the_services(site: Site) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(site.channel())
    symbol = "bcd.wire.compute.v1.ReservationsService"
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol),
    ]
    answers = [answer async for answer in stub.ServerReflectionInfo(iter(asked), timeout=10)]
    listed = {service.name for service in answers[0].list_services_response.service}
    assert listed >= SERVICES
    assert b"CreateReservation" in answers[1].file_descriptor_response.file_descriptor_proto[0]


async def test_a_placer_without_its_database_says_that_it_does_not_serve(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = health_pb2_grpc.HealthStub(site.channel())
    serving = health_pb2.HealthCheckResponse.SERVING

    async def status() -> object:
        return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)).status

    async def gone(*_arguments: object) -> None:
        raise StoreUnavailable("gone")

    assert await status() == serving
    for task in site.placer._tasks:  # the program's own look may end in between
        task.cancel()
    await asyncio.wait(site.placer._tasks)
    with monkeypatch.context() as patch:
        patch.setattr(site.placer._database, "read", gone)
        await site.placer._tell_health()
        assert await status() == health_pb2.HealthCheckResponse.NOT_SERVING
    await site.placer._tell_health()
    assert await status() == serving


async def test_a_port_that_is_taken_is_said_so(site: Site, tmp_path: Path) -> None:
    settings = PlacerSettings(
        database="",
        state=tmp_path / "second",
        api=ApiSettings(listen=f"127.0.0.1:{site.placer.port}"),
    )
    second = Placer(settings, site.world.database, init_state(settings.state, DOMAIN))
    with pytest.raises(Unavailable, match="that no other program listens on"):
        await second.start()
    await second.stop()


async def test_a_restarted_placer_goes_on_where_it_was(
    database: Database, database_url: str, site: Site
) -> None:
    await site.world.add_node(dgx("a"))
    alice = site.client()
    made = await alice.create(count=4)
    await site.placer.stop()
    token = site.token()
    again = Placer(site.placer._settings, database, site.placer._secrets)
    await again.start()
    try:
        site.placer.port, port = again.port, site.placer.port
        client = site.bearer(token)
        site.placer.port = port
        repeated = await client.create(count=4)
        assert repeated.id == made.id
        assert (await client.create("more", 4)).state == "placed"
        assert (await client.create("most", 4)).state == "pending"
    finally:
        await again.stop()


async def test_the_loops_do_their_work_as_soon_as_it_comes(site: Site) -> None:
    world = site.world
    node = await world.add_node(dgx("a"))
    made = await site.client().create(count=2)
    while await site.stored(made.id) != "binding":
        await world.connect(node)
    (allocation,) = await world.live(made.id)  # type: ignore[arg-type]
    await world.send(node, node.seal(node.report(allocation)), allocation.id)
    while await site.stored(made.id) != "active":
        await world.judge_reachability(node)
    asked = await world.database.write(enrolments.submit, "join", b"nonsense")
    assert asked is not None
    answered: list[object] = []
    stop = world.database.wakes.listen("enrolment-answer", answered.append)
    if await world.database.read(enrolments.answer_of, asked) is None:
        await until(lambda: bool(answered))
    stop()
    answer = await world.database.read(enrolments.answer_of, asked)
    assert answer is not None
    assert answer.credentials is None


async def test_a_placer_that_never_started_can_be_stopped(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    settings = settings_of(database_url, tmp_path / "state")
    await Placer(settings, database, init_state(settings.state, DOMAIN)).stop()
