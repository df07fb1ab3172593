"""A gateway that is away for an hour, and for a day and a half: holds stay, the node comes back.

Clocks are moved by hand, certificates are real; TLS runs on real time, so the authority here
dates certificates back by days.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from bcd.model.report import Bound, Released
from bcd.node.daemon import Daemon
from bcd.node.identity import is_valid, load_identity
from bcd.node.settings import GatewaySettings
from tests.node.clock import HandClock
from tests.node.fake_gateway import LONG_BEFORE_MS, FakeGateway
from tests.node.world import Site, alloc_id, assignment, eventually, limits, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOUR_S = 3_600
SPECS = [f"bcd-{alloc_id(1)}.json"]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(clock: HandClock) -> AsyncIterator[FakeGateway]:
    running_gateway = FakeGateway(clock_ms=clock.wall_ms, heartbeat_interval_ms=300_000)
    await running_gateway.start()
    yield running_gateway
    await running_gateway.stop()


@pytest.fixture
def site(gateway: FakeGateway, clock: HandClock, tmp_path: Path) -> Site:
    """A host whose daemon dials every few minutes once it has waited long."""
    site = Site(tmp_path / "host", gateway, clock=clock)
    gateway.backdate_ms = LONG_BEFORE_MS
    site.settings = msgspec.structs.replace(
        site.settings,
        gateway=GatewaySettings(
            address=gateway.address,
            enroll_address=gateway.enroll_address,
            max_backoff_seconds=600,
        ),
    )
    return site


async def bind(site: Site, gateway: FakeGateway) -> None:
    gateway.want(site.node_id, assignment(1, site.devices()[0], limits=limits()), generation=1)
    await gateway.until(lambda: bool(gateway.said(Bound) and gateway.acks))


async def back(gateway: FakeGateway, site: Site, clock: HandClock) -> None:
    """The gateway is there again; time goes on until the node is."""
    gateway.hellos.clear()
    gateway.reports.clear()
    await gateway.start()
    async with asyncio.timeout(30):
        while site.node_id not in gateway.streams:
            await clock.advance(5, settle_s=0.02)
    await gateway.until(lambda: bool(gateway.said(Bound)))


async def until_tried(daemon: Daemon, clock: HandClock) -> None:
    """Time goes on until the node has asked in vain for a new certificate."""
    async with asyncio.timeout(30):
        while "not renewed" not in daemon.status()["gateway"]["problem"]:
            await clock.advance(5, settle_s=0.02)


def disk(site: Site) -> list[tuple[str, int]]:
    paths = [*site.cdi.iterdir(), *site.env.iterdir()]
    return sorted((path.name, path.stat().st_mtime_ns) for path in paths)


async def test_an_hour_without_gateway_changes_nothing(
    site: Site, gateway: FakeGateway, clock: HandClock
) -> None:
    daemon = site.open()
    async with running(daemon):
        await bind(site, gateway)
        before = disk(site)
        await gateway.stop()
        await clock.advance(HOUR_S, settle_s=0.002)
        assert daemon.status()["gateway"]["connected"] is False
        assert disk(site) == before
        assert site.slices() == [f"bcd-alloc-{alloc_id(1)}.slice"]
        await back(gateway, site, clock)
        assert gateway.renewals == 0
        assert disk(site) == before


async def test_a_day_and_a_half_without_gateway_costs_the_certificate_and_no_hold(
    site: Site, gateway: FakeGateway, clock: HandClock
) -> None:
    daemon = site.open()
    async with running(daemon):
        await bind(site, gateway)
        before, old = disk(site), daemon.identity.current
        await gateway.stop()
        await clock.advance(36 * HOUR_S, settle_s=0.002)
        assert not is_valid(old, clock.wall_ms())
        await until_tried(daemon, clock)
        assert disk(site) == before
        await back(gateway, site, clock)
        assert gateway.renewals >= 1
        await eventually(lambda: daemon.identity.current is not old)
        assert disk(site) == before
        assert is_valid(load_identity(site.state).current, clock.wall_ms())
        await released(site, gateway, daemon)


async def test_a_restart_with_an_expired_certificate_renews_and_comes_back(
    site: Site, gateway: FakeGateway, clock: HandClock
) -> None:
    async with running(site.open()):
        await bind(site, gateway)
    await gateway.stop()
    await clock.advance(36 * HOUR_S)
    daemon = site.open()
    async with running(daemon):
        await until_tried(daemon, clock)
        assert site.specs() == SPECS
        await back(gateway, site, clock)
        assert gateway.renewals >= 1


async def released(site: Site, gateway: FakeGateway, daemon: Daemon) -> None:
    """The control plane is obeyed again."""
    gateway.want(site.node_id, generation=2)
    await gateway.until(lambda: bool(gateway.said(Released)))
    assert site.specs() == []
    assert daemon.status()["desired"]["generation"] == 2
