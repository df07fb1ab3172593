"""A driver that hangs under a running daemon: the stream, the watchdog and the holds live on."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bcd.model.device import Device
from bcd.model.ids import NodeId
from bcd.model.report import Bound, Failed, FailureReason, Released
from bcd.node import watchdog
from bcd.node.daemon import Daemon
from bcd.node.host.machine import host_ports
from bcd.node.opening import open_daemon
from bcd.node.ports import Ports
from bcd.node.settings import Paths
from bcd.sim.mps import SimulatedMps
from bcd.sim.slices import SimulatedSlices
from bcd.wire.node.v1.inventory_pb2 import Inventory
from tests.node.fake_gateway import FakeGateway
from tests.node.world import Site, alloc_id, assignment, eventually, running
from tests.nvml.stub import QUICK, Host, State

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def gateway() -> AsyncIterator[FakeGateway]:
    """A running gateway."""
    started = FakeGateway()
    await started.start()
    yield started
    await started.stop()


@pytest.fixture
def site(gateway: FakeGateway, tmp_path: Path) -> Site:
    """An enrolled host; its daemon does not run yet."""
    return Site(tmp_path / "host", gateway)


def opened(site: Site, host: Host) -> Daemon:
    """A daemon whose GPUs are the stub's."""

    def make(paths: Paths, node: NodeId) -> Ports:
        return host_ports(
            paths,
            gpus=host.make(QUICK),
            slices=SimulatedSlices(paths.root),
            mps=SimulatedMps(paths.root),
        )

    return open_daemon(site.settings, make, serve_status=False)


def known(daemon: Daemon) -> tuple[Device, ...]:
    """The devices as NVML names them."""
    return daemon.ports.gpus.snapshot().devices


def has_devices(gateway: FakeGateway, site: Site) -> bool:
    """Whether the gateway was told of both GPUs: the first inventory comes before NVML's answer."""
    return len(gateway.inventories.get(site.node_id, Inventory()).devices) == 2


def health(inventory: Inventory) -> set[str]:
    return {f"{device.health.state}" for device in inventory.devices}


async def test_a_driver_that_hangs_costs_fresh_inventory_and_no_hold(
    site: Site, gateway: FakeGateway, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(watchdog, "notify", said.append)
    monkeypatch.setenv("WATCHDOG_USEC", "90000")
    host = Host(site.root, library, State())
    daemon = opened(site, host)
    async with running(daemon):
        await gateway.until(lambda: has_devices(gateway, site))
        healthy = gateway.inventories[site.node_id]
        one, two = known(daemon)
        gateway.want(site.node_id, assignment(1, one), generation=1)
        await gateway.until(lambda: bool(gateway.said(Bound)))
        [spec] = site.specs()
        before = (site.cdi / spec).read_bytes()

        host.set(rules=("hang *",))
        await gateway.until(lambda: gateway.inventories[site.node_id].hash != healthy.hash)
        unknown = gateway.inventories[site.node_id]
        assert [d.id for d in unknown.devices] == [one.id, two.id]
        assert health(unknown).isdisjoint(health(healthy))
        assert (site.cdi / spec).read_bytes() == before
        assert "NVMLUnresponsive" in {condition.type for condition in daemon.conditions}

        # A new hold fails with the reason; the one that stands can still be released.
        gateway.want(site.node_id, assignment(1, one), assignment(2, two), generation=2)
        await gateway.until(lambda: bool(gateway.said(Failed)))
        [report] = gateway.said(Failed)
        assert report.allocation_id == alloc_id(2)
        assert isinstance(report.outcome, Failed)
        assert report.outcome.reason == FailureReason.DRIVER_UNAVAILABLE
        assert (site.cdi / spec).read_bytes() == before
        pings = said.count("WATCHDOG=1")
        await eventually(lambda: said.count("WATCHDOG=1") > pings + 2)
        gateway.want(site.node_id, assignment(2, two), generation=3)
        await gateway.until(lambda: bool(gateway.said(Released)))
        assert daemon.session is not None
        sessions = daemon.counters["sessions"]

        host.set(rules=())
        await gateway.until(lambda: gateway.inventories[site.node_id].hash == healthy.hash)
        gateway.want(site.node_id, assignment(3, two), generation=4)
        await gateway.until(lambda: len(gateway.said(Bound)) == 2)
        assert daemon.counters["sessions"] == sessions == 1


async def test_a_daemon_starts_beside_a_driver_that_hangs_and_keeps_its_holds(
    site: Site, gateway: FakeGateway, library: Path
) -> None:
    host = Host(site.root, library, State())
    daemon = opened(site, host)
    async with running(daemon):
        await gateway.until(lambda: has_devices(gateway, site))
        gateway.want(site.node_id, assignment(1, *known(daemon)), generation=1)
        await gateway.until(lambda: bool(gateway.said(Bound)))
    specs = {name: (site.cdi / name).read_bytes() for name in site.specs()}
    assert specs
    host.set(rules=("hang nvmlDeviceGetCount_v2",))
    daemon = opened(site, host)
    async with running(daemon):
        await gateway.until(lambda: len(gateway.hellos) == 2)
        await eventually(lambda: "NVMLUnresponsive" in {c.type for c in daemon.conditions})
        assert {name: (site.cdi / name).read_bytes() for name in site.specs()} == specs
        host.set(rules=())
        await eventually(lambda: not daemon.conditions)
        assert {name: (site.cdi / name).read_bytes() for name in site.specs()} == specs


async def test_an_xid_reaches_the_gateway_without_waiting_for_a_look(
    site: Site, gateway: FakeGateway, library: Path
) -> None:
    host = Host(site.root, library, State())
    async with running(opened(site, host)):
        await gateway.until(lambda: has_devices(gateway, site))
        host.event(1, 79)
        async with asyncio.timeout(10):
            await gateway.until(
                lambda: (
                    [d.health.reason for d in gateway.inventories[site.node_id].devices]
                    == ["", "Xid 79"]
                )
            )
