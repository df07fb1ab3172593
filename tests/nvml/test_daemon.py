"""A driver that hangs under a running daemon: the stream, the watchdog and the holds live on."""

import asyncio
import json
import re
from pathlib import Path

import pytest

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
from tests.node.host.driver.fake import standing
from tests.node.world import Site, alloc_id, assignment, eventually, running
from tests.nvml.stub import QUICK, Host, Mig, State, gpu

pytestmark = pytest.mark.asyncio(loop_scope="session")


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


def has_devices(gateway: FakeGateway, site: Site, count: int = 2) -> bool:
    """Whether the gateway was told of them: the first inventory comes before NVML's answer."""
    return len(gateway.inventories.get(site.node_id, Inventory()).devices) == count


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


def nodes(site: Site) -> list[str]:
    """The device nodes of all specs' devices."""
    return [
        node["path"]
        for name in site.specs()
        for device in json.loads((site.cdi / name).read_text())["devices"]
        for node in device["containerEdits"]["deviceNodes"]
    ]


def libraries(site: Site) -> set[str]:
    """The versions of all libcuda files that specs mount."""
    return set(re.findall(r"libcuda\.so\.([0-9.]{3,})", "".join(
        (site.cdi / name).read_text() for name in site.specs()
    )))  # fmt: skip


async def test_an_instance_is_handed_over_with_the_driver_that_is_loaded(
    site: Site, gateway: FakeGateway, library: Path
) -> None:
    """NVML's words and the driver's files meet; an upgrade under a hold gives it the new files."""
    driver = standing(site.root)
    driver.mig(1, 5, 0, 147)
    state = State(
        driver=driver.version,
        gpus=(gpu(0), gpu(1, mig=True, migs=(Mig(uuid="MIG-a", gi=5),))),
    )
    host = Host(site.root, library, state, driver.open())
    daemon = opened(site, host)
    async with running(daemon):
        await gateway.until(lambda: has_devices(gateway, site, 3))
        whole, _, part = known(daemon)
        gateway.want(
            site.node_id, assignment(1, part), assignment(2, whole), generation=1
        )  # fmt: skip
        await gateway.until(lambda: len(gateway.said(Bound)) == 2)
        assert sorted(nodes(site)) == [
            "/dev/nvidia-caps/nvidia-cap147",
            "/dev/nvidia-caps/nvidia-cap148",
            "/dev/nvidia0",
            "/dev/nvidia1",
        ]
        assert libraries(site) == {driver.version}
        host.set(init=18)
        driver.remove_libraries()
        driver.version = "570.86.15"
        driver.install()
        host.set(init=18, nvml="12.570.86.15")
        driver.kernel()
        await eventually(lambda: "DriverLibraryMismatch" in {c.type for c in daemon.conditions})
        assert len(site.specs()) == 2
        host.set(init=0, driver="570.86.15")
        await eventually(lambda: libraries(site) == {"570.86.15"})
        assert len(nodes(site)) == 4
        assert not gateway.said(Released)
        assert not gateway.said(Failed)


async def test_a_hang_that_begins_with_a_bind_is_never_reported_as_bound(
    site: Site, gateway: FakeGateway, library: Path
) -> None:
    host = Host(site.root, library, State())
    daemon = opened(site, host)
    async with running(daemon):
        await gateway.until(lambda: has_devices(gateway, site))
        host.set(rules=("hang *",))
        gateway.want(site.node_id, assignment(1, known(daemon)[0]), generation=1)
        await gateway.until(lambda: bool(gateway.said(Failed)))
        [report] = gateway.said(Failed)
        assert isinstance(report.outcome, Failed)
        assert report.outcome.reason == FailureReason.DRIVER_UNAVAILABLE
        assert not gateway.said(Bound)
        assert not site.specs()
        host.set(rules=())
        await gateway.until(lambda: bool(gateway.said(Bound)))


async def test_libraries_that_vanish_under_a_hold_leave_its_spec_and_bar_new_ones(
    site: Site, gateway: FakeGateway, library: Path
) -> None:
    driver = standing(site.root)
    host = Host(site.root, library, State(driver=driver.version), driver.open())
    daemon = opened(site, host)
    async with running(daemon):
        await gateway.until(lambda: has_devices(gateway, site))
        one, two = known(daemon)
        gateway.want(site.node_id, assignment(1, one), generation=1)
        await gateway.until(lambda: bool(gateway.said(Bound)))
        [spec] = site.specs()
        before = (site.cdi / spec).read_bytes()
        driver.remove_libraries()
        await eventually(lambda: "DriverNotReady" in {c.type for c in daemon.conditions})
        gateway.want(site.node_id, assignment(1, one), assignment(2, two), generation=2)
        await gateway.until(lambda: bool(gateway.said(Failed)))
        [report] = gateway.said(Failed)
        assert isinstance(report.outcome, Failed)
        assert report.outcome.reason == FailureReason.DRIVER_FILE_MISSING
        assert (site.cdi / spec).read_bytes() == before
        driver.install()
        await gateway.until(lambda: len(gateway.said(Bound)) == 2)
        assert (site.cdi / spec).read_bytes() == before
